// Kernels: registered, and launched without effect, after a look at the grid. But a program that
// branches on a value reads a bool; for it, the kernels that make bools have their say of zeros.
#include "stub.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

namespace stub {

namespace {
bool truth = false;

// Of `x == y`, `x < y`, `all`, `any` and `not` in ATen, by their names.
enum class Truth { ALL, ANY, EQUAL_OR_NOT, ORDER, NOT };

std::unordered_map<const void*, Truth>& truths() {
  static auto* all = new std::unordered_map<const void*, Truth>;
  return *all;
}

// Where a functor is the second argument and has the comparison as its first member: == is 0 and
// != is 1; >=, >, <= and < are 0 to 3.
int comparison(void** arguments) { return *(int*)arguments[1]; }

Work effect(const void* kernel, void** arguments) {
  auto found = truths().find(kernel);
  if (found == truths().end()) return nullptr;
  switch (found->second) {
    case Truth::NOT: return [] { truth = !truth; };
    case Truth::ALL: return [] { truth = true; };
    case Truth::ANY: return [] { truth = false; };
    default: break;
  }
  int which = comparison(arguments);
  bool of_zeros = found->second == Truth::ORDER ? which % 2 == 0 : which == 0;
  return [=] { truth = of_zeros; };
}

bool fits(const Grid& grid) {
  auto [blocks, threads, shared_bytes] = grid;
  bool none = !blocks.x || !blocks.y || !blocks.z || !threads.x || !threads.y || !threads.z;
  bool large = size_t(threads.x) * threads.y * threads.z > THREADS_PER_BLOCK || threads.z > 64 ||
               blocks.x > 0x7fffffffu || blocks.y > 65535 || blocks.z > 65535;
  return !none && !large;
}

// Between the two halves of a `<<<...>>>`.
struct {
  Grid grid;
  cudaStream_t stream;
} thread_local pushed;
}  // namespace

bool last_truth() { return truth; }

cudaError_t launch(const void* kernel, void** arguments, const Grid& grid, cudaStream_t stream,
                   const char* call) {
  if (!fits(grid)) return fail(cudaErrorInvalidConfiguration, call);
  if (grid.shared_bytes > SHARED_BYTES_OPT_IN) return fail(cudaErrorInvalidValue, call);
  return enqueue(stream, effect(kernel, arguments), call);
}

}  // namespace stub

using namespace stub;

extern "C" {

// --- what nvcc puts into each library -----------------------------------------------------------

void** __cudaRegisterFatBinary(void*) {
  static void* none;
  return &none;
}

void __cudaRegisterFatBinaryEnd(void**) {}

void __cudaUnregisterFatBinary(void**) {}

char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* kernel, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  LOCK;
  auto has = [=](const char* part) { return strstr(name, part) != nullptr; };
  if (has("and_kernel_cuda")) truths()[kernel] = Truth::ALL;
  if (has("or_kernel_cuda") && !has("xor_kernel")) truths()[kernel] = Truth::ANY;
  if (has("logical_not_kernel_cuda")) truths()[kernel] = Truth::NOT;
  if (!has("elementwise_kernel")) return;
  if (has("CompareEqFunctor")) truths()[kernel] = Truth::EQUAL_OR_NOT;
  if (has("CompareFunctor")) truths()[kernel] = Truth::ORDER;
}

unsigned __cudaPushCallConfiguration(dim3 blocks, dim3 threads, size_t shared_bytes,
                                     CUstream_st* stream) {
  pushed = {{blocks, threads, shared_bytes}, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* blocks, dim3* threads, size_t* shared_bytes,
                                       void* stream) {
  *blocks = pushed.grid.blocks;
  *threads = pushed.grid.threads;
  *shared_bytes = pushed.grid.shared_bytes;
  *(cudaStream_t*)stream = pushed.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 blocks, dim3 threads, void** arguments,
                               size_t shared_bytes, cudaStream_t stream) {
  return launch(kernel, arguments, {blocks, threads, shared_bytes}, stream, __func__);
}

// --- launches -----------------------------------------------------------------------------------

cudaError_t cudaLaunchKernel(const void* kernel, dim3 blocks, dim3 threads, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  return launch(kernel, arguments, {blocks, threads, shared_bytes}, stream, __func__);
}

cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 blocks, dim3 threads,
                                        void** arguments, size_t shared_bytes,
                                        cudaStream_t stream) {
  return launch(kernel, arguments, {blocks, threads, shared_bytes}, stream, __func__);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                void** arguments) {
  Grid grid{config->gridDim, config->blockDim, config->dynamicSmemBytes};
  return launch(kernel, arguments, grid, config->stream, __func__);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
  memset(found, 0, sizeof *found);
  found->maxThreadsPerBlock = THREADS_PER_BLOCK;
  found->numRegs = 32;
  found->ptxVersion = found->binaryVersion = 90;
  found->maxDynamicSharedSizeBytes = SHARED_BYTES_OPT_IN;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*,
                                                                   int threads, size_t, unsigned) {
  *blocks = threads > 0 ? std::clamp(2048 / threads, 1, 32) : 1;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel,
                                                          int threads, size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads,
                                                                shared_bytes, 0);
}

}  // extern "C"
