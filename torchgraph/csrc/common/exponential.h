// exp for loops that a compiler turns into vector code: within 1 ulp, the same bits on every CPU.
#pragma once

#include "common/element.h"

namespace torchgraph {

template <class To, class From>
TG_INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class T>
struct Binary;

template <>
struct Binary<float> {
  using Signed = int32_t;
  using Unsigned = uint32_t;
  static constexpr int mantissa = 23, bias = 127, terms = 7;
  static constexpr float lowest = -104.0f, highest = 89.0f;  // beyond: 0 and infinity
  static constexpr float ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
  static constexpr float shifter = 0x1.8p23f;
};

template <>
struct Binary<double> {
  using Signed = int64_t;
  using Unsigned = uint64_t;
  static constexpr int mantissa = 52, bias = 1023, terms = 13;
  static constexpr double lowest = -746.0, highest = 710.0;
  static constexpr double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
  static constexpr double shifter = 0x1.8p52;
};

// 1 / 0!, 1 / 1!, ... 1 / 13!
template <class T>
inline constexpr T kTaylor[] = {
    T(1.0),           T(1.0),            T(1.0 / 2),        T(1.0 / 6),         T(1.0 / 24),
    T(1.0 / 120),     T(1.0 / 720),      T(1.0 / 5040),     T(1.0 / 40320),     T(1.0 / 362880),
    T(1.0 / 3628800), T(1.0 / 39916800), T(1.0 / 479001600), T(1.0 / 6227020800)};

template <class T>
TG_INLINE T power_of_two(typename Binary<T>::Signed n) {
  using Unsigned = typename Binary<T>::Unsigned;
  return bits_as<T>(static_cast<Unsigned>(n + Binary<T>::bias) << Binary<T>::mantissa);
}

// exp(x) = 2^n exp(r), n the integer nearest to x / ln 2, so that |r| < 0.35; exp(r) by its series.
// 2^n is multiplied in two halves, for the sake of denormal results.
template <class T>
TG_INLINE T exponential(T x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == sizeof(float)) return expf(x);
  else return exp(x);
#else
  using B = Binary<T>;
  x = x > B::highest ? B::highest : x;  // NaN stays NaN
  x = x < B::lowest ? B::lowest : x;
  const T shifted = x * T(1.4426950408889634074) + B::shifter;  // its last bits are n
  const T n = shifted - B::shifter;
  const T r = (x - n * B::ln2_high) - n * B::ln2_low;
  T series = kTaylor<T>[B::terms];
  for (int k = B::terms; k-- > 0;) series = series * r + kTaylor<T>[k];
  const auto bits = bits_as<typename B::Unsigned>(shifted) -
                    bits_as<typename B::Unsigned>(B::shifter);
  const auto exponent = static_cast<typename B::Signed>(bits);
  const auto half = exponent >> 1;
  return series * power_of_two<T>(half) * power_of_two<T>(exponent - half);
#endif
}

}  // namespace torchgraph
