// The arguments of the binary cross-entropy ops, taken off the stack and checked.
#pragma once

#include <torch/headeronly/util/Exception.h>

#include "bce_mean/loss.h"
#include "common/operands.h"

namespace torchgraph {

struct BceArguments {
  Operand logits, target;

  BceArguments(StableIValue logits, StableIValue target)
      : logits(take_operand(logits)), target(take_operand(target)) {
    check(this->logits, "logits");
    check(this->target, "target");
    STD_TORCH_CHECK(this->logits.same_shape(this->target) && this->logits.same_device(this->target),
                    "torchgraph::bce_with_logits_mean: logits and target must have one shape and "
                    "device.");
  }

  bool wide() const { return logits.dtype == Dtype::kDouble; }

  // The loss, on the device of the logits.
  Operand empty_loss() const {
    AtenTensorHandle handle = nullptr;
    const int32_t dtype = wide() ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(0, nullptr, nullptr, dtype, logits.device_type,
                                                    logits.device_index, &handle));
    return Operand(handle);
  }

 private:
  static void check(const Operand& tensor, const char* name) {
    STD_TORCH_CHECK(tensor.is_floating, "torchgraph::bce_with_logits_mean: ", name,
                    " must be a floating-point tensor.");
    STD_TORCH_CHECK(
        reinterpret_cast<uintptr_t>(tensor.data) % element_size(tensor.dtype) == 0,
        "torchgraph::bce_with_logits_mean: ", name,
        " begins at an address where no element of its dtype may be.");
  }
};

struct BceGradientArguments : BceArguments {
  Operand grad_loss;

  explicit BceGradientArguments(StableIValue* stack)
      : BceArguments(stack[1], stack[2]), grad_loss(take_operand(stack[0])) {
    STD_TORCH_CHECK(grad_loss.is_floating && grad_loss.dim == 0 && grad_loss.same_device(logits),
                    "torchgraph::bce_with_logits_mean_backward: grad_loss must be a "
                    "floating-point number of no dimensions, on the device of the logits.");
  }

  Operand empty_gradient() const { return empty_like(logits, dtype()); }

 private:
  torch::headeronly::ScalarType dtype() const {
    using torch::headeronly::ScalarType;
    switch (logits.dtype) {
      case Dtype::kDouble: return ScalarType::Double;
      case Dtype::kBFloat16: return ScalarType::BFloat16;
      case Dtype::kHalf: return ScalarType::Half;
      default: return ScalarType::Float;
    }
  }
};

}  // namespace torchgraph
