// What a bound program relies on, as flat arrays that one call compares with what is there now.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

namespace torchgraph {

// How a value may differ from the expected one.
enum class May : uint8_t {
  nothing,   // the very object
  numbers,   // an int or a float may be another of its type
  equal,     // a number, a string or a tuple of them may be an equal one
  settings,  // the same, and a float may be another
};

struct Entry {
  PyObject* key;
  PyObject* value;
};

struct Dict {
  PyObject* dict;
  uint32_t first;  // of its entries
  uint32_t count;
  May may;
};

// A module: its class, the size of its dict and some entries there.
struct Instance {
  PyObject* object;
  PyTypeObject* type;
  PyObject* dict;
  Py_ssize_t size;
  uint32_t first;  // of those entries
  uint32_t count;
};

struct List {
  PyObject* list;
  uint32_t first;
  uint32_t count;
};

struct Item {
  PyObject* dict;
  PyObject* key;
  PyObject* value;  // null: there must be none
};

struct Attribute {
  PyObject* owner;
  PyObject* name;
  PyObject* value;
};

struct Call {
  PyObject* function;
  PyObject* args;
};

// Hooks come with a handle, and those are numbered: only a new number is a reason to look.
struct Hooks {
  PyObject* handles;
  PyObject* name;
  PyObject* last;  // owned here: it changes
  PyObject* none_came;
  uint32_t first;  // of the entries whose dicts must be empty
  uint32_t count;
};

struct Gradients {
  getter get = nullptr;
  void* closure = nullptr;
  std::vector<PyObject*> tensors;
};

// All pointers are borrowed from `owned`, but for `Hooks::last`.
struct Data {
  std::vector<PyObject*> owned;
  std::vector<Dict> dicts;
  std::vector<Entry> entries;
  std::vector<Instance> instances;
  std::vector<Item> items;
  std::vector<List> lists;
  std::vector<PyObject*> elements;
  std::vector<Attribute> attributes;
  std::vector<Hooks> hooks;
  std::vector<Item> empty;
  std::vector<Call> calls;
  Gradients gradients;
  std::vector<const char*> lines;  // addresses that a check of tensors reads
  bool cleared = false;            // by the garbage collector: nothing is left to compare with
};

// 1: everything is as it was. 0: something is not, and Python says what. -1: an exception is set.
int holds(Data& data);

// 1: no tensor has a gradient. 0: one has. -1: an exception is set.
int no_gradients(const Data& data);

}  // namespace torchgraph
