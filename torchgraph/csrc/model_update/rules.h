// What an optimizer rule does to one element. The CPU loops and the CUDA kernels run these.
//
// M is what the arithmetic is in: double for float64 parameters, float for all others. A rule is
// made once per tensor from the numbers and flags of the call, in the order of the op's schema, and
// the step that the update makes. Where torch has a fused kernel, operations are rounded as there:
// ``fused`` marks what its compiler contracts.
#pragma once

#include "common/element.h"

namespace torchgraph {

constexpr int kMaxNumbers = 5;
constexpr int kMaxFlags = 3;
constexpr int kMaxStates = 3;

// Each kind has a loop of its own: one that asks for each element is not compiled as vector code.
enum Preparation { kPlain, kScaled, kPenalized };

struct Options {
  double numbers[kMaxNumbers];
  bool flags[kMaxFlags];
  bool maximize;
  double l1;
  double grad_scale;
  double clip_coef;
  // What is to be done to a gradient before the rule, besides its sign.
  TG_INLINE Preparation preparation() const {
    if (l1 != 0) return kPenalized;
    return grad_scale != 1 || clip_coef != 1 ? kScaled : kPlain;
  }
};

template <class M>
struct Gradient {
  M scale, clip, l1, sign;

  TG_INLINE explicit Gradient(const Options& o)
      : scale(M(o.grad_scale)), clip(M(o.clip_coef)), l1(M(o.l1)), sign(o.maximize ? M(-1) : M(1)) {}

  template <Preparation kPreparation>
  TG_INLINE M prepare(M g, M p) const {
    if constexpr (kPreparation == kPlain) return g * sign;
    g = g / scale * clip * sign;
    if constexpr (kPreparation == kScaled) return g;
    const M direction = p > 0 ? M(1) : (p < 0 ? M(-1) : M(0));
    return l1 != 0 ? fused(l1, direction, g) : g;
  }
};

// torch's lerp: exact at both ends.
template <class M>
struct Lerp {
  M factor;
  bool small;

  TG_INLINE explicit Lerp(double weight)
      : factor(M(weight)), small((M(weight) < 0 ? -M(weight) : M(weight)) < M(0.5)) {
    if (!small) factor = factor - 1;
  }
  TG_INLINE M operator()(M from, M to) const { return fused(factor, to - from, small ? from : to); }
};

template <class M>
TG_INLINE M decayed(M g, M p, M weight_decay) {
  return weight_decay != 0 ? fused(p, weight_decay, g) : g;
}

// ``next`` returns the new parameter; kUsed tells which states there are, kTail that the element is
// among the last ones of a tensor, which torch's kernels compute one by one and round elsewhere.

template <class M>
struct Sgd {
  M lr, weight_decay, momentum, rest;
  bool nesterov, first;

  static constexpr int kNumbers = 4, kFlags = 2, kStates = 1;
  static constexpr bool kSteps = false;

  TG_INLINE Sgd(const Options& o, double)
      : lr(M(o.numbers[0])),
        weight_decay(M(o.numbers[1])),
        momentum(M(o.numbers[2])),
        rest(M(1 - o.numbers[3])),
        nesterov(o.flags[0]),
        first(o.flags[1]) {}

  // No momentum: the buffer is left as it is.
  TG_INLINE static unsigned used(const Options& o, unsigned given) {
    return o.numbers[2] != 0 ? given : 0;
  }

  template <unsigned kUsed, bool kTail>
  TG_INLINE M next(M p, M g, M& buffer, M&, M&) const {
    g = decayed(g, p, weight_decay);
    if constexpr (kUsed & 1) {
      const M mixed = kTail ? fused(buffer, momentum, g * rest) : fused(g, rest, buffer * momentum);
      buffer = first ? g : mixed;
      g = nesterov ? fused(buffer, momentum, g) : buffer;
    }
    return fused(g, -lr, p);
  }
};

template <class M>
struct Adam {
  Lerp<M> lerp;
  M weight_decay, keep, beta2, rest2, correction, eps, step_size;

  static constexpr int kNumbers = 5, kFlags = 2, kStates = 3;
  static constexpr bool kSteps = true;

  TG_INLINE Adam(const Options& o, double step) : lerp(1 - o.numbers[1]) {
    const double lr = o.numbers[0], decay = o.numbers[4];
    const bool decoupled = o.flags[0];
    weight_decay = decoupled ? M(0) : M(decay);
    keep = decoupled ? M(fused(-lr, decay, 1.0)) : M(1);
    beta2 = M(o.numbers[2]);
    rest2 = M(1 - o.numbers[2]);
    correction = M(sqrt(1 - pow(o.numbers[2], step)));
    eps = M(o.numbers[3]);
    step_size = M(lr / (1 - pow(o.numbers[1], step)));
  }

  TG_INLINE static unsigned used(const Options& o, unsigned given) {
    return o.flags[1] ? given : given & 3u;
  }

  template <unsigned kUsed, bool kTail>
  TG_INLINE M next(M p, M g, M& first, M& second, M& largest) const {
    p = p * keep;
    g = decayed(g, p, weight_decay);
    first = lerp(first, g);
    second = kTail ? fused(second, beta2, rest2 * g * g) : fused(rest2 * g, g, second * beta2);
    M square = second;
    if constexpr (kUsed & 4) {
      const bool unordered = !kTail && second != second;
      square = largest = largest < second || unordered ? second : largest;
    }
    const M denominator = root(square) / correction + eps;
    return p - step_size * first / denominator;
  }
};

template <class M>
struct RmsProp {
  Lerp<M> lerp;
  M lr, alpha, rest, eps, weight_decay, momentum;

  static constexpr int kNumbers = 5, kFlags = 1, kStates = 3;
  static constexpr bool kSteps = true;

  TG_INLINE RmsProp(const Options& o, double)
      : lerp(1 - o.numbers[1]),
        lr(M(o.numbers[0])),
        alpha(M(o.numbers[1])),
        rest(M(1 - o.numbers[1])),
        eps(M(o.numbers[2])),
        weight_decay(M(o.numbers[3])),
        momentum(M(o.numbers[4])) {}

  TG_INLINE static unsigned used(const Options& o, unsigned given) {
    return given & (1u | (o.flags[0] ? 2u : 0u) | (o.numbers[4] > 0 ? 4u : 0u));
  }

  template <unsigned kUsed, bool kTail>
  TG_INLINE M next(M p, M g, M& square_avg, M& grad_avg, M& buffer) const {
    g = decayed(g, p, weight_decay);
    square_avg = fused(rest * g, g, square_avg * alpha);
    M square = square_avg;
    if constexpr (kUsed & 2) {
      grad_avg = lerp(grad_avg, g);
      square = fused(-grad_avg, grad_avg, square);
    }
    const M denominator = root(square) + eps;
    if constexpr (kUsed & 4) {
      buffer = buffer * momentum + g / denominator;
      return fused(buffer, -lr, p);
    }
    return p - lr * g / denominator;
  }
};

template <class M>
struct Adagrad {
  M weight_decay, eps, rate;

  static constexpr int kNumbers = 4, kFlags = 0, kStates = 1;
  static constexpr bool kSteps = true;

  TG_INLINE Adagrad(const Options& o, double step)
      : weight_decay(M(o.numbers[3])),
        eps(M(o.numbers[2])),
        rate(M(o.numbers[0] / fused(step - 1, o.numbers[1], 1.0))) {}

  TG_INLINE static unsigned used(const Options&, unsigned given) { return given; }

  template <unsigned kUsed, bool kTail>
  TG_INLINE M next(M p, M g, M& sum, M&, M&) const {
    g = decayed(g, p, weight_decay);
    sum = fused(g, g, sum);
    return p - rate * g / (root(sum) + eps);
  }
};

template <class M>
struct Adadelta {
  M lr, rho, rest, eps, weight_decay;

  static constexpr int kNumbers = 4, kFlags = 0, kStates = 2;
  static constexpr bool kSteps = true;

  TG_INLINE Adadelta(const Options& o, double)
      : lr(M(o.numbers[0])),
        rho(M(o.numbers[1])),
        rest(M(1 - o.numbers[1])),
        eps(M(o.numbers[2])),
        weight_decay(M(o.numbers[3])) {}

  TG_INLINE static unsigned used(const Options&, unsigned given) { return given; }

  template <unsigned kUsed, bool kTail>
  TG_INLINE M next(M p, M g, M& square_avg, M& acc_delta, M&) const {
    g = decayed(g, p, weight_decay);
    square_avg = fused(rest * g, g, square_avg * rho);
    const M change = root(acc_delta + eps) / root(square_avg + eps) * g;
    acc_delta = fused(rest * change, change, acc_delta * rho);
    return fused(change, -lr, p);
  }
};

template <class M>
struct Lion {
  Lerp<M> lerp1, lerp2;
  M lr, keep;

  static constexpr int kNumbers = 4, kFlags = 0, kStates = 1;
  static constexpr bool kSteps = false;

  TG_INLINE Lion(const Options& o, double)
      : lerp1(1 - o.numbers[1]),
        lerp2(1 - o.numbers[2]),
        lr(M(o.numbers[0])),
        keep(M(1 - o.numbers[0] * o.numbers[3])) {}

  TG_INLINE static unsigned used(const Options&, unsigned given) { return given; }

  template <unsigned kUsed, bool kTail>
  TG_INLINE M next(M p, M g, M& average, M&, M&) const {
    const M direction = lerp1(average, g);
    average = lerp2(average, g);
    const M sign = direction > 0 ? M(1) : (direction < 0 ? M(-1) : M(0));
    return fused(sign, -lr, p * keep);
  }
};

// LAMB takes two passes: ``moments`` and the lengths that they lead to, then ``next``. As in
// torchgraph/optim/lamb.py, both corrections are taken out of the elementwise part.
template <class M>
struct Lamb {
  Lerp<M> lerp;
  M lr, beta2, rest2, eps, weight_decay, decoupled_decay, scale;
  bool decay_in_ratio;

  static constexpr int kNumbers = 5, kFlags = 3, kStates = 2;
  static constexpr bool kSteps = true;

  TG_INLINE Lamb(const Options& o, double step) : lerp(1 - o.numbers[1]) {
    const bool decoupled = o.flags[0], corrected = o.flags[1];
    const double root2 = corrected ? sqrt(1 - pow(o.numbers[2], step)) : 1;
    lr = M(o.numbers[0]);
    beta2 = M(o.numbers[2]);
    rest2 = M(1 - o.numbers[2]);
    eps = M(o.numbers[3] * root2);
    weight_decay = decoupled ? M(0) : M(o.numbers[4]);
    decoupled_decay = decoupled ? M(o.numbers[4]) : M(0);
    scale = corrected ? M(root2 / (1 - pow(o.numbers[1], step))) : M(1);
    decay_in_ratio = o.flags[2] && decoupled_decay != 0;
  }

  TG_INLINE static unsigned used(const Options&, unsigned given) { return given; }

  TG_INLINE void moments(M p, M g, M& first, M& second) const {
    g = decayed(g, p, weight_decay);
    first = lerp(first, g);
    second = fused(rest2 * g, g, second * beta2);
  }

  // What the trust ratio measures the parameter against.
  TG_INLINE M change(M p, M first, M second) const {
    const M step = scale * first / (root(second) + eps);
    return decay_in_ratio ? p * decoupled_decay + step : step;
  }

  // From the sums of squares of the parameter and of its change.
  TG_INLINE static M ratio(double size, double length) {
    const M of_param = M(sqrt(size)), of_change = M(sqrt(length));
    return of_param > 0 && of_change > 0 ? of_param / of_change : M(1);
  }

  TG_INLINE M next(M p, M first, M second, M ratio) const {
    M step = change(p, first, second);
    if (!decay_in_ratio) step = decayed(step, p, decoupled_decay);
    return fused(-lr * step, ratio, p);
  }
};

}  // namespace torchgraph
