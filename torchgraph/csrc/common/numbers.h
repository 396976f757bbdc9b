// Tensors of one element in the CPU's memory.
#pragma once

#include "common/operands.h"

namespace torchgraph {

inline double read_number(const Operand& tensor) {
  switch (tensor.dtype) {
    case Dtype::kFloat: return *static_cast<const float*>(tensor.data);
    case Dtype::kDouble: return *static_cast<const double*>(tensor.data);
    case Dtype::kBFloat16: return widen(*static_cast<const BFloat16*>(tensor.data));
    case Dtype::kHalf: return widen(*static_cast<const Half*>(tensor.data));
  }
  return 0;
}

// Of float32 or float64.
inline void write_number(const Operand& tensor, double value) {
  void* data = tensor.mutable_data();
  if (tensor.dtype == Dtype::kDouble) {
    *static_cast<double*>(data) = value;
  } else {
    *static_cast<float*>(data) = static_cast<float>(value);
  }
}

}  // namespace torchgraph
