#include "checks.h"

#include <algorithm>
#include <cstring>

namespace torchgraph {
namespace {

// A program of thousands of ops leaves nothing of what is read here in the caches. What comes later
// is fetched ahead, so that the misses overlap: objects this far ahead, what they point to half.
constexpr size_t kAhead = 16;
constexpr size_t kLine = 64;
// Where CPython 3.10 to 3.14 keep the addresses of a dict's table and of an instance's values. They
// are only ever given to a prefetch, which takes any value: were there something else, a check would
// be slower and as right.
constexpr size_t kTable = 4;
constexpr size_t kValues = 5;

inline void fetch(const void* address, size_t lines = 1) {
  for (size_t i = 0; i < lines; ++i) {
    __builtin_prefetch(static_cast<const char*>(address) + i * kLine);
  }
}

inline const void* word_of(PyObject* dict, size_t index) {
  const void* word;
  std::memcpy(&word, reinterpret_cast<const char*>(dict) + index * sizeof word, sizeof word);
  return word;
}

bool same_float(PyObject* old, PyObject* now) {
  const double left = PyFloat_AsDouble(old), right = PyFloat_AsDouble(now);
  return std::memcmp(&left, &right, sizeof left) == 0;
}

// Only values of exact built-in types are compared, so that no code of the user runs.
bool same_value(PyObject* old, PyObject* now, May may) {
  if (old == now) return true;
  PyTypeObject* type = Py_TYPE(old);
  if (may == May::nothing || type != Py_TYPE(now)) return false;
  if (may == May::numbers) return type == &PyFloat_Type || type == &PyLong_Type;
  if (type == &PyFloat_Type) return may == May::settings || same_float(old, now);
  if (type == &PyLong_Type || type == &PyUnicode_Type) {
    return PyObject_RichCompareBool(old, now, Py_EQ) == 1;
  }
  if (type != &PyTuple_Type || PyTuple_Size(old) != PyTuple_Size(now)) return false;
  for (Py_ssize_t i = 0; i < PyTuple_Size(old); ++i) {
    if (!same_value(PyTuple_GetItem(old, i), PyTuple_GetItem(now, i), may)) return false;
  }
  return true;
}

bool dict_holds(const Dict& row, const Entry* entry) {
  if (PyDict_Size(row.dict) != static_cast<Py_ssize_t>(row.count)) return false;
  Py_ssize_t position = 0;
  PyObject *key, *value;
  for (const Entry* end = entry + row.count; entry != end; ++entry) {
    if (!PyDict_Next(row.dict, &position, &key, &value) || key != entry->key) return false;
    if (value != entry->value && !same_value(entry->value, value, row.may)) return false;
  }
  return true;
}

bool dicts_hold(const Data& data) {
  const size_t count = data.dicts.size();
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) fetch(data.dicts[i + kAhead].dict);
    if (i + kAhead / 2 < count) {
      const Dict& next = data.dicts[i + kAhead / 2];
      if (next.count) fetch(word_of(next.dict, kTable), 2);
    }
    const Dict& row = data.dicts[i];
    if (!dict_holds(row, data.entries.data() + row.first)) return false;
  }
  return true;
}

int instance_holds(const Instance& row, const Entry* entry) {
  if (Py_TYPE(row.object) != row.type || PyDict_Size(row.dict) != row.size) return 0;
  for (const Entry* end = entry + row.count; entry != end; ++entry) {
    PyObject* now = PyDict_GetItemWithError(row.dict, entry->key);
    if (now != entry->value) return !now && PyErr_Occurred() ? -1 : 0;
  }
  return 1;
}

// What the calls will read is fetched meanwhile.
int instances_hold(const Data& data) {
  const size_t count = data.instances.size();
  const size_t lines = data.lines.size();
  const size_t at_once = count ? (lines + count - 1) / count : 0;
  size_t line = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      fetch(data.instances[i + kAhead].object);
      fetch(data.instances[i + kAhead].dict);
    }
    if (i + kAhead / 2 < count) {
      PyObject* next = data.instances[i + kAhead / 2].dict;
      fetch(word_of(next, kTable), 2);
      fetch(word_of(next, kValues), 3);
    }
    for (const size_t end = std::min(lines, line + at_once); line < end; ++line) {
      fetch(data.lines[line]);
    }
    const Instance& row = data.instances[i];
    const int found = instance_holds(row, data.entries.data() + row.first);
    if (found != 1) return found;
  }
  return 1;
}

bool list_holds(const List& row, PyObject* const* expected) {
  if (PyList_Size(row.list) != static_cast<Py_ssize_t>(row.count)) return false;
  for (uint32_t i = 0; i < row.count; ++i) {
    if (PyList_GetItem(row.list, i) != expected[i]) return false;
  }
  return true;
}

int item_holds(const Item& item) {
  PyObject* now = PyDict_GetItemWithError(item.dict, item.key);
  if (!now) return PyErr_Occurred() ? -1 : !item.value;
  return item.value && same_value(item.value, now, May::equal);
}

int is_true(PyObject* result) {
  if (!result) return -1;
  const int found = result == Py_True;
  Py_DECREF(result);
  return found;
}

// 1: no dict there, or an empty one.
int is_empty(const Item& place) {
  PyObject* now = PyDict_GetItemWithError(place.dict, place.key);
  if (!now) return PyErr_Occurred() ? -1 : 1;
  return PyDict_Check(now) && PyDict_Size(now) == 0;
}

int hooks_hold(const Data& data, Hooks& hooks) {
  PyObject* now = PyObject_GetAttr(hooks.handles, hooks.name);
  if (!now) return -1;
  if (now == hooks.last) {
    Py_DECREF(now);
    return 1;
  }
  int found = 1;
  for (uint32_t i = 0; i < hooks.count && found == 1; ++i) {
    found = is_empty(data.empty[hooks.first + i]);
  }
  if (found == 1) found = is_true(PyObject_CallObject(hooks.none_came, nullptr));
  if (found == 1) std::swap(now, hooks.last);
  Py_DECREF(now);
  return found;
}

int attribute_holds(const Attribute& row) {
  PyObject* now = PyObject_GetAttr(row.owner, row.name);
  if (!now) return -1;
  const int found = now == row.value;
  Py_DECREF(now);
  return found;
}

template <class Rows, class Test>
int all_hold(Rows& rows, Test test) {
  for (auto& row : rows) {
    const int found = test(row);
    if (found != 1) return found;
  }
  return 1;
}

}  // namespace

int holds(Data& data) {
  if (data.cleared) return 0;
  int found = instances_hold(data);
  if (found != 1) return found;
  if (!dicts_hold(data)) return 0;
  for (const List& row : data.lists) {
    if (!list_holds(row, data.elements.data() + row.first)) return 0;
  }
  found = all_hold(data.items, item_holds);
  if (found == 1) found = all_hold(data.attributes, attribute_holds);
  if (found == 1) {
    found = all_hold(data.hooks, [&](Hooks& hooks) { return hooks_hold(data, hooks); });
  }
  if (found != 1) return found;
  return all_hold(data.calls, [](const Call& call) {
    return is_true(PyObject_Call(call.function, call.args, nullptr));
  });
}

int no_gradients(const Data& data) {
  if (data.cleared) return 0;
  for (PyObject* tensor : data.gradients.tensors) {
    PyObject* found = data.gradients.get(tensor, data.gradients.closure);
    if (!found) return -1;
    Py_DECREF(found);
    if (found != Py_None) return 0;
  }
  return 1;
}

}  // namespace torchgraph
