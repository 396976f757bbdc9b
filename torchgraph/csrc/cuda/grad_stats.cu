// torchgraph::grad_stats on CUDA: one read of the gradients, parts added in a fixed order, no copy to
// the host.
#include "cuda/memory.h"
#include "grad_stats_arguments.h"

namespace torchgraph {
namespace {

struct GradRecord {
  const void* data;
  int64_t size;
  Dtype dtype;
  bool aligned;
};

struct GradTable : Table<GradRecord, 1000> {};
static_assert(sizeof(GradTable) <= kMaxParameter);

template <Norm kNorm>
struct Combine {
  __device__ __forceinline__ double operator()(double a, double b) const {
    return combine<kNorm>(a, b);
  }
};

struct Count {
  __device__ __forceinline__ double operator()(double a, double b) const { return a + b; }
};

// ``parts``: for each chunk its part of the norm and its count of elements that are not finite.
template <Norm kNorm>
__global__ void __launch_bounds__(kThreads)
    collect(const __grid_constant__ GradTable table, double p, double* parts) {
  const int index = table.find(blockIdx.x);
  const GradRecord& r = table.records[index];
  const int64_t begin = table.begin(index, blockIdx.x);
  const int64_t end = begin + kChunk < r.size ? begin + kChunk : r.size;
  const int64_t vectors = r.aligned ? begin + (end - begin) / kVector * kVector : begin;
  double value = nothing<kNorm>();
  int bad = 0;
  const auto add = [&](double x) {
    value = combine<kNorm>(value, term<kNorm>(x, p));
    bad += is_finite(x) ? 0 : 1;
  };
  for (int64_t i = begin + int64_t(threadIdx.x) * kVector; i < vectors; i += kThreads * kVector) {
    double x[kVector];
    load(r.data, r.dtype, i, x);
#pragma unroll
    for (int j = 0; j < kVector; ++j) add(x[j]);
  }
  for (int64_t i = vectors + threadIdx.x; i < end; i += kThreads) {
    add(load_one<double>(r.data, r.dtype, i));
  }
  value = over_block(value, Combine<kNorm>());
  const double count = over_block(double(bad), Count());
  if (threadIdx.x == 0) {
    parts[2 * int64_t(blockIdx.x)] = value;
    parts[2 * int64_t(blockIdx.x) + 1] = count;
  }
}

template <Norm kNorm>
__global__ void __launch_bounds__(kThreads)
    reduce(const double* parts, int64_t count, double p, const void* grad_scale, Dtype scale_dtype,
           void* norm, Dtype norm_dtype, float* not_finite) {
  double value = nothing<kNorm>(), bad = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) {
    value = combine<kNorm>(value, parts[2 * i]);
    bad += parts[2 * i + 1];
  }
  value = over_block(value, Combine<kNorm>());
  bad = over_block(bad, Count());
  if (threadIdx.x == 0) {
    const double scale = grad_scale == nullptr ? 1 : load_one<double>(grad_scale, scale_dtype, 0);
    store_one(norm, norm_dtype, 0, finish(kNorm, value, p, scale));
    *not_finite = static_cast<float>(bad);
  }
}

template <Norm kNorm>
void launch(const GradStatsArguments& arguments, const std::vector<GradRecord>& records,
            const Operand& norm, const Operand& not_finite, cudaStream_t stream) {
  int64_t chunks = 0;
  for (const GradRecord& record : records) chunks += chunks_of(record.size);
  const Operand memory = workspace(arguments.grads[0], 2 * chunks);
  auto* parts = static_cast<double*>(memory.mutable_data());
  int64_t done = 0;
  GradTable table;
  constexpr size_t kMost = sizeof(table.records) / sizeof(table.records[0]);
  for (size_t first = 0; first < records.size(); first += kMost) {
    table.count = static_cast<int32_t>(std::min(kMost, records.size() - first));
    int32_t here = 0;
    for (int i = 0; i < table.count; ++i) {
      table.records[i] = records[first + i];
      table.ends[i] = here += chunks_of(records[first + i].size);
    }
    collect<kNorm><<<here, kThreads, 0, stream>>>(table, arguments.p, parts + 2 * done);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
    done += here;
  }
  const bool scaled = arguments.grad_scale.has_value();
  reduce<kNorm><<<1, kThreads, 0, stream>>>(
      parts, chunks, arguments.p, scaled ? arguments.grad_scale->data : nullptr,
      scaled ? arguments.grad_scale->dtype : Dtype::kFloat, norm.mutable_data(), norm.dtype,
      static_cast<float*>(not_finite.mutable_data()));
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

void grad_stats(StableIValue* stack, uint64_t, uint64_t) {
  const GradStatsArguments arguments(stack);
  const Operand& first = arguments.grads[0];
  const torch::stable::accelerator::DeviceGuard guard(first.device_index);
  const cudaStream_t stream = stream_of(first);
  const NoGrad no_grad;
  std::vector<Adjacent> tensors;
  std::vector<GradRecord> records;
  tensors.reserve(arguments.grads.size());
  for (const Operand& grad : arguments.grads) {
    if (grad.numel == 0) continue;
    const void* data = tensors.emplace_back(grad, grad, false).const_data();
    records.push_back({data, grad.numel, grad.dtype, aligned(data, grad.dtype)});
  }
  Operand norm(arguments.result(arguments.wide())), not_finite(arguments.result(false));
  switch (norm_of(arguments.p)) {
    case Norm::kTwo: launch<Norm::kTwo>(arguments, records, norm, not_finite, stream); break;
    case Norm::kOne: launch<Norm::kOne>(arguments, records, norm, not_finite, stream); break;
    case Norm::kLargest: launch<Norm::kLargest>(arguments, records, norm, not_finite, stream); break;
    case Norm::kSmallest: launch<Norm::kSmallest>(arguments, records, norm, not_finite, stream); break;
    case Norm::kPower: launch<Norm::kPower>(arguments, records, norm, not_finite, stream); break;
  }
  stack[0] = torch::stable::detail::from(norm.release());
  stack[1] = torch::stable::detail::from(not_finite.release());
}

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CUDA, library) {
  library.impl("grad_stats", torchgraph::grad_stats);
}
