// Statistics of gradients: what one element adds to a norm, and how parts are put together.
#pragma once

#include "element.h"

namespace torchgraph {

enum class Norm : int32_t { kTwo, kOne, kLargest, kSmallest, kPower };

inline Norm norm_of(double p) {
  if (p == 2) return Norm::kTwo;
  if (p == 1) return Norm::kOne;
  if (std::isinf(p)) return p > 0 ? Norm::kLargest : Norm::kSmallest;
  return Norm::kPower;
}

// Of no elements, before any is added.
template <Norm kNorm>
TG_INLINE double nothing() {
  return kNorm == Norm::kSmallest ? HUGE_VAL : 0.0;
}

// NaN stays NaN: every comparison with it is false.
template <Norm kNorm>
TG_INLINE double combine(double a, double b) {
  if constexpr (kNorm == Norm::kLargest) return a >= b || a != a ? a : b;
  if constexpr (kNorm == Norm::kSmallest) return a <= b || a != a ? a : b;
  return a + b;
}

template <Norm kNorm>
TG_INLINE double term(double value, double p) {
  if constexpr (kNorm == Norm::kTwo) return value * value;
  if constexpr (kNorm == Norm::kPower) return pow(fabs(value), p);
  return fabs(value);
}

template <class T>
TG_INLINE bool is_finite(T value) {
  return value - value == 0;
}

TG_INLINE double finish(Norm norm, double value, double p, double grad_scale) {
  if (norm == Norm::kTwo) value = sqrt(value);
  if (norm == Norm::kPower) value = pow(value, 1 / p);
  return grad_scale == 1 ? value : value / fabs(grad_scale);
}

}  // namespace torchgraph
