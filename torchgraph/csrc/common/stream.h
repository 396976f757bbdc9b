// One tensor of a group that is walked together: read and written in stretches, in the order in
// which the group's first tensor lies in memory.
#pragma once

#include <cstddef>
#include <vector>

#include "common/operands.h"

namespace torchgraph {

class Stream {
 public:
  Stream() = default;
  // ``first``: the tensor in whose order the group is walked.
  Stream(const Operand& tensor, const Operand& first, bool written);

  bool empty() const { return data_ == nullptr; }

  // Where the elements from ``begin`` on lie side by side as M; null when they do not.
  template <class M>
  M* direct(int64_t begin) const {
    const bool same = dtype_ == (sizeof(M) == 4 ? Dtype::kFloat : Dtype::kDouble);
    return flat_ && same ? reinterpret_cast<M*>(data_) + begin : nullptr;
  }

  // The same for any dtype.
  const void* adjacent(int64_t begin) const {
    return flat_ ? data_ + begin * element_size(dtype_) : nullptr;
  }

  // Elements [begin, begin + size) to and from M.
  void load(int64_t begin, int64_t size, float* out) const;
  void load(int64_t begin, int64_t size, double* out) const;
  void store(int64_t begin, int64_t size, const float* in) const;
  void store(int64_t begin, int64_t size, const double* in) const;

 private:
  struct Dimension {
    int64_t size, stride;
  };

  template <class F>
  void rows(int64_t begin, int64_t size, const F& row) const;

  std::byte* data_ = nullptr;
  Dtype dtype_ = Dtype::kFloat;
  bool flat_ = true;
  std::vector<Dimension> dimensions_;  // the one that moves slowest first; none when flat
};

}  // namespace torchgraph
