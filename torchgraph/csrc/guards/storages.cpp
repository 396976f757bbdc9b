#include "storages.h"

#include "memory.h"

namespace torchgraph {

void Storages::add(PyObject* function, PyObject* tensors) {
  function_ = function;
  for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); ++i) {
    PyObject* tensor = PyTuple_GetItem(tensors, i);
    tensors_.push_back({tensor, look(tensor)});
  }
}

Storages::Place Storages::look(PyObject* tensor) const {
  const auto* impl = read<const char*>(tensor, layout_.impl);
  return {read<const char*>(impl, layout_.storage), read<Py_ssize_t>(impl, layout_.offset)};
}

// Two addresses lead to a place: the far object is fetched, and what the nearer one points to.
void Storages::fetch(size_t i) const {
  const size_t far = i + kAhead;
  if (far < tensors_.size()) {
    __builtin_prefetch(reinterpret_cast<const char*>(tensors_[far].object) + layout_.impl);
  }
  if (i < tensors_.size()) {
    const auto* impl = read<const char*>(tensors_[i].object, layout_.impl);
    __builtin_prefetch(impl + layout_.storage);
    __builtin_prefetch(impl + layout_.offset);
  }
}

int Storages::hold(bool moved) {
  for (size_t i = 0; i < kAhead; ++i) fetch(i);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    fetch(i + kAhead);
    moved = moved || look(tensors_[i].object) != tensors_[i].place;
  }
  if (!moved || !function_) return 1;
  PyObject* answer = PyObject_CallObject(function_, nullptr);
  if (!answer) return -1;
  Py_DECREF(answer);
  if (answer != Py_True) return 0;
  for (Lying& tensor : tensors_) tensor.place = look(tensor.object);
  return 1;
}

}  // namespace torchgraph
