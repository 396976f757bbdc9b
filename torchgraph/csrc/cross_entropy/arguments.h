// The arguments of the cross-entropy ops, checked and taken apart alike on every device.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <optional>
#include <tuple>
#include <vector>

#include "common/checks.h"
#include "common/versions.h"
#include "cross_entropy/loss.h"

namespace torchgraph {

inline void check_arguments(const Tensor& logits, const Tensor& target,
                            const std::optional<Tensor>& weight, int64_t reduction,
                            double label_smoothing) {
  require(logits.dim() == 2, "cross_entropy: logits are (N, C), not of dimension ",
                  logits.dim(), ".");
  require(is_floating(logits.scalar_type()),
                  "cross_entropy: logits are float32, float64, bfloat16 or float16.");
  require(target.dim() == 1 && target.size(0) == logits.size(0),
                  "cross_entropy: targets are (N,), one class for each row of the logits.");
  require(target.scalar_type() == ScalarType::Long,
                  "cross_entropy: targets are int64 class indices.");
  require(same_device(logits, target), "cross_entropy: tensors on different devices.");
  if (weight.has_value()) {
    require(weight->dim() == 1 && weight->size(0) == logits.size(1),
                    "cross_entropy: weights are (C,), one for each class.");
    require(weight->scalar_type() == wide(logits.scalar_type()),
                    "cross_entropy: weights are float64 for float64 logits, else float32.");
    require(same_device(logits, *weight), "cross_entropy: tensors on different devices.");
  }
  require(kNone <= reduction && reduction <= kSum,
                  "cross_entropy: reduction is 0 (none), 1 (mean) or 2 (sum), not ", reduction,
                  ".");
  require(label_smoothing >= 0.0 && label_smoothing <= 1.0,
                  "cross_entropy: label_smoothing is from 0.0 to 1.0, not ", label_smoothing, ".");
}

inline void check_gradient(const Tensor& logits, const Tensor& grad_loss, const Tensor& lse,
                           const Tensor& total_weight, int64_t reduction) {
  const bool each = reduction == kNone;
  require(grad_loss.dim() == (each ? 1 : 0) &&
                      (!each || grad_loss.size(0) == logits.size(0)),
                  "cross_entropy_backward: grad_loss has the shape of the loss.");
  require(grad_loss.scalar_type() == wide(logits.scalar_type()) &&
                      total_weight.scalar_type() == wide(logits.scalar_type()),
                  "cross_entropy_backward: grad_loss and total_weight are float64 for float64 "
                  "logits, else float32.");
  require(lse.dim() == 1 && lse.size(0) == logits.size(0) &&
                      lse.scalar_type() == ScalarType::Double,
                  "cross_entropy_backward: lse is (N,), float64.");
  require(total_weight.dim() == 0, "cross_entropy_backward: total_weight is one number.");
  require(same_device(logits, grad_loss) && same_device(logits, lse) &&
                      same_device(logits, total_weight),
                  "cross_entropy_backward: tensors on different devices.");
}

// What is written in place holds each element once, apart from what is read.
inline void check_in_place(const Tensor& logits, const Tensor& grad_loss, const Tensor& target,
                           const Tensor& lse, const std::optional<Tensor>& weight,
                           const Tensor& total_weight) {
  const int64_t rows = logits.size(0), classes = logits.size(1);
  const int64_t row = rows > 1 ? logits.stride(0) : classes * logits.stride(1);
  const int64_t one = classes > 1 ? logits.stride(1) : rows * logits.stride(0);
  require(logits.numel() == 0 || (row > 0 && one > 0 &&
                                          (row >= classes * one || one >= rows * row)) ||
                      logits.numel() == 1,
                  "cross_entropy_backward_: several logits share memory.");
  require(apart(logits, grad_loss) && apart(logits, target) && apart(logits, lse) &&
                      apart(logits, total_weight) && (!weight || apart(logits, *weight)),
                  "cross_entropy_backward_: the logits share memory with another argument.");
}

inline std::optional<Tensor> adjacent(const std::optional<Tensor>& weight) {
  if (!weight.has_value()) return std::nullopt;
  return torch::stable::contiguous(*weight);
}

// Of checked arguments, the weights adjacent.
inline LossProblem loss_problem(const Tensor& logits, const Tensor& target,
                                const std::optional<Tensor>& weight, int64_t ignore_index,
                                double label_smoothing) {
  return {.logits = logits.const_data_ptr(),
          .rows = logits.size(0),
          .classes = logits.size(1),
          .row_stride = logits.stride(0),
          .class_stride = logits.stride(1),
          .targets = static_cast<const int64_t*>(target.const_data_ptr()),
          .target_stride = target.stride(0),
          .ignored = ignore_index,
          .weight = weight ? weight->const_data_ptr() : nullptr,
          .smoothing = Smoothing(label_smoothing, logits.size(1)),
          .smooth = label_smoothing > 0.0};
}

// (loss, lse, total_weight), to be written.
inline std::tuple<Tensor, Tensor, Tensor> empty_results(const Tensor& logits, int64_t reduction) {
  const std::vector<int64_t> rows{logits.size(0)}, scalar;
  const ScalarType dtype = wide(logits.scalar_type());
  return {torch::stable::new_empty(logits, reduction == kNone ? rows : scalar, dtype),
          torch::stable::new_empty(logits, rows, ScalarType::Double),
          torch::stable::new_empty(logits, scalar, dtype)};
}

inline Tensor empty_gradient(const Tensor& logits) {
  const std::vector<int64_t> shape{logits.size(0), logits.size(1)};
  return torch::stable::new_empty(logits, shape);
}

// The backward ops; `write` writes the gradient of checked arguments.

template <auto write>
Tensor cross_entropy_backward(const Tensor& logits, const Tensor& grad_loss, const Tensor& target,
                              const Tensor& lse, const Tensor& total_weight,
                              const std::optional<Tensor>& weight, int64_t reduction,
                              int64_t ignore_index, double label_smoothing) {
  check_arguments(logits, target, weight, reduction, label_smoothing);
  check_gradient(logits, grad_loss, lse, total_weight, reduction);
  const Tensor out = empty_gradient(logits);
  write(logits, grad_loss, target, lse, total_weight, weight, reduction, ignore_index,
        label_smoothing, out);
  return out;
}

template <auto write>
void cross_entropy_backward_(const Tensor& logits, const Tensor& grad_loss, const Tensor& target,
                             const Tensor& lse, const Tensor& total_weight,
                             const std::optional<Tensor>& weight, int64_t reduction,
                             int64_t ignore_index, double label_smoothing) {
  check_arguments(logits, target, weight, reduction, label_smoothing);
  check_gradient(logits, grad_loss, lse, total_weight, reduction);
  check_in_place(logits, grad_loss, target, lse, weight, total_weight);
  raise_version(logits.get());
  write(logits, grad_loss, target, lse, total_weight, weight, reduction, ignore_index,
        label_smoothing, logits);
}

}  // namespace torchgraph
