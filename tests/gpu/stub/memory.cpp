// Addresses: what is allocated, of which kind, and how much is left.
//
// Device memory is a range of addresses that nobody may touch, so that a program of the host that
// reads or writes it dies here as it does with a GPU.
#include "stub.h"

#include <sys/mman.h>

#include <cstring>
#include <map>

namespace stub {

namespace {
constexpr size_t PAGE = 4096;
size_t used = 0;

std::map<char*, Range>& ranges() {
  static auto* all = new std::map<char*, Range>;
  return *all;
}

bool release(void* address) {
  LOCK;
  auto found = ranges().find((char*)address);
  if (found == ranges().end() || found->second.registered) return false;
  if (found->second.type == cudaMemoryTypeDevice) used -= found->second.size;
  munmap(address, found->second.size);
  ranges().erase(found);
  return true;
}

cudaError_t give(void** address, size_t size, cudaMemoryType type, const char* call) {
  *address = size ? allocate(size, type) : nullptr;
  return *address || !size ? cudaSuccess : fail(cudaErrorMemoryAllocation, call);
}

cudaError_t take_back(void* address, const char* call) {
  return !address || release(address) ? cudaSuccess : fail(cudaErrorInvalidValue, call);
}
}  // namespace

Range* range_of(const void* address, char** base) {
  auto found = ranges().upper_bound((char*)address);
  if (found == ranges().begin()) return nullptr;
  --found;
  if ((char*)address >= found->first + found->second.size) return nullptr;
  if (base) *base = found->first;
  return &found->second;
}

bool on_device(const void* address) {
  LOCK;
  Range* range = range_of(address);
  return range && range->type == cudaMemoryTypeDevice;
}

void* allocate(size_t size, cudaMemoryType type) {
  LOCK;
  bool device = type == cudaMemoryTypeDevice;
  size_t whole = (size + PAGE - 1) / PAGE * PAGE;
  if (!whole || (device && used + whole > DEVICE_BYTES)) return nullptr;
  int access = device ? PROT_NONE : PROT_READ | PROT_WRITE;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* address = mmap(nullptr, whole, access, flags, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  if (device) used += whole;
  ranges()[(char*)address] = {whole, type, false};
  return address;
}

size_t free_bytes() { return DEVICE_BYTES - used; }

}  // namespace stub

using namespace stub;

extern "C" {

cudaError_t cudaMalloc(void** address, size_t size) {
  NOT_WHILE_CAPTURING;
  return give(address, size, cudaMemoryTypeDevice, __func__);
}

cudaError_t cudaMallocAsync(void** address, size_t size, cudaStream_t) {
  return give(address, size, cudaMemoryTypeDevice, __func__);
}

cudaError_t cudaMallocManaged(void** address, size_t size, unsigned) {
  NOT_WHILE_CAPTURING;
  return give(address, size, cudaMemoryTypeManaged, __func__);
}

cudaError_t cudaMallocHost(void** address, size_t size) {
  NOT_WHILE_CAPTURING;
  return give(address, size, cudaMemoryTypeHost, __func__);
}

cudaError_t cudaHostAlloc(void** address, size_t size, unsigned) {
  NOT_WHILE_CAPTURING;
  return give(address, size, cudaMemoryTypeHost, __func__);
}

cudaError_t cudaFree(void* address) {
  NOT_WHILE_CAPTURING;
  return take_back(address, __func__);
}

cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return take_back(address, __func__); }

cudaError_t cudaFreeHost(void* address) {
  NOT_WHILE_CAPTURING;
  return take_back(address, __func__);
}

cudaError_t cudaHostRegister(void* address, size_t size, unsigned) {
  NOT_WHILE_CAPTURING;
  LOCK;
  if (range_of(address)) FAIL(cudaErrorHostMemoryAlreadyRegistered);
  ranges()[(char*)address] = {size, cudaMemoryTypeHost, true};
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* address) {
  NOT_WHILE_CAPTURING;
  LOCK;
  if (!ranges().erase((char*)address)) FAIL(cudaErrorHostMemoryNotRegistered);
  return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address) {
  LOCK;
  memset(found, 0, sizeof *found);
  Range* range = range_of(address);
  found->type = range ? range->type : cudaMemoryTypeUnregistered;
  found->device = range ? 0 : -2;
  if (range) found->devicePointer = (void*)address;
  if (range && range->type != cudaMemoryTypeDevice) found->hostPointer = (void*)address;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  LOCK;
  *free = free_bytes();
  *total = DEVICE_BYTES;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  *pool = (cudaMemPool_t)new_handle();
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void* value) {
  *(unsigned long long*)value = 0;
  return cudaSuccess;
}

}  // extern "C"
