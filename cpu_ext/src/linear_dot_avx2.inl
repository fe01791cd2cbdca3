// Integer dot products of one group with VPMADDUBSW, in forms that cannot saturate.

namespace flare {
namespace FLARE_ISA_NS {

constexpr int kDotRows = 4;

template <Layout L>
struct Codes;

// Codes 0 .. 15: a pair of products is at most 2 * 15 * 127 = 3810, eight of them 30480, within
// 16 bits.
template <>
struct Codes<Layout::q4p16> {
  __m256i quad[8][2];

  FLARE_INLINE_MEMBER explicit Codes(const uint8_t* block) {
    const __m256i mask = _mm256_set1_epi8(15);
    for (int j = 0; j < 4; ++j) {
      for (int half = 0; half < 2; ++half) {
        const __m256i bytes =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 64 * j + 32 * half));
        quad[2 * j][half] = _mm256_and_si256(bytes, mask);
        quad[2 * j + 1][half] = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), mask);
      }
    }
  }

  FLARE_INLINE_MEMBER V dot(const int8_t* q, int32_t) const {
    __m256i lo = _mm256_setzero_si256(), hi = _mm256_setzero_si256();
    for (int t = 0; t < 8; ++t) {
      int32_t word;
      std::memcpy(&word, q + 4 * t, sizeof word);
      const __m256i four = _mm256_set1_epi32(word);
      lo = _mm256_add_epi16(lo, _mm256_maddubs_epi16(quad[t][0], four));
      hi = _mm256_add_epi16(hi, _mm256_maddubs_epi16(quad[t][1], four));
    }
    const __m256i one = _mm256_set1_epi16(1);
    return {_mm256_cvtepi32_ps(_mm256_madd_epi16(lo, one)),
            _mm256_cvtepi32_ps(_mm256_madd_epi16(hi, one))};
  }
};

// Signed codes w: |w| * sign(q, w) is at most 128 * 127, a pair 32512, within 16 bits.
template <>
struct Codes<Layout::q8p16> {
  __m256i quad[8][2];

  FLARE_INLINE_MEMBER explicit Codes(const uint8_t* block) {
    const __m256i offset = _mm256_set1_epi8(static_cast<char>(0x80));
    for (int t = 0; t < 8; ++t) {
      for (int half = 0; half < 2; ++half) {
        const __m256i bytes =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 64 * t + 32 * half));
        quad[t][half] = _mm256_xor_si256(bytes, offset);
      }
    }
  }

  FLARE_INLINE_MEMBER static __m256i products(__m256i w, __m256i four) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(four, w));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }

  FLARE_INLINE_MEMBER V dot(const int8_t* q, int32_t) const {
    __m256i lo = _mm256_setzero_si256(), hi = _mm256_setzero_si256();
    for (int t = 0; t < 8; ++t) {
      int32_t word;
      std::memcpy(&word, q + 4 * t, sizeof word);
      const __m256i four = _mm256_set1_epi32(word);
      lo = _mm256_add_epi32(lo, products(quad[t][0], four));
      hi = _mm256_add_epi32(hi, products(quad[t][1], four));
    }
    return {_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)};
  }
};

}  // namespace FLARE_ISA_NS
}  // namespace flare
