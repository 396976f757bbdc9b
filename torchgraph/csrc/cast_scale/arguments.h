// The arguments of cast_scale, taken off the stack and checked; and its result.
#pragma once

#include <torch/csrc/stable/stableivalue_conversions.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include "common/operands.h"

namespace torchgraph {

// What one element becomes: rounded as often as by the separate ops.
template <class M>
struct CastScale {
  M number, by;

  TG_INLINE M operator()(M x) const { return x * number * by; }
};

struct CastScaleArguments {
  Operand x, scale_by;
  double number;
  torch::headeronly::ScalarType type;

  explicit CastScaleArguments(StableIValue* stack)
      : x(take_operand(stack[0])),
        scale_by(take_operand(stack[1])),
        number(torch::stable::detail::to<double>(stack[2])),
        type(torch::stable::detail::to<torch::headeronly::ScalarType>(stack[3])) {
    STD_TORCH_CHECK(x.is_floating, "torchgraph::cast_scale: x must be a floating-point tensor.");
    STD_TORCH_CHECK(type == torch::headeronly::ScalarType::Float || wide(),
                    "torchgraph::cast_scale: dtype is float32 or float64.");
    STD_TORCH_CHECK(scale_by.is_floating && scale_by.dim == 0 && scale_by.same_device(x) &&
                        scale_by.dtype == (wide() ? Dtype::kDouble : Dtype::kFloat),
                    "torchgraph::cast_scale: scale_by must be a 0-dim tensor of dtype, on the "
                    "device of x.");
    STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(x.data) % element_size(x.dtype) == 0,
                    "torchgraph::cast_scale: x begins at an address where no element of its dtype "
                    "may be.");
  }

  bool wide() const { return type == torch::headeronly::ScalarType::Double; }

  Operand result() const { return empty_like(x, type); }
};

}  // namespace torchgraph
