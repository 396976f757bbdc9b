#include "inputs.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "memory.h"
#include "tensors.h"

namespace torchgraph {
namespace {

// How far a tensor reaches from its first element, and how large an element is, in bytes.
struct Extent {
  int64_t reach, element;
};

// Of a storage: from its start to where a tensor in it ends.
struct Occupied {
  const char *start, *end;
};

struct Inputs {
  PyObject_HEAD
  PyTypeObject* type;
  Layout layout;
  Py_ssize_t count;
  char* metadata;      // of one tensor after the other
  uint64_t* compared;  // for each word of that: the bits that another tensor must have too
  Extent* extents;
  const void** starts;
  Occupied* occupied;
};

Inputs* inputs_of(PyObject* self) { return reinterpret_cast<Inputs*>(self); }

size_t size_of(const Layout& layout) { return layout.metadata.end - layout.metadata.begin; }

constexpr size_t kWord = sizeof(int64_t);

size_t words_of(const Layout& layout) { return size_of(layout) / kWord; }

bool is_within(Py_ssize_t place, Py_ssize_t begin, Py_ssize_t count) {
  return place >= begin && place < begin + count * static_cast<Py_ssize_t>(kWord);
}

// All but the storage offset, as a batch may be any part of what it was taken from, and but the room
// for more dimensions and for flags, where torch leaves what malloc gave.
uint64_t compared_at(const Layout& layout, Py_ssize_t place, Py_ssize_t ndim) {
  const Py_ssize_t used = ndim * kWord, room = layout.dims - ndim;
  if (place == layout.offset || is_within(place, layout.shape + used, room) ||
      is_within(place, layout.strides + used, room)) {
    return 0;
  }
  uint64_t compared = ~uint64_t{0};
  for (const Unset& unset : layout.unset) {
    if (place == unset.word) compared = ~unset.bits;
  }
  return compared;
}

bool alike(const Layout& layout, const char* impl, const char* metadata, const uint64_t* compared) {
  const char* now = impl + layout.metadata.begin;
  uint64_t other = 0;
  for (size_t i = 0; i < words_of(layout); ++i) {
    other |= (read<uint64_t>(now, i * kWord) ^ read<uint64_t>(metadata, i * kWord)) & compared[i];
  }
  return other == 0;
}

bool requires_grad(PyObject* tensor) {
  PyObject* found = PyObject_GetAttrString(tensor, "requires_grad");
  if (!found) PyErr_Clear();
  Py_XDECREF(found);
  return found != Py_False;
}

// Where the memory of a tensor starts that is like the earlier one and requires no gradient; null
// when it is not. Most have no AutogradMeta; a part of a larger tensor has.
const void* start_of(const Inputs& inputs, PyObject* tensor, Py_ssize_t position) {
  const Layout& layout = inputs.layout;
  if (Py_TYPE(tensor) != inputs.type) return nullptr;
  const auto* impl = read<const char*>(tensor, layout.impl);
  if (read<const void*>(impl, layout.autograd) && requires_grad(tensor)) return nullptr;
  const char* metadata = inputs.metadata + position * size_of(layout);
  const uint64_t* compared = inputs.compared + position * words_of(layout);
  if (!alike(layout, impl, metadata, compared)) return nullptr;
  return read<const void*>(read<const void*>(impl, layout.storage), layout.start);
}

// Notes where the memory of each starts; false when one of them is not like the earlier ones.
bool note_starts(Inputs& inputs, PyObject* tensors) {
  if (!PyTuple_Check(tensors) || PyTuple_Size(tensors) != inputs.count) return false;
  for (Py_ssize_t i = 0; i < inputs.count; ++i) {
    inputs.starts[i] = start_of(inputs, PyTuple_GetItem(tensors, i), i);
    if (!inputs.starts[i]) return false;
  }
  return true;
}

bool differ(const Inputs& inputs) {
  for (Py_ssize_t i = 0; i < inputs.count; ++i) {
    for (Py_ssize_t j = 0; j < i; ++j) {
      if (inputs.starts[j] == inputs.starts[i]) return false;
    }
  }
  return true;
}

// Whether they lie in storages of their own, none of which begins within another tensor: storages
// that were made around one memory, as that of a NumPy array, may.
bool are_apart(const Inputs& inputs, PyObject* tensors) {
  for (Py_ssize_t i = 0; i < inputs.count; ++i) {
    const auto* impl = read<const char*>(PyTuple_GetItem(tensors, i), inputs.layout.impl);
    const auto* start = static_cast<const char*>(inputs.starts[i]);
    const Extent& extent = inputs.extents[i];
    const int64_t first = read<int64_t>(impl, inputs.layout.offset) * extent.element;
    inputs.occupied[i] = {start, start + first + extent.reach};
  }
  std::sort(inputs.occupied, inputs.occupied + inputs.count,
            [](const Occupied& one, const Occupied& other) { return one.start < other.start; });
  for (Py_ssize_t i = 1; i < inputs.count; ++i) {
    const Occupied &before = inputs.occupied[i - 1], &after = inputs.occupied[i];
    if (before.start == after.start || before.end > after.start) return false;
  }
  return true;
}

PyObject* as_tuple(const Inputs& inputs) {
  PyObject* found = PyTuple_New(inputs.count);
  for (Py_ssize_t i = 0; found && i < inputs.count; ++i) {
    PyObject* number = PyLong_FromVoidPtr(const_cast<void*>(inputs.starts[i]));
    if (!number || PyTuple_SetItem(found, i, number) < 0) Py_CLEAR(found);
  }
  return found;
}

PyObject* starts(PyObject* self, PyObject* tensors) {
  Inputs& inputs = *inputs_of(self);
  if (!note_starts(inputs, tensors) || !differ(inputs)) Py_RETURN_NONE;
  return as_tuple(inputs);
}

PyObject* starts_apart(PyObject* self, PyObject* tensors) {
  Inputs& inputs = *inputs_of(self);
  if (!note_starts(inputs, tensors) || !are_apart(inputs, tensors)) Py_RETURN_NONE;
  return as_tuple(inputs);
}

// -1 with an exception set when it says nothing.
Py_ssize_t ndim_of(PyObject* tensor) {
  PyObject* found = PyObject_GetAttrString(tensor, "ndim");
  const Py_ssize_t ndim = found ? PyLong_AsSsize_t(found) : -1;
  Py_XDECREF(found);
  return ndim;
}

PyObject* inputs_new(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *of, *tensors, *extents;
  Layout layout{};
  if (!PyArg_ParseTuple(args, "O!O&O!O!:Inputs", &PyType_Type, &of, to_layout, &layout,
                        &PyTuple_Type, &tensors, &PyTuple_Type, &extents)) {
    return nullptr;
  }
  if (PyTuple_Size(extents) != PyTuple_Size(tensors)) {
    PyErr_SetString(PyExc_ValueError, "Inputs: an extent for each tensor");
    return nullptr;
  }
  for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); ++i) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(PyTuple_GetItem(tensors, i))) != of) {
      PyErr_SetString(PyExc_TypeError, "Inputs: not of the type");
      return nullptr;
    }
  }
  auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = alloc(type, 0);
  if (!self) return nullptr;
  Inputs& inputs = *inputs_of(self);
  Py_INCREF(of);
  inputs.type = reinterpret_cast<PyTypeObject*>(of);
  inputs.layout = layout;
  inputs.count = PyTuple_Size(tensors);
  inputs.metadata = new (std::nothrow) char[inputs.count * size_of(layout) + 1];
  inputs.compared = new (std::nothrow) uint64_t[inputs.count * words_of(layout) + 1];
  inputs.extents = new (std::nothrow) Extent[inputs.count + 1];
  inputs.starts = new (std::nothrow) const void*[inputs.count + 1];
  inputs.occupied = new (std::nothrow) Occupied[inputs.count + 1];
  if (!inputs.metadata || !inputs.compared || !inputs.extents || !inputs.starts || !inputs.occupied) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  for (Py_ssize_t i = 0; i < inputs.count; ++i) {
    PyObject* tensor = PyTuple_GetItem(tensors, i);
    const Py_ssize_t ndim = ndim_of(tensor);
    Py_ssize_t reach = 0, element = 0;
    if (ndim < 0 || !PyArg_ParseTuple(PyTuple_GetItem(extents, i), "nn", &reach, &element)) {
      Py_DECREF(self);
      return nullptr;
    }
    inputs.extents[i] = {reach, element};
    const auto* impl = read<const char*>(tensor, layout.impl);
    std::memcpy(inputs.metadata + i * size_of(layout), impl + layout.metadata.begin,
                size_of(layout));
    for (size_t word = 0; word < words_of(layout); ++word) {
      const Py_ssize_t place = layout.metadata.begin + word * kWord;
      inputs.compared[i * words_of(layout) + word] = compared_at(layout, place, ndim);
    }
  }
  return self;
}

void inputs_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete[] inputs_of(self)->metadata;
  delete[] inputs_of(self)->compared;
  delete[] inputs_of(self)->extents;
  delete[] inputs_of(self)->starts;
  delete[] inputs_of(self)->occupied;
  Py_XDECREF(inputs_of(self)->type);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"starts", starts, METH_O,
     "starts(tensors): where the memory of each starts; None when one of them is not like the "
     "tensor that was there, requires a gradient, has no memory or that of another."},
    {"starts_apart", starts_apart, METH_O,
     "starts_apart(tensors): the same; also None when a storage begins within another tensor."},
    {nullptr, nullptr, 0, nullptr},
};

char doc[] =
    "Inputs(type, layout, tensors, extents): what these tensors of exactly this type are like; of "
    "each (how far it reaches from its first element, the size of an element), in bytes.";

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(inputs_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(inputs_dealloc)},
    {Py_tp_methods, methods},
    {Py_tp_doc, doc},
    {0, nullptr},
};

}  // namespace

PyType_Spec inputs_spec = {"torchgraph._guards.Inputs", sizeof(Inputs), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, slots};

}  // namespace torchgraph
