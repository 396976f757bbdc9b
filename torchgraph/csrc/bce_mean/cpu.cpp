// torchgraph::bce_with_logits_mean and its backward on the CPU: each one pass over memory. Losses are
// added up by stretches in order: the sum does not depend on the number of threads.
#include <torch/csrc/stable/ops.h>

#include "bce_mean/arguments.h"
#include "common/clones.h"
#include "common/numbers.h"
#include "common/stream.h"

namespace torchgraph {
namespace {

constexpr int64_t kStretch = 1024;
constexpr int64_t kPerThread = 8192;

template <class M>
TG_INLINE double sum_of(const M* __restrict x, const M* __restrict target, int64_t size) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < size; ++i) sum += double(bce_loss(x[i], target[i]));
  return sum;
}

template <class M>
TG_INLINE void gradients_of(const M* x, const M* target, M factor, int64_t size, M* out) {
#pragma omp simd
  for (int64_t i = 0; i < size; ++i) out[i] = bce_gradient(x[i], target[i], factor);
}

// Functions with clones cannot be templates.
TG_CLONES double losses(const float* x, const float* target, int64_t size) {
  return sum_of(x, target, size);
}
TG_CLONES double losses(const double* x, const double* target, int64_t size) {
  return sum_of(x, target, size);
}
TG_CLONES void gradients(const float* x, const float* target, float factor, int64_t size,
                         float* out) {
  gradients_of(x, target, factor, size, out);
}
TG_CLONES void gradients(const double* x, const double* target, double factor, int64_t size,
                         double* out) {
  gradients_of(x, target, factor, size, out);
}

template <class M>
const M* stretch(const Stream& stream, int64_t begin, int64_t size, M* buffer) {
  if (const M* direct = stream.direct<M>(begin)) return direct;
  stream.load(begin, size, buffer);
  return buffer;
}

template <class M>
double mean_loss(const BceArguments& arguments) {
  const Stream x(arguments.logits, arguments.logits, false);
  const Stream target(arguments.target, arguments.logits, false);
  const int64_t numel = arguments.logits.numel, count = (numel + kStretch - 1) / kStretch;
  std::vector<double> parts(count);
  torch::stable::parallel_for(0, count, kPerThread / kStretch, [&](int64_t first, int64_t last) {
    alignas(64) M buffers[2][kStretch];
    for (int64_t at = first; at < last; ++at) {
      const int64_t begin = at * kStretch, size = std::min(kStretch, numel - begin);
      parts[at] = losses(stretch(x, begin, size, buffers[0]),
                         stretch(target, begin, size, buffers[1]), size);
    }
  });
  double sum = 0;
  for (double part : parts) sum += part;
  return sum / static_cast<double>(numel);
}

template <class M>
void fill_gradient(const BceGradientArguments& arguments, const Operand& gradient) {
  const Stream x(arguments.logits, gradient, false), target(arguments.target, gradient, false);
  const Stream out(gradient, gradient, true);
  const int64_t numel = gradient.numel;
  const M factor = M(read_number(arguments.grad_loss) / static_cast<double>(numel));
  torch::stable::parallel_for(0, numel, kPerThread, [&](int64_t begin, int64_t end) {
    alignas(64) M buffers[3][kStretch];
    for (; begin < end; begin += kStretch) {
      const int64_t size = std::min(kStretch, end - begin);
      M* direct = out.direct<M>(begin);
      M* to = direct == nullptr ? buffers[2] : direct;
      gradients(stretch(x, begin, size, buffers[0]), stretch(target, begin, size, buffers[1]),
                factor, size, to);
      if (direct == nullptr) out.store(begin, size, to);
    }
  });
}

void bce_with_logits_mean(StableIValue* stack, uint64_t, uint64_t) {
  const BceArguments arguments(stack[0], stack[1]);
  Operand loss = arguments.empty_loss();
  write_number(loss, arguments.wide() ? mean_loss<double>(arguments) : mean_loss<float>(arguments));
  stack[0] = torch::stable::detail::from(loss.release());
}

void bce_with_logits_mean_backward(StableIValue* stack, uint64_t, uint64_t) {
  const BceGradientArguments arguments(stack);
  Operand gradient = arguments.empty_gradient();
  if (gradient.numel > 0) {
    arguments.wide() ? fill_gradient<double>(arguments, gradient)
                     : fill_gradient<float>(arguments, gradient);
  }
  stack[0] = torch::stable::detail::from(gradient.release());
}

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CPU, library) {
  library.impl("bce_with_logits_mean", torchgraph::bce_with_logits_mean);
  library.impl("bce_with_logits_mean_backward", torchgraph::bce_with_logits_mean_backward);
}
