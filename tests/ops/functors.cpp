// The loops of the CPU kernels against the functors that the CUDA kernels run too, one element at a
// time; and the conversions of common/element.h, for the test to look at every value.
#include <cstring>

#include "bce_mean/loss.h"
#include "model_update/loops.h"

using namespace torchgraph;

namespace {

template <class M>
bool same(M a, M b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
}

template <class M>
M prepare(Preparation preparation, const Gradient<M>& gradient, M g, M p) {
  if (preparation == kPlain) return gradient.template prepare<kPlain>(g, p);
  if (preparation == kScaled) return gradient.template prepare<kScaled>(g, p);
  return gradient.template prepare<kPenalized>(g, p);
}

template <template <class> class Rule, class M, unsigned kUsed, bool kTail>
int64_t differing(const Options& options, double step, M* p, const M* g, M* s0, M* s1, M* s2,
                  int64_t size) {
  const Rule<M> rule(options, step);
  const Gradient<M> gradient(options);
  M wanted[5][4096];
  for (int64_t i = 0; i < size; ++i) {
    M a = s0[i], b = s1[i], c = s2[i];
    const M prepared = prepare(options.preparation(), gradient, g[i], p[i]);
    wanted[0][i] = rule.template next<kUsed, kTail>(p[i], prepared, a, b, c);
    wanted[1][i] = kUsed & 1 ? a : s0[i];
    wanted[2][i] = kUsed & 2 ? b : s1[i];
    wanted[3][i] = kUsed & 4 ? c : s2[i];
  }
  Stretch<M> at{p, g, {s0, s1, s2}, size};
  advance(rule, gradient, at, kUsed, options.preparation(), kTail);
  int64_t wrong = 0;
  for (int64_t i = 0; i < size; ++i) {
    wrong += !same(p[i], wanted[0][i]) + !same(s0[i], wanted[1][i]) + !same(s1[i], wanted[2][i]) +
             !same(s2[i], wanted[3][i]);
  }
  return wrong;
}

template <class M>
int64_t differing_lamb(const Options& options, double step, M* p, const M* g, M* s0, M* s1,
                       int64_t size) {
  const Lamb<M> rule(options, step);
  const Gradient<M> gradient(options);
  M first[4096], second[4096], next[4096];
  for (int64_t i = 0; i < size; ++i) {
    first[i] = s0[i];
    second[i] = s1[i];
    rule.moments(p[i], gradient.template prepare<kPenalized>(g[i], p[i]), first[i], second[i]);
    next[i] = rule.next(p[i], first[i], second[i], M(0.375));
  }
  Stretch<M> at{p, g, {s0, s1, nullptr}, size};
  moments(rule, gradient, at);
  apply(rule, M(0.375), at);
  int64_t wrong = 0;
  for (int64_t i = 0; i < size; ++i) {
    wrong += !same(p[i], next[i]) + !same(s0[i], first[i]) + !same(s1[i], second[i]);
  }
  return wrong;
}

template <class M>
int64_t by_rule(int rule, const Options& o, double step, M* p, const M* g, M* s0, M* s1, M* s2,
                int64_t n) {
  switch (rule) {
    case 0: return differing<Sgd, M, 0, false>(o, step, p, g, s0, s1, s2, n);
    case 1: return differing<Sgd, M, 1, false>(o, step, p, g, s0, s1, s2, n);
    case 2: return differing<Sgd, M, 1, true>(o, step, p, g, s0, s1, s2, n);
    case 3: return differing<Adam, M, 3, false>(o, step, p, g, s0, s1, s2, n);
    case 4: return differing<Adam, M, 7, false>(o, step, p, g, s0, s1, s2, n);
    case 5: return differing<Adam, M, 7, true>(o, step, p, g, s0, s1, s2, n);
    case 6: return differing<RmsProp, M, 1, false>(o, step, p, g, s0, s1, s2, n);
    case 7: return differing<RmsProp, M, 3, false>(o, step, p, g, s0, s1, s2, n);
    case 8: return differing<RmsProp, M, 5, false>(o, step, p, g, s0, s1, s2, n);
    case 9: return differing<RmsProp, M, 7, false>(o, step, p, g, s0, s1, s2, n);
    case 10: return differing<Adagrad, M, 1, false>(o, step, p, g, s0, s1, s2, n);
    case 11: return differing<Adadelta, M, 3, false>(o, step, p, g, s0, s1, s2, n);
    case 12: return differing<Lion, M, 1, false>(o, step, p, g, s0, s1, s2, n);
    case 13: return differing_lamb(o, step, p, g, s0, s1, n);
    default: return -1;
  }
}

Options options_of(const double* numbers, unsigned flags, int preparation) {
  Options o{};
  for (int i = 0; i < kMaxNumbers; ++i) o.numbers[i] = numbers[i];
  for (int i = 0; i < kMaxFlags; ++i) o.flags[i] = flags >> i & 1u;
  o.maximize = flags >> kMaxFlags & 1u;
  o.l1 = preparation == kPenalized ? 0.01 : 0;
  o.grad_scale = preparation == kPlain ? 1 : 3;
  o.clip_coef = preparation == kPlain ? 1 : 0.3;
  return o;
}

}  // namespace

extern "C" {

int64_t differing_f32(int rule, const double* numbers, unsigned flags, int preparation, double step,
                      float* p, const float* g, float* s0, float* s1, float* s2, int64_t n) {
  return by_rule(rule, options_of(numbers, flags, preparation), step, p, g, s0, s1, s2, n);
}

int64_t differing_f64(int rule, const double* numbers, unsigned flags, int preparation, double step,
                      double* p, const double* g, double* s0, double* s1, double* s2, int64_t n) {
  return by_rule(rule, options_of(numbers, flags, preparation), step, p, g, s0, s1, s2, n);
}

void bce_f32(const float* x, const float* t, float* loss, float* grad, int64_t n) {
  for (int64_t i = 0; i < n; ++i) loss[i] = bce_loss(x[i], t[i]);
  for (int64_t i = 0; i < n; ++i) grad[i] = bce_gradient(x[i], t[i], float(1.0 / double(n)));
}
void bce_f64(const double* x, const double* t, double* loss, double* grad, int64_t n) {
  for (int64_t i = 0; i < n; ++i) loss[i] = bce_loss(x[i], t[i]);
  for (int64_t i = 0; i < n; ++i) grad[i] = bce_gradient(x[i], t[i], 1.0 / double(n));
}

void widen_half(const uint16_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = widen(Half{in[i]});
}
void widen_bfloat16(const uint16_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = widen(BFloat16{in[i]});
}
void narrow_half(const float* in, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    Half value;
    narrow(in[i], value);
    out[i] = value.bits;
  }
}
void narrow_bfloat16(const float* in, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    BFloat16 value;
    narrow(in[i], value);
    out[i] = value.bits;
  }
}

}  // extern "C"
