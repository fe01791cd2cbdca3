// 16 float lanes in two AVX2 registers (AVX2, FMA, F16C).
#pragma once

#include <immintrin.h>

namespace flare {
namespace FLARE_ISA_NS {

struct V {
  __m256 lo, hi;
};

FLARE_INLINE V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
FLARE_INLINE void store(float* p, V v) {
  _mm256_storeu_ps(p, v.lo);
  _mm256_storeu_ps(p + 8, v.hi);
}
FLARE_INLINE V splat(float x) {
  const __m256 r = _mm256_set1_ps(x);
  return {r, r};
}
FLARE_INLINE V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }

FLARE_INLINE V operator+(V a, V b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
FLARE_INLINE V operator-(V a, V b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
FLARE_INLINE V operator*(V a, V b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
FLARE_INLINE V operator/(V a, V b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
FLARE_INLINE V fma(V a, V b, V c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
FLARE_INLINE V max(V a, V b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
FLARE_INLINE V min(V a, V b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
FLARE_INLINE V abs(V a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
FLARE_INLINE V neg(V a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(sign, a.lo), _mm256_xor_ps(sign, a.hi)};
}
FLARE_INLINE V sqrt(V a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
FLARE_INLINE V rint(V a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}
FLARE_INLINE V select_lt(V a, V b, V x, V y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
FLARE_INLINE __m256 scale_by_low_bits(__m256 p, __m256 t) {
  const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shifted));
}
FLARE_INLINE V scale_by_low_bits(V p, V t) {
  return {scale_by_low_bits(p.lo, t.lo), scale_by_low_bits(p.hi, t.hi)};
}

FLARE_INLINE float hsum(V v) {
  const __m256 eight = _mm256_add_ps(v.lo, v.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
FLARE_INLINE float hmax(V v) {
  const __m256 eight = _mm256_max_ps(v.lo, v.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

FLARE_INLINE float hmax_abs(V a, V b) {
  const V x = abs(a), y = abs(b);
  const __m256i eight = _mm256_max_epi32(
      _mm256_max_epi32(_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)),
      _mm256_max_epi32(_mm256_castps_si256(y.lo), _mm256_castps_si256(y.hi)));
  __m128i four =
      _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return _mm_cvtss_f32(_mm_castsi128_ps(four));
}

FLARE_INLINE V load_i32(const int32_t* p) {
  const __m256i* q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_cvtepi32_ps(_mm256_loadu_si256(q)), _mm256_cvtepi32_ps(_mm256_loadu_si256(q + 1))};
}
FLARE_INLINE V load_field(const void* p, int shift, uint32_t mask) {
  const __m256i* q = static_cast<const __m256i*>(p);
  const __m128i count = _mm_cvtsi32_si128(shift);
  const __m256i keep = _mm256_set1_epi32(static_cast<int>(mask));
  const __m256i a = _mm256_and_si256(_mm256_srl_epi32(_mm256_loadu_si256(q), count), keep);
  const __m256i b = _mm256_and_si256(_mm256_srl_epi32(_mm256_loadu_si256(q + 1), count), keep);
  return {_mm256_cvtepi32_ps(a), _mm256_cvtepi32_ps(b)};
}
FLARE_INLINE __m256 unit_of(__m256i u, int shift) {
  const __m256i placed = shift < 19 ? _mm256_sll_epi32(u, _mm_cvtsi32_si128(19 - shift))
                                    : _mm256_srl_epi32(u, _mm_cvtsi32_si128(shift - 19));
  const __m256i fraction = _mm256_and_si256(placed, _mm256_set1_epi32(15 << 19));
  return _mm256_castsi256_ps(_mm256_or_si256(fraction, _mm256_set1_epi32(0x3f800000)));
}
FLARE_INLINE V load_unit(const void* p, int shift) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {unit_of(_mm256_loadu_si256(q), shift), unit_of(_mm256_loadu_si256(q + 1), shift)};
}
FLARE_INLINE void store_i8(int8_t* p, V v) {
  const __m256i a = _mm256_cvtps_epi32(v.lo), b = _mm256_cvtps_epi32(v.hi);
  // packs works within 128-bit halves: a0-3 b0-3 | a4-7 b4-7, put in order by 64-bit quarters.
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

FLARE_INLINE float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
FLARE_INLINE V load_half(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}

FLARE_INLINE __m256 widen_bf16(__m128i h) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
FLARE_INLINE V load_bf16(const void* p) {
  const __m128i* q = static_cast<const __m128i*>(p);
  return {widen_bf16(_mm_loadu_si128(q)), widen_bf16(_mm_loadu_si128(q + 1))};
}
// The rounded value in the high half of each 32-bit lane; the low half is zero.
FLARE_INLINE __m256i bf16_high(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
  const __m256i tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), magnitude);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0x80000000u)));
  rounded = _mm256_blendv_epi8(rounded, quiet, nan);
  rounded = _mm256_blendv_epi8(rounded, sign, tiny);
  return _mm256_and_si256(rounded, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
}
FLARE_INLINE void store_bf16(void* p, V v) {
  const __m256i a = _mm256_srli_epi32(bf16_high(v.lo), 16);
  const __m256i b = _mm256_srli_epi32(bf16_high(v.hi), 16);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
  _mm256_storeu_si256(static_cast<__m256i*>(p), words);
}
FLARE_INLINE V round_bf16(V v) {
  return {_mm256_castsi256_ps(bf16_high(v.lo)), _mm256_castsi256_ps(bf16_high(v.hi))};
}

struct Pairs {
  V even, odd;
};
FLARE_INLINE Pairs load_bf16_pairs(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  const __m256i a = _mm256_loadu_si256(q), b = _mm256_loadu_si256(q + 1);
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
           _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(a, high)),
           _mm256_castsi256_ps(_mm256_and_si256(b, high))}};
}
FLARE_INLINE void store_bf16_pairs(void* p, V even, V odd) {
  __m256i* q = static_cast<__m256i*>(p);
  const __m256i lo = _mm256_or_si256(_mm256_srli_epi32(bf16_high(even.lo), 16), bf16_high(odd.lo));
  const __m256i hi = _mm256_or_si256(_mm256_srli_epi32(bf16_high(even.hi), 16), bf16_high(odd.hi));
  _mm256_storeu_si256(q, lo);
  _mm256_storeu_si256(q + 1, hi);
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
