#include "dicts.h"

#include <dlfcn.h>

#include <cstring>
#include <initializer_list>
#include <unordered_map>

namespace torchgraph {
namespace {

// Python 3.10 and 3.11 give a dict a new number with each change, after the reference count, the
// type and the number of entries; see open_account.
constexpr size_t kVersion = 3;

// Public from Python 3.12 on, but not part of the limited API: found by name.
using Callback = int (*)(int event, PyObject* dict, PyObject* key, PyObject* value);
using AddWatcher = int (*)(Callback);
using Watch = int (*)(int watcher, PyObject* dict);
constexpr int kDeallocated = 5;

// Who says when a dict changes.
enum class Account : uint8_t {
  none,      // nobody: each look compares
  versions,  // the dict
  watched,   // Python, when asked to: the changes of each such dict are counted here
};

Account account = Account::none;
Watch watch_dict = nullptr;
int watcher = -1;
PyInterpreterState* interpreter = nullptr;

// Never taken apart: dicts may change until the process is gone.
std::unordered_map<PyObject*, uint64_t>& counts() {
  static auto* found = new std::unordered_map<PyObject*, uint64_t>;
  return *found;
}

int count_change(int event, PyObject* dict, PyObject*, PyObject*) {
  const auto found = counts().find(dict);
  if (found == counts().end()) return 0;
  ++found->second;
  if (event == kDeallocated) counts().erase(found);
  return 0;
}

const uint64_t* version_of(PyObject* dict) {
  return reinterpret_cast<const uint64_t*>(dict) + kVersion;
}

template <class Function>
Function find(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

// A fresh dict: is there a number where its version should be, that moves with changes alone?
int versions_move() {
  PyObject *dict = PyDict_New(), *key = PyUnicode_FromString("key");
  int found = dict && key ? 1 : -1;
  uint64_t last = found == 1 ? *version_of(dict) : 0;
  for (PyObject* value : {Py_True, Py_False}) {
    if (found == 1 && PyDict_SetItem(dict, key, value) < 0) found = -1;
    if (found != 1) break;
    const uint64_t now = *version_of(dict);
    PyDict_GetItemWithError(dict, key);
    found = now != last && *version_of(dict) == now;
    last = now;
  }
  if (found == 1) found = PyDict_DelItem(dict, key) < 0 ? -1 : *version_of(dict) != last;
  Py_XDECREF(key);
  Py_XDECREF(dict);
  return found;
}

// An attribute may be stored past the dict of an object, in the values that the dict shares with it:
// Python 3.13.0 does not tell. Their address is in the dict, after the one of its table.
bool shares_values(PyObject* dict) { return reinterpret_cast<void* const*>(dict)[5] != nullptr; }

// It stays watched for as long as it lives: other checks may rely on it, and a count costs little.
const uint64_t* watched_version(PyObject* dict) {
  if (interpreter != PyInterpreterState_Get() || shares_values(dict)) return nullptr;
  if (watch_dict(watcher, dict) == 0) return &counts().try_emplace(dict, 1).first->second;
  PyErr_Clear();
  return nullptr;
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
  for (const char* version : {"3.12.", "3.13.", "3.14.", "3.15."}) {
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

Held hold_dict(PyObject* dict) {
  Held held{dict, nullptr, 0};
  if (account == Account::versions) held.version = version_of(dict);
  if (account == Account::watched) held.version = watched_version(dict);
  // Versions and counts start at 1, so that the first look compares.
  return held;
}

}  // namespace torchgraph
