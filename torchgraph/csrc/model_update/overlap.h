// No two written tensors may share an element, nor a written and a read one.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "common/operands.h"

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

inline bool find_conflict(const std::vector<Range>& ranges) {
  std::vector<std::pair<uintptr_t, const Range*>> order;
  order.reserve(ranges.size());
  for (const Range& range : ranges) {
    if (range.written && writes_twice(range)) return true;
    order.emplace_back(range.low, &range);
  }
  std::sort(order.begin(), order.end());
  std::vector<const Range*> open;  // those that may reach the one looked at
  uintptr_t reach = 0;
  for (const auto& [low, range] : order) {
    if (low >= reach) open.clear();
    for (const Range* other : open) {
      if (other->high <= low || !(range->written || other->written)) continue;
      if (share_memory(*range, *other)) return true;
    }
    open.push_back(range);
    reach = std::max(reach, range->high);
  }
  return false;
}

// True when both are dense, and at the same place.
inline bool same_place(const Range& a, const Range& b) {
  return a.low == b.low && a.high == b.high && a.written == b.written && a.dense && b.dense;
}

// True when what is written overlaps itself or what is read. A training step comes with the same
// tensors again: what was apart in this thread's last call is not sorted anew.
inline bool conflict(std::vector<Range>&& ranges) {
  thread_local std::vector<Range> apart;  // its pointers to operands are not followed
  const bool known = std::equal(ranges.begin(), ranges.end(), apart.begin(), apart.end(), same_place);
  if (known) return false;
  if (find_conflict(ranges)) return true;
  apart = std::move(ranges);
  return false;
}

}  // namespace torchgraph
