// Reading other people's memory, and fetching it ahead.
#pragma once

#include <cstddef>
#include <cstring>

namespace torchgraph {

// A program of thousands of ops leaves nothing of what is read here in the caches. What comes later
// is fetched ahead, so that the misses overlap: rows this far ahead.
constexpr size_t kAhead = 16;
constexpr ptrdiff_t kLine = 64;

// All lines with a byte of [from, to).
inline void fetch(const void* from, const void* to) {
  const char* last = static_cast<const char*>(to) - 1;
  for (const char* line = static_cast<const char*>(from); line < last; line += kLine) {
    __builtin_prefetch(line);
  }
  __builtin_prefetch(last);
}

template <class Value>
Value read(const void* object, ptrdiff_t offset) {
  Value value;
  std::memcpy(&value, static_cast<const char*>(object) + offset, sizeof value);
  return value;
}

}  // namespace torchgraph
