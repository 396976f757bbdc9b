// What a bound program relies on, as flat arrays that one call compares with what is there now.
#pragma once

#include <Python.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "dicts.h"
#include "storages.h"
#include "tensors.h"

namespace torchgraph {

// How a value may differ from the expected one.
enum class May : uint8_t {
  nothing,   // the very object
  numbers,   // an int or a float may be another of its type
  equal,     // a number, a string or a tuple of them may be an equal one
  kind,      // any of its type: the step moves it on
  settings,  // the same, and a float may be another
};

struct Entry {
  PyObject* key;
  PyObject* value;  // null: there must be none; where all keys are compared: any; of a kind: the type
};

// What is compared of a dict: exactly these entries in this order, or some of them and its size.
struct Question {
  uint32_t first;  // of its entries
  uint32_t count;
  Py_ssize_t size;  // -1: any
  May may;
  bool exactly;
  int32_t next;  // question about the same dict; -1: none
};

struct Instance {
  PyObject* object;
  PyTypeObject* type;
};

struct List {
  PyObject* list;
  uint32_t first;
  uint32_t count;
};

// A set, a deque, the order of an OrderedDict: all that an iterator of a built-in type gives.
struct Content {
  PyObject* container;
  getiterfunc iterate;
  uint32_t first;
  uint32_t count;
};

struct Attribute {
  PyObject* owner;  // or a weak reference to it
  PyObject* name;
  PyObject* value;
  bool weak;
};

struct Call {
  PyObject* function;
  PyObject* args;
};

// Asked when the dict is not as it was when the answer was good.
struct Gated {
  Held held;
  Call call;
};

struct Place {
  PyObject* dict;
  PyObject* key;
};

// Hooks come with a handle, and those are numbered: only a new number is a reason to look.
struct Hooks {
  PyObject* handles;
  PyObject* name;
  PyObject* last;  // owned here: it changes
  PyObject* none_came;
  uint32_t first;  // of the places whose dicts must be empty
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
  std::vector<Instance> instances;
  std::vector<Held> dicts;
  std::vector<int32_t> asked;  // of each dict: the first question
  std::unordered_map<PyObject*, uint32_t> numbers;  // of the dicts
  std::vector<Question> questions;
  std::vector<Entry> entries;
  std::vector<List> lists;
  std::vector<Content> contents;
  std::vector<PyObject*> elements;  // of lists and contents
  std::vector<Attribute> attributes;
  std::vector<Hooks> hooks;
  std::vector<Place> empty;
  std::vector<Gated> gated;
  std::vector<Call> calls;
  PyObject* laid_out = nullptr;  // the type whose instances have the layout
  Layout layout{};
  Tensors tensors;
  Storages storages;
  std::vector<PyObject*> leaves;  // their gradients are read as the layout says
  bool leaves_known = true;       // all of them are among `tensors`
  Gradients gradients;
  bool cleared = false;  // by the garbage collector: nothing is left to compare with
};

// 1: everything is as it was. 0: something is not, and Python says what. -1: an exception is set.
int holds(Data& data);

// 1: no tensor has a gradient. 0: one has. -1: an exception is set.
int no_gradients(const Data& data);

// True when holds() has just said so of all: each of them is among the tensors that it has compared.
bool is_bare(const Data& data);

}  // namespace torchgraph
