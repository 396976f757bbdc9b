// Where tensors lie: two that come to share memory are another program's.
#pragma once

#include <Python.h>

#include <vector>

#include "tensors.h"

namespace torchgraph {

// Tensors for which Python answers when one of them lies elsewhere: `function()` is True. It keeps
// their storages, so that no other comes to lie at the address of one. All objects are borrowed.
class Storages {
 public:
  explicit Storages(const Layout& layout = {}) : layout_(layout) {}
  void add(PyObject* function, PyObject* tensors);

  // As of `Tensors`, whose hold() comes first: what it found good is what is read here.
  // `moved`: others, of which the function answers as well, lie elsewhere.
  int hold(bool moved);

 private:
  struct Place {
    const char* storage;
    Py_ssize_t offset;
    bool operator!=(const Place& other) const {
      return storage != other.storage || offset != other.offset;
    }
  };
  struct Lying {
    PyObject* object;
    Place place;
  };

  Place look(PyObject* tensor) const;
  void fetch(size_t i) const;

  Layout layout_;
  PyObject* function_ = nullptr;
  std::vector<Lying> tensors_;
};

}  // namespace torchgraph
