// Shared by the parts of the stub: one lock, errors, memory, streams and what runs on them.
//
// The stub is driver, runtime and libraries in one, for a machine without a GPU. Kernels do
// nothing and device memory is zeros for ever, but streams, events, captures and graphs have the
// state and the rules that CUDA gives them, and a call that CUDA would refuse is refused.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <mutex>

namespace stub {

constexpr size_t DEVICE_BYTES = size_t(80) << 30;
constexpr size_t SHARED_BYTES = 49152, SHARED_BYTES_OPT_IN = 232448;
constexpr int MULTIPROCESSORS = 132, THREADS_PER_BLOCK = 1024, VERSION = 13000;

// --- locking: any thread may call, and a callback may call again -------------------------------

std::recursive_mutex& mutex();
#define LOCK std::lock_guard<std::recursive_mutex> locked(stub::mutex())

// --- errors.cpp ---------------------------------------------------------------------------------

enum class Log { ERRORS = 1, CAPTURES = 2, CALLS = 3 };
bool logs(Log what);                                    // as CUDA_STUB_LOG asks
cudaError_t fail(cudaError_t error, const char* call);  // keeps it as the thread's last error
#define FAIL(error) return stub::fail(error, __func__)

// --- device.cpp ---------------------------------------------------------------------------------

int attribute(int name);

// --- memory.cpp ---------------------------------------------------------------------------------

struct Range {
  size_t size;
  cudaMemoryType type;
  bool registered;  // the host's own, and only known to CUDA
};

Range* range_of(const void* address, char** base = nullptr);
void* allocate(size_t size, cudaMemoryType type);
size_t free_bytes();
bool on_device(const void* address);

// --- streams.cpp and captures.cpp ---------------------------------------------------------------

struct Stream;
using Work = std::function<void()>;

Stream* stream_of(cudaStream_t handle);
// Runs at once, or becomes a node of the graph that the stream captures. Empty for a kernel.
cudaError_t enqueue(cudaStream_t stream, Work work, const char* call);
// A call that waits for the device or frees memory may end a capture: of which, says its mode.
cudaError_t while_capturing(const char* call);
#define NOT_WHILE_CAPTURING \
  if (auto refused = stub::while_capturing(__func__)) return refused

// --- kernels.cpp and copies.cpp -----------------------------------------------------------------

struct Grid {
  dim3 blocks, threads;
  size_t shared_bytes;
};

cudaError_t launch(const void* kernel, void** arguments, const Grid& grid, cudaStream_t stream,
                   const char* call);
bool last_truth();  // what a kernel that compares or reduces would have said of zeros

// --- handles.cpp: of cuBLAS, cuDNN and the like; of modules, pools, descriptors -----------------

void* new_handle();
void set_stream(void* handle, void* stream);
void* get_stream(void* handle);
int compute(void* handle);  // a library computes on its handle's stream; nonzero when it may not
void say(const char* call);

}  // namespace stub
