#include "checks.h"

#include <algorithm>
#include <cstring>

#include "memory.h"

namespace torchgraph {
namespace {

// Where CPython 3.10 to 3.14 keep the address of a dict's table. It is only given to a prefetch,
// which takes any value: were there something else, a check would be slower and as right.
constexpr ptrdiff_t kTable = 4 * sizeof(void*);

bool same_float(PyObject* old, PyObject* now) {
  const double left = PyFloat_AsDouble(old), right = PyFloat_AsDouble(now);
  return std::memcmp(&left, &right, sizeof left) == 0;
}

// Only values of exact built-in types are compared, so that no code of the user runs.
bool same_value(PyObject* old, PyObject* now, May may) {
  if (may == May::kind) return reinterpret_cast<PyObject*>(Py_TYPE(now)) == old;
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

bool has_exactly(PyObject* dict, const Entry* entry, const Entry* end, May may) {
  Py_ssize_t position = 0;
  PyObject *key, *value;
  for (; entry != end; ++entry) {
    if (!PyDict_Next(dict, &position, &key, &value) || key != entry->key) return false;
    if (entry->value && !same_value(entry->value, value, may)) return false;
  }
  return true;
}

int has_among_others(PyObject* dict, const Entry* entry, const Entry* end, May may) {
  for (; entry != end; ++entry) {
    PyObject* now = PyDict_GetItemWithError(dict, entry->key);
    if (!now && PyErr_Occurred()) return -1;
    if (!now || !entry->value) {
      if (now != entry->value) return 0;
    } else if (!same_value(entry->value, now, may)) {
      return 0;
    }
  }
  return 1;
}

int answer(const Data& data, PyObject* dict, const Question& question) {
  if (question.size >= 0 && PyDict_Size(dict) != question.size) return 0;
  const Entry* first = data.entries.data() + question.first;
  const Entry* end = first + question.count;
  return question.exactly ? has_exactly(dict, first, end, question.may)
                          : has_among_others(dict, first, end, question.may);
}

// What the coming dicts need of memory: their numbers, and the tables of those that have changed.
void fetch_dicts(const std::vector<Held>& dicts, size_t i) {
  if (i + 2 * kAhead < dicts.size()) {
    const Held& far = dicts[i + 2 * kAhead];
    __builtin_prefetch(far.version ? static_cast<const void*>(far.version) : far.dict);
  }
  if (i + kAhead < dicts.size() && !unchanged(dicts[i + kAhead])) {
    const auto* table = read<const char*>(dicts[i + kAhead].dict, kTable);
    fetch(table, table + 2 * kLine);
  }
}

int dicts_hold(Data& data) {
  const size_t count = data.dicts.size();
  for (size_t i = 0; i < count; ++i) {
    fetch_dicts(data.dicts, i);
    Held& held = data.dicts[i];
    if (unchanged(held)) continue;
    for (int32_t next = data.asked[i]; next >= 0; next = data.questions[next].next) {
      const int found = answer(data, held.dict, data.questions[next]);
      if (found != 1) return found;
    }
    found_good(held);
  }
  return 1;
}

bool instances_hold(const Data& data) {
  const size_t count = data.instances.size();
  for (size_t i = 0; i < count; ++i) {
    if (i + 2 * kAhead < count) __builtin_prefetch(data.instances[i + 2 * kAhead].object);
    if (Py_TYPE(data.instances[i].object) != data.instances[i].type) return false;
  }
  return true;
}

bool list_holds(const List& row, PyObject* const* expected) {
  if (PyList_Size(row.list) != static_cast<Py_ssize_t>(row.count)) return false;
  for (uint32_t i = 0; i < row.count; ++i) {
    if (PyList_GetItem(row.list, i) != expected[i]) return false;
  }
  return true;
}

// 1: exactly these in this order.
int content_holds(const Content& row, PyObject* const* expected) {
  PyObject* iterator = row.iterate(row.container);
  if (!iterator) return -1;
  uint32_t i = 0;
  bool good = true;
  while (good) {
    PyObject* now = PyIter_Next(iterator);
    if (!now) break;
    good = i < row.count && same_value(expected[i++], now, May::equal);
    Py_DECREF(now);
  }
  Py_DECREF(iterator);
  if (PyErr_Occurred()) return -1;
  return good && i == row.count;
}

int is_true(PyObject* result) {
  if (!result) return -1;
  const int found = result == Py_True;
  Py_DECREF(result);
  return found;
}

// 1: no dict there, or an empty one.
int is_empty(const Place& place) {
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

int attribute_of(PyObject* owner, const Attribute& row) {
  PyObject* now = PyObject_GetAttr(owner, row.name);
  if (!now) {  // it is gone, or a cell is empty
    const bool gone = PyErr_ExceptionMatches(PyExc_AttributeError) ||
                      PyErr_ExceptionMatches(PyExc_ValueError);
    if (gone) PyErr_Clear();
    return gone ? 0 : -1;
  }
  const int found = now == row.value;
  Py_DECREF(now);
  return found;
}

// Nobody reads an attribute of what is gone.
int attribute_holds(const Attribute& row) {
  if (!row.weak) return attribute_of(row.owner, row);
  PyObject* owner = PyObject_CallNoArgs(row.owner);
  if (!owner) return -1;
  const int found = owner == Py_None ? 1 : attribute_of(owner, row);
  Py_DECREF(owner);
  return found;
}

int answer_of(const Call& call) {
  return is_true(PyObject_Call(call.function, call.args, nullptr));
}

int gated_hold(std::vector<Gated>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i + kAhead < rows.size()) __builtin_prefetch(rows[i + kAhead].held.version);
    if (unchanged(rows[i].held)) continue;
    const int found = answer_of(rows[i].call);
    if (found != 1) return found;
    found_good(rows[i].held);
  }
  return 1;
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
  if (data.cleared || !instances_hold(data)) return 0;
  int found = dicts_hold(data);
  if (found != 1) return found;
  for (const List& row : data.lists) {
    if (!list_holds(row, data.elements.data() + row.first)) return 0;
  }
  for (const Content& row : data.contents) {
    found = content_holds(row, data.elements.data() + row.first);
    if (found != 1) return found;
  }
  found = all_hold(data.attributes, attribute_holds);
  if (found == 1) {
    found = all_hold(data.hooks, [&](Hooks& hooks) { return hooks_hold(data, hooks); });
  }
  if (found == 1) found = data.tensors.hold();
  if (found == 1) found = data.storages.hold(data.tensors.moved());
  if (found != 1) return found;
  data.tensors.settled();
  found = gated_hold(data.gated);
  return found == 1 ? all_hold(data.calls, answer_of) : found;
}

bool is_bare(const Data& data) {
  return !data.cleared && data.leaves_known && data.gradients.tensors.empty() &&
         data.tensors.bare();
}

int no_gradients(const Data& data) {
  if (data.cleared) return 0;
  for (PyObject* tensor : data.leaves) {
    if (has_gradient(data.layout, tensor)) return 0;
  }
  for (PyObject* tensor : data.gradients.tensors) {
    PyObject* found = data.gradients.get(tensor, data.gradients.closure);
    if (!found) return -1;
    Py_DECREF(found);
    if (found != Py_None) return 0;
  }
  return 1;
}

}  // namespace torchgraph
