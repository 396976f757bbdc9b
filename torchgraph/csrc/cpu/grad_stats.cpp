// torchgraph::grad_stats on the CPU: one read of the gradients. Parts are of fixed size and added in
// order, so that the result does not depend on the number of threads.
#include <torch/csrc/stable/ops.h>

#include "cpu/clones.h"
#include "cpu/lanes.h"
#include "cpu/numbers.h"
#include "cpu/stream.h"
#include "grad_stats_arguments.h"

namespace torchgraph {
namespace {

constexpr int64_t kPart = 4096;
constexpr int64_t kPerThread = 32768;

struct Part {
  double value;
  int64_t not_finite;
};

template <class M>
TG_INLINE int64_t count_not_finite(const M* values, int64_t size) {
  int32_t bad = 0;
  for (int64_t i = 0; i < size; ++i) bad += is_finite(values[i]) ? 0 : 1;
  return bad;
}

template <Norm kNorm, class M>
TG_INLINE double one_by_one(const M* values, int64_t size, double p) {
  double value = nothing<kNorm>();
  for (int64_t i = 0; i < size; ++i) value = combine<kNorm>(value, term<kNorm>(values[i], p));
  return value;
}

template <class M>
TG_INLINE double norm_by(Norm norm, const M* values, int64_t size, double p) {
  switch (norm) {
    case Norm::kTwo: return sum_of_squares(values, size);
    case Norm::kOne: return sum_of_magnitudes(values, size);
    case Norm::kLargest: return largest_magnitude(values, size);
    case Norm::kSmallest: return one_by_one<Norm::kSmallest>(values, size, p);
    case Norm::kPower: return one_by_one<Norm::kPower>(values, size, p);
  }
  return 0;
}

// What is not finite makes sums and the largest not finite: else nothing has to be counted.
template <class M>
TG_INLINE Part sum_by(Norm norm, const M* values, int64_t size, double p) {
  const double value = norm_by(norm, values, size, p);
  const bool shows = norm == Norm::kTwo || norm == Norm::kOne || norm == Norm::kLargest;
  return {value, shows && is_finite(value) ? 0 : count_not_finite(values, size)};
}

TG_CLONES Part sum(Norm norm, const float* values, int64_t size, double p) {
  return sum_by(norm, values, size, p);
}
TG_CLONES Part sum(Norm norm, const double* values, int64_t size, double p) {
  return sum_by(norm, values, size, p);
}
TG_CLONES double quick(const float* values, int64_t size) {
  return quick_sum_of_squares(values, size);
}

template <class M>
const M* part_of(const Stream& stream, int64_t begin, int64_t size, M* buffer) {
  if (const M* direct = stream.direct<M>(begin)) return direct;
  stream.load(begin, size, buffer);
  return buffer;
}

class Walk {
 public:
  explicit Walk(const GradStatsArguments& arguments)
      : arguments_(arguments), norm_(norm_of(arguments.p)) {
    for (size_t i = 0; i < arguments.grads.size(); ++i) {
      const Operand& grad = arguments.grads[i];
      streams_.emplace_back(grad, grad, false);
      for (int64_t begin = 0; begin < grad.numel; begin += kPart) places_.emplace_back(i, begin);
    }
    parts_.resize(places_.size());
  }

  Part all() {
    if (norm_ == Norm::kTwo && !arguments_.wide()) {
      // Squares that are too large for float32 make this infinite; many that are too small for it
      // add up to less than a millionth of the bound.
      const Part quick = in_parts(true);
      if (is_finite(quick.value) && quick.value > 0x1p-70) return quick;
    }
    return in_parts(false);
  }

 private:
  Part in_parts(bool quickly) {
    const auto count = static_cast<int64_t>(parts_.size());
    torch::stable::parallel_for(0, count, kPerThread / kPart, [&](int64_t first, int64_t last) {
      for (int64_t at = first; at < last; ++at) parts_[at] = part(at, quickly);
    });
    return put_together();
  }

  Part part(int64_t at, bool quickly) const {
    const auto [i, begin] = places_[at];
    const Operand& grad = arguments_.grads[i];
    const int64_t size = std::min(kPart, grad.numel - begin);
    if (grad.dtype == Dtype::kDouble) {
      alignas(64) double buffer[kPart];
      return sum(norm_, part_of(streams_[i], begin, size, buffer), size, arguments_.p);
    }
    alignas(64) float buffer[kPart];
    const float* values = part_of(streams_[i], begin, size, buffer);
    if (quickly) return {quick(values, size), 0};
    return sum(norm_, values, size, arguments_.p);
  }

  Part put_together() const {
    Part all{norm_ == Norm::kSmallest ? nothing<Norm::kSmallest>() : 0.0, 0};
    for (const Part& part : parts_) {
      all.not_finite += part.not_finite;
      if (norm_ == Norm::kLargest) {
        all.value = combine<Norm::kLargest>(all.value, part.value);
      } else if (norm_ == Norm::kSmallest) {
        all.value = combine<Norm::kSmallest>(all.value, part.value);
      } else {
        all.value += part.value;
      }
    }
    return all;
  }

  const GradStatsArguments& arguments_;
  Norm norm_;
  std::vector<Stream> streams_;
  std::vector<std::pair<size_t, int64_t>> places_;
  std::vector<Part> parts_;
};

void grad_stats(StableIValue* stack, uint64_t, uint64_t) {
  const GradStatsArguments arguments(stack);
  const Part all = Walk(arguments).all();
  const double scale = arguments.grad_scale ? read_number(*arguments.grad_scale) : 1.0;
  const double value = finish(norm_of(arguments.p), all.value, arguments.p, scale);
  Operand out(arguments.result(arguments.wide())), bad(arguments.result(false));
  write_number(out, value);
  write_number(bad, static_cast<double>(all.not_finite));
  stack[0] = torch::stable::detail::from(out.release());
  stack[1] = torch::stable::detail::from(bad.release());
}

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CPU, library) {
  library.impl("grad_stats", torchgraph::grad_stats);
}
