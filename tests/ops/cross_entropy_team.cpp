// The functors as a CUDA kernel uses them: threads that absorb vectors of four, merged in pairs.
#include <vector>

#include "cross_entropy/loss.h"

using namespace torchgraph;

template <bool kSmooth>
Sweep<float> swept(const float* x, const float* w, int64_t classes, int threads) {
  constexpr int kVector = 4;
  std::vector<Sweep<float>> team(threads);
  const int64_t whole = classes / kVector * kVector;
  for (int place = 0; place < threads; ++place) {
    for (int64_t at = place * kVector; at < whole; at += threads * kVector)
      team[place].absorb<kSmooth>(x + at, w ? w + at : nullptr, kVector);
    for (int64_t at = whole + place; at < classes; at += threads)
      team[place].absorb<kSmooth>(x + at, w ? w + at : nullptr, 1);
  }
  for (int distance = threads / 2; distance > 0; distance /= 2) {
    const std::vector<Sweep<float>> before = team;
    for (int place = 0; place < threads; ++place)
      team[place].merge<kSmooth>(before[place ^ distance]);
  }
  return team[0];
}

extern "C" void row(const float* x, const float* w, int64_t classes, int64_t target,
                    double label_smoothing, int threads, double* loss, double* lse) {
  const Smoothing smoothing(label_smoothing, classes);
  const float of_target = w ? w[target] : 1.0f;
  if (label_smoothing > 0) {
    const Sweep<float> sweep = swept<true>(x, w, classes, threads);
    *loss = sweep.loss<true>(x[target], of_target, smoothing);
    *lse = sweep.lse();
  } else {
    const Sweep<float> sweep = swept<false>(x, w, classes, threads);
    *loss = sweep.loss<false>(x[target], of_target, smoothing);
    *lse = sweep.lse();
  }
}

extern "C" void gradient(const float* x, const float* w, int64_t classes, int64_t target,
                         double label_smoothing, double lse, double grad, float* out) {
  double weights = 0;
  for (int64_t i = 0; i < classes; ++i) weights += w ? w[i] : 1.0f;
  const LogitsGradient<float> of(lse, grad, w ? w[target] : 1.0f, weights,
                                 Smoothing(label_smoothing, classes));
  for (int64_t i = 0; i < classes; ++i) {
    const float each = w ? w[i] : 1.0f;
    const float value = label_smoothing > 0 ? of.operator()<true>(x[i], each)
                                            : of.operator()<false>(x[i], each);
    out[i] = i == target ? value - of.target : value;
  }
}

extern "C" void exponentials(const float* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = exponential(x[i]);
}

extern "C" void exponentials_double(const double* x, int64_t n, double* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = exponential(x[i]);
}
