// Streams and events. All work is over when it is enqueued; a capture keeps it for later.
#include "capture.h"

#include <algorithm>
#include <chrono>

namespace stub {

namespace {
double now() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

bool is_default(const void* stream) { return size_t(stream) <= 2; }  // legacy, or a thread's own

// Nothing may wait for a stream that is captured.
cudaError_t waits_for(cudaStream_t handle, const char* call) {
  LOCK;
  if (!is_alive(handle)) return fail(cudaErrorInvalidResourceHandle, call);
  if (auto* capture = stream_of(handle)->capture.get())
    return invalidate(capture, cudaErrorStreamCaptureUnsupported, call);
  return while_capturing(call);
}

cudaError_t waits_for(cudaEvent_t handle, const char* call) {
  LOCK;
  if (!alive().count(handle)) return fail(cudaErrorInvalidResourceHandle, call);
  if (auto* capture = ((Event*)handle)->capture.get())
    return invalidate(capture, cudaErrorCapturedEvent, call);
  return while_capturing(call);
}
}  // namespace

std::set<void*>& alive() {
  static auto* all = new std::set<void*>;
  return *all;
}

Stream* legacy() {
  static auto* only = new Stream;
  return only;
}

bool is_alive(cudaStream_t stream) { return is_default(stream) || alive().count(stream); }

Stream* stream_of(cudaStream_t handle) { return is_default(handle) ? legacy() : (Stream*)handle; }

cudaError_t enqueue(cudaStream_t handle, Work work, const char* call) {
  LOCK;
  if (!is_alive(handle)) return fail(cudaErrorInvalidResourceHandle, call);
  Stream* stream = stream_of(handle);
  if (auto* capture = stream->capture.get()) {
    if (capture->invalid) return fail(cudaErrorStreamCaptureInvalidated, call);
    capture->graph->nodes.push_back(std::move(work));
    stream->clock[stream] = ++stream->nodes;
    return cudaSuccess;
  }
  if (stream == legacy())  // which waits for all streams that do not say otherwise
    for (auto& capture : captures())
      for (auto* one : capture->streams)
        if (!(one->flags & cudaStreamNonBlocking) && capture->mode != cudaStreamCaptureModeRelaxed)
          return invalidate(capture.get(), cudaErrorStreamCaptureImplicit, call);
  if (work) work();
  return cudaSuccess;
}

}  // namespace stub

using namespace stub;

extern "C" {

cudaError_t cudaDeviceSynchronize() {
  LOCK;
  if (captures().empty()) return cudaSuccess;
  return invalidate(captures().begin()->get(), cudaErrorStreamCaptureUnsupported, __func__);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  LOCK;
  auto* stream = new Stream;
  stream->flags = flags;
  stream->priority = priority;
  stream->id = next_id();
  alive().insert(stream);
  *handle = (cudaStream_t)stream;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* handle) {
  return cudaStreamCreateWithPriority(handle, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  LOCK;
  if (!alive().erase(handle)) FAIL(cudaErrorInvalidResourceHandle);
  delete (Stream*)handle;
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  *priority = stream_of(handle)->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t handle, unsigned* flags) {
  *flags = stream_of(handle)->flags;
  return cudaSuccess;
}

cudaError_t cudaStreamGetId(cudaStream_t handle, unsigned long long* id) {
  *id = stream_of(handle)->id;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) { return waits_for(handle, __func__); }

cudaError_t cudaStreamQuery(cudaStream_t handle) { return waits_for(handle, __func__); }

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return enqueue(handle, [=] { function(data); }, __func__);
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* data,
                                  unsigned) {
  LOCK;
  if (auto* capture = stream_of(handle)->capture.get())
    return invalidate(capture, cudaErrorStreamCaptureUnsupported, __func__);
  return enqueue(handle, [=] { function(handle, cudaSuccess, data); }, __func__);
}

// --- events -------------------------------------------------------------------------------------

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  LOCK;
  auto* event = new Event;
  event->flags = flags;
  alive().insert(event);
  *handle = (cudaEvent_t)event;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  LOCK;
  if (!alive().erase(handle)) FAIL(cudaErrorInvalidResourceHandle);
  delete (Event*)handle;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t on, unsigned flags) {
  LOCK;
  auto* event = (Event*)handle;
  auto* stream = stream_of(on);
  if (!alive().count(event) || !is_alive(on)) FAIL(cudaErrorInvalidResourceHandle);
  auto record = [=] {
    event->milliseconds = now();
    event->recorded = true;
  };
  if (flags & cudaEventRecordExternal) return enqueue(on, record, __func__);
  if (stream->capture && stream->capture->invalid) FAIL(cudaErrorStreamCaptureInvalidated);
  record();
  event->capture = stream->capture;
  event->clock = stream->clock;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
  return cudaEventRecordWithFlags(handle, on, 0);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) { return waits_for(handle, __func__); }

cudaError_t cudaEventSynchronize(cudaEvent_t handle) { return waits_for(handle, __func__); }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  LOCK;
  auto *first = (Event*)start, *second = (Event*)end;
  for (auto* event : {first, second}) {
    bool timed = alive().count(event) && event->recorded;
    if (!timed || event->flags & cudaEventDisableTiming) FAIL(cudaErrorInvalidResourceHandle);
  }
  if (first->capture || second->capture) FAIL(cudaErrorCapturedEvent);
  *milliseconds = float(second->milliseconds - first->milliseconds);
  if (*milliseconds >= 0) *milliseconds = std::max(*milliseconds, 1e-3f);  // one may divide by it
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t awaited, unsigned flags) {
  LOCK;
  auto* stream = stream_of(handle);
  auto* event = (Event*)awaited;
  if (!alive().count(event) || !is_alive(handle)) FAIL(cudaErrorInvalidResourceHandle);
  if (!event->recorded || (flags & cudaEventWaitExternal)) return cudaSuccess;
  auto* own = stream->capture.get();
  bool captured = event->capture && !event->capture->ended;
  if (!captured)
    return own ? invalidate(own, cudaErrorStreamCaptureIsolation, __func__) : cudaSuccess;
  if (stream == legacy())
    return invalidate(event->capture.get(), cudaErrorStreamCaptureImplicit, __func__);
  if (own && own != event->capture.get()) {
    own->invalid = true;
    return invalidate(event->capture.get(), cudaErrorStreamCaptureMerge, __func__);
  }
  stream->capture = event->capture;
  stream->capture->streams.insert(stream);
  for (auto& [one, number] : event->clock)
    stream->clock[one] = std::max(stream->clock[one], number);
  return cudaSuccess;
}

}  // extern "C"
