// torchgraph::bce_with_logits_mean and its backward on CUDA: logits and target are read once, parts
// are added in a fixed order, nothing is copied to the host.
#include "bce_mean/arguments.h"
#include "common/cuda.h"

namespace torchgraph {
namespace {

struct BceTensors {
  const void *logits, *target;
  int64_t size;
  Dtype logits_dtype, target_dtype;
  bool aligned;
};

// Calls one(i, x, t) for the elements of the block's chunk, or four(i, x, t) for four at once.
template <class M, class Four, class One>
__device__ __forceinline__ void walk(const BceTensors& in, const Four& four, const One& one) {
  const int64_t begin = int64_t(blockIdx.x) * kChunk;
  const int64_t end = begin + kChunk < in.size ? begin + kChunk : in.size;
  const int64_t vectors = in.aligned ? begin + (end - begin) / kVector * kVector : begin;
  for (int64_t i = begin + int64_t(threadIdx.x) * kVector; i < vectors; i += kThreads * kVector) {
    M x[kVector], t[kVector];
    load(in.logits, in.logits_dtype, i, x);
    load(in.target, in.target_dtype, i, t);
    four(i, x, t);
  }
  for (int64_t i = vectors + threadIdx.x; i < end; i += kThreads) {
    one(i, load_one<M>(in.logits, in.logits_dtype, i), load_one<M>(in.target, in.target_dtype, i));
  }
}

template <class M>
__global__ void __launch_bounds__(kThreads) collect(const BceTensors in, double* parts) {
  double sum = 0;
  walk<M>(
      in,
      [&](int64_t, const M(&x)[kVector], const M(&t)[kVector]) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) sum += double(bce_loss(x[j], t[j]));
      },
      [&](int64_t, M x, M t) { sum += double(bce_loss(x, t)); });
  sum = sum_over_block(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

template <class M>
__global__ void __launch_bounds__(kThreads)
    reduce(const double* parts, int64_t count, int64_t size, M* loss) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += parts[i];
  sum = sum_over_block(sum);
  if (threadIdx.x == 0) *loss = static_cast<M>(sum / static_cast<double>(size));
}

template <class M>
__global__ void __launch_bounds__(kThreads)
    fill(const BceTensors in, const void* grad_loss, Dtype grad_dtype, void* out) {
  const double grad = load_one<double>(grad_loss, grad_dtype, 0);
  const M factor = static_cast<M>(grad / static_cast<double>(in.size));
  walk<M>(
      in,
      [&](int64_t i, const M(&x)[kVector], const M(&t)[kVector]) {
        M values[kVector];
#pragma unroll
        for (int j = 0; j < kVector; ++j) values[j] = bce_gradient(x[j], t[j], factor);
        store(out, in.logits_dtype, i, values);
      },
      [&](int64_t i, M x, M t) {
        store_one(out, in.logits_dtype, i, bce_gradient(x, t, factor));
      });
}

BceTensors tensors_of(const BceArguments& arguments, const Adjacent& x, const Adjacent& target) {
  const Dtype own = arguments.logits.dtype, other = arguments.target.dtype;
  const bool both = aligned(x.const_data(), own) && aligned(target.const_data(), other);
  return {x.const_data(), target.const_data(), arguments.logits.numel, own, other, both};
}

template <class M>
void mean_loss(const BceTensors& in, const Operand& like, const Operand& loss, cudaStream_t stream) {
  const int32_t chunks = chunks_of(in.size);
  const Operand memory = workspace(like, chunks);
  auto* parts = static_cast<double*>(memory.mutable_data());
  if (chunks > 0) {
    collect<M><<<chunks, kThreads, 0, stream>>>(in, parts);
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  auto* out = static_cast<M*>(loss.mutable_data());
  reduce<M><<<1, kThreads, 0, stream>>>(parts, chunks, in.size, out);
  STD_CUDA_KERNEL_LAUNCH_CHECK();
}

void bce_with_logits_mean(StableIValue* stack, uint64_t, uint64_t) {
  const BceArguments arguments(stack[0], stack[1]);
  const torch::stable::accelerator::DeviceGuard guard(arguments.logits.device_index);
  const cudaStream_t stream = stream_of(arguments.logits);
  const NoGrad no_grad;
  Operand loss = arguments.empty_loss();
  const Adjacent x(arguments.logits, arguments.logits, false);
  const Adjacent target(arguments.target, arguments.logits, false);
  const BceTensors in = tensors_of(arguments, x, target);
  if (arguments.wide()) {
    mean_loss<double>(in, arguments.logits, loss, stream);
  } else {
    mean_loss<float>(in, arguments.logits, loss, stream);
  }
  stack[0] = torch::stable::detail::from(loss.release());
}

void bce_with_logits_mean_backward(StableIValue* stack, uint64_t, uint64_t) {
  const BceGradientArguments arguments(stack);
  const torch::stable::accelerator::DeviceGuard guard(arguments.logits.device_index);
  const cudaStream_t stream = stream_of(arguments.logits);
  const NoGrad no_grad;
  Operand gradient = arguments.empty_gradient();
  if (gradient.numel > 0) {
    const Adjacent x(arguments.logits, gradient, false), target(arguments.target, gradient, false);
    void* out = gradient.mutable_data();
    BceTensors in = tensors_of(arguments, x, target);
    in.aligned = in.aligned && aligned(out, gradient.dtype);
    const int32_t blocks = chunks_of(in.size);
    const void* grad = arguments.grad_loss.data;
    const Dtype dtype = arguments.grad_loss.dtype;
    if (arguments.wide()) {
      fill<double><<<blocks, kThreads, 0, stream>>>(in, grad, dtype, out);
    } else {
      fill<float><<<blocks, kThreads, 0, stream>>>(in, grad, dtype, out);
    }
    STD_CUDA_KERNEL_LAUNCH_CHECK();
  }
  stack[0] = torch::stable::detail::from(gradient.release());
}

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CUDA, library) {
  library.impl("bce_with_logits_mean", torchgraph::bce_with_logits_mean);
  library.impl("bce_with_logits_mean_backward", torchgraph::bce_with_logits_mean_backward);
}
