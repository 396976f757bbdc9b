// torchgraph::add_layer_norm, add_rms_norm and their backward on the CPU.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "common/checks.h"
#include "norm/loops.h"

namespace torchgraph {
namespace {

constexpr int64_t kAtOnce = 32 * 1024;  // elements for which another thread is worth its start

// --- arguments -----------------------------------------------------------------------------------

bool same_shape(const Tensor& a, const Tensor& b) {
  bool same = a.dim() == b.dim();
  for (int64_t d = 0; same && d < a.dim(); ++d) same = a.size(d) == b.size(d);
  return same;
}

int64_t width_of(const Tensor& x) { return x.size(x.dim() - 1); }

void check_like(const Tensor& x, const Tensor& other, const char* name) {
  require(same_shape(x, other) && other.scalar_type() == x.scalar_type() && same_device(x, other),
          "norm: ", name, " is of x's shape, dtype and device.");
}

void check_x(const Tensor& x, const char* name) {
  require(x.dim() > 0 && width_of(x) > 0, "norm: ", name, " has no last dimension to normalize.");
  require(is_floating(x.scalar_type()), "norm: ", name,
          " is float32, float64, bfloat16 or float16.");
}

// Weight and bias are of x's dtype or of the wide one.
void check_parameter(const Tensor& x, const Tensor& parameter, const char* name) {
  const ScalarType dtype = parameter.scalar_type();
  require(parameter.dim() == 1 && parameter.size(0) == width_of(x), "norm: ", name,
          " has one element for each of the last dimension.");
  require(dtype == x.scalar_type() || dtype == wide(x.scalar_type()), "norm: ", name,
          " is of x's dtype, or float32.");
  require(same_device(x, parameter), "norm: tensors on different devices.");
}

void check_statistic(const Tensor& x, const Tensor& statistic, const char* name) {
  bool fits = statistic.dim() == x.dim() && statistic.size(x.dim() - 1) == 1;
  for (int64_t d = 0; fits && d + 1 < x.dim(); ++d) fits = statistic.size(d) == x.size(d);
  require(fits && statistic.scalar_type() == wide(x.scalar_type()) && same_device(x, statistic),
          "norm: ", name, " has x's shape but for a last dimension of 1, in the wide dtype.");
}

Tensor adjacent(const Tensor& tensor) { return torch::stable::contiguous(tensor); }

Tensor in_wide(const Tensor& parameter, ScalarType of_x) {
  return adjacent(torch::stable::to(parameter, wide(of_x)));
}

std::vector<int64_t> shape_of(const Tensor& x) {
  std::vector<int64_t> shape;
  for (int64_t d = 0; d < x.dim(); ++d) shape.push_back(x.size(d));
  return shape;
}

Tensor empty_statistic(const Tensor& x) {
  std::vector<int64_t> shape = shape_of(x);
  shape.back() = 1;
  return torch::stable::new_empty(x, shape, wide(x.scalar_type()));
}

std::optional<Tensor> adjacent(const std::optional<Tensor>& tensor) {
  if (!tensor.has_value()) return std::nullopt;
  return adjacent(*tensor);
}

std::optional<Tensor> in_wide(const std::optional<Tensor>& parameter, ScalarType of_x) {
  if (!parameter.has_value()) return std::nullopt;
  return in_wide(*parameter, of_x);
}

const void* data(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? tensor->const_data_ptr() : nullptr;
}

// --- the ops -------------------------------------------------------------------------------------

struct Results {
  Tensor sum, out, mean, rstd;
};

Results normalize(const Tensor& x, const std::optional<Tensor>& residual, const Tensor& weight,
                  const std::optional<Tensor>& bias, double eps, bool centered) {
  check_x(x, "x");
  if (residual.has_value()) check_like(x, *residual, "residual");
  check_parameter(x, weight, "weight");
  if (bias.has_value()) check_parameter(x, *bias, "bias");
  const ScalarType dtype = x.scalar_type();
  const std::vector<int64_t> shape = shape_of(x), none{0};
  Results results{torch::stable::new_empty(x, residual ? shape : none),
                  torch::stable::new_empty(x, shape),
                  centered ? empty_statistic(x) : torch::stable::new_empty(x, none),
                  empty_statistic(x)};
  const Tensor given = adjacent(x), scale = in_wide(weight, dtype);
  const std::optional<Tensor> more = adjacent(residual), shift = in_wide(bias, dtype);
  const Norm job{.x = given.const_data_ptr(),
                 .residual = data(more),
                 .weight = scale.const_data_ptr(),
                 .bias = data(shift),
                 .sum = results.sum.mutable_data_ptr(),
                 .out = results.out.mutable_data_ptr(),
                 .mean = results.mean.mutable_data_ptr(),
                 .rstd = results.rstd.mutable_data_ptr(),
                 .width = width_of(x),
                 .eps = eps};
  const auto kernel = norm_kernels(dtype, centered).forward;
  const int64_t rows = x.numel() / job.width, grain = std::max<int64_t>(1, kAtOnce / job.width);
  torch::stable::parallel_for(0, rows, grain, [&](int64_t b, int64_t e) { kernel(job, b, e); });
  return results;
}

struct Gradients {
  Tensor x, weight, bias;
};

template <class A>
Tensor added(const std::vector<A>& parts, int64_t first, const NormGradient& job, const Tensor& x,
             ScalarType dtype) {
  const std::vector<int64_t> shape{job.width};
  const Tensor sum = torch::stable::new_empty(x, shape, wide(x.scalar_type()));
  A* out = static_cast<A*>(sum.mutable_data_ptr());
  std::vector<double> all(job.width);
  for (size_t at = first * job.width; at < parts.size(); at += 2 * job.width)
    for (int64_t i = 0; i < job.width; ++i) all[i] += double(parts[at + i]);
  for (int64_t i = 0; i < job.width; ++i) out[i] = A(all[i]);
  return torch::stable::to(sum, dtype);
}

template <class A>
Gradients differentiate(NormGradient job, const Tensor& x, const Tensor& grad,
                        ScalarType parameter, bool centered) {
  // Chunks depend on the sizes alone, and so does the order of addition.
  job.chunk = std::max<int64_t>(32, job.rows / 64);
  const int64_t chunks = (job.rows + job.chunk - 1) / job.chunk;
  std::vector<A> parts(2 * chunks * job.width);
  job.parts = parts.data();
  const auto kernel = norm_kernels(x.scalar_type(), centered).backward;
  const int64_t grain = std::max<int64_t>(1, kAtOnce / (job.chunk * job.width));
  torch::stable::parallel_for(0, chunks, grain, [&](int64_t b, int64_t e) { kernel(job, b, e); });
  return {grad, added(parts, 0, job, x, parameter), added(parts, 1, job, x, parameter)};
}

Gradients differentiate(const Tensor& grad_out, const std::optional<Tensor>& grad_sum,
                        const Tensor& sum, const std::optional<Tensor>& mean, const Tensor& rstd,
                        const Tensor& weight) {
  check_x(sum, "sum");
  check_like(sum, grad_out, "grad_out");
  if (grad_sum.has_value()) check_like(sum, *grad_sum, "grad_sum");
  if (mean.has_value()) check_statistic(sum, *mean, "mean");
  check_statistic(sum, rstd, "rstd");
  check_parameter(sum, weight, "weight");
  const std::vector<int64_t> shape = shape_of(sum);
  const Tensor grad = torch::stable::new_empty(sum, shape);
  const Tensor out = adjacent(grad_out), values = adjacent(sum), by = adjacent(rstd);
  const Tensor scale = in_wide(weight, sum.scalar_type());
  const std::optional<Tensor> more = adjacent(grad_sum), level = adjacent(mean);
  const NormGradient job{.grad_out = out.const_data_ptr(),
                         .grad_sum = data(more),
                         .sum = values.const_data_ptr(),
                         .mean = data(level),
                         .rstd = by.const_data_ptr(),
                         .weight = scale.const_data_ptr(),
                         .grad = grad.mutable_data_ptr(),
                         .parts = nullptr,
                         .rows = sum.numel() / width_of(sum),
                         .width = width_of(sum),
                         .chunk = 1};
  const bool centered = mean.has_value();
  return sum.scalar_type() == ScalarType::Double
             ? differentiate<double>(job, sum, grad, weight.scalar_type(), centered)
             : differentiate<float>(job, sum, grad, weight.scalar_type(), centered);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm(const Tensor& x,
                                                          const std::optional<Tensor>& residual,
                                                          const Tensor& weight,
                                                          const std::optional<Tensor>& bias,
                                                          double eps) {
  const auto [sum, out, mean, rstd] = normalize(x, residual, weight, bias, eps, true);
  return {sum, out, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm(const Tensor& x,
                                                const std::optional<Tensor>& residual,
                                                const Tensor& weight, double eps) {
  const auto [sum, out, mean, rstd] = normalize(x, residual, weight, std::nullopt, eps, false);
  return {sum, out, rstd};
}

std::tuple<Tensor, Tensor, Tensor> add_layer_norm_backward(
    const Tensor& grad_out, const std::optional<Tensor>& grad_sum, const Tensor& sum,
    const Tensor& mean, const Tensor& rstd, const Tensor& weight) {
  const auto [grad, by_weight, by_bias] =
      differentiate(grad_out, grad_sum, sum, mean, rstd, weight);
  return {grad, by_weight, by_bias};
}

std::tuple<Tensor, Tensor> add_rms_norm_backward(const Tensor& grad_out,
                                                 const std::optional<Tensor>& grad_sum,
                                                 const Tensor& sum, const Tensor& rstd,
                                                 const Tensor& weight) {
  const auto [grad, by_weight, by_bias] =
      differentiate(grad_out, grad_sum, sum, std::nullopt, rstd, weight);
  return {grad, by_weight};
}

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CPU, library) {
  library.impl("add_layer_norm", TORCH_BOX(&torchgraph::add_layer_norm));
  library.impl("add_rms_norm", TORCH_BOX(&torchgraph::add_rms_norm));
  library.impl("add_layer_norm_backward", TORCH_BOX(&torchgraph::add_layer_norm_backward));
  library.impl("add_rms_norm_backward", TORCH_BOX(&torchgraph::add_rms_norm_backward));
}
