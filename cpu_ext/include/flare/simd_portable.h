// 16 float lanes as an array: the reference for the vector units, and the path for other machines.
#pragma once

#include <cmath>

namespace flare {
namespace FLARE_ISA_NS {

struct V {
  float lane[16];
};

#define FLARE_EACH for (int i = 0; i < 16; ++i)

FLARE_INLINE uint32_t bits_of(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}
FLARE_INLINE float float_of(uint32_t u) {
  float x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}

FLARE_INLINE V load(const float* p) {
  V r;
  std::memcpy(r.lane, p, sizeof r.lane);
  return r;
}
FLARE_INLINE void store(float* p, V v) { std::memcpy(p, v.lane, sizeof v.lane); }
FLARE_INLINE V splat(float x) {
  V r;
  FLARE_EACH r.lane[i] = x;
  return r;
}
FLARE_INLINE V zero() { return splat(0.0f); }

FLARE_INLINE V operator+(V a, V b) {
  FLARE_EACH a.lane[i] = a.lane[i] + b.lane[i];
  return a;
}
FLARE_INLINE V operator-(V a, V b) {
  FLARE_EACH a.lane[i] = a.lane[i] - b.lane[i];
  return a;
}
FLARE_INLINE V operator*(V a, V b) {
  FLARE_EACH a.lane[i] = a.lane[i] * b.lane[i];
  return a;
}
FLARE_INLINE V operator/(V a, V b) {
  FLARE_EACH a.lane[i] = a.lane[i] / b.lane[i];
  return a;
}
FLARE_INLINE V fma(V a, V b, V c) {
  FLARE_EACH a.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
  return a;
}
FLARE_INLINE V max(V a, V b) {
  FLARE_EACH a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
FLARE_INLINE V min(V a, V b) {
  FLARE_EACH a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
FLARE_INLINE V abs(V a) {
  FLARE_EACH a.lane[i] = float_of(bits_of(a.lane[i]) & 0x7fffffffu);
  return a;
}
FLARE_INLINE V neg(V a) {
  FLARE_EACH a.lane[i] = float_of(bits_of(a.lane[i]) ^ 0x80000000u);
  return a;
}
FLARE_INLINE V sqrt(V a) {
  FLARE_EACH a.lane[i] = std::sqrt(a.lane[i]);
  return a;
}
// Nearest integer, halves to even.
FLARE_INLINE V rint(V a) {
  FLARE_EACH a.lane[i] = std::nearbyint(a.lane[i]);
  return a;
}
// a < b ? x : y, per lane; a NaN in a or b selects y.
FLARE_INLINE V select_lt(V a, V b, V x, V y) {
  FLARE_EACH x.lane[i] = a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i];
  return x;
}
// p * 2^n where n sits in the low mantissa bits of t (t = n + 1.5 * 2^23): adds to the exponent.
FLARE_INLINE V scale_by_low_bits(V p, V t) {
  FLARE_EACH p.lane[i] = float_of(bits_of(p.lane[i]) + (bits_of(t.lane[i]) << 23));
  return p;
}

FLARE_INLINE float hsum(V v) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) v.lane[i] = v.lane[i] + v.lane[i + half];
  return v.lane[0];
}
FLARE_INLINE float hmax(V v) {
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i)
      v.lane[i] = v.lane[i] > v.lane[i + half] ? v.lane[i] : v.lane[i + half];
  return v.lane[0];
}

// The largest |lane| of both vectors; a NaN counts as larger than infinity.
FLARE_INLINE float hmax_abs(V a, V b) {
  uint32_t largest = 0;
  FLARE_EACH {
    const uint32_t x = bits_of(a.lane[i]) & 0x7fffffffu, y = bits_of(b.lane[i]) & 0x7fffffffu;
    largest = x > largest ? x : largest;
    largest = y > largest ? y : largest;
  }
  return float_of(largest);
}

FLARE_INLINE V load_i32(const int32_t* p) {
  V r;
  FLARE_EACH r.lane[i] = static_cast<float>(p[i]);
  return r;
}
// 16 words of 32 bits, each shifted right and masked, as floats (results below 2^24: exact).
FLARE_INLINE V load_field(const void* p, int shift, uint32_t mask) {
  uint32_t u[16];
  std::memcpy(u, p, sizeof u);
  V r;
  FLARE_EACH r.lane[i] = static_cast<float>((u[i] >> shift) & mask);
  return r;
}
// 16 words of 32 bits, each with a field of four bits at `shift`, as 1 + field / 16.
FLARE_INLINE V load_unit(const void* p, int shift) {
  uint32_t u[16];
  std::memcpy(u, p, sizeof u);
  V r;
  FLARE_EACH r.lane[i] = float_of(0x3f800000u | (((u[i] >> shift) & 15u) << 19));
  return r;
}
// Integers in -128 .. 127 (already rounded) as bytes.
FLARE_INLINE void store_i8(int8_t* p, V v) {
  FLARE_EACH p[i] = static_cast<int8_t>(static_cast<int32_t>(v.lane[i]));
}

FLARE_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu, fraction = h & 0x3ffu;
  if (exponent == 0x1f) {
    return float_of(sign | 0x7f800000u | (fraction << 13) | (fraction ? 0x400000u : 0));
  }
  if (exponent) return float_of(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // exact
  return float_of(sign | bits_of(magnitude));
}
FLARE_INLINE V load_half(const void* p) {
  uint16_t h[16];
  std::memcpy(h, p, sizeof h);
  V r;
  FLARE_EACH r.lane[i] = half_to_float(h[i]);
  return r;
}

FLARE_INLINE V load_bf16(const void* p) {
  uint16_t h[16];
  std::memcpy(h, p, sizeof h);
  V r;
  FLARE_EACH r.lane[i] = float_of(static_cast<uint32_t>(h[i]) << 16);
  return r;
}
FLARE_INLINE uint32_t bf16_bits(float x) {
  const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return (bits >> 16) | 0x40u;
  if (magnitude < 0x00800000u) return (bits >> 16) & 0x8000u;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
FLARE_INLINE void store_bf16(void* p, V v) {
  uint16_t h[16];
  FLARE_EACH h[i] = static_cast<uint16_t>(bf16_bits(v.lane[i]));
  std::memcpy(p, h, sizeof h);
}
// v rounded to bfloat16 and widened again.
FLARE_INLINE V round_bf16(V v) {
  FLARE_EACH v.lane[i] = float_of(bf16_bits(v.lane[i]) << 16);
  return v;
}

// 16 pairs of bfloat16 (32 consecutive values): the first and the second of each pair, widened.
struct Pairs {
  V even, odd;
};
FLARE_INLINE Pairs load_bf16_pairs(const void* p) {
  uint32_t u[16];
  std::memcpy(u, p, sizeof u);
  Pairs r;
  FLARE_EACH {
    r.even.lane[i] = float_of(u[i] << 16);
    r.odd.lane[i] = float_of(u[i] & 0xffff0000u);
  }
  return r;
}
FLARE_INLINE void store_bf16_pairs(void* p, V even, V odd) {
  uint32_t u[16];
  FLARE_EACH u[i] = bf16_bits(even.lane[i]) | (bf16_bits(odd.lane[i]) << 16);
  std::memcpy(p, u, sizeof u);
}

#undef FLARE_EACH

}  // namespace FLARE_ISA_NS
}  // namespace flare
