// torchgraph::bernoulli_from_ on the CPU: draws of a generator of torch's, in the order of memory.
//
// torch draws one number at a time. Here the words of a Mersenne Twister (Matsumoto and Nishimura
// 1998, MT19937) are made, tempered and compared 624 at a time, by vector code: the same numbers.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/checks.h"
#include "common/clones.h"
#include "common/element.h"
#include "common/versions.h"

namespace torchgraph {
namespace {

constexpr int kWords = 624, kShift = 397;

// The state of a CPU generator, as `torch.Generator.get_state` writes it: c10's
// CPUGeneratorImplState. What follows is of normal draws.
struct State {
  uint64_t seed;
  int32_t left;  // words that are not read, and one
  int32_t seeded;
  uint64_t next;  // the first of them
  uint64_t words[kWords];
};

struct Twister {
  uint32_t words[kWords];
  uint32_t tempered[kWords];
};

TG_INLINE uint32_t twisted(uint32_t high, uint32_t low) {
  const uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
  return (mixed >> 1) ^ ((low & 1u) ? 0x9908b0dfu : 0u);
}

TG_INLINE void make_words(uint32_t* w) {
  for (int i = 0; i < kWords - kShift; ++i) w[i] = w[i + kShift] ^ twisted(w[i], w[i + 1]);
#pragma omp simd safelen(16)
  for (int i = kWords - kShift; i < kWords - 1; ++i)
    w[i] = w[i + kShift - kWords] ^ twisted(w[i], w[i + 1]);
  w[kWords - 1] = w[kShift - 1] ^ twisted(w[kWords - 1], w[0]);
}

TG_INLINE void temper(const uint32_t* words, uint32_t* out) {
  for (int i = 0; i < kWords; ++i) {
    uint32_t y = words[i];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    out[i] = y ^ (y >> 18);
  }
}

// 53 of the 64 bits of two words are a number below 1; `below` is what it is compared with, times
// 2^53.
template <class T>
TG_INLINE T bernoulli(uint32_t first, uint32_t second, uint64_t below, T one) {
  const uint64_t bits = (uint64_t(first & 0x1fffffu) << 32) | second;
  return bits < below ? one : T(0);
}

template <class T>
TG_INLINE void fill(Twister& twister, State& state, uint64_t below, T one, T* out, int64_t n) {
  uint32_t first = 0;
  bool has_first = false;  // of a pair that a new set of words parts
  int left = state.left - 1, next = kWords - left;
  while (n > 0) {
    if (left == 0) {
      make_words(twister.words);
      temper(twister.words, twister.tempered);
      left = kWords;
      next = 0;
    }
    if (has_first) {
      *out++ = bernoulli(first, twister.tempered[next++], below, one);
      --left, --n;
      has_first = false;
      continue;
    }
    const int pairs = int(std::min<int64_t>(n, left / 2));
    const uint32_t* from = twister.tempered + next;
    for (int i = 0; i < pairs; ++i) out[i] = bernoulli(from[2 * i], from[2 * i + 1], below, one);
    out += pairs;
    n -= pairs;
    next += 2 * pairs;
    left -= 2 * pairs;
    if (n > 0 && left == 1) {
      first = twister.tempered[next++];
      has_first = true;
      left = 0;
    }
  }
  state.left = left + 1;
  state.next = uint64_t(next);
}

TG_CLONES void fill_1(Twister& t, State& s, uint64_t below, uint8_t one, uint8_t* out, int64_t n) {
  fill(t, s, below, one, out, n);
}
TG_CLONES void fill_2(Twister& t, State& s, uint64_t below, uint16_t one, uint16_t* out, int64_t n) {
  fill(t, s, below, one, out, n);
}
TG_CLONES void fill_4(Twister& t, State& s, uint64_t below, uint32_t one, uint32_t* out, int64_t n) {
  fill(t, s, below, one, out, n);
}
TG_CLONES void fill_8(Twister& t, State& s, uint64_t below, uint64_t one, uint64_t* out, int64_t n) {
  fill(t, s, below, one, out, n);
}

// The bits of a 1; 0 for a dtype that is not filled.
uint64_t one_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Float: return 0x3f800000u;
    case ScalarType::Double: return 0x3ff0000000000000u;
    case ScalarType::BFloat16: return 0x3f80u;
    case ScalarType::Half: return 0x3c00u;
    case ScalarType::Bool:
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Short:
    case ScalarType::Int:
    case ScalarType::Long: return 1;
    default: return 0;
  }
}

void bernoulli_from_(Tensor state, Tensor out, double p) {
  require(state.is_cpu() && state.is_contiguous() && state.element_size() == 1 &&
              state.numel() >= int64_t(sizeof(State)),
          "bernoulli_from_ needs the state of a generator of the CPU.");
  require(out.is_cpu() && out.is_contiguous(), "bernoulli_from_ fills a contiguous tensor of the CPU.");
  const uint64_t one = one_of(out.scalar_type());
  require(one != 0, "bernoulli_from_ does not fill tensors of this dtype.");
  require(p >= 0 && p <= 1, "bernoulli_from_ expects p to be in [0, 1], but got p=", p);
  State found;
  std::memcpy(&found, state.const_data_ptr(), sizeof(State));
  require(found.left >= 1 && found.left <= kWords + 1 &&
              (found.left == 1 || found.next == uint64_t(kWords + 1 - found.left)),
          "bernoulli_from_ does not know this state of a generator.");
  if (out.numel() == 0) return;
  raise_version(state.get());
  raise_version(out.get());
  Twister twister;
  for (int i = 0; i < kWords; ++i) twister.words[i] = uint32_t(found.words[i]);
  temper(twister.words, twister.tempered);
  const uint64_t below = uint64_t(std::ceil(p * 0x1p53));
  void* to = out.mutable_data_ptr();
  const int64_t n = out.numel();
  switch (out.element_size()) {
    case 1: fill_1(twister, found, below, uint8_t(one), static_cast<uint8_t*>(to), n); break;
    case 2: fill_2(twister, found, below, uint16_t(one), static_cast<uint16_t*>(to), n); break;
    case 4: fill_4(twister, found, below, uint32_t(one), static_cast<uint32_t*>(to), n); break;
    default: fill_8(twister, found, below, one, static_cast<uint64_t*>(to), n);
  }
  for (int i = 0; i < kWords; ++i) found.words[i] = twister.words[i];
  std::memcpy(state.mutable_data_ptr(), &found, sizeof(State));
}

}  // namespace
}  // namespace torchgraph

STABLE_TORCH_LIBRARY_IMPL(torchgraph, CPU, library) {
  library.impl("bernoulli_from_", TORCH_BOX(&torchgraph::bernoulli_from_));
}
