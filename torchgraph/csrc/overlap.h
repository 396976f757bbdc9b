// No two written tensors may share an element, nor a written and a read one.
#pragma once

#include <algorithm>
#include <vector>

#include "operands.h"

namespace torchgraph {

struct Range {
  uintptr_t low, high;
  const Operand* tensor;
  bool written, dense;

  int64_t element() const { return element_size(tensor->dtype); }
};

// The addresses of a tensor's elements, ascending.
inline std::vector<uintptr_t> addresses(const Range& range) {
  const Operand& tensor = *range.tensor;
  std::vector<uintptr_t> found{range.low};
  found.reserve(tensor.numel);
  for (int64_t d = 0; d < tensor.dim; ++d) {
    const size_t count = found.size();
    const int64_t step = tensor.strides[d] * range.element();
    for (int64_t i = 1; i < tensor.sizes[d]; ++i) {
      for (size_t j = 0; j < count; ++j) found.push_back(found[j] + i * step);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

inline bool writes_twice(const Range& range) {
  if (range.dense) return false;
  const std::vector<uintptr_t> all = addresses(range);
  return std::adjacent_find(all.begin(), all.end()) != all.end();
}

inline bool share_memory(const Range& left, const Range& right) {
  if (left.dense && right.dense) return true;  // asked only where the ranges meet
  const std::vector<uintptr_t> a = addresses(left), b = addresses(right);
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] + left.element() <= b[j]) {
      ++i;
    } else if (b[j] + right.element() <= a[i]) {
      ++j;
    } else {
      return true;
    }
  }
  return false;
}

// True when what is written overlaps itself or what is read.
inline bool conflict(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.low < b.low; });
  std::vector<const Range*> open;  // those that reach the one looked at
  for (const Range& range : ranges) {
    if (range.written && writes_twice(range)) return true;
    open.erase(std::remove_if(open.begin(), open.end(),
                              [&](const Range* other) { return other->high <= range.low; }),
               open.end());
    for (const Range* other : open) {
      if ((range.written || other->written) && share_memory(range, *other)) return true;
    }
    open.push_back(&range);
  }
  return false;
}

}  // namespace torchgraph
