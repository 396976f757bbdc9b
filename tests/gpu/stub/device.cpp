// One device, with the limits of an H100: torch and Triton choose kernels by them.
#include "stub.h"

#include <cstdio>
#include <cstring>

#undef cudaGetDeviceProperties

namespace stub {

int attribute(int name) {
  switch (name) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY: return THREADS_PER_BLOCK;
    case cudaDevAttrMaxBlockDimZ: return 64;
    case cudaDevAttrMaxGridDimX: return 0x7fffffff;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock: return SHARED_BYTES;
    case cudaDevAttrTotalConstantMemory: return 65536;
    case cudaDevAttrWarpSize: return 32;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor: return 65536;
    case cudaDevAttrClockRate: return 1980000;
    case cudaDevAttrMultiProcessorCount: return MULTIPROCESSORS;
    case cudaDevAttrMemoryClockRate: return 2619000;
    case cudaDevAttrGlobalMemoryBusWidth: return 5120;
    case cudaDevAttrL2CacheSize: return 50 << 20;
    case cudaDevAttrMaxThreadsPerMultiProcessor: return 2048;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return 233472;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return SHARED_BYTES_OPT_IN;
    case cudaDevAttrReservedSharedMemoryPerBlock: return 1024;
    case cudaDevAttrMaxBlocksPerMultiprocessor: return 32;
    case cudaDevAttrComputeCapabilityMajor: return 9;
    case cudaDevAttrComputeCapabilityMinor: return 0;
    case cudaDevAttrAsyncEngineCount: return 3;
    case cudaDevAttrTextureAlignment: return 512;
    case cudaDevAttrMaxPitch: return 0x7fffffff;
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrManagedMemory:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrHostRegisterSupported: return 1;
    default: return 0;
  }
}

}  // namespace stub

using namespace stub;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device) FAIL(cudaErrorInvalidDevice);
  return cudaSuccess;
}

cudaError_t cudaInitDevice(int, unsigned, unsigned) { return cudaSuccess; }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int device) {
  if (device) FAIL(cudaErrorInvalidDevice);
  *value = attribute(name);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int device) {
  if (device) FAIL(cudaErrorInvalidDevice);
  memset(found, 0, sizeof *found);
  strcpy(found->name, "stub");
  memcpy(found->uuid.bytes, "stub of a device", 16);
  found->totalGlobalMem = DEVICE_BYTES;
  found->sharedMemPerBlock = attribute(cudaDevAttrMaxSharedMemoryPerBlock);
  found->regsPerBlock = attribute(cudaDevAttrMaxRegistersPerBlock);
  found->warpSize = attribute(cudaDevAttrWarpSize);
  found->memPitch = attribute(cudaDevAttrMaxPitch);
  found->maxThreadsPerBlock = attribute(cudaDevAttrMaxThreadsPerBlock);
  found->maxThreadsDim[0] = attribute(cudaDevAttrMaxBlockDimX);
  found->maxThreadsDim[1] = attribute(cudaDevAttrMaxBlockDimY);
  found->maxThreadsDim[2] = attribute(cudaDevAttrMaxBlockDimZ);
  found->maxGridSize[0] = attribute(cudaDevAttrMaxGridDimX);
  found->maxGridSize[1] = attribute(cudaDevAttrMaxGridDimY);
  found->maxGridSize[2] = attribute(cudaDevAttrMaxGridDimZ);
  found->totalConstMem = attribute(cudaDevAttrTotalConstantMemory);
  found->major = attribute(cudaDevAttrComputeCapabilityMajor);
  found->minor = attribute(cudaDevAttrComputeCapabilityMinor);
  found->multiProcessorCount = MULTIPROCESSORS;
  found->textureAlignment = attribute(cudaDevAttrTextureAlignment);
  found->texturePitchAlignment = 32;
  found->asyncEngineCount = attribute(cudaDevAttrAsyncEngineCount);
  found->memoryBusWidth = attribute(cudaDevAttrGlobalMemoryBusWidth);
  found->l2CacheSize = attribute(cudaDevAttrL2CacheSize);
  found->maxThreadsPerMultiProcessor = attribute(cudaDevAttrMaxThreadsPerMultiProcessor);
  found->sharedMemPerMultiprocessor = attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  found->regsPerMultiprocessor = attribute(cudaDevAttrMaxRegistersPerMultiprocessor);
  found->sharedMemPerBlockOptin = SHARED_BYTES_OPT_IN;
  found->maxBlocksPerMultiProcessor = attribute(cudaDevAttrMaxBlocksPerMultiprocessor);
  found->reservedSharedMemPerBlock = attribute(cudaDevAttrReservedSharedMemoryPerBlock);
  found->pciBusID = 1;
  found->concurrentKernels = found->unifiedAddressing = found->managedMemory = 1;
  found->streamPrioritiesSupported = found->cooperativeLaunch = 1;
  found->memoryPoolsSupported = found->clusterLaunch = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int) {
  snprintf(id, size, "0000:01:00.0");
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = VERSION;
  return cudaSuccess;
}

}  // extern "C"
