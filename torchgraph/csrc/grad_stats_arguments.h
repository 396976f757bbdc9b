// The arguments of grad_stats, taken off the stack and checked; and its results.
#pragma once

#include <torch/headeronly/util/Exception.h>

#include "grad_stats.h"
#include "interpreter.h"
#include "operands.h"

namespace torchgraph {

struct GradStatsArguments {
  std::vector<Operand> grads;
  double p;
  std::optional<Operand> grad_scale;

  explicit GradStatsArguments(StableIValue* stack)
      : grads(take_operands(stack[0])),
        p(torch::stable::detail::to<double>(stack[1])),
        grad_scale(take_optional_operand(stack[2])) {
    STD_TORCH_CHECK(p == p && p != 0, "torchgraph::grad_stats: p must be a number other than 0.");
    STD_TORCH_CHECK(!grads.empty(), "torchgraph::grad_stats: there are no gradients.");
    for (size_t i = 0; i < grads.size(); ++i) {
      STD_TORCH_CHECK(grads[i].is_floating && grads[i].same_device(grads[0]),
                      "torchgraph::grad_stats: grads[", i,
                      "] must be a floating-point tensor on the device of grads[0].");
      STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(grads[i].data) % element_size(grads[i].dtype) == 0,
                      "torchgraph::grad_stats: grads[", i,
                      "] begins at an address where no element of its dtype may be.");
    }
    STD_TORCH_CHECK(!grad_scale || (grad_scale->numel == 1 && grad_scale->is_floating &&
                                    grad_scale->same_device(grads[0])),
                    "torchgraph::grad_stats: grad_scale must be one floating-point number on the "
                    "device of the gradients.");
  }

  ~GradStatsArguments() {
    const InterpreterLock lock;
    grads.clear();
  }

  bool wide() const {
    return std::any_of(grads.begin(), grads.end(),
                       [](const Operand& grad) { return grad.dtype == Dtype::kDouble; });
  }

  // A tensor of no dimensions on the device of the gradients.
  AtenTensorHandle result(bool wide) const {
    AtenTensorHandle handle = nullptr;
    const int32_t dtype = wide ? aoti_torch_dtype_float64() : aoti_torch_dtype_float32();
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(0, nullptr, nullptr, dtype,
                                                    grads[0].device_type, grads[0].device_index,
                                                    &handle));
    return handle;
  }
};

}  // namespace torchgraph
