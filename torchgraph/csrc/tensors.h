// Tensors as a boxed kernel receives them: handles of torch's stable ABI that it owns.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "element.h"

namespace torchgraph {

class Tensor {
 public:
  explicit Tensor(AtenTensorHandle handle) : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  AtenTensorHandle get() const { return handle_; }

  int64_t numel() const { return ask<int64_t>(aoti_torch_get_numel); }
  int64_t dim() const { return ask<int64_t>(aoti_torch_get_dim); }
  const int64_t* sizes() const { return ask<int64_t*>(aoti_torch_get_sizes); }
  const int64_t* strides() const { return ask<int64_t*>(aoti_torch_get_strides); }
  int32_t dtype() const { return ask<int32_t>(aoti_torch_get_dtype); }
  int32_t device_type() const { return ask<int32_t>(aoti_torch_get_device_type); }
  int32_t device_index() const { return ask<int32_t>(aoti_torch_get_device_index); }
  void* data() const { return ask<void*>(torch_get_mutable_data_ptr); }
  const void* const_data() const { return ask<const void*>(torch_get_const_data_ptr); }

 private:
  template <class T, class F>
  T ask(F question) const {
    T answer;
    TORCH_ERROR_CODE_CHECK(question(handle_, &answer));
    return answer;
  }

  AtenTensorHandle handle_;
};

inline Tensor take_tensor(StableIValue value) {
  return Tensor(torch::stable::detail::to<AtenTensorHandle>(value));
}

inline std::vector<Tensor> take_tensors(StableIValue value) {
  struct List {
    StableListHandle handle;
    ~List() { torch_delete_list(handle); }
  } list{torch::stable::detail::to<StableListHandle>(value)};
  size_t size = 0;
  TORCH_ERROR_CODE_CHECK(torch_list_size(list.handle, &size));
  std::vector<Tensor> tensors;
  tensors.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    StableIValue element = 0;
    TORCH_ERROR_CODE_CHECK(torch_list_get_item(list.handle, i, &element));
    tensors.push_back(take_tensor(element));
  }
  return tensors;
}

inline std::optional<Tensor> take_optional_tensor(StableIValue value) {
  auto* element = torch::stable::detail::to<StableIValue*>(value);
  if (element == nullptr) return std::nullopt;
  Tensor tensor = take_tensor(*element);
  delete element;
  return tensor;
}

// False for a dtype that no kernel of ours computes in.
inline bool floating(int32_t dtype, Dtype& out) {
  static const int32_t known[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_float64(),
                                  aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float16()};
  for (int i = 0; i < 4; ++i) {
    if (dtype == known[i]) {
      out = static_cast<Dtype>(i);
      return true;
    }
  }
  return false;
}

inline int64_t element_size(Dtype dtype) {
  return dtype == Dtype::kDouble ? 8 : (dtype == Dtype::kFloat ? 4 : 2);
}

// Where a tensor's bytes are: [low, high), and whether it fills them, each element its own place.
struct Extent {
  uintptr_t low, high;
  bool dense;
};

inline Extent extent(const Tensor& tensor, int64_t element, int64_t numel) {
  const auto low = reinterpret_cast<uintptr_t>(tensor.const_data());
  if (numel == 0) return {low, low, true};
  const int64_t* sizes = tensor.sizes();
  const int64_t* strides = tensor.strides();
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (sizes[d] - 1) * strides[d];
  // As many places as elements, and sorted strides that multiply up: nothing twice, no gap.
  bool dense = last + 1 == numel;
  int64_t filled = 1;
  for (int64_t round = 0; dense && filled < numel; ++round) {
    int64_t next = 0;
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      if (sizes[d] > 1 && strides[d] == filled) next = sizes[d];
    }
    dense = next != 0;
    filled *= next;
  }
  return {low, low + static_cast<uintptr_t>((last + 1) * element), dense};
}

}  // namespace torchgraph
