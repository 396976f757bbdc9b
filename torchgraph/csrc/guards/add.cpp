#include "add.h"

#include <cstring>

namespace torchgraph {
namespace {

PyObject* keep(Data& data, PyObject* value) {
  data.owned.push_back(value);
  Py_INCREF(value);
  return value;
}

bool require(bool good, const char* message) {
  if (!good) PyErr_SetString(PyExc_TypeError, message);
  return good;
}

void ask(Data& data, PyObject* dict, Question question) {
  const auto number = static_cast<uint32_t>(data.dicts.size());
  const auto [known, fresh] = data.numbers.try_emplace(dict, number);
  if (fresh) {
    // The first look compares: what is asked for need not be what is there.
    data.dicts.push_back(hold_dict(keep(data, dict)));
    data.asked.push_back(-1);
  }
  question.next = data.asked[known->second];
  data.asked[known->second] = static_cast<int32_t>(data.questions.size());
  data.questions.push_back(question);
}

bool add_dict(Data& data, PyObject* dict, May may) {
  if (!require(PyDict_Check(dict), "a dict is needed")) return false;
  Question question{};
  question.first = static_cast<uint32_t>(data.entries.size());
  question.count = static_cast<uint32_t>(PyDict_Size(dict));
  question.size = PyDict_Size(dict);
  question.may = may;
  question.exactly = true;
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value)) {
    data.entries.push_back({keep(data, key), keep(data, value)});
  }
  ask(data, dict, question);
  return true;
}

bool add_dicts(Data& data, PyObject* args, May may) {
  for (Py_ssize_t i = 0; i < PyTuple_Size(args); ++i) {
    if (!add_dict(data, PyTuple_GetItem(args, i), may)) return false;
  }
  return true;
}

// Memory is read only of what is known to have the layout.
bool is_laid_out(const Data& data, PyObject* tensor) {
  if (!require(data.laid_out, "the layout of tensors is not known")) return false;
  const int right = PyObject_IsInstance(tensor, data.laid_out);
  return right > 0 || (right == 0 && require(false, "a tensor is needed"));
}

void add_entry(Data& data, PyObject* dict, PyObject* key, PyObject* value, May may = May::equal) {
  Question question{};
  question.first = static_cast<uint32_t>(data.entries.size());
  question.count = 1;
  question.size = -1;
  question.may = may;
  data.entries.push_back({keep(data, key), value ? keep(data, value) : nullptr});
  ask(data, dict, question);
}

}  // namespace

bool add_members(Data& data, PyObject* args) { return add_dicts(data, args, May::nothing); }

bool add_slots(Data& data, PyObject* args) { return add_dicts(data, args, May::numbers); }

bool add_settings(Data& data, PyObject* args) { return add_dicts(data, args, May::settings); }

bool add_instance(Data& data, PyObject* args) {
  PyObject *object, *dict, *names;
  if (!PyArg_ParseTuple(args, "OO!O!:instance", &object, &PyDict_Type, &dict, &PyTuple_Type,
                        &names)) {
    return false;
  }
  Question question{};
  question.first = static_cast<uint32_t>(data.entries.size());
  question.count = static_cast<uint32_t>(PyDict_Size(dict));
  question.size = PyDict_Size(dict);
  question.exactly = true;
  Py_ssize_t position = 0, found = 0;
  PyObject *key, *value;
  while (PyDict_Next(dict, &position, &key, &value)) {
    const int compared = PySequence_Contains(names, key);
    if (compared < 0) return false;
    found += compared;
    data.entries.push_back({keep(data, key), compared ? keep(data, value) : nullptr});
  }
  if (found != PyTuple_Size(names)) {
    PyErr_SetObject(PyExc_KeyError, names);
    return false;
  }
  keep(data, reinterpret_cast<PyObject*>(Py_TYPE(object)));
  data.instances.push_back({keep(data, object), Py_TYPE(object)});
  ask(data, dict, question);
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

bool add_content(Data& data, PyObject* args) {
  PyObject *container, *base;
  if (!PyArg_ParseTuple(args, "OO!:content", &container, &PyType_Type, &base)) return false;
  const int right = PyObject_IsInstance(container, base);
  if (right < 0 || !require(right, "content: not an instance of the type")) return false;
  auto* type = reinterpret_cast<PyTypeObject*>(base);
  const auto iterate = reinterpret_cast<getiterfunc>(PyType_GetSlot(type, Py_tp_iter));
  if (!require(iterate, "content: the type has no iterator")) return false;
  PyObject* iterator = iterate(container);
  if (!iterator) return false;
  const auto first = static_cast<uint32_t>(data.elements.size());
  while (PyObject* element = PyIter_Next(iterator)) {
    data.elements.push_back(keep(data, element));
    Py_DECREF(element);
  }
  Py_DECREF(iterator);
  if (PyErr_Occurred()) return false;
  const auto count = static_cast<uint32_t>(data.elements.size()) - first;
  data.contents.push_back({keep(data, container), iterate, first, count});
  return true;
}

bool add_item(Data& data, PyObject* args) {
  PyObject *dict, *key, *value;
  if (!PyArg_ParseTuple(args, "O!OO:item", &PyDict_Type, &dict, &key, &value)) return false;
  add_entry(data, dict, key, value);
  return true;
}

bool add_kind(Data& data, PyObject* args) {
  PyObject *dict, *key, *type;
  if (!PyArg_ParseTuple(args, "O!OO!:kind", &PyDict_Type, &dict, &key, &PyType_Type, &type)) {
    return false;
  }
  add_entry(data, dict, key, type, May::kind);
  return true;
}

bool add_absent(Data& data, PyObject* args) {
  PyObject *dict, *key;
  if (!PyArg_ParseTuple(args, "O!O:absent", &PyDict_Type, &dict, &key)) return false;
  add_entry(data, dict, key, nullptr);
  return true;
}

bool add_attribute(Data& data, PyObject* args) {
  PyObject *owner, *name, *value;
  if (!PyArg_ParseTuple(args, "OUO:attribute", &owner, &name, &value)) return false;
  data.attributes.push_back({keep(data, owner), keep(data, name), keep(data, value), false});
  return true;
}

bool add_weak_attribute(Data& data, PyObject* args) {
  PyObject *owner, *name, *value;
  if (!PyArg_ParseTuple(args, "OUO:weak_attribute", &owner, &name, &value)) return false;
  if (!require(PyCallable_Check(owner), "weak_attribute: a weak reference is needed")) return false;
  data.attributes.push_back({keep(data, owner), keep(data, name), keep(data, value), true});
  return true;
}

bool add_call(Data& data, PyObject* args) {
  PyObject *function, *arguments;
  if (!PyArg_ParseTuple(args, "OO!:call", &function, &PyTuple_Type, &arguments)) return false;
  data.calls.push_back({keep(data, function), keep(data, arguments)});
  return true;
}

bool add_call_when(Data& data, PyObject* args) {
  PyObject *dict, *function, *arguments;
  if (!PyArg_ParseTuple(args, "O!OO!:call_when", &PyDict_Type, &dict, &function, &PyTuple_Type,
                        &arguments)) {
    return false;
  }
  const Call call{keep(data, function), keep(data, arguments)};
  data.gated.push_back({hold_dict(keep(data, dict)), call});
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
    data.empty.push_back({keep(data, dict), keep(data, key)});
  }
  data.hooks.reserve(data.hooks.size() + 1);
  PyObject* last = PyObject_GetAttr(handles, name);
  if (!last) return false;
  data.hooks.push_back({keep(data, handles), keep(data, name), last, keep(data, none_came), first,
                        count});
  return true;
}

bool add_layout(Data& data, PyObject* args) {
  Layout layout{};
  PyObject* type;
  if (!PyArg_ParseTuple(args, "O!O&:layout", &PyType_Type, &type, to_layout, &layout)) return false;
  data.laid_out = keep(data, type);
  data.layout = layout;
  data.tensors = Tensors(layout);
  data.storages = Storages(layout);
  return true;
}

template <class Group>
bool add_group(Data& data, Group& group, PyObject* args) {
  PyObject *function, *tensors;
  if (!PyArg_ParseTuple(args, "OO!", &function, &PyTuple_Type, &tensors)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); ++i) {
    if (!is_laid_out(data, PyTuple_GetItem(tensors, i))) return false;
  }
  group.add(keep(data, function), keep(data, tensors));
  return true;
}

bool add_tensors(Data& data, PyObject* args) { return add_group(data, data.tensors, args); }

bool add_storages(Data& data, PyObject* args) { return add_group(data, data.storages, args); }

bool add_leaves(Data& data, PyObject* args) {
  PyObject* tensors;
  if (!PyArg_ParseTuple(args, "O!:leaves", &PyList_Type, &tensors)) return false;
  for (Py_ssize_t i = 0; i < PyList_Size(tensors); ++i) {
    PyObject* tensor = PyList_GetItem(tensors, i);
    if (!is_laid_out(data, tensor)) return false;
    data.leaves.push_back(keep(data, tensor));
    data.leaves_known = data.leaves_known && data.tensors.has(tensor);
  }
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

}  // namespace torchgraph
