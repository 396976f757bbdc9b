#include "dicts.h"

#include <dlfcn.h>

#include <cstring>
#include <initializer_list>

namespace torchgraph {

Account account = Account::none;
uint64_t changes = 1;

namespace {

// Public from Python 3.12 on, but not part of the limited API: found by name.
using Callback = int (*)(int event, PyObject* dict, PyObject* key, PyObject* value);
using AddWatcher = int (*)(Callback);
using Watch = int (*)(int watcher, PyObject* dict);

Watch watch_dict = nullptr;
int watcher = -1;
PyInterpreterState* interpreter = nullptr;

int count_change(int, PyObject*, PyObject*, PyObject*) {
  ++changes;
  return 0;
}

template <class Function>
Function find(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

// A fresh dict: is there a number where its version should be, that moves with changes alone?
int versions_move() {
  PyObject *dict = PyDict_New(), *key = PyUnicode_FromString("key");
  int found = dict && key ? 1 : -1;
  uint64_t last = found == 1 ? version_of(dict) : 0;
  for (PyObject* value : {Py_True, Py_False}) {
    if (found == 1 && PyDict_SetItem(dict, key, value) < 0) found = -1;
    if (found != 1) break;
    const uint64_t now = version_of(dict);
    PyDict_GetItemWithError(dict, key);
    found = now != last && version_of(dict) == now;
    last = now;
  }
  if (found == 1) found = PyDict_DelItem(dict, key) < 0 ? -1 : version_of(dict) != last;
  Py_XDECREF(key);
  Py_XDECREF(dict);
  return found;
}

}  // namespace

int open_account() {
  if (interpreter) return 0;  // the module is imported again
  interpreter = PyInterpreterState_Get();
  const char* python = Py_GetVersion();
  if (!std::strncmp(python, "3.10.", 5) || !std::strncmp(python, "3.11.", 5)) {
    const int found = versions_move();
    if (found == 1) account = Account::versions;
    return found < 0 ? -1 : 0;
  }
  bool known = false;
  for (const char* version : {"3.12.", "3.13.", "3.14."}) {
    known = known || !std::strncmp(python, version, 5);
  }
  if (!known) return 0;
  auto add = find<AddWatcher>("PyDict_AddWatcher");
  watch_dict = find<Watch>("PyDict_Watch");
  if (!add || !watch_dict) return 0;
  watcher = add(count_change);
  if (watcher < 0) {
    PyErr_Clear();  // others have taken the few that there are
  } else {
    account = Account::watched;
  }
  return 0;
}

// An attribute may be stored past the dict of an object, in the values that the dict shares with it:
// Python 3.13.0 does not tell. Their address is in the dict, after the one of its table.
bool shares_values(PyObject* dict) { return reinterpret_cast<void* const*>(dict)[5] != nullptr; }

// It stays watched for as long as it lives: other checks may rely on it, and a count costs nothing.
bool watch(PyObject* dict) {
  if (account != Account::watched || interpreter != PyInterpreterState_Get()) return false;
  if (shares_values(dict)) return false;
  if (watch_dict(watcher, dict) == 0) return true;
  PyErr_Clear();
  return false;
}

}  // namespace torchgraph
