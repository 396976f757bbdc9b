// torchgraph._guards: Python's limited API, so that one build serves every Python from 3.10 on.

#include <cstring>
#include <new>

#include "checks.h"

namespace torchgraph {
namespace {

struct Checks {
  PyObject_HEAD
  Data* data;
};

Data& data_of(PyObject* self) { return *reinterpret_cast<Checks*>(self)->data; }

PyObject* keep(Data& data, PyObject* value) {
  data.owned.push_back(value);
  Py_INCREF(value);
  return value;
}

bool require(bool good, const char* message) {
  if (!good) PyErr_SetString(PyExc_TypeError, message);
  return good;
}

bool add_dict(Data& data, PyObject* dict, May may) {
  if (!require(PyDict_Check(dict), "a dict is needed")) return false;
  const auto first = static_cast<uint32_t>(data.entries.size());
  const auto count = static_cast<uint32_t>(PyDict_Size(dict));
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value)) {
    data.entries.push_back({keep(data, key), keep(data, value)});
  }
  data.dicts.push_back({keep(data, dict), first, count, may});
  return true;
}

template <May may>
bool add_dicts(Data& data, PyObject* args) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(args); ++i) {
    if (!add_dict(data, PyTuple_GetItem(args, i), may)) return false;
  }
  return true;
}

bool add_instance(Data& data, PyObject* args) {
  PyObject *object, *dict, *names;
  if (!PyArg_ParseTuple(args, "OO!O!:instance", &object, &PyDict_Type, &dict, &PyTuple_Type,
                        &names)) {
    return false;
  }
  const auto first = static_cast<uint32_t>(data.entries.size());
  const auto count = static_cast<uint32_t>(PyTuple_Size(names));
  for (uint32_t i = 0; i < count; ++i) {
    PyObject* name = PyTuple_GetItem(names, i);
    PyObject* value = PyDict_GetItemWithError(dict, name);
    if (!value) {
      if (!PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, name);
      return false;
    }
    data.entries.push_back({keep(data, name), keep(data, value)});
  }
  keep(data, reinterpret_cast<PyObject*>(Py_TYPE(object)));
  data.instances.push_back({keep(data, object), Py_TYPE(object), keep(data, dict),
                            PyDict_Size(dict), first, count});
  return true;
}

bool add_elements(Data& data, PyObject* args) {
  PyObject* list;
  if (!PyArg_ParseTuple(args, "O!:elements", &PyList_Type, &list)) return false;
  const auto first = static_cast<uint32_t>(data.elements.size());
  const auto count = static_cast<uint32_t>(PyList_Size(list));
  for (uint32_t i = 0; i < count; ++i) {
    data.elements.push_back(keep(data, PyList_GetItem(list, i)));
  }
  data.lists.push_back({keep(data, list), first, count});
  return true;
}

bool add_item(Data& data, PyObject* args) {
  PyObject *dict, *key, *value;
  if (!PyArg_ParseTuple(args, "O!UO:item", &PyDict_Type, &dict, &key, &value)) return false;
  data.items.push_back({keep(data, dict), keep(data, key), keep(data, value)});
  return true;
}

bool add_absent(Data& data, PyObject* args) {
  PyObject *dict, *key;
  if (!PyArg_ParseTuple(args, "O!U:absent", &PyDict_Type, &dict, &key)) return false;
  data.items.push_back({keep(data, dict), keep(data, key), nullptr});
  return true;
}

bool add_attribute(Data& data, PyObject* args) {
  PyObject *owner, *name, *value;
  if (!PyArg_ParseTuple(args, "OUO:attribute", &owner, &name, &value)) return false;
  data.attributes.push_back({keep(data, owner), keep(data, name), keep(data, value)});
  return true;
}

bool add_call(Data& data, PyObject* args) {
  PyObject *function, *arguments;
  if (!PyArg_ParseTuple(args, "OO!:call", &function, &PyTuple_Type, &arguments)) return false;
  data.calls.push_back({keep(data, function), keep(data, arguments)});
  return true;
}

bool add_hooks(Data& data, PyObject* args) {
  PyObject *handles, *name, *places, *none_came;
  if (!PyArg_ParseTuple(args, "OUO!O:hooks", &handles, &name, &PyList_Type, &places, &none_came)) {
    return false;
  }
  const auto first = static_cast<uint32_t>(data.empty.size());
  const auto count = static_cast<uint32_t>(PyList_Size(places));
  for (uint32_t i = 0; i < count; ++i) {
    PyObject *place = PyList_GetItem(places, i), *dict, *key;
    if (!require(PyTuple_Check(place), "hooks: a list of (dict, key) is needed") ||
        !PyArg_ParseTuple(place, "O!U:hooks", &PyDict_Type, &dict, &key)) {
      return false;
    }
    data.empty.push_back({keep(data, dict), keep(data, key), nullptr});
  }
  data.hooks.reserve(data.hooks.size() + 1);
  PyObject* last = PyObject_GetAttr(handles, name);
  if (!last) return false;
  data.hooks.push_back({keep(data, handles), keep(data, name), last, keep(data, none_came), first,
                        count});
  return true;
}

// A getter of a C type, called past the look-up of the attribute, which takes longer than it.
bool add_gradients(Data& data, PyObject* args) {
  PyObject *type, *tensors;
  const char* name;
  if (!PyArg_ParseTuple(args, "O!sO!:gradients", &PyType_Type, &type, &name, &PyList_Type,
                        &tensors)) {
    return false;
  }
  auto* found = static_cast<PyGetSetDef*>(
      PyType_GetSlot(reinterpret_cast<PyTypeObject*>(type), Py_tp_getset));
  while (found && found->name && std::strcmp(found->name, name) != 0) ++found;
  if (!require(found && found->name && found->get, "gradients: the type has no such getter")) {
    return false;
  }
  data.gradients.get = found->get;
  data.gradients.closure = found->closure;
  keep(data, type);
  for (Py_ssize_t i = 0; i < PyList_Size(tensors); ++i) {
    PyObject* tensor = PyList_GetItem(tensors, i);
    const int right = PyObject_IsInstance(tensor, type);
    if (right < 0 || !require(right, "gradients: not an instance of the type")) return false;
    data.gradients.tensors.push_back(keep(data, tensor));
  }
  return true;
}

bool add_lines(Data& data, PyObject* args) {
  PyObject* addresses;
  int bytes;
  if (!PyArg_ParseTuple(args, "O!i:lines", &PyList_Type, &addresses, &bytes)) return false;
  for (Py_ssize_t i = 0; i < PyList_Size(addresses); ++i) {
    auto* start = static_cast<const char*>(PyLong_AsVoidPtr(PyList_GetItem(addresses, i)));
    if (!start && PyErr_Occurred()) return false;
    for (int offset = 0; offset < bytes; offset += 64) data.lines.push_back(start + offset);
  }
  return true;
}

// No C++ exception may reach Python.
template <bool (*add)(Data&, PyObject*)>
PyObject* method(PyObject* self, PyObject* args) {
  try {
    if (!add(data_of(self), args)) return nullptr;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  }
  Py_INCREF(Py_None);
  return Py_None;
}

PyObject* answer(int found) { return found < 0 ? nullptr : PyBool_FromLong(found); }

PyObject* checks_hold(PyObject* self, PyObject*) { return answer(holds(data_of(self))); }

PyObject* checks_no_gradients(PyObject* self, PyObject*) {
  return answer(no_gradients(data_of(self)));
}

PyObject* checks_new(PyTypeObject* type, PyObject*, PyObject*) {
  auto alloc = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = alloc(type, 0);
  if (!self) return nullptr;
  auto* data = new (std::nothrow) Data;
  if (!data) {
    Py_DECREF(self);
    return PyErr_NoMemory();
  }
  reinterpret_cast<Checks*>(self)->data = data;
  return self;
}

int checks_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const Data* data = reinterpret_cast<Checks*>(self)->data;
  if (!data) return 0;
  for (PyObject* value : data->owned) Py_VISIT(value);
  for (const Hooks& hooks : data->hooks) Py_VISIT(hooks.last);
  return 0;
}

// What is released here may run code that asks again: it must not find pointers to what is gone.
int checks_clear(PyObject* self) {
  Data* held = reinterpret_cast<Checks*>(self)->data;
  if (!held) return 0;
  Data gone;
  std::swap(gone, *held);
  held->cleared = true;
  for (const Hooks& hooks : gone.hooks) Py_XDECREF(hooks.last);
  for (PyObject* value : gone.owned) Py_DECREF(value);
  return 0;
}

void checks_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  checks_clear(self);
  delete reinterpret_cast<Checks*>(self)->data;
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"members", method<add_dicts<May::nothing>>, METH_VARARGS,
     "members(*dicts): exactly the keys and values of now."},
    {"slots", method<add_dicts<May::numbers>>, METH_VARARGS,
     "slots(*dicts): the same; an int or float may become another of its type."},
    {"settings", method<add_dicts<May::settings>>, METH_VARARGS,
     "settings(*dicts): the same; a float may move, other plain values may be equal ones."},
    {"instance", method<add_instance>, METH_VARARGS,
     "instance(object, dict, names): the class, the number of entries, the values under the names."},
    {"elements", method<add_elements>, METH_VARARGS, "elements(list): exactly those of now."},
    {"item", method<add_item>, METH_VARARGS,
     "item(dict, key, value): this value, or an equal plain one, under the key."},
    {"absent", method<add_absent>, METH_VARARGS, "absent(dict, key): no such key."},
    {"attribute", method<add_attribute>, METH_VARARGS,
     "attribute(owner, name, value): getattr gives this very object."},
    {"hooks", method<add_hooks>, METH_VARARGS,
     "hooks(owner, name, places, none_came): when the attribute is another object than at the last "
     "look, the dicts at all (dict, key) are empty and none_came() is True."},
    {"call", method<add_call>, METH_VARARGS, "call(function, args): returns True."},
    {"gradients", method<add_gradients>, METH_VARARGS,
     "gradients(type, name, objects): what no_gradients() looks at."},
    {"lines", method<add_lines>, METH_VARARGS,
     "lines(addresses, bytes): memory that the calls read, fetched ahead."},
    {"hold", checks_hold, METH_NOARGS,
     "True when everything is as it was added; False when Python has to look."},
    {"no_gradients", checks_no_gradients, METH_NOARGS, "True when all getters give None."},
    {nullptr, nullptr, 0, nullptr},
};

char doc[] = "Checks of a bound program, compared in one call. Holds what it compares with.";

PyType_Slot slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(checks_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(checks_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(checks_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(checks_clear)},
    {Py_tp_methods, methods},
    {Py_tp_doc, doc},
    {0, nullptr},
};

PyType_Spec spec = {"torchgraph._guards.Checks", sizeof(Checks), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, slots};

int execute(PyObject* module) {
  PyObject* type = PyType_FromModuleAndSpec(module, &spec, nullptr);
  if (!type) return -1;
  const int failed = PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type));
  Py_DECREF(type);
  return failed;
}

PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(execute)},
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_guards", "The guards of torchgraph, compiled.", 0, nullptr,
    module_slots,          nullptr,   nullptr,                               nullptr};

}  // namespace
}  // namespace torchgraph

PyMODINIT_FUNC PyInit__guards() { return PyModuleDef_Init(&torchgraph::definition); }
