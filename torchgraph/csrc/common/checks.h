// What an op checks before it touches memory. A failed check is a RuntimeError in Python.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>

namespace torchgraph {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <class... Parts>
inline void require(bool fits, const Parts&... message) {
  if (fits) return;
  std::ostringstream text;
  (text << ... << message);
  throw std::runtime_error(text.str());
}

inline bool is_floating(ScalarType dtype) {
  return dtype == ScalarType::Float || dtype == ScalarType::Double ||
         dtype == ScalarType::BFloat16 || dtype == ScalarType::Half;
}

// What numbers of a dtype are computed and added up in.
inline ScalarType wide(ScalarType dtype) {
  return dtype == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline bool same_device(const Tensor& a, const Tensor& b) {
  return a.is_cpu() == b.is_cpu() && a.is_cuda() == b.is_cuda() &&
         a.get_device_index() == b.get_device_index();
}

// The bytes from the first to behind the last element. Strides are never negative.
inline int64_t extent(const Tensor& t) {
  int64_t last = 0;
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) == 0) return 0;
    last += (t.size(d) - 1) * t.stride(d);
  }
  return (last + 1) * static_cast<int64_t>(t.element_size());
}

// True when no byte of one lies among those of the other.
inline bool apart(const Tensor& a, const Tensor& b) {
  const auto* first = static_cast<const char*>(a.const_data_ptr());
  const auto* second = static_cast<const char*>(b.const_data_ptr());
  return first + extent(a) <= second || second + extent(b) <= first;
}

}  // namespace torchgraph
