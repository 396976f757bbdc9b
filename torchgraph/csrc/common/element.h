// The element types of tensors, and arithmetic that is the same on a CPU and in a CUDA kernel.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __CUDACC__
#define TG_INLINE __host__ __device__ __forceinline__
#else
#define TG_INLINE inline __attribute__((always_inline))
#endif

namespace torchgraph {

enum class Dtype : uint8_t { kFloat, kDouble, kBFloat16, kHalf };

struct BFloat16 {
  uint16_t bits;
};

struct Half {
  uint16_t bits;
};

TG_INLINE float as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

TG_INLINE uint32_t as_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Without branches, so that loops over them become vector code.

TG_INLINE float widen(float value) { return value; }
TG_INLINE double widen(double value) { return value; }
TG_INLINE float widen(BFloat16 value) { return as_float(static_cast<uint32_t>(value.bits) << 16); }

TG_INLINE float widen(Half value) {
  const uint32_t magnitude = static_cast<uint32_t>(value.bits & 0x7fffu) << 13;
  const uint32_t exponent = magnitude & 0x0f800000u;
  const uint32_t normal = magnitude + (112u << 23);
  const uint32_t not_finite = normal + (112u << 23);
  const uint32_t subnormal = as_bits(as_float(magnitude + (113u << 23)) - as_float(113u << 23));
  const uint32_t bits =
      exponent == 0x0f800000u ? not_finite : (exponent == 0 ? subnormal : normal);
  return as_float(bits | (static_cast<uint32_t>(value.bits & 0x8000u) << 16));
}

// What numbers of a type are computed and added up in.
template <class S>
using wide_t = decltype(widen(S{}));

TG_INLINE void narrow(float value, float& out) { out = value; }
TG_INLINE void narrow(double value, double& out) { out = value; }
TG_INLINE void narrow(float value, double& out) { out = value; }
TG_INLINE void narrow(double value, float& out) { out = static_cast<float>(value); }

TG_INLINE void narrow(float value, BFloat16& out) {
  const uint32_t bits = as_bits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  out.bits = static_cast<uint16_t>(value != value ? 0x7fc0u : rounded);
}

TG_INLINE void narrow(float value, Half& out) {
  const uint32_t sign = as_bits(value) & 0x80000000u;
  const uint32_t bits = as_bits(value) ^ sign;
  const uint32_t too_large = bits > (255u << 23) ? 0x7e00u : 0x7c00u;
  // Adding a number whose last place is that of a subnormal half rounds to it.
  const uint32_t subnormal = as_bits(as_float(bits) + 0.5f) - (126u << 23);
  const uint32_t normal = (bits - (112u << 23) + 0xfffu + ((bits >> 13) & 1u)) >> 13;
  const uint32_t result =
      bits >= (143u << 23) ? too_large : (bits < (113u << 23) ? subnormal : normal);
  out.bits = static_cast<uint16_t>(result | (sign >> 16));
}

// As torch converts float64: by way of float32.
TG_INLINE void narrow(double value, BFloat16& out) { narrow(static_cast<float>(value), out); }
TG_INLINE void narrow(double value, Half& out) { narrow(static_cast<float>(value), out); }

// a * b + c, rounded once.
TG_INLINE float fused(float a, float b, float c) { return fmaf(a, b, c); }
TG_INLINE double fused(double a, double b, double c) { return fma(a, b, c); }

TG_INLINE float root(float value) { return sqrtf(value); }
TG_INLINE double root(double value) { return sqrt(value); }

}  // namespace torchgraph
