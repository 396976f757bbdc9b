// torchgraph::cast_scale on the CPU: one pass over memory.
#include <torch/csrc/stable/ops.h>

#include "cast_scale/arguments.h"
#include "common/clones.h"
#include "common/numbers.h"
#include "common/stream.h"

namespace torchgraph {
namespace {

constexpr int64_t kStretch = 4096;  // elements that stay in the first-level cache
constexpr int64_t kPerThread = 32768;

template <class T, class M>
TG_INLINE void multiply(const CastScale<M> scale, const void* from, int64_t size,
                        M* __restrict out) {
  const T* __restrict x = static_cast<const T*>(from);
  for (int64_t i = 0; i < size; ++i) out[i] = scale(static_cast<M>(widen(x[i])));
}

template <class M>
TG_INLINE void multiply_any(const CastScale<M>& scale, const void* from, Dtype dtype, int64_t size,
                            M* out) {
  switch (dtype) {
    case Dtype::kFloat: return multiply<float>(scale, from, size, out);
    case Dtype::kDouble: return multiply<double>(scale, from, size, out);
    case Dtype::kBFloat16: return multiply<BFloat16>(scale, from, size, out);
    case Dtype::kHalf: return multiply<Half>(scale, from, size, out);
  }
}

TG_CLONES void cast(const CastScale<float>& scale, const void* from, Dtype dtype, int64_t size,
                    float* out) {
  multiply_any(scale, from, dtype, size, out);
}
TG_CLONES void cast(const CastScale<double>& scale, const void* from, Dtype dtype, int64_t size,
                    double* out) {
  multiply_any(scale, from, dtype, size, out);
}
TG_CLONES void in_place(const CastScale<float>& scale, float* values, int64_t size) {
  for (int64_t i = 0; i < size; ++i) values[i] = scale(values[i]);
}
TG_CLONES void in_place(const CastScale<double>& scale, double* values, int64_t size) {
  for (int64_t i = 0; i < size; ++i) values[i] = scale(values[i]);
}

template <class M>
void fill(const CastScaleArguments& arguments, const Operand& result) {
  const Stream x(arguments.x, result, false), out(result, result, true);
  const CastScale<M> scale{M(arguments.number), M(read_number(arguments.scale_by))};
  torch::stable::parallel_for(0, result.numel, kPerThread, [&](int64_t begin, int64_t end) {
    if (const void* from = x.adjacent(begin)) {
      return cast(scale, from, arguments.x.dtype, end - begin, out.direct<M>(begin));
    }
    for (; begin < end; begin += kStretch) {
      const int64_t size = std::min(kStretch, end - begin);
      M* values = out.direct<M>(begin);
      x.load(begin, size, values);
      in_place(scale, values, size);
    }
  });
}

void cast_scale(StableIValue* stack, uint64_t, uint64_t) {
  const CastScaleArguments arguments(stack);
  Operand result = arguments.result();
  if (result.numel > 0) {
    arguments.wide() ? fill<double>(arguments, result) : fill<float>(arguments, result);
  }
  stack[0] = torch::stable::detail::from(result.release());
}

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CPU, library) {
  library.impl("cast_scale", torchgraph::cast_scale);
}
