// torchgraph._guards: Python's limited API, so that one build serves every Python from 3.10 on.

#include <initializer_list>
#include <new>

#include "add.h"
#include "checks.h"
#include "events.h"
#include "inputs.h"

namespace torchgraph {
namespace {

struct Checks {
  PyObject_HEAD
  Data* data;
};

Data& data_of(PyObject* self) { return *reinterpret_cast<Checks*>(self)->data; }

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

PyObject* checks_bare(PyObject* self, PyObject*) { return answer(is_bare(data_of(self))); }

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
    {"members", method<add_members>, METH_VARARGS,
     "members(*dicts): exactly the keys and values of now."},
    {"slots", method<add_slots>, METH_VARARGS,
     "slots(*dicts): the same; an int or float may become another of its type."},
    {"settings", method<add_settings>, METH_VARARGS,
     "settings(*dicts): the same; a float may move, other plain values may be equal ones."},
    {"instance", method<add_instance>, METH_VARARGS,
     "instance(object, dict, names): the class, all keys in their order, the values under the names."},
    {"elements", method<add_elements>, METH_VARARGS, "elements(list): exactly those of now."},
    {"content", method<add_content>, METH_VARARGS,
     "content(container, type): exactly those, or equal plain ones, that the iterator of a built-in "
     "type gives now."},
    {"item", method<add_item>, METH_VARARGS,
     "item(dict, key, value): this value, or an equal plain one, under the key."},
    {"kind", method<add_kind>, METH_VARARGS,
     "kind(dict, key, type): any value of exactly this type under the key."},
    {"absent", method<add_absent>, METH_VARARGS, "absent(dict, key): no such key."},
    {"attribute", method<add_attribute>, METH_VARARGS,
     "attribute(owner, name, value): getattr gives this very object."},
    {"weak_attribute", method<add_weak_attribute>, METH_VARARGS,
     "weak_attribute(reference, name, value): the same of what a weak reference leads to, if it is "
     "still there."},
    {"hooks", method<add_hooks>, METH_VARARGS,
     "hooks(owner, name, places, none_came): when the attribute is another object than at the last "
     "look, the dicts at all (dict, key) are empty and none_came() is True."},
    {"call", method<add_call>, METH_VARARGS, "call(function, args): returns True."},
    {"call_when", method<add_call_when>, METH_VARARGS,
     "call_when(dict, function, args): returns True; asked again only when the dict has changed."},
    {"layout", method<add_layout>, METH_VARARGS,
     "layout(type, layout): how tensors of this type lie in memory; comes before the next three."},
    {"tensors", method<add_tensors>, METH_VARARGS,
     "tensors(function, tensors): function(*tensors) is True; asked again only when their memory is "
     "not what it was."},
    {"storages", method<add_storages>, METH_VARARGS,
     "storages(function, tensors): function() is True; asked only when one of them, or of those of "
     "tensors(), lies elsewhere."},
    {"leaves", method<add_leaves>, METH_VARARGS,
     "leaves(tensors): whose gradients no_gradients() looks for in memory."},
    {"gradients", method<add_gradients>, METH_VARARGS,
     "gradients(type, name, objects): whose gradients it gets by a getter."},
    {"hold", checks_hold, METH_NOARGS,
     "True when everything is as it was added; False when Python has to look."},
    {"no_gradients", checks_no_gradients, METH_NOARGS, "True when no tensor has a gradient."},
    {"bare", checks_bare, METH_NOARGS,
     "True when no tensor had one, for certain, at the hold() that has just given True."},
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
  if (open_account() < 0) return -1;
  for (PyType_Spec* each : {&spec, &inputs_spec}) {
    PyObject* type = PyType_FromModuleAndSpec(module, each, nullptr);
    if (!type) return -1;
    const int failed = PyModule_AddType(module, reinterpret_cast<PyTypeObject*>(type));
    Py_DECREF(type);
    if (failed) return -1;
  }
  return 0;
}

PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, reinterpret_cast<void*>(execute)},
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_guards", "The guards of torchgraph, compiled.", 0,
    events_methods,        module_slots, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace torchgraph

PyMODINIT_FUNC PyInit__guards() { return PyModuleDef_Init(&torchgraph::definition); }
