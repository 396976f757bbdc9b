// Sums and largest values in sixteen lanes: vector code whose order of addition does not depend on how
// wide a machine's vectors are.
#pragma once

#include <cstring>

#include "element.h"

namespace torchgraph {

constexpr int kLanes = 16;
constexpr int kQuads = kLanes / 4;
using Quad = double __attribute__((vector_size(4 * sizeof(double))));
using Sixteen = float __attribute__((vector_size(kLanes * sizeof(float))));

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

// Adds term(x) for all values, in float64. The last values are filled up with zeros.
template <class M, class F>
TG_INLINE double add_up(const M* values, int64_t size, const F& term) {
  Quad sums[kQuads] = {};
  const auto add = [&](const M* sixteen) {
    for (int k = 0; k < kQuads; ++k) {
      Quad x;
      load_quad(sixteen + 4 * k, x);
      term(x);
      sums[k] += x;
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

template <class M>
TG_INLINE double sum_of_squares(const M* values, int64_t size) {
  return add_up(values, size, [](Quad& x) { x *= x; });
}

template <class M>
TG_INLINE double sum_of_magnitudes(const M* values, int64_t size) {
  using Bits = int64_t __attribute__((vector_size(sizeof(Quad))));
  return add_up(values, size, [](Quad& x) { x = (Quad)((Bits)x & INT64_MAX); });
}

// The same squares in float32, eight to a lane before they go on in float64: within 3e-7 of it where
// the sum is finite and not as small as their rounding errors.
TG_INLINE double quick_sum_of_squares(const float* values, int64_t size) {
  constexpr int64_t kBlock = 8 * kLanes;
  constexpr int kAhead = 4096;  // bytes; the processor's own fetching stops at the end of a page
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kBlock <= size; i += kBlock) {
    Sixteen sums = {};
    for (int64_t k = 0; k < kBlock; k += kLanes) {
      __builtin_prefetch(reinterpret_cast<const char*>(values + i + k) + kAhead);
      Sixteen x;
      memcpy(&x, values + i + k, sizeof x);
      sums += x * x;
    }
    for (int j = 0; j < kLanes; ++j) lanes[j] += double(sums[j]);
  }
  double sum = sum_of_squares(values + i, size - i);
  for (double lane : lanes) sum += lane;
  return sum;
}

// NaN where one is there: without their signs, numbers are in the order of their bits.
TG_INLINE double largest_magnitude(const float* values, int64_t size) {
  int32_t most = 0;
  for (int64_t i = 0; i < size; ++i) {
    const auto bits = static_cast<int32_t>(as_bits(values[i]) & 0x7fffffffu);
    most = bits > most ? bits : most;
  }
  return as_float(static_cast<uint32_t>(most));
}
TG_INLINE double largest_magnitude(const double* values, int64_t size) {
  int64_t most = 0;
  for (int64_t i = 0; i < size; ++i) {
    int64_t bits;
    memcpy(&bits, values + i, sizeof bits);
    bits &= INT64_MAX;
    most = bits > most ? bits : most;
  }
  double value;
  memcpy(&value, &most, sizeof value);
  return value;
}

}  // namespace torchgraph
