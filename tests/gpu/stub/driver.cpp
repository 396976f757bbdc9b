// The driver's interface, for Triton, NVRTC and torch, which look it up by name.
#include "stub.h"

#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <string>

using namespace stub;

namespace {
CUcontext context() {
  static auto only = (CUcontext)new_handle();
  return only;
}

CUresult launched(const Grid& grid, CUstream stream, const char* call) {
  return (CUresult)launch(nullptr, nullptr, grid, stream, call);
}

// A call without its version means the newest one.
cudaError_t entry_point(const char* name, void** found, cudaDriverEntryPointQueryResult* result) {
  static void* here = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  *found = nullptr;
  for (auto version : {"_v2", "_v3", ""})
    if (!*found) *found = dlsym(here, (std::string(name) + version).c_str());
  if (result)
    *result = *found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
}  // namespace

extern "C" {

cudaError_t cudaGetDriverEntryPoint(const char* name, void** found, unsigned long long,
                                    cudaDriverEntryPointQueryResult* result) {
  return entry_point(name, found, result);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  return entry_point(name, found, result);
}

CUresult cuGetExportTable(const void**, const CUuuid*) { return CUDA_ERROR_NOT_SUPPORTED; }

// --- devices and contexts -----------------------------------------------------------------------

CUresult cuDriverGetVersion(int* version) {
  *version = VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = 1;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int) {
  *device = 0;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  snprintf(name, size, "stub");
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = DEVICE_BYTES;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute name, CUdevice) {
  *value = attribute(name);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* found, CUdevice) {
  *found = context();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* found) {
  *found = context();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  *device = 0;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** words) {
  *words = cudaGetErrorString((cudaError_t)error);  // their numbers are the same
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = cudaGetErrorName((cudaError_t)error);
  return CUDA_SUCCESS;
}

// --- modules and kernels ------------------------------------------------------------------------

CUresult cuModuleLoad(CUmodule* module, const char*) {
  *module = (CUmodule)new_handle();
  return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule* module, const void*) { return cuModuleLoad(module, nullptr); }

CUresult cuModuleLoadDataEx(CUmodule* module, const void*, unsigned, CUjit_option*, void**) {
  return cuModuleLoad(module, nullptr);
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) {
  *function = (CUfunction)new_handle();
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute name, CUfunction) {
  *value = name == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? THREADS_PER_BLOCK
           : name == CU_FUNC_ATTRIBUTE_NUM_REGS            ? 32
                                                           : 0;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads,
                                                     size_t shared_bytes) {
  return (CUresult)cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, nullptr, threads,
                                                                 shared_bytes);
}

CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  *clusters = 8;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                        unsigned threads_x, unsigned threads_y, unsigned threads_z,
                        unsigned shared_bytes, CUstream stream, void**, void**) {
  Grid grid{{blocks_x, blocks_y, blocks_z}, {threads_x, threads_y, threads_z}, shared_bytes};
  return launched(grid, stream, __func__);
}

CUresult cuLaunchCooperativeKernel(CUfunction, unsigned blocks_x, unsigned blocks_y,
                                   unsigned blocks_z, unsigned threads_x, unsigned threads_y,
                                   unsigned threads_z, unsigned shared_bytes, CUstream stream,
                                   void**) {
  Grid grid{{blocks_x, blocks_y, blocks_z}, {threads_x, threads_y, threads_z}, shared_bytes};
  return launched(grid, stream, __func__);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction, void**, void**) {
  Grid grid{{config->gridDimX, config->gridDimY, config->gridDimZ},
            {config->blockDimX, config->blockDimY, config->blockDimZ},
            config->sharedMemBytes};
  return launched(grid, config->hStream, __func__);
}

// --- memory -------------------------------------------------------------------------------------

CUresult cuPointerGetAttribute(void* value, CUpointer_attribute name, CUdeviceptr address) {
  LOCK;
  char* base = nullptr;
  Range* range = range_of((void*)address, &base);
  if (!range) return CUDA_ERROR_INVALID_VALUE;
  bool device = range->type == cudaMemoryTypeDevice;
  switch (name) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext*)value = context(); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *(unsigned*)value = device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(CUdeviceptr*)value = address; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(char**)value = base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t*)value = range->size; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(size_t*)value = size_t(base); break;
    default: *(int*)value = 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *bytes = 2 << 20;
  return CUDA_SUCCESS;
}

}  // extern "C"
