// Copies and fills. What lies on the device is zero: what is written there is forgotten, and what
// is read from there is zeros, so that a size or an index that a program reads is harmless. One
// byte is a bool that a kernel has made, and reads as that kernel says of zeros.
#include "stub.h"

#include <cstring>
#include <map>

namespace stub {

namespace {
void copy(void* to, const void* from, size_t size) {
  if (on_device(to)) return;
  if (!on_device(from))
    memmove(to, from, size);
  else
    memset(to, size == 1 && last_truth(), size);
}

void fill(void* to, int value, size_t size) {
  if (!on_device(to)) memset(to, value, size);
}

cudaError_t enqueue_copy(void* to, const void* from, size_t size, cudaStream_t stream,
                         const char* call) {
  return enqueue(stream, [=] { copy(to, from, size); }, call);
}

std::map<const void*, void*>& symbols() {
  static auto* all = new std::map<const void*, void*>;
  return *all;
}
}  // namespace

}  // namespace stub

using namespace stub;

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, size_t size, cudaMemcpyKind) {
  NOT_WHILE_CAPTURING;
  return enqueue_copy(to, from, size, nullptr, __func__);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
  return enqueue_copy(to, from, size, stream, __func__);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size,
                                cudaStream_t stream) {
  return enqueue_copy(to, from, size, stream, __func__);
}

cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind, cudaStream_t stream) {
  auto rows = [=] {
    for (size_t i = 0; i < height; i++)
      copy((char*)to + i * to_pitch, (const char*)from + i * from_pitch, width);
  };
  return enqueue(stream, rows, __func__);
}

cudaError_t cudaMemset(void* to, int value, size_t size) {
  NOT_WHILE_CAPTURING;
  return enqueue(nullptr, [=] { fill(to, value, size); }, __func__);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t size, cudaStream_t stream) {
  return enqueue(stream, [=] { fill(to, value, size); }, __func__);
}

// --- __device__ and __managed__ variables -------------------------------------------------------

void __cudaRegisterVar(void**, char* host, char*, const char*, int, size_t size, int, int) {
  LOCK;
  symbols()[host] = allocate(size, cudaMemoryTypeDevice);
}

void __cudaRegisterManagedVar(void**, void** host, char*, const char*, int, size_t size, int,
                              int) {
  *host = allocate(size, cudaMemoryTypeManaged);
}

cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  LOCK;
  auto found = symbols().find(symbol);
  if (found == symbols().end()) FAIL(cudaErrorInvalidSymbol);
  *address = found->second;
  return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t size, size_t offset,
                               cudaMemcpyKind) {
  NOT_WHILE_CAPTURING;
  void* address;
  if (auto error = cudaGetSymbolAddress(&address, symbol)) return error;
  return enqueue_copy((char*)address + offset, from, size, nullptr, __func__);
}

}  // extern "C"
