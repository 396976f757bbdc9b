#include "model_update/loops.h"

#include "common/clones.h"
#include "model_update/lanes.h"

namespace torchgraph {
namespace {

template <unsigned kUsed, Preparation kPreparation, bool kTail, class Rule, class M>
TG_INLINE void run(const Rule rule, const Gradient<M> gradient, const Stretch<M>& at) {
  M* __restrict p = at.param;
  const M* __restrict g = at.grad;
  M* __restrict s0 = at.state[0];
  M* __restrict s1 = at.state[1];
  M* __restrict s2 = at.state[2];
  const int64_t size = at.size;
  for (int64_t i = 0; i < size; ++i) {
    M a = 0, b = 0, c = 0;
    if constexpr (kUsed & 1) a = s0[i];
    if constexpr (kUsed & 2) b = s1[i];
    if constexpr (kUsed & 4) c = s2[i];
    const M old = p[i];
    const M prepared = gradient.template prepare<kPreparation>(g[i], old);
    p[i] = rule.template next<kUsed, kTail>(old, prepared, a, b, c);
    if constexpr (kUsed & 1) s0[i] = a;
    if constexpr (kUsed & 2) s1[i] = b;
    if constexpr (kUsed & 4) s2[i] = c;
  }
}

template <unsigned kUsed, bool kTail, class Rule, class M>
TG_INLINE void prepare_and_run(const Rule& rule, const Gradient<M>& gradient, const Stretch<M>& at,
                               Preparation preparation) {
  if (preparation == kPlain) {
    run<kUsed, kPlain, kTail>(rule, gradient, at);
  } else if (preparation == kScaled) {
    run<kUsed, kScaled, kTail>(rule, gradient, at);
  } else {
    run<kUsed, kPenalized, kTail>(rule, gradient, at);
  }
}

// The first of ``kUsed`` that is what is used.
template <bool kTail, unsigned kFirst, unsigned... kOthers, class Rule, class M>
TG_INLINE void choose(const Rule& rule, const Gradient<M>& gradient, const Stretch<M>& at,
                      unsigned used, Preparation preparation) {
  if (used == kFirst) {
    prepare_and_run<kFirst, kTail>(rule, gradient, at, preparation);
  } else if constexpr (sizeof...(kOthers) > 0) {
    choose<kTail, kOthers...>(rule, gradient, at, used, preparation);
  }
}

template <class M>
TG_INLINE void moments_of(const Lamb<M> rule, const Gradient<M> gradient, const Stretch<M>& at) {
  const M* __restrict p = at.param;
  const M* __restrict g = at.grad;
  M* __restrict first = at.state[0];
  M* __restrict second = at.state[1];
  for (int64_t i = 0; i < at.size; ++i) {
    rule.moments(p[i], gradient.template prepare<kPenalized>(g[i], p[i]), first[i], second[i]);
  }
}

template <class M>
TG_INLINE Lengths lengths_of(const Lamb<M> rule, const Stretch<M>& at) {
  constexpr int64_t kPart = 256;
  M changes[kPart];
  Lengths sums{0, 0};
  for (int64_t begin = 0; begin < at.size; begin += kPart) {
    const int64_t size = at.size - begin < kPart ? at.size - begin : kPart;
    const M* __restrict p = at.param + begin;
    const M* __restrict first = at.state[0] + begin;
    const M* __restrict second = at.state[1] + begin;
    for (int64_t i = 0; i < size; ++i) changes[i] = rule.change(p[i], first[i], second[i]);
    sums.size += sum_of_squares(p, size);
    sums.length += sum_of_squares(changes, size);
  }
  return sums;
}

template <class M>
TG_INLINE void apply_to(const Lamb<M> rule, M ratio, const Stretch<M>& at) {
  M* __restrict p = at.param;
  const M* __restrict first = at.state[0];
  const M* __restrict second = at.state[1];
  for (int64_t i = 0; i < at.size; ++i) p[i] = rule.next(p[i], first[i], second[i], ratio);
}

}  // namespace

TG_CLONES TG_ADVANCE(Sgd, float) {
  if (tail) {
    choose<true, 0, 1>(rule, gradient, at, used, preparation);
  } else {
    choose<false, 0, 1>(rule, gradient, at, used, preparation);
  }
}
TG_CLONES TG_ADVANCE(Sgd, double) {
  if (tail) {
    choose<true, 0, 1>(rule, gradient, at, used, preparation);
  } else {
    choose<false, 0, 1>(rule, gradient, at, used, preparation);
  }
}

TG_CLONES TG_ADVANCE(Adam, float) {
  if (tail) {
    choose<true, 3, 7>(rule, gradient, at, used, preparation);
  } else {
    choose<false, 3, 7>(rule, gradient, at, used, preparation);
  }
}
TG_CLONES TG_ADVANCE(Adam, double) {
  if (tail) {
    choose<true, 3, 7>(rule, gradient, at, used, preparation);
  } else {
    choose<false, 3, 7>(rule, gradient, at, used, preparation);
  }
}

TG_CLONES TG_ADVANCE(RmsProp, float) {
  choose<false, 1, 3, 5, 7>(rule, gradient, at, used, preparation);
}
TG_CLONES TG_ADVANCE(RmsProp, double) {
  choose<false, 1, 3, 5, 7>(rule, gradient, at, used, preparation);
}

TG_CLONES TG_ADVANCE(Adagrad, float) { choose<false, 1>(rule, gradient, at, used, preparation); }
TG_CLONES TG_ADVANCE(Adagrad, double) { choose<false, 1>(rule, gradient, at, used, preparation); }

TG_CLONES TG_ADVANCE(Adadelta, float) { choose<false, 3>(rule, gradient, at, used, preparation); }
TG_CLONES TG_ADVANCE(Adadelta, double) { choose<false, 3>(rule, gradient, at, used, preparation); }

TG_CLONES TG_ADVANCE(Lion, float) { choose<false, 1>(rule, gradient, at, used, preparation); }
TG_CLONES TG_ADVANCE(Lion, double) { choose<false, 1>(rule, gradient, at, used, preparation); }

TG_CLONES void moments(const Lamb<float>& rule, const Gradient<float>& gradient,
                       const Stretch<float>& at) {
  moments_of(rule, gradient, at);
}
TG_CLONES void moments(const Lamb<double>& rule, const Gradient<double>& gradient,
                       const Stretch<double>& at) {
  moments_of(rule, gradient, at);
}

TG_CLONES Lengths lengths(const Lamb<float>& rule, const Stretch<float>& at) {
  return lengths_of(rule, at);
}
TG_CLONES Lengths lengths(const Lamb<double>& rule, const Stretch<double>& at) {
  return lengths_of(rule, at);
}

TG_CLONES void apply(const Lamb<float>& rule, float ratio, const Stretch<float>& at) {
  apply_to(rule, ratio, at);
}
TG_CLONES void apply(const Lamb<double>& rule, double ratio, const Stretch<double>& at) {
  apply_to(rule, ratio, at);
}

}  // namespace torchgraph
