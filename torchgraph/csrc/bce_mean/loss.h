// Binary cross-entropy of logits: one element's loss and gradient, the same on a CPU and a GPU.
#pragma once

#include "common/exponential.h"

namespace torchgraph {

// log(1 + x) for x from 0 to 1: log((1 + s) / (1 - s)) with s = x / (2 + x), at most a third, by its
// series of odd powers.
template <class T>
TG_INLINE T log_of_one_plus(T x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == sizeof(float)) return log1pf(x);
  else return log1p(x);
#else
  constexpr int kTerms = sizeof(T) == sizeof(float) ? 8 : 17;
  const T s = x / (T(2) + x), square = s * s;
  T series = T(1) / T(2 * kTerms - 1);
  for (int k = kTerms - 1; k-- > 0;) series = series * square + T(1) / T(2 * k + 1);
  return T(2) * s * series;
#endif
}

// exp(-|x|)
template <class T>
TG_INLINE T exponential_below_zero(T x) {
  return exponential(x < 0 ? x : -x);
}

// As ATen's (1 - target) * x - log_sigmoid(x).
template <class T>
TG_INLINE T bce_loss(T x, T target) {
  const T log_sigmoid = (x < 0 ? x : T(0)) - log_of_one_plus(exponential_below_zero(x));
  return (T(1) - target) * x - log_sigmoid;
}

template <class T>
TG_INLINE T bce_gradient(T x, T target, T factor) {
  const T small = exponential_below_zero(x);
  const T sigmoid = (x < 0 ? small : T(1)) / (T(1) + small);
  return (sigmoid - target) * factor;
}

}  // namespace torchgraph
