// torchgraph::cast_scale on CUDA: one launch, each element read once and written once.
#include "cast_scale/arguments.h"
#include "common/cuda.h"

namespace torchgraph {
namespace {

struct CastScaleLaunch {
  const void* x;
  void* out;
  const void* by;  // on the device, where a replayed graph finds its current value
  double number;
  int64_t size;
  Dtype dtype;
  bool aligned;
};

template <class M>
__global__ void __launch_bounds__(kThreads) fill(const CastScaleLaunch job) {
  const CastScale<M> scale{M(job.number), *static_cast<const M*>(job.by)};
  const int64_t begin = int64_t(blockIdx.x) * kChunk;
  const int64_t end = begin + kChunk < job.size ? begin + kChunk : job.size;
  const int64_t vectors = job.aligned ? begin + (end - begin) / kVector * kVector : begin;
  for (int64_t i = begin + int64_t(threadIdx.x) * kVector; i < vectors; i += kThreads * kVector) {
    M values[kVector];
    load(job.x, job.dtype, i, values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) values[j] = scale(values[j]);
    store_as<M, M>(job.out, i, values);
  }
  for (int64_t i = vectors + threadIdx.x; i < end; i += kThreads) {
    static_cast<M*>(job.out)[i] = scale(load_one<M>(job.x, job.dtype, i));
  }
}

void cast_scale(StableIValue* stack, uint64_t, uint64_t) {
  const CastScaleArguments arguments(stack);
  const torch::stable::accelerator::DeviceGuard guard(arguments.x.device_index);
  const cudaStream_t stream = stream_of(arguments.x);
  const NoGrad no_grad;
  Operand result = arguments.result();
  if (result.numel > 0) {
    const Adjacent x(arguments.x, result, false);
    void* out = result.mutable_data();
    const bool both = aligned(x.const_data(), arguments.x.dtype) && aligned(out, result.dtype);
    const CastScaleLaunch job{x.const_data(),   out,
                              arguments.scale_by.data, arguments.number,
                              result.numel,     arguments.x.dtype,
                              both};
    const int32_t blocks = chunks_of(result.numel);
    if (arguments.wide()) {
      fill<double><<<blocks, kThreads, 0, stream>>>(job);
    } else {
      fill<float><<<blocks, kThreads, 0, stream>>>(job);
    }
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  stack[0] = torch::stable::detail::from(result.release());
}

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CUDA, library) {
  library.impl("cast_scale", torchgraph::cast_scale);
}
