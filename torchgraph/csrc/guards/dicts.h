// Has a dict changed since it was last looked at? One word says so, where Python keeps account.
#pragma once

#include <Python.h>

#include <cstdint>

namespace torchgraph {

// A dict, and when it was last found to be good.
struct Held {
  PyObject* dict;
  uint64_t seen;  // 0: nobody says when it changes
};

// Who says when a dict changes.
enum class Account : uint8_t {
  none,      // nobody: each look compares
  versions,  // the dict: Python 3.10 and 3.11 give it a new number with each change
  watched,   // Python, from 3.12 on, when asked to: one number counts the changes of all such dicts
};

extern Account account;
extern uint64_t changes;

// Finds out which it is. 0, or -1 with an exception.
int open_account();

// From now on changes of this dict count. False: they do not.
bool watch(PyObject* dict);

inline uint64_t version_of(PyObject* dict) {
  // After the reference count, the type and the number of entries; see open_account.
  return reinterpret_cast<const uint64_t*>(dict)[3];
}

inline bool unchanged(const Held& held) {
  if (account == Account::versions) return version_of(held.dict) == held.seen;
  return account == Account::watched && held.seen == changes;
}

// It was compared and found to be good.
inline void found_good(Held& held) {
  if (account == Account::versions) held.seen = version_of(held.dict);
  if (account == Account::watched && held.seen) held.seen = changes;
}

}  // namespace torchgraph
