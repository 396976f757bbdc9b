// One tensor of a group that is walked together: read and written in stretches, in the order in
// which the group's first tensor lies in memory.
#pragma once

#include <cstddef>
#include <vector>

#include "tensors.h"

namespace torchgraph {

// Sizes in the order of the walk, and the strides of each tensor in that order.
struct Shape {
  std::vector<int64_t> order;  // dimensions, the one that moves slowest first
  std::vector<int64_t> sizes;

  explicit Shape(const Tensor& first);
};

class Stream {
 public:
  Stream() = default;
  Stream(const Tensor& tensor, Dtype dtype, const Shape& shape, bool written);

  bool empty() const { return data_ == nullptr; }

  // Where the elements from ``begin`` on lie side by side as M; null when they do not.
  template <class M>
  M* direct(int64_t begin) const {
    const bool same = dtype_ == (sizeof(M) == 4 ? Dtype::kFloat : Dtype::kDouble);
    return flat_ && same ? reinterpret_cast<M*>(data_) + begin : nullptr;
  }

  // Elements [begin, begin + size) to and from M.
  void load(int64_t begin, int64_t size, float* out) const;
  void load(int64_t begin, int64_t size, double* out) const;
  void store(int64_t begin, int64_t size, const float* in) const;
  void store(int64_t begin, int64_t size, const double* in) const;

 private:
  template <class F>
  void rows(int64_t begin, int64_t size, const F& row) const;

  std::byte* data_ = nullptr;
  Dtype dtype_ = Dtype::kFloat;
  bool flat_ = true;
  const Shape* shape_ = nullptr;
  std::vector<int64_t> strides_;
};

}  // namespace torchgraph
