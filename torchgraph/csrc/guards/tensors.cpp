#include "tensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "memory.h"

namespace torchgraph {

int to_layout(PyObject* tuple, void* result) {
  auto& layout = *static_cast<Layout*>(result);
  PyObject *no_grad, *no_view, *bits, *more;
  Unset *first = layout.unset, *second = layout.unset + 1;
  if (!PyArg_Parse(tuple, "(nn(nn)(nn)nO!O!nnnnnn((nO!)(nO!)))", &layout.impl, &layout.autograd,
                   &layout.metadata.begin, &layout.metadata.end, &layout.history.begin,
                   &layout.history.end, &layout.grad, &PyLong_Type, &no_grad, &PyLong_Type,
                   &no_view, &layout.offset, &layout.shape, &layout.strides, &layout.dims,
                   &layout.storage, &layout.start, &first->word, &PyLong_Type, &bits,
                   &second->word, &PyLong_Type, &more)) {
    return 0;
  }
  first->bits = PyLong_AsUnsignedLongLong(bits);
  second->bits = PyLong_AsUnsignedLongLong(more);
  layout.no_grad = PyLong_AsVoidPtr(no_grad);
  layout.no_view = PyLong_AsVoidPtr(no_view);
  return !PyErr_Occurred();
}

uint32_t Patterns::number(const char* bytes, size_t size) {
  size_ = size;
  const auto fresh = static_cast<uint32_t>(count());
  // The latest first: neighbours are alike.
  for (uint32_t known = fresh; known-- > 0;) {
    if (same(known, bytes)) return known;
  }
  kept_.insert(kept_.end(), bytes, bytes + size);
  return fresh;
}

bool Patterns::same(uint32_t number, const char* bytes) const {
  const char* kept = kept_.data() + number * size_;
  if (hole_ < 0) return std::memcmp(kept, bytes, size_) == 0;
  const size_t after = hole_ + sizeof(void*);
  return std::memcmp(kept, bytes, hole_) == 0 &&
         (after >= size_ || std::memcmp(kept + after, bytes + after, size_ - after) == 0);
}

void Tensors::add(PyObject* function, PyObject* arguments) {
  const auto first = static_cast<uint32_t>(tensors_.size());
  const auto count = static_cast<uint32_t>(PyTuple_Size(arguments));
  for (uint32_t i = 0; i < count; ++i) {
    Tensor tensor{};
    tensor.object = PyTuple_GetItem(arguments, i);
    look(tensor);
    tensors_.push_back(tensor);
    known_.insert(tensor.object);
  }
  moved_ = false;
  batches_.push_back({function, arguments, first, count});
}

void Tensors::look(Tensor& tensor) {
  const auto& [begin, end] = layout_.metadata;
  const auto [storage, metadata] = std::pair(tensor.storage, tensor.metadata);
  tensor.type = Py_TYPE(tensor.object);
  tensor.impl = read<const char*>(tensor.object, layout_.impl);
  tensor.autograd = read<const char*>(tensor.impl, layout_.autograd);
  tensor.storage = read<const char*>(tensor.impl, layout_.storage);
  tensor.metadata = metadata_.number(tensor.impl + begin, end - begin);
  moved_ = moved_ || tensor.storage != storage || tensor.metadata != metadata;
  if (tensor.autograd) {
    const auto& [from, to] = layout_.history;
    tensor.history = history_.number(tensor.autograd + from, to - from);
  }
}

// In this order: an address is followed only where it is still the one that was there. Whether a view
// requires a gradient is up to its base as well: torch is asked each time.
bool Tensors::same(const Tensor& tensor) const {
  return Py_TYPE(tensor.object) == tensor.type &&
         read<const char*>(tensor.object, layout_.impl) == tensor.impl &&
         read<const char*>(tensor.impl, layout_.autograd) == tensor.autograd &&
         read<const char*>(tensor.impl, layout_.storage) == tensor.storage &&
         metadata_.same(tensor.metadata, tensor.impl + layout_.metadata.begin) &&
         (!tensor.autograd ||
          (read<const void*>(tensor.autograd, 0) == layout_.no_view &&
           history_.same(tensor.history, tensor.autograd + layout_.history.begin)));
}

void Tensors::fetch(const Tensor& tensor) const {
  const auto* object = reinterpret_cast<const char*>(tensor.object);
  torchgraph::fetch(object, object + layout_.impl + sizeof(void*));
  torchgraph::fetch(tensor.impl + layout_.storage, tensor.impl + layout_.metadata.end);
  if (tensor.autograd) {
    torchgraph::fetch(tensor.autograd, tensor.autograd + layout_.history.end);
  }
}

int Tensors::hold() {
  const size_t total = tensors_.size();
  // Patterns are only ever added. Checks made anew start with none.
  if (metadata_.count() + history_.count() > 4 * total + 64) return 0;
  for (size_t i = 0; i < std::min(kAhead, total); ++i) fetch(tensors_[i]);
  gradients_ = 0;
  for (const Batch& batch : batches_) {
    bool alike = true;
    for (size_t i = batch.first; i < batch.first + batch.count; ++i) {
      if (i + kAhead < total) fetch(tensors_[i + kAhead]);
      alike = alike && same(tensors_[i]);
    }
    if (!alike) {
      PyObject* answer = PyObject_Call(batch.function, batch.arguments, nullptr);
      if (!answer) return -1;
      Py_DECREF(answer);
      if (answer != Py_True) return 0;
      for (size_t i = batch.first; i < batch.first + batch.count; ++i) look(tensors_[i]);
    }
    gradients_ += trained(batch);
  }
  return 1;
}

size_t Tensors::trained(const Batch& batch) const {
  size_t found = 0;
  for (size_t i = batch.first; i < batch.first + batch.count; ++i) {
    const char* autograd = tensors_[i].autograd;
    found += autograd && read<const void*>(autograd, layout_.grad) != layout_.no_grad;
  }
  return found;
}

bool has_gradient(const Layout& layout, PyObject* tensor) {
  const auto* impl = read<const char*>(tensor, layout.impl);
  const auto* autograd = read<const char*>(impl, layout.autograd);
  return autograd && read<const void*>(autograd, layout.grad) != layout.no_grad;
}

}  // namespace torchgraph
