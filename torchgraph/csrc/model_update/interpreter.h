// Python's lock, taken once for what would take it again and again: each tensor that Python knows too
// takes it when a kernel lets go of its handle.
#pragma once

extern "C" {
// Of Python's limited API; null in a process without Python.
__attribute__((weak)) int Py_IsInitialized();
__attribute__((weak)) int PyGILState_Ensure();
__attribute__((weak)) void PyGILState_Release(int);
}

namespace torchgraph {

class InterpreterLock {
 public:
  InterpreterLock() : held_(&Py_IsInitialized != nullptr && Py_IsInitialized() != 0) {
    if (held_) before_ = PyGILState_Ensure();
  }
  ~InterpreterLock() {
    if (held_) PyGILState_Release(before_);
  }
  InterpreterLock(const InterpreterLock&) = delete;
  InterpreterLock& operator=(const InterpreterLock&) = delete;

 private:
  bool held_;
  int before_ = 0;
};

}  // namespace torchgraph
