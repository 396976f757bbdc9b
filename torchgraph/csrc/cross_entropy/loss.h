// The arithmetic of softmax cross-entropy: one sweep over the logits forward, one backward.
//
// A is the type that sums are kept in: float, or double for double logits.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "common/exponential.h"

namespace torchgraph {

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };

// The loss is target * (loss at the target) + uniform * (sum of the losses at all classes).
struct Smoothing {
  double target;   // 1 - label_smoothing
  double uniform;  // label_smoothing / classes

  TG_INLINE Smoothing(double smoothing, int64_t classes)
      : target(1.0 - smoothing), uniform(smoothing / double(classes)) {}
};

// A strided matrix of logits, and what the loss of its rows is made from.
struct LossProblem {
  const void* logits;
  int64_t rows, classes, row_stride, class_stride;
  const int64_t* targets;
  int64_t target_stride, ignored;
  const void* weight;  // per class, one after the other, in the wide type; null: all are 1
  Smoothing smoothing;
  bool smooth;

  TG_INLINE int64_t target(int64_t row) const { return targets[row * target_stride]; }

  template <class A>
  TG_INLINE A weight_of(int64_t of_class) const {
    return weight == nullptr ? A(1) : static_cast<const A*>(weight)[of_class];
  }
};

// What is known of the logits x of a row, or of a part of it. w: the weights of the classes.
template <class A>
struct Sweep {
  static constexpr A kNothing = -std::numeric_limits<A>::infinity();

  A max = kNothing;
  A sum = 0;       // of exp(x - max)
  A weights = 0;   // of w       } for label smoothing:
  A distance = 0;  // of w (x - max) } all terms have one sign, nothing cancels

  // What is subtracted: not the maximum when that is -inf, for which the difference is not 0.
  static TG_INLINE A reference(A max) { return max == kNothing ? A(0) : max; }

  // n logits that lie in fast memory; w is null where all classes weigh 1.
  template <bool kSmooth>
  TG_INLINE void absorb(const A* x, const A* w, int64_t n) {
    A highest = kNothing;
#ifndef __CUDA_ARCH__
#pragma omp simd reduction(max : highest)
#endif
    for (int64_t i = 0; i < n; ++i) highest = x[i] > highest ? x[i] : highest;
    Sweep part;
    part.max = highest;
    const A from = reference(highest);
    A sum = 0;
#ifndef __CUDA_ARCH__
#pragma omp simd reduction(+ : sum)
#endif
    for (int64_t i = 0; i < n; ++i) sum += exponential(x[i] - from);
    part.sum = sum;
    if constexpr (kSmooth) part.measure(x, w, n, from);
    merge<kSmooth>(part);
  }

  TG_INLINE void measure(const A* x, const A* w, int64_t n, A from) {
    A total = 0, apart = 0;
    if (w == nullptr) {
#ifndef __CUDA_ARCH__
#pragma omp simd reduction(+ : apart)
#endif
      for (int64_t i = 0; i < n; ++i) apart += x[i] - from;
      total = A(n);
    } else {
#ifndef __CUDA_ARCH__
#pragma omp simd reduction(+ : total, apart)
#endif
      for (int64_t i = 0; i < n; ++i) {
        total += w[i];
        apart += w[i] * (x[i] - from);
      }
    }
    weights = total;
    distance = apart;
  }

  // Both parts as seen from the higher maximum.
  template <bool kSmooth>
  TG_INLINE void merge(const Sweep& other) {
    const A highest = other.max > max ? other.max : max;
    sum = sum * shrunk(max, highest) + other.sum * shrunk(other.max, highest);
    if constexpr (kSmooth) {
      const A from = reference(highest);
      distance = (distance - weights * (from - reference(max))) +
                 (other.distance - other.weights * (from - reference(other.max)));
      weights += other.weights;
    }
    max = highest;
  }

  static TG_INLINE A shrunk(A max, A highest) {
    return max == highest || max == kNothing ? A(1) : exponential(max - highest);
  }

  TG_INLINE double lse() const { return double(max) + log(double(sum)); }

  // The row's loss: x and w are the logit and the weight of its target.
  template <bool kSmooth>
  TG_INLINE double loss(A x, A w, Smoothing smoothing) const {
    const double spread = log(double(sum));
    const double at_target = double(w) * ((double(max) - double(x)) + spread);
    if constexpr (!kSmooth) {
      return at_target;
    } else {
      const double over_all = double(weights) * spread - double(distance);
      return smoothing.target * at_target + smoothing.uniform * over_all;
    }
  }
};

// The gradient of a row's loss, times `grad`, by its logits.
template <class A>
struct LogitsGradient {
  A high, low;  // the row's lse in two parts: x - lse keeps its digits, however large both are
  A softmax, uniform, target;

  TG_INLINE LogitsGradient(double lse, double grad, double w, double weights, Smoothing smoothing)
      : high(A(lse)),
        low(A(lse - double(A(lse)))),
        softmax(A(grad * (smoothing.target * w + smoothing.uniform * weights))),
        uniform(A(grad * smoothing.uniform)),
        target(A(grad * smoothing.target * w)) {}

  // At a class whose logit is x and whose weight is w; `target` more is subtracted at the target.
  template <bool kSmooth>
  TG_INLINE A operator()(A x, A w) const {
    const A probability = exponential((x - high) - low) * softmax;
    return kSmooth ? probability - uniform * w : probability;
  }
};

}  // namespace torchgraph
