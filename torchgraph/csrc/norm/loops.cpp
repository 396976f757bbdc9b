#include "norm/loops.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "common/clones.h"
#include "common/element.h"

namespace torchgraph {
namespace {

constexpr int64_t kPart = 512;  // elements that are added up in the wide type

// The row in the wide type, where it is or in the buffer.
template <class S>
TG_INLINE const wide_t<S>* read(const void* from, int64_t row, int64_t width, wide_t<S>* buffer) {
  const S* x = static_cast<const S*>(from) + row * width;
  if constexpr (std::is_same_v<S, wide_t<S>>) {
    return x;
  } else {
    for (int64_t i = 0; i < width; ++i) buffer[i] = widen(x[i]);
    return buffer;
  }
}

// One sweep over x + residual, which is stored, and in the buffer too where it has to be widened.
// Returns the sum of its elements for layer norm, of their squares for RMS norm.
template <class S, bool kCentered, bool kAdds>
TG_INLINE double sweep(const Norm& job, int64_t row, wide_t<S>* __restrict buffer) {
  using A = wide_t<S>;
  const int64_t width = job.width, start = row * width;
  const S* __restrict x = static_cast<const S*>(job.x) + start;
  const S* __restrict residual = static_cast<const S*>(job.residual) + (kAdds ? start : 0);
  S* __restrict sum = static_cast<S*>(job.sum) + (kAdds ? start : 0);
  double all = 0;
  for (int64_t at = 0; at < width; at += kPart) {
    const int64_t end = std::min(width, at + kPart);
    A part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = at; i < end; ++i) {
      A value = widen(x[i]);
      if constexpr (kAdds) {
        S stored;
        narrow(value + widen(residual[i]), stored);
        sum[i] = stored;
        value = widen(stored);
      }
      if constexpr (!std::is_same_v<S, A>) buffer[i] = value;
      part += kCentered ? value : value * value;
    }
    all += double(part);
  }
  return all;
}

template <class A>
TG_INLINE double sum_of_squares(const A* __restrict x, A from, int64_t n) {
  double all = 0;
  for (int64_t at = 0; at < n; at += kPart) {
    const int64_t end = std::min(n, at + kPart);
    A part = 0;
#pragma omp simd reduction(+ : part)
    for (int64_t i = at; i < end; ++i) part += (x[i] - from) * (x[i] - from);
    all += double(part);
  }
  return all;
}

template <class S, bool kCentered, bool kAdds>
TG_INLINE void normalize(const Norm& job, int64_t begin, int64_t end) {
  using A = wide_t<S>;
  constexpr bool kInPlace = std::is_same_v<S, A>;
  const int64_t width = job.width;
  std::vector<A> buffer(kInPlace ? 0 : width);
  const A* __restrict weight = static_cast<const A*>(job.weight);
  const A* __restrict bias = static_cast<const A*>(job.bias);
  for (int64_t row = begin; row < end; ++row) {
    double spread = sweep<S, kCentered, kAdds>(job, row, buffer.data());
    const A* __restrict x = buffer.data();
    if constexpr (kInPlace) x = static_cast<const A*>(kAdds ? job.sum : job.x) + row * width;
    A mean = 0;
    if constexpr (kCentered) {
      mean = A(spread / double(width));
      static_cast<A*>(job.mean)[row] = mean;
      spread = sum_of_squares(x, mean, width);
    }
    const A rstd = A(1.0 / std::sqrt(spread / double(width) + job.eps));
    static_cast<A*>(job.rstd)[row] = rstd;
    S* __restrict out = static_cast<S*>(job.out) + row * width;
    if (bias != nullptr) {
      for (int64_t i = 0; i < width; ++i)
        narrow((x[i] - mean) * rstd * weight[i] + bias[i], out[i]);
    } else {
      for (int64_t i = 0; i < width; ++i) narrow((x[i] - mean) * rstd * weight[i], out[i]);
    }
  }
}

template <class S, bool kCentered>
TG_INLINE void forward(const Norm& job, int64_t begin, int64_t end) {
  if (job.residual != nullptr) {
    normalize<S, kCentered, true>(job, begin, end);
  } else {
    normalize<S, kCentered, false>(job, begin, end);
  }
}

// Rows from begin to end. The gradients by weight and bias are added to what is there.
template <class S, bool kCentered, bool kAdds>
TG_INLINE void differentiate(const NormGradient& job, int64_t begin, int64_t end,
                             wide_t<S>* __restrict of_weight, wide_t<S>* __restrict of_bias) {
  using A = wide_t<S>;
  const int64_t width = job.width;
  const int64_t held = std::is_same_v<S, A> ? 0 : width;
  std::vector<A> grads(held), values(held);
  const A* __restrict weight = static_cast<const A*>(job.weight);
  for (int64_t row = begin; row < end; ++row) {
    const A* __restrict g = read<S>(job.grad_out, row, width, grads.data());
    const A* __restrict x = read<S>(job.sum, row, width, values.data());
    const A mean = kCentered ? static_cast<const A*>(job.mean)[row] : A(0);
    const A rstd = static_cast<const A*>(job.rstd)[row];
    double along = 0, level = 0;  // means of the gradient times the normalized x, of the gradient
    for (int64_t at = 0; at < width; at += kPart) {
      const int64_t stop = std::min(width, at + kPart);
      A part_along = 0, part_level = 0;
#pragma omp simd reduction(+ : part_along, part_level)
      for (int64_t i = at; i < stop; ++i) {
        const A weighted = g[i] * weight[i];
        part_along += weighted * ((x[i] - mean) * rstd);
        if constexpr (kCentered) part_level += weighted;
      }
      along += double(part_along);
      level += double(part_level);
    }
    const A slope = A(along / double(width)), shift = A(level / double(width));
    const S* __restrict more = static_cast<const S*>(job.grad_sum) + (kAdds ? row * width : 0);
    S* __restrict grad = static_cast<S*>(job.grad) + row * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const A normal = (x[i] - mean) * rstd;
      of_weight[i] += g[i] * normal;
      if constexpr (kCentered) of_bias[i] += g[i];
      A result = (g[i] * weight[i] - normal * slope - shift) * rstd;
      if constexpr (kAdds) result += widen(more[i]);
      narrow(result, grad[i]);
    }
  }
}

template <class S, bool kCentered>
TG_INLINE void backward(const NormGradient& job, int64_t begin, int64_t end) {
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    auto* of_weight = static_cast<wide_t<S>*>(job.parts) + chunk * 2 * job.width;
    const int64_t first = chunk * job.chunk, last = std::min(first + job.chunk, job.rows);
    if (job.grad_sum != nullptr) {
      differentiate<S, kCentered, true>(job, first, last, of_weight, of_weight + job.width);
    } else {
      differentiate<S, kCentered, false>(job, first, last, of_weight, of_weight + job.width);
    }
  }
}

// Functions with clones cannot be templates.
#define TG_NORM(S, kCentered, name)                                                       \
  TG_CLONES void name##_forward(const Norm& job, int64_t begin, int64_t end) {            \
    forward<S, kCentered>(job, begin, end);                                               \
  }                                                                                       \
  TG_CLONES void name##_backward(const NormGradient& job, int64_t begin, int64_t end) {   \
    backward<S, kCentered>(job, begin, end);                                              \
  }                                                                                       \
  constexpr NormKernels name{name##_forward, name##_backward};

TG_NORM(float, true, layer_float)
TG_NORM(double, true, layer_double)
TG_NORM(BFloat16, true, layer_bf16)
TG_NORM(Half, true, layer_half)
TG_NORM(float, false, rms_float)
TG_NORM(double, false, rms_double)
TG_NORM(BFloat16, false, rms_bf16)
TG_NORM(Half, false, rms_half)

}  // namespace

using torch::headeronly::ScalarType;

NormKernels norm_kernels(ScalarType dtype, bool centered) {
  switch (dtype) {
    case ScalarType::Double: return centered ? layer_double : rms_double;
    case ScalarType::BFloat16: return centered ? layer_bf16 : rms_bf16;
    case ScalarType::Half: return centered ? layer_half : rms_half;
    default: return centered ? layer_float : rms_float;
  }
}

}  // namespace torchgraph
