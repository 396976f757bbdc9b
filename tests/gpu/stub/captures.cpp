// Captures, from their beginning to a graph that is launched, and what ends them before.
#include "capture.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace stub {

namespace {
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

long this_thread() {
  static thread_local long id = syscall(SYS_gettid);
  return id;
}

// A node's handle is its number, from 1 on, in steps that look like addresses.
constexpr size_t NODE = 16;
cudaGraphNode_t node_handle(size_t number) { return (cudaGraphNode_t)(number * NODE); }

// Streams whose last nodes nothing in the origin comes after.
bool has_unjoined(const Capture& capture) {
  for (auto* one : capture.streams)
    if (alive().count(one) && one->clock[one] > capture.origin->clock[one]) return true;
  return false;
}

void leave(Capture& capture) {
  for (auto* one : capture.streams)
    if (alive().count(one)) {
      one->capture = nullptr;
      one->clock.clear();
    }
  capture.ended = true;
}
}  // namespace

std::set<std::shared_ptr<Capture>>& captures() {
  static auto* all = new std::set<std::shared_ptr<Capture>>;
  return *all;
}

unsigned long long next_id() {
  static unsigned long long last = 0;
  return ++last;
}

cudaError_t invalidate(Capture* capture, cudaError_t error, const char* call) {
  capture->invalid = true;
  return fail(error, call);
}

cudaError_t while_capturing(const char* call) {
  LOCK;
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  bool refused = false;
  for (auto& capture : captures()) {
    bool own = capture->thread == this_thread() && capture->mode != cudaStreamCaptureModeRelaxed;
    bool global = thread_mode == cudaStreamCaptureModeGlobal &&
                  capture->mode == cudaStreamCaptureModeGlobal;
    if (own || global) capture->invalid = refused = true;
  }
  return refused ? fail(cudaErrorStreamCaptureUnsupported, call) : cudaSuccess;
}

}  // namespace stub

using namespace stub;

extern "C" {

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  LOCK;
  auto* stream = stream_of(handle);
  if (stream == legacy()) FAIL(cudaErrorStreamCaptureUnsupported);
  if (!is_alive(handle)) FAIL(cudaErrorInvalidResourceHandle);
  if (stream->capture) FAIL(cudaErrorIllegalState);
  auto capture = std::make_shared<Capture>();
  capture->id = next_id();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = this_thread();
  capture->streams = {stream};
  stream->capture = capture;
  stream->clock.clear();
  captures().insert(capture);
  if (logs(Log::CAPTURES))
    fprintf(stderr, "[stub] capture %llu begins, mode %d\n", capture->id, mode);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  LOCK;
  auto* stream = stream_of(handle);
  auto capture = stream->capture;
  *graph = nullptr;
  if (!capture) FAIL(cudaErrorIllegalState);
  if (capture->origin != stream)
    return invalidate(capture.get(), cudaErrorStreamCaptureUnmatched, __func__);
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != this_thread())
    FAIL(cudaErrorStreamCaptureWrongThread);
  bool unjoined = has_unjoined(*capture);
  leave(*capture);
  captures().erase(capture);
  if (logs(Log::CAPTURES))
    fprintf(stderr, "[stub] capture %llu ends, %zu nodes%s\n", capture->id,
            capture->graph->nodes.size(), capture->invalid ? ", invalid" : "");
  if (capture->invalid) FAIL(cudaErrorStreamCaptureInvalidated);
  if (unjoined) FAIL(cudaErrorStreamCaptureUnjoined);
  *graph = (cudaGraph_t)capture->graph.release();
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  LOCK;
  auto& capture = stream_of(handle)->capture;
  *status = !capture           ? cudaStreamCaptureStatusNone
            : capture->invalid ? cudaStreamCaptureStatusInvalidated
                               : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  LOCK;
  static thread_local cudaGraphNode_t last;
  cudaStreamIsCapturing(handle, status);
  auto& capture = stream_of(handle)->capture;
  if (!capture || !capture->graph) return cudaSuccess;
  size_t nodes = capture->graph->nodes.size();
  last = node_handle(nodes);
  if (id) *id = capture->id;
  if (graph) *graph = (cudaGraph_t)capture->graph.get();
  if (dependencies) *dependencies = nodes ? &last : nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = nodes ? 1 : 0;
  return cudaSuccess;
}

// --- graphs -------------------------------------------------------------------------------------

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (!nodes) *count = ((Graph*)graph)->nodes.size();
  for (size_t i = 0; nodes && i < *count; i++) nodes[i] = node_handle(i + 1);
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* dependencies,
                                         cudaGraphEdgeData*, size_t* count) {
  size_t number = size_t(node) / NODE;
  if (dependencies && number > 1) dependencies[0] = node_handle(number - 1);
  *count = number > 1;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  if (!graph) FAIL(cudaErrorInvalidValue);
  *ready = (cudaGraphExec_t) new Graph(*(Graph*)graph);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* ready, cudaGraph_t graph,
                                          unsigned long long flags) {
  return cudaGraphInstantiate(ready, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t ready, cudaStream_t stream) {
  if (!ready) FAIL(cudaErrorInvalidValue);
  auto* graph = (Graph*)ready;
  if (logs(Log::CAPTURES)) fprintf(stderr, "[stub] launch of %zu nodes\n", graph->nodes.size());
  auto all = [=] {
    for (auto& work : graph->nodes)
      if (work) work();
  };
  return enqueue(stream, all, __func__);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (!graph) FAIL(cudaErrorInvalidValue);
  delete (Graph*)graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t ready) {
  if (!ready) FAIL(cudaErrorInvalidValue);
  delete (Graph*)ready;
  return cudaSuccess;
}

}  // extern "C"
