// 16 float lanes in four NEON registers (AArch64).
#pragma once

#include <arm_neon.h>

namespace flare {
namespace FLARE_ISA_NS {

struct V {
  float32x4_t r[4];
};

#define FLARE_MAP(expression)          \
  V out;                               \
  for (int i = 0; i < 4; ++i) out.r[i] = (expression); \
  return out

FLARE_INLINE V load(const float* p) { FLARE_MAP(vld1q_f32(p + 4 * i)); }
FLARE_INLINE void store(float* p, V v) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, v.r[i]);
}
FLARE_INLINE V splat(float x) { FLARE_MAP(vdupq_n_f32(x)); }
FLARE_INLINE V zero() { return splat(0.0f); }

FLARE_INLINE V operator+(V a, V b) { FLARE_MAP(vaddq_f32(a.r[i], b.r[i])); }
FLARE_INLINE V operator-(V a, V b) { FLARE_MAP(vsubq_f32(a.r[i], b.r[i])); }
FLARE_INLINE V operator*(V a, V b) { FLARE_MAP(vmulq_f32(a.r[i], b.r[i])); }
FLARE_INLINE V operator/(V a, V b) { FLARE_MAP(vdivq_f32(a.r[i], b.r[i])); }
FLARE_INLINE V fma(V a, V b, V c) { FLARE_MAP(vfmaq_f32(c.r[i], a.r[i], b.r[i])); }
// Not vmaxq / vminq: those return NaN for a NaN operand, x86 returns the second operand.
FLARE_INLINE float32x4_t max4(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
FLARE_INLINE V max(V a, V b) { FLARE_MAP(max4(a.r[i], b.r[i])); }
FLARE_INLINE V min(V a, V b) {
  FLARE_MAP(vbslq_f32(vcltq_f32(a.r[i], b.r[i]), a.r[i], b.r[i]));
}
FLARE_INLINE V abs(V a) { FLARE_MAP(vabsq_f32(a.r[i])); }
FLARE_INLINE V neg(V a) { FLARE_MAP(vnegq_f32(a.r[i])); }
FLARE_INLINE V sqrt(V a) { FLARE_MAP(vsqrtq_f32(a.r[i])); }
FLARE_INLINE V rint(V a) { FLARE_MAP(vrndnq_f32(a.r[i])); }
FLARE_INLINE V select_lt(V a, V b, V x, V y) {
  FLARE_MAP(vbslq_f32(vcltq_f32(a.r[i], b.r[i]), x.r[i], y.r[i]));
}
FLARE_INLINE float32x4_t scale_by_low_bits(float32x4_t p, float32x4_t t) {
  const uint32x4_t shifted = vshlq_n_u32(vreinterpretq_u32_f32(t), 23);
  return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(p), shifted));
}
FLARE_INLINE V scale_by_low_bits(V p, V t) { FLARE_MAP(scale_by_low_bits(p.r[i], t.r[i])); }

FLARE_INLINE float hsum(V v) {
  const float32x4_t four =
      vaddq_f32(vaddq_f32(v.r[0], v.r[2]), vaddq_f32(v.r[1], v.r[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
FLARE_INLINE float hmax(V v) {
  const float32x4_t four = max4(max4(v.r[0], v.r[2]), max4(v.r[1], v.r[3]));
  alignas(16) float lane[4];
  vst1q_f32(lane, four);
  const float a = lane[0] > lane[2] ? lane[0] : lane[2];
  const float b = lane[1] > lane[3] ? lane[1] : lane[3];
  return a > b ? a : b;
}

FLARE_INLINE float hmax_abs(V a, V b) {
  uint32x4_t four = vdupq_n_u32(0);
  for (int i = 0; i < 4; ++i) {
    four = vmaxq_u32(four, vreinterpretq_u32_f32(vabsq_f32(a.r[i])));
    four = vmaxq_u32(four, vreinterpretq_u32_f32(vabsq_f32(b.r[i])));
  }
  return vgetq_lane_f32(vreinterpretq_f32_u32(vdupq_n_u32(vmaxvq_u32(four))), 0);
}

FLARE_INLINE V load_i32(const int32_t* p) { FLARE_MAP(vcvtq_f32_s32(vld1q_s32(p + 4 * i))); }
FLARE_INLINE V load_field(const void* p, int shift, uint32_t mask) {
  const uint8_t* bytes = static_cast<const uint8_t*>(p);
  const int32x4_t left = vdupq_n_s32(-shift);
  FLARE_MAP(vcvtq_f32_u32(vandq_u32(
      vshlq_u32(vreinterpretq_u32_u8(vld1q_u8(bytes + 16 * i)), left), vdupq_n_u32(mask))));
}
FLARE_INLINE V load_unit(const void* p, int shift) {
  const uint8_t* bytes = static_cast<const uint8_t*>(p);
  const int32x4_t left = vdupq_n_s32(19 - shift);
  const uint32x4_t mask = vdupq_n_u32(15u << 19), one = vdupq_n_u32(0x3f800000u);
  FLARE_MAP(vreinterpretq_f32_u32(vorrq_u32(
      vandq_u32(vshlq_u32(vreinterpretq_u32_u8(vld1q_u8(bytes + 16 * i)), left), mask), one)));
}
FLARE_INLINE void store_i8(int8_t* p, V v) {
  int32x4_t w[4];
  for (int i = 0; i < 4; ++i) w[i] = vcvtq_s32_f32(v.r[i]);
  const int16x8_t a = vcombine_s16(vmovn_s32(w[0]), vmovn_s32(w[1]));
  const int16x8_t b = vcombine_s16(vmovn_s32(w[2]), vmovn_s32(w[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(a), vmovn_s16(b)));
}

FLARE_INLINE float half_to_float(uint16_t h) {
  __fp16 value;
  std::memcpy(&value, &h, sizeof value);
  return static_cast<float>(value);
}
FLARE_INLINE V load_half(const void* p) {
  const uint16_t* h = static_cast<const uint16_t*>(p);
  FLARE_MAP(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h + 4 * i))));
}

FLARE_INLINE V load_bf16(const void* p) {
  const uint16_t* h = static_cast<const uint16_t*>(p);
  FLARE_MAP(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(h + 4 * i), 16)));
}
// The rounded value in the high half of each 32-bit lane; the low half is zero.
FLARE_INLINE uint32x4_t bf16_high(float32x4_t x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t magnitude = vandq_u32(bits, vdupq_n_u32(0x7fffffffu));
  const uint32x4_t lsb = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(lsb, vdupq_n_u32(0x7fff)));
  const uint32x4_t nan = vcgtq_u32(magnitude, vdupq_n_u32(0x7f800000u));
  const uint32x4_t tiny = vcltq_u32(magnitude, vdupq_n_u32(0x00800000u));
  rounded = vbslq_u32(nan, vorrq_u32(bits, vdupq_n_u32(0x00400000u)), rounded);
  rounded = vbslq_u32(tiny, vandq_u32(bits, vdupq_n_u32(0x80000000u)), rounded);
  return vandq_u32(rounded, vdupq_n_u32(0xffff0000u));
}
FLARE_INLINE void store_bf16(void* p, V v) {
  uint16_t* h = static_cast<uint16_t*>(p);
  for (int i = 0; i < 4; ++i) vst1_u16(h + 4 * i, vshrn_n_u32(bf16_high(v.r[i]), 16));
}
FLARE_INLINE V round_bf16(V v) { FLARE_MAP(vreinterpretq_f32_u32(bf16_high(v.r[i]))); }

struct Pairs {
  V even, odd;
};
FLARE_INLINE Pairs load_bf16_pairs(const void* p) {
  const uint8_t* bytes = static_cast<const uint8_t*>(p);
  Pairs out;
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t u = vreinterpretq_u32_u8(vld1q_u8(bytes + 16 * i));
    out.even.r[i] = vreinterpretq_f32_u32(vshlq_n_u32(u, 16));
    out.odd.r[i] = vreinterpretq_f32_u32(vandq_u32(u, vdupq_n_u32(0xffff0000u)));
  }
  return out;
}
FLARE_INLINE void store_bf16_pairs(void* p, V even, V odd) {
  uint8_t* bytes = static_cast<uint8_t*>(p);
  for (int i = 0; i < 4; ++i) {
    const uint32x4_t u = vorrq_u32(vshrq_n_u32(bf16_high(even.r[i]), 16), bf16_high(odd.r[i]));
    vst1q_u8(bytes + 16 * i, vreinterpretq_u8_u32(u));
  }
}

#undef FLARE_MAP

}  // namespace FLARE_ISA_NS
}  // namespace flare
