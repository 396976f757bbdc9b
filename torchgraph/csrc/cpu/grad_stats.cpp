// torchgraph::grad_stats on the CPU: one read of the gradients. Parts are of fixed size and added in
// order, so that the result does not depend on the number of threads.
#include <torch/csrc/stable/ops.h>

#include "cpu/clones.h"
#include "cpu/numbers.h"
#include "cpu/stream.h"
#include "grad_stats_arguments.h"

namespace torchgraph {
namespace {

constexpr int64_t kPart = 4096;
constexpr int64_t kPerThread = 32768;
constexpr int kLanes = 16;

struct Part {
  double value;
  int64_t not_finite;
};

template <Norm kNorm, class M>
TG_INLINE Part sum_up(const M* values, int64_t size, double p) {
  double sums[kLanes];
  int32_t bad[kLanes] = {};
  for (double& sum : sums) sum = nothing<kNorm>();
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      sums[j] = combine<kNorm>(sums[j], term<kNorm>(values[i + j], p));
      bad[j] += is_finite(values[i + j]) ? 0 : 1;
    }
  }
  for (int j = 0; i < size; ++i, ++j) {
    sums[j] = combine<kNorm>(sums[j], term<kNorm>(values[i], p));
    bad[j] += is_finite(values[i]) ? 0 : 1;
  }
  Part part{nothing<kNorm>(), 0};
  for (int j = 0; j < kLanes; ++j) {
    part.value = combine<kNorm>(part.value, sums[j]);
    part.not_finite += bad[j];
  }
  return part;
}

template <class M>
TG_INLINE Part sum_by(Norm norm, const M* values, int64_t size, double p) {
  switch (norm) {
    case Norm::kTwo: return sum_up<Norm::kTwo>(values, size, p);
    case Norm::kOne: return sum_up<Norm::kOne>(values, size, p);
    case Norm::kLargest: return sum_up<Norm::kLargest>(values, size, p);
    case Norm::kSmallest: return sum_up<Norm::kSmallest>(values, size, p);
    case Norm::kPower: return sum_up<Norm::kPower>(values, size, p);
  }
  return {};
}

TG_CLONES Part sum(Norm norm, const float* values, int64_t size, double p) {
  return sum_by(norm, values, size, p);
}
TG_CLONES Part sum(Norm norm, const double* values, int64_t size, double p) {
  return sum_by(norm, values, size, p);
}

template <class M>
Part part_of(const Stream& stream, int64_t begin, int64_t size, Norm norm, double p) {
  if (const M* direct = stream.direct<M>(begin)) return sum(norm, direct, size, p);
  alignas(64) M buffer[kPart];
  stream.load(begin, size, buffer);
  return sum(norm, buffer, size, p);
}

double put_together(Norm norm, const std::vector<Part>& parts) {
  double value = norm == Norm::kSmallest ? nothing<Norm::kSmallest>() : 0.0;
  for (const Part& part : parts) {
    if (norm == Norm::kLargest) {
      value = combine<Norm::kLargest>(value, part.value);
    } else if (norm == Norm::kSmallest) {
      value = combine<Norm::kSmallest>(value, part.value);
    } else {
      value += part.value;
    }
  }
  return value;
}

void grad_stats(StableIValue* stack, uint64_t, uint64_t) {
  const GradStatsArguments arguments(stack);
  const Norm norm = norm_of(arguments.p);
  std::vector<Stream> streams;
  std::vector<std::pair<size_t, int64_t>> places;
  for (size_t i = 0; i < arguments.grads.size(); ++i) {
    const Operand& grad = arguments.grads[i];
    streams.emplace_back(grad, grad, false);
    for (int64_t begin = 0; begin < grad.numel; begin += kPart) places.emplace_back(i, begin);
  }
  std::vector<Part> parts(places.size());
  const auto count = static_cast<int64_t>(parts.size());
  torch::stable::parallel_for(0, count, kPerThread / kPart, [&](int64_t first, int64_t last) {
    for (int64_t at = first; at < last; ++at) {
      const auto [i, begin] = places[at];
      const Operand& grad = arguments.grads[i];
      const int64_t size = std::min(kPart, grad.numel - begin);
      parts[at] = grad.dtype == Dtype::kDouble
                      ? part_of<double>(streams[i], begin, size, norm, arguments.p)
                      : part_of<float>(streams[i], begin, size, norm, arguments.p);
    }
  });
  int64_t not_finite = 0;
  for (const Part& part : parts) not_finite += part.not_finite;
  const double scale = arguments.grad_scale ? read_number(*arguments.grad_scale) : 1.0;
  const double value = finish(norm, put_together(norm, parts), arguments.p, scale);
  Operand out(arguments.result(arguments.wide())), bad(arguments.result(false));
  write_number(out, value);
  write_number(bad, static_cast<double>(not_finite));
  stack[0] = torch::stable::detail::from(out.release());
  stack[1] = torch::stable::detail::from(bad.release());
}

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CPU, library) {
  library.impl("grad_stats", torchgraph::grad_stats);
}
