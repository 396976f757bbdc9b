// Python asks an audit hook about each id(), each sys._getframe() and each attribute of a frame,
// for the rest of the process. One that is written in Python makes an id() eight times as slow.

#include "events.h"

#include <cstring>

// No part of the limited API, but of every Python since 3.8.
extern "C" PyAPI_FUNC(int) PySys_AddAuditHook(int (*hook)(const char*, PyObject*, void*), void*);

namespace torchgraph {
namespace {

PyObject* listener = nullptr;  // of those who listen now, in any thread: they share it
size_t listening = 0;
bool installed = false;

bool begins(const char* event, const char* with) {
  return std::strncmp(event, with, std::strlen(with)) == 0;
}

bool is_told(const char* event) {
  return std::strcmp(event, "open") == 0 || begins(event, "os.") || begins(event, "subprocess.") ||
         begins(event, "socket.");
}

int hook(const char* event, PyObject* args, void*) {
  if (!listener || !is_told(event)) return 0;
  PyObject* told = listener;
  Py_INCREF(told);  // what it calls may change who listens
  PyObject* found = PyObject_CallFunction(told, "sO", event, args);
  Py_DECREF(told);
  if (!found) return -1;
  Py_DECREF(found);
  return 0;
}

PyObject* listen(PyObject*, PyObject* function) {
  if (!installed && PySys_AddAuditHook(hook, nullptr) < 0) return nullptr;
  installed = true;
  PyObject* before = listener;
  listener = function;
  Py_INCREF(listener);
  Py_XDECREF(before);
  ++listening;
  Py_RETURN_NONE;
}

PyObject* listen_no_more(PyObject*, PyObject*) {
  if (listening && --listening == 0) Py_CLEAR(listener);
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef events_methods[] = {
    {"listen", listen, METH_O,
     "listen(function): function(event, args) is told of files, processes and connections, in any "
     "thread."},
    {"listen_no_more", listen_no_more, METH_NOARGS,
     "Until this was called as often as listen()."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace torchgraph
