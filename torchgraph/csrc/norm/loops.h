// Layer norm and RMS norm with the residual addition before them, and their backward, row by row.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>

namespace torchgraph {

// Rows of `width` elements, one after the other. Weight, bias, mean and rstd are in the wide type.
struct Norm {
  const void *x, *residual;    // residual may be null
  const void *weight, *bias;   // bias may be null
  void *sum, *out, *mean, *rstd;
  int64_t width;
  double eps;
};

struct NormGradient {
  const void *grad_out, *grad_sum;  // grad_sum may be null
  const void *sum, *mean, *rstd, *weight;
  void* grad;
  void* parts;  // for each chunk of rows the gradient by the weight, then that by the bias
  int64_t rows, width, chunk;
};

struct NormKernels {
  void (*forward)(const Norm&, int64_t, int64_t);           // of rows
  void (*backward)(const NormGradient&, int64_t, int64_t);  // of chunks
};

// Of a dtype of x; centered: layer norm.
NormKernels norm_kernels(torch::headeronly::ScalarType dtype, bool centered);

}  // namespace torchgraph
