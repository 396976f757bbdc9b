// Sums in sixteen lanes: vector code whose order of addition does not depend on how wide a machine's
// vectors are.
#pragma once

#include <cstring>

#include "common/element.h"

namespace torchgraph {

constexpr int kLanes = 16;
constexpr int kQuads = kLanes / 4;
using Quad = double __attribute__((vector_size(4 * sizeof(double))));

template <class M>
struct FourOf {
  typedef M type __attribute__((vector_size(4 * sizeof(M))));
};

template <class M>
TG_INLINE void load_quad(const M* from, Quad& out) {
  typename FourOf<M>::type values;
  memcpy(&values, from, sizeof values);
  out = __builtin_convertvector(values, Quad);
}

// Added up in float64. The last values are filled up with zeros.
template <class M>
TG_INLINE double sum_of_squares(const M* values, int64_t size) {
  Quad sums[kQuads] = {};
  const auto add = [&](const M* sixteen) {
    for (int k = 0; k < kQuads; ++k) {
      Quad x;
      load_quad(sixteen + 4 * k, x);
      sums[k] += x * x;
    }
  };
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) add(values + i);
  if (i < size) {
    M last[kLanes] = {};
    memcpy(last, values + i, (size - i) * sizeof(M));
    add(last);
  }
  double sum = 0;
  for (int j = 0; j < kLanes; ++j) sum += sums[j / 4][j % 4];
  return sum;
}

}  // namespace torchgraph
