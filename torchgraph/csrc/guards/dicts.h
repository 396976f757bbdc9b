// Has a dict changed since it was last looked at? One number of its own says so, where there is one.
#pragma once

#include <Python.h>

#include <cstdint>

namespace torchgraph {

// A dict, and when it was last found to be good.
struct Held {
  PyObject* dict;
  const uint64_t* version;  // moves with each change of the dict; null: nobody says when it changes
  uint64_t seen;
};

// Finds out where dicts have a number. 0, or -1 with an exception.
int open_account();

// A dict that has not been found good yet. It has to live as long as what is returned.
Held hold_dict(PyObject* dict);

inline bool unchanged(const Held& held) { return held.version && *held.version == held.seen; }

// It was compared and found to be good.
inline void found_good(Held& held) {
  if (held.version) held.seen = *held.version;
}

}  // namespace torchgraph
