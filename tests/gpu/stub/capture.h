// Streams, events, and the captures that they take part in.
#pragma once

#include "stub.h"

#include <map>
#include <memory>
#include <set>
#include <vector>

namespace stub {

// For each stream of a capture, the number of its last node that comes before.
using Clock = std::map<Stream*, unsigned long long>;

struct Graph {
  std::vector<Work> nodes;  // a chain, in the order of their enqueueing
};

struct Capture {
  unsigned long long id;
  Stream* origin;
  cudaStreamCaptureMode mode;
  long thread;
  std::set<Stream*> streams;
  std::unique_ptr<Graph> graph = std::make_unique<Graph>();
  bool invalid = false, ended = false;
};

struct Stream {
  unsigned flags = 0;
  int priority = 0;
  unsigned long long id = 0, nodes = 0;
  std::shared_ptr<Capture> capture;
  Clock clock;
};

struct Event {
  unsigned flags = 0;
  bool recorded = false;
  double milliseconds = 0;
  std::shared_ptr<Capture> capture;  // the one that it was last recorded in
  Clock clock;
};

std::set<std::shared_ptr<Capture>>& captures();  // those under way
std::set<void*>& alive();                        // streams and events that are not destroyed
Stream* legacy();
bool is_alive(cudaStream_t stream);
unsigned long long next_id();
// Ends a capture, if there is one, for a call that it does not survive.
cudaError_t invalidate(Capture* capture, cudaError_t error, const char* call);

}  // namespace stub
