// Tensors as a boxed kernel receives them: handles of torch's stable ABI that it owns.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/element.h"

namespace torchgraph {

// False for a dtype that no kernel of ours computes in.
inline bool floating(int32_t code, Dtype& out) {
  static const int32_t known[] = {aoti_torch_dtype_float32(), aoti_torch_dtype_float64(),
                                  aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float16()};
  for (int i = 0; i < 4; ++i) {
    if (code == known[i]) {
      out = static_cast<Dtype>(i);
      return true;
    }
  }
  return false;
}

inline int64_t element_size(Dtype dtype) {
  return dtype == Dtype::kDouble ? 8 : (dtype == Dtype::kFloat ? 4 : 2);
}

// A tensor argument: a handle that it owns, and what the handle tells, asked once.
class Operand {
 public:
  explicit Operand(AtenTensorHandle handle) : handle_(handle) {
    int32_t code = 0;
    int64_t* shape = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dim));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &shape));
    sizes = shape;
    numel = 1;
    for (int64_t d = 0; d < dim; ++d) numel *= shape[d];
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &shape));
    strides = shape;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &code));
    is_floating = floating(code, dtype);
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(handle, &device_type));
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(handle, &device_index));
    if (numel > 0) TORCH_ERROR_CODE_CHECK(torch_get_const_data_ptr(handle, &data));
  }
  Operand(Operand&& other) noexcept { *this = std::move(other); }
  Operand& operator=(Operand&& other) noexcept {
    memcpy(static_cast<void*>(this), &other, sizeof *this);
    other.handle_ = nullptr;
    return *this;
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;
  ~Operand() {
    if (handle_ != nullptr) aoti_torch_delete_tensor_object(handle_);
  }

  AtenTensorHandle get() const { return handle_; }
  AtenTensorHandle release() { return std::exchange(handle_, nullptr); }

  void* mutable_data() const {
    void* answer = nullptr;
    TORCH_ERROR_CODE_CHECK(torch_get_mutable_data_ptr(handle_, &answer));
    return answer;
  }

  bool same_shape(const Operand& other) const {
    if (dim != other.dim) return false;
    for (int64_t d = 0; d < dim; ++d) {
      if (sizes[d] != other.sizes[d]) return false;
    }
    return true;
  }
  bool on_cpu() const { return device_type == aoti_torch_device_type_cpu(); }
  bool same_device(const Operand& other) const {
    return device_type == other.device_type && device_index == other.device_index;
  }

  int64_t numel = 0, dim = 0;
  const int64_t* sizes = nullptr;
  const int64_t* strides = nullptr;
  const void* data = nullptr;  // null when there are no elements
  Dtype dtype = Dtype::kFloat;
  bool is_floating = false;
  int32_t device_type = 0, device_index = 0;

 private:
  AtenTensorHandle handle_;
};

inline Operand take_operand(StableIValue value) {
  return Operand(torch::stable::detail::to<AtenTensorHandle>(value));
}

inline std::vector<Operand> take_operands(StableIValue value) {
  struct List {
    StableListHandle handle;
    ~List() { torch_delete_list(handle); }
  } list{torch::stable::detail::to<StableListHandle>(value)};
  size_t size = 0;
  TORCH_ERROR_CODE_CHECK(torch_list_size(list.handle, &size));
  std::vector<Operand> operands;
  operands.reserve(size);
  for (size_t i = 0; i < size; ++i) {
    StableIValue element = 0;
    TORCH_ERROR_CODE_CHECK(torch_list_get_item(list.handle, i, &element));
    operands.emplace_back(torch::stable::detail::to<AtenTensorHandle>(element));
  }
  return operands;
}

inline std::optional<Operand> take_optional_operand(StableIValue value) {
  auto* element = torch::stable::detail::to<StableIValue*>(value);
  if (element == nullptr) return std::nullopt;
  Operand tensor = take_operand(*element);
  delete element;
  return tensor;
}

// Where a tensor's bytes are: [low, high), and whether it fills them, each element its own place.
struct Extent {
  uintptr_t low, high;
  bool dense;
};

inline Extent extent(const Operand& tensor) {
  const auto low = reinterpret_cast<uintptr_t>(tensor.data);
  const int64_t element = element_size(tensor.dtype);
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim; ++d) last += (tensor.sizes[d] - 1) * tensor.strides[d];
  // As many places as elements, and strides that multiply up: nothing twice, no gap.
  bool dense = last + 1 == tensor.numel;
  for (int64_t filled = 1; dense && filled < tensor.numel;) {
    int64_t next = 0;
    for (int64_t d = tensor.dim; d-- > 0;) {
      if (tensor.sizes[d] > 1 && tensor.strides[d] == filled) next = tensor.sizes[d];
    }
    dense = next != 0;
    filled *= next;
  }
  return {low, low + static_cast<uintptr_t>((last + 1) * element), dense};
}

// A new tensor of another dtype, laid out as ``x``, without gaps.
inline Operand empty_like(const Operand& x, torch::headeronly::ScalarType dtype) {
  namespace abi = torch::stable::detail;
  AtenTensorHandle handle = nullptr;
  if (x.numel > 0 && extent(x).dense) {  // the rule, and quicker
    const int32_t code = abi::to<int32_t>(abi::from(dtype));
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(x.dim, x.sizes, x.strides, code, x.device_type,
                                                    x.device_index, &handle));
    return Operand(handle);
  }
  TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(x.get(), &handle));
  const StableIValue none = abi::from(std::nullopt);
  const std::optional<torch::headeronly::ScalarType> chosen = dtype;
  StableIValue stack[] = {abi::from(handle), abi::from(chosen), none, none, none, none};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::empty_like", "", stack, TORCH_ABI_VERSION));
  return take_operand(stack[0]);
}

}  // namespace torchgraph
