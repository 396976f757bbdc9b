// The tensors of a program: what torch's own check found good is compared as memory.
#pragma once

#include <Python.h>

#include <cstdint>
#include <unordered_set>
#include <vector>

namespace torchgraph {

// Bytes [begin, end) of an object.
struct Span {
  Py_ssize_t begin, end;
};

// A word of which torch does not set all bits, and those bits.
struct Unset {
  Py_ssize_t word;
  uint64_t bits;
};

// Where torch keeps what is compared; found by experiment (guards/layout.py).
struct Layout {
  Py_ssize_t impl;      // in the Python object: the address of its TensorImpl
  Py_ssize_t autograd;  // in that: the address of its AutogradMeta, or null
  Span metadata;        // in the TensorImpl: shape, strides, dtype, device, keys
  Span history;         // in the AutogradMeta: requires_grad, the gradient, what it was made by
  Py_ssize_t grad;      // in that: the address of the gradient, which may be another at each call
  const void* no_grad;  // what is there when there is none
  const void* no_view;  // how the AutogradMeta of a tensor begins that is no view of another
  Py_ssize_t offset;    // in the metadata: the storage offset
  Py_ssize_t shape;     // in it too: the length of dimension 0
  Py_ssize_t strides;   // and its stride
  Py_ssize_t dims;      // how many dimensions there is room for there
  Py_ssize_t storage;   // in the TensorImpl: the address of its storage
  Py_ssize_t start;     // in that: where its memory starts
  Unset unset[2];       // in the metadata; no word is at 0
};

// An "O&" converter of PyArg_ParseTuple, from the tuple that guards/layout.py makes.
int to_layout(PyObject* tuple, void* layout);

struct Tensor {
  PyObject* object;
  PyTypeObject* type;
  const char* impl;
  const char* autograd;
  const char* storage;
  uint32_t metadata, history;  // the patterns that its bytes have
};

// Tensors for which torch answers together: `function(*arguments)` is True.
struct Batch {
  PyObject* function;
  PyObject* arguments;
  uint32_t first, count;
};

// Byte patterns of one size, each kept once: tensors of one shape and dtype share theirs.
class Patterns {
 public:
  // A word at `hole`, if that is one, may be anything.
  explicit Patterns(Py_ssize_t hole = -1) : hole_(hole) {}

  // The number of a pattern, new or known.
  uint32_t number(const char* bytes, size_t size);
  bool same(uint32_t number, const char* bytes) const;
  size_t count() const { return size_ ? kept_.size() / size_ : 0; }

 private:
  Py_ssize_t hole_;
  size_t size_ = 0;
  std::vector<char> kept_;
};

// All objects are borrowed.
class Tensors {
 public:
  explicit Tensors(const Layout& layout = {})
      : layout_(layout), history_(layout.grad - layout.history.begin) {}
  void add(PyObject* function, PyObject* arguments);

  bool has(PyObject* tensor) const { return known_.count(tensor) > 0; }

  // 1: they are what they were when torch's check last found them good, or it does so now. 0: they
  // are not. -1: an exception is set.
  int hold();

  // True when one of them has been found good elsewhere in memory, until that is settled.
  bool moved() const { return moved_; }
  void settled() { moved_ = false; }

  // True when none of them has a gradient, as hold() has just found them.
  bool bare() const { return gradients_ == 0; }

 private:
  void fetch(const Tensor& tensor) const;
  bool same(const Tensor& tensor) const;
  void look(Tensor& tensor);
  size_t trained(const Batch& batch) const;

  Layout layout_;
  std::vector<Tensor> tensors_;
  std::unordered_set<PyObject*> known_;
  std::vector<Batch> batches_;
  Patterns metadata_, history_;
  bool moved_ = false;
  size_t gradients_ = 0;  // how many of them have one, at the last hold()
};

bool has_gradient(const Layout& layout, PyObject* tensor);

}  // namespace torchgraph
