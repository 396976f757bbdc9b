#include "common/stream.h"

#include <algorithm>

#include "common/clones.h"

namespace torchgraph {
namespace {

template <class T, class M>
TG_INLINE void widen_row(const void* from, int64_t stride, int64_t size, M* __restrict out) {
  const T* __restrict in = static_cast<const T*>(from);
  if (stride == 1) {
    for (int64_t i = 0; i < size; ++i) out[i] = static_cast<M>(widen(in[i]));
  } else {
    for (int64_t i = 0; i < size; ++i) out[i] = static_cast<M>(widen(in[i * stride]));
  }
}

template <class T, class M>
TG_INLINE void narrow_row(const M* __restrict in, int64_t stride, int64_t size, void* to) {
  T* __restrict out = static_cast<T*>(to);
  if (stride == 1) {
    for (int64_t i = 0; i < size; ++i) narrow(in[i], out[i]);
  } else {
    for (int64_t i = 0; i < size; ++i) narrow(in[i], out[i * stride]);
  }
}

template <class M>
TG_INLINE void widen_any(const void* from, Dtype dtype, int64_t stride, int64_t size, M* out) {
  switch (dtype) {
    case Dtype::kFloat: return widen_row<float>(from, stride, size, out);
    case Dtype::kDouble: return widen_row<double>(from, stride, size, out);
    case Dtype::kBFloat16: return widen_row<BFloat16>(from, stride, size, out);
    case Dtype::kHalf: return widen_row<Half>(from, stride, size, out);
  }
}

template <class M>
TG_INLINE void narrow_any(const M* in, Dtype dtype, int64_t stride, int64_t size, void* to) {
  switch (dtype) {
    case Dtype::kFloat: return narrow_row<float>(in, stride, size, to);
    case Dtype::kDouble: return narrow_row<double>(in, stride, size, to);
    case Dtype::kBFloat16: return narrow_row<BFloat16>(in, stride, size, to);
    case Dtype::kHalf: return narrow_row<Half>(in, stride, size, to);
  }
}

TG_CLONES void read(const void* from, Dtype dtype, int64_t stride, int64_t size, float* out) {
  widen_any(from, dtype, stride, size, out);
}
TG_CLONES void read(const void* from, Dtype dtype, int64_t stride, int64_t size, double* out) {
  widen_any(from, dtype, stride, size, out);
}
TG_CLONES void write(const float* in, Dtype dtype, int64_t stride, int64_t size, void* to) {
  narrow_any(in, dtype, stride, size, to);
}
TG_CLONES void write(const double* in, Dtype dtype, int64_t stride, int64_t size, void* to) {
  narrow_any(in, dtype, stride, size, to);
}

}  // namespace

Stream::Stream(const Operand& tensor, const Operand& first, bool written)
    : data_(static_cast<std::byte*>(written ? tensor.mutable_data()
                                            : const_cast<void*>(tensor.data))),
      dtype_(tensor.dtype) {
  // Contiguous tensors are the rule; they need no list of dimensions.
  int64_t filled = 1;
  for (int64_t d = tensor.dim; d-- > 0;) {
    if (tensor.sizes[d] == 1) continue;
    flat_ = flat_ && tensor.strides[d] == filled && first.strides[d] == filled;
    filled *= tensor.sizes[d];
  }
  if (flat_) return;
  std::vector<int64_t> order;
  for (int64_t d = 0; d < first.dim; ++d) {
    if (first.sizes[d] != 1) order.push_back(d);
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return first.strides[a] > first.strides[b];
  });
  for (int64_t d : order) dimensions_.push_back({tensor.sizes[d], tensor.strides[d]});
  filled = 1;
  flat_ = true;
  for (size_t i = dimensions_.size(); i-- > 0;) {
    flat_ = flat_ && dimensions_[i].stride == filled;
    filled *= dimensions_[i].size;
  }
}

// Calls row(offset, stride, position, size) for each run along the dimension that moves fastest.
template <class F>
void Stream::rows(int64_t begin, int64_t size, const F& row) const {
  if (flat_) return row(begin, 1, 0, size);
  const int64_t dims = static_cast<int64_t>(dimensions_.size());
  int64_t at[64];
  int64_t rest = begin, offset = 0;
  for (int64_t d = dims; d-- > 0;) {
    at[d] = rest % dimensions_[d].size;
    rest /= dimensions_[d].size;
    offset += at[d] * dimensions_[d].stride;
  }
  const int64_t last = dims - 1;
  const auto [length, stride] = dimensions_[last];
  for (int64_t done = 0; done < size;) {
    const int64_t run = std::min(size - done, length - at[last]);
    row(offset, stride, done, run);
    done += run;
    offset -= at[last] * stride;
    at[last] = 0;
    for (int64_t d = last; d-- > 0;) {
      offset += dimensions_[d].stride;
      if (++at[d] < dimensions_[d].size) break;
      offset -= at[d] * dimensions_[d].stride;
      at[d] = 0;
    }
  }
}

void Stream::load(int64_t begin, int64_t size, float* out) const {
  rows(begin, size, [&](int64_t offset, int64_t stride, int64_t position, int64_t run) {
    read(data_ + offset * element_size(dtype_), dtype_, stride, run, out + position);
  });
}

void Stream::load(int64_t begin, int64_t size, double* out) const {
  rows(begin, size, [&](int64_t offset, int64_t stride, int64_t position, int64_t run) {
    read(data_ + offset * element_size(dtype_), dtype_, stride, run, out + position);
  });
}

void Stream::store(int64_t begin, int64_t size, const float* in) const {
  rows(begin, size, [&](int64_t offset, int64_t stride, int64_t position, int64_t run) {
    write(in + position, dtype_, stride, run, data_ + offset * element_size(dtype_));
  });
}

void Stream::store(int64_t begin, int64_t size, const double* in) const {
  rows(begin, size, [&](int64_t offset, int64_t stride, int64_t position, int64_t run) {
    write(in + position, dtype_, stride, run, data_ + offset * element_size(dtype_));
  });
}

}  // namespace torchgraph
