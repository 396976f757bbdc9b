// The last error of a thread, the words for errors, and the log.
#include "stub.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace stub {

namespace {
thread_local cudaError_t last_error = cudaSuccess;

int log_level() {
  const char* asked = getenv("CUDA_STUB_LOG");
  if (!asked) return 0;
  const char* levels[] = {"errors", "captures", "calls"};
  for (int i = 0; i < 3; i++)
    if (!strcmp(asked, levels[i])) return i + 1;
  fprintf(stderr, "CUDA_STUB_LOG is \"%s\", and not errors, captures or calls\n", asked);
  exit(2);
}

struct Known {
  cudaError_t error;
  const char *name, *words;
};

#define KNOWN(error, words) \
  { error, #error, words }
const Known KNOWN_ERRORS[] = {
    KNOWN(cudaSuccess, "no error"),
    KNOWN(cudaErrorInvalidValue, "a value that is not allowed"),
    KNOWN(cudaErrorMemoryAllocation, "out of memory"),
    KNOWN(cudaErrorInvalidConfiguration, "a grid that no device takes"),
    KNOWN(cudaErrorInvalidSymbol, "a symbol that is not registered"),
    KNOWN(cudaErrorInvalidDevice, "there is no such device"),
    KNOWN(cudaErrorInvalidResourceHandle, "a handle that is not alive"),
    KNOWN(cudaErrorIllegalState, "not in this state"),
    KNOWN(cudaErrorNotReady, "not ready"),
    KNOWN(cudaErrorNotSupported, "not supported"),
    KNOWN(cudaErrorHostMemoryAlreadyRegistered, "the memory is registered already"),
    KNOWN(cudaErrorHostMemoryNotRegistered, "the memory is not registered"),
    KNOWN(cudaErrorStreamCaptureUnsupported, "not allowed while a stream is captured"),
    KNOWN(cudaErrorStreamCaptureInvalidated, "the capture has failed before"),
    KNOWN(cudaErrorStreamCaptureMerge, "two captures would become one"),
    KNOWN(cudaErrorStreamCaptureUnmatched, "the capture began in another stream"),
    KNOWN(cudaErrorStreamCaptureUnjoined, "a stream of the capture was not joined"),
    KNOWN(cudaErrorStreamCaptureIsolation, "a captured stream would wait for uncaptured work"),
    KNOWN(cudaErrorStreamCaptureImplicit, "the legacy stream would wait for a captured one"),
    KNOWN(cudaErrorCapturedEvent, "the event was recorded in a capture"),
    KNOWN(cudaErrorStreamCaptureWrongThread, "the capture began in another thread"),
};

const Known& known(cudaError_t error) {
  static const Known other = {cudaErrorUnknown, "cudaErrorUnknown", "an error without words"};
  for (auto& one : KNOWN_ERRORS)
    if (one.error == error) return one;
  return other;
}
}  // namespace

std::recursive_mutex& mutex() {
  static auto* only = new std::recursive_mutex;  // never freed: libraries call at exit, too
  return *only;
}

bool logs(Log what) {
  static int level = log_level();
  return level >= int(what);
}

cudaError_t fail(cudaError_t error, const char* call) {
  if (error != cudaErrorNotReady && logs(Log::ERRORS))
    fprintf(stderr, "[stub] %s: %s, %s\n", call, known(error).name, known(error).words);
  return last_error = error;
}

}  // namespace stub

extern "C" {

cudaError_t cudaGetLastError() {
  auto error = stub::last_error;
  stub::last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return stub::last_error; }

const char* cudaGetErrorName(cudaError_t error) { return stub::known(error).name; }

const char* cudaGetErrorString(cudaError_t error) { return stub::known(error).words; }

}  // extern "C"
