// 16 float lanes in one AVX-512 register (F, BW, VL, DQ, BF16).
#pragma once

#include <immintrin.h>

namespace flare {
namespace FLARE_ISA_NS {

struct V {
  __m512 r;
};

FLARE_INLINE V load(const float* p) { return {_mm512_loadu_ps(p)}; }
FLARE_INLINE void store(float* p, V v) { _mm512_storeu_ps(p, v.r); }
FLARE_INLINE V splat(float x) { return {_mm512_set1_ps(x)}; }
FLARE_INLINE V zero() { return {_mm512_setzero_ps()}; }

FLARE_INLINE V operator+(V a, V b) { return {_mm512_add_ps(a.r, b.r)}; }
FLARE_INLINE V operator-(V a, V b) { return {_mm512_sub_ps(a.r, b.r)}; }
FLARE_INLINE V operator*(V a, V b) { return {_mm512_mul_ps(a.r, b.r)}; }
FLARE_INLINE V operator/(V a, V b) { return {_mm512_div_ps(a.r, b.r)}; }
FLARE_INLINE V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.r, b.r, c.r)}; }
FLARE_INLINE V max(V a, V b) { return {_mm512_max_ps(a.r, b.r)}; }
FLARE_INLINE V min(V a, V b) { return {_mm512_min_ps(a.r, b.r)}; }
FLARE_INLINE V abs(V a) { return {_mm512_abs_ps(a.r)}; }
FLARE_INLINE V neg(V a) { return {_mm512_xor_ps(a.r, _mm512_set1_ps(-0.0f))}; }
FLARE_INLINE V sqrt(V a) { return {_mm512_sqrt_ps(a.r)}; }
FLARE_INLINE V rint(V a) {
  return {_mm512_roundscale_ps(a.r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
FLARE_INLINE V select_lt(V a, V b, V x, V y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.r, b.r, _CMP_LT_OQ), y.r, x.r)};
}
FLARE_INLINE V scale_by_low_bits(V p, V t) {
  const __m512i shifted = _mm512_slli_epi32(_mm512_castps_si512(t.r), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.r), shifted))};
}

FLARE_INLINE float hsum(V v) {
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(v.r), _mm512_extractf32x8_ps(v.r, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
FLARE_INLINE float hmax(V v) {
  const __m256 eight =
      _mm256_max_ps(_mm512_castps512_ps256(v.r), _mm512_extractf32x8_ps(v.r, 1));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

FLARE_INLINE float hmax_abs(V a, V b) {
  const __m512i x = _mm512_castps_si512(_mm512_abs_ps(a.r));
  const __m512i y = _mm512_castps_si512(_mm512_abs_ps(b.r));
  return _mm_cvtss_f32(_mm_castsi128_ps(
      _mm_cvtsi32_si128(_mm512_reduce_max_epi32(_mm512_max_epi32(x, y)))));
}

FLARE_INLINE V load_i32(const int32_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_loadu_si512(p))};
}
FLARE_INLINE V load_field(const void* p, int shift, uint32_t mask) {
  const __m512i u = _mm512_srl_epi32(_mm512_loadu_si512(p), _mm_cvtsi32_si128(shift));
  return {_mm512_cvtepi32_ps(_mm512_and_si512(u, _mm512_set1_epi32(static_cast<int>(mask))))};
}
FLARE_INLINE V load_unit(const void* p, int shift) {
  const __m512i u = _mm512_loadu_si512(p);
  const __m512i placed = shift < 19 ? _mm512_slli_epi32(u, static_cast<unsigned>(19 - shift))
                                    : _mm512_srli_epi32(u, static_cast<unsigned>(shift - 19));
  // (placed & mask) | one
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(
      placed, _mm512_set1_epi32(15 << 19), _mm512_set1_epi32(0x3f800000), 0xea))};
}
FLARE_INLINE void store_i8(int8_t* p, V v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v.r)));
}

FLARE_INLINE float half_to_float(uint16_t h) {
  return _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(h))));
}
FLARE_INLINE V load_half(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}

FLARE_INLINE V load_bf16(const void* p) {
  const __m256i h = _mm256_loadu_si256(static_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
FLARE_INLINE void store_bf16(void* p, V v) {
  const __m256i h = (__m256i)_mm512_cvtneps_pbh(v.r);
  _mm256_storeu_si256(static_cast<__m256i*>(p), h);
}
FLARE_INLINE V round_bf16(V v) {
  const __m256i h = (__m256i)_mm512_cvtneps_pbh(v.r);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}

struct Pairs {
  V even, odd;
};
FLARE_INLINE Pairs load_bf16_pairs(const void* p) {
  const __m512i u = _mm512_loadu_si512(p);
  const __m512i odd = _mm512_and_si512(u, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(u, 16))}, {_mm512_castsi512_ps(odd)}};
}
FLARE_INLINE void store_bf16_pairs(void* p, V even, V odd) {
  const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even.r));
  const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd.r));
  _mm512_storeu_si512(p, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
