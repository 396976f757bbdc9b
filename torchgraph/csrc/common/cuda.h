// What CUDA kernels share: element access, a block's chunk, sums, tensors laid out alike.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/macros.h>

#include "common/operands.h"

namespace torchgraph {

constexpr int kThreads = 512;
constexpr int kVector = 4;         // elements that a thread handles at a time
constexpr int64_t kChunk = 16384;  // elements of a block

// Elements [at, at + kVector), which are ``aligned``: one load, one store.
template <class M, class T>
__device__ __forceinline__ void load_as(const void* base, int64_t at, M (&out)[kVector]) {
  struct alignas(kVector * sizeof(T) > 16 ? 16 : kVector * sizeof(T)) Four {
    T values[kVector];
  };
  const Four four = *reinterpret_cast<const Four*>(static_cast<const T*>(base) + at);
#pragma unroll
  for (int j = 0; j < kVector; ++j) out[j] = static_cast<M>(widen(four.values[j]));
}

template <class M, class T>
__device__ __forceinline__ void store_as(void* base, int64_t at, const M (&in)[kVector]) {
  struct alignas(kVector * sizeof(T) > 16 ? 16 : kVector * sizeof(T)) Four {
    T values[kVector];
  } four;
#pragma unroll
  for (int j = 0; j < kVector; ++j) narrow(in[j], four.values[j]);
  *reinterpret_cast<Four*>(static_cast<T*>(base) + at) = four;
}

template <class M>
__device__ __forceinline__ void load(const void* base, Dtype dtype, int64_t at, M (&out)[kVector]) {
  switch (dtype) {
    case Dtype::kFloat: return load_as<M, float>(base, at, out);
    case Dtype::kDouble: return load_as<M, double>(base, at, out);
    case Dtype::kBFloat16: return load_as<M, BFloat16>(base, at, out);
    case Dtype::kHalf: return load_as<M, Half>(base, at, out);
  }
}

template <class M>
__device__ __forceinline__ void store(void* base, Dtype dtype, int64_t at, const M (&in)[kVector]) {
  switch (dtype) {
    case Dtype::kFloat: return store_as<M, float>(base, at, in);
    case Dtype::kDouble: return store_as<M, double>(base, at, in);
    case Dtype::kBFloat16: return store_as<M, BFloat16>(base, at, in);
    case Dtype::kHalf: return store_as<M, Half>(base, at, in);
  }
}

template <class M>
__device__ __forceinline__ M load_one(const void* base, Dtype dtype, int64_t at) {
  switch (dtype) {
    case Dtype::kFloat: return static_cast<M>(static_cast<const float*>(base)[at]);
    case Dtype::kDouble: return static_cast<M>(static_cast<const double*>(base)[at]);
    case Dtype::kBFloat16: return widen(static_cast<const BFloat16*>(base)[at]);
    case Dtype::kHalf: return widen(static_cast<const Half*>(base)[at]);
  }
  return 0;
}

template <class M>
__device__ __forceinline__ void store_one(void* base, Dtype dtype, int64_t at, M value) {
  switch (dtype) {
    case Dtype::kFloat: return narrow(value, static_cast<float*>(base)[at]);
    case Dtype::kDouble: return narrow(value, static_cast<double*>(base)[at]);
    case Dtype::kBFloat16: return narrow(value, static_cast<BFloat16*>(base)[at]);
    case Dtype::kHalf: return narrow(value, static_cast<Half*>(base)[at]);
  }
}

inline int32_t chunks_of(int64_t size) { return static_cast<int32_t>((size + kChunk - 1) / kChunk); }

// The sum over a block; in its first thread.
__device__ __forceinline__ double sum_over_block(double value) {
  __shared__ double parts[kThreads / 32];
  __syncthreads();
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, distance);
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kThreads / 32; ++i) value += parts[i];
  }
  return value;
}

inline cudaStream_t stream_of(const Operand& tensor) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.device_index, &stream));
  return static_cast<cudaStream_t>(stream);
}

// For calls of ATen: below autograd nothing is recorded.
class NoGrad {
 public:
  NoGrad() : before_(aoti_torch_grad_mode_is_enabled()) { aoti_torch_grad_mode_set_enabled(false); }
  ~NoGrad() { aoti_torch_grad_mode_set_enabled(before_); }

 private:
  bool before_;
};

inline bool same_strides(const Operand& a, const Operand& b) {
  for (int64_t d = 0; d < a.dim; ++d) {
    if (a.sizes[d] > 1 && a.strides[d] != b.strides[d]) return false;
  }
  return true;
}

// A tensor laid out as ``first`` is, or contiguously where that one has gaps: itself, or a copy of it
// that is written back at the end.
class Adjacent {
 public:
  Adjacent(const Operand& tensor, const Operand& first, bool written) : tensor_(tensor) {
    const bool dense = extent(first).dense;
    if (dense && same_strides(tensor, first)) return;
    std::vector<int64_t> strides(first.strides, first.strides + first.dim);
    if (!dense) {
      int64_t filled = 1;
      for (int64_t d = first.dim; d-- > 0; filled *= first.sizes[d]) strides[d] = filled;
    }
    AtenTensorHandle handle = nullptr;
    int32_t dtype = 0;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(tensor.dim, tensor.sizes, strides.data(), dtype,
                                                    tensor.device_type, tensor.device_index,
                                                    &handle));
    copy_.emplace(handle);
    TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(copy_->get(), tensor.get(), 0));
    write_back_ = written;
  }

  void* data() const { return copy_ ? copy_->mutable_data() : tensor_.mutable_data(); }
  const void* const_data() const { return copy_ ? copy_->data : tensor_.data; }

  void write_back() const {
    if (write_back_) TORCH_ERROR_CODE_CHECK(aoti_torch_copy_(tensor_.get(), copy_->get(), 0));
  }

 private:
  const Operand& tensor_;
  std::optional<Operand> copy_;
  bool write_back_ = false;
};

// Memory of a kernel's own: doubles on the device of ``like``.
inline Operand workspace(const Operand& like, int64_t doubles) {
  const int64_t stride = 1;
  AtenTensorHandle handle = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, &doubles, &stride, aoti_torch_dtype_float64(),
                                                  like.device_type, like.device_index, &handle));
  return Operand(handle);
}

inline bool aligned(const void* data, Dtype dtype) {
  const int64_t bytes = std::min<int64_t>(16, kVector * element_size(dtype));
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

}  // namespace torchgraph
