// Integer dot products of one group with VPDPBUSD (unsigned codes, signed activations).

namespace flare {
namespace FLARE_ISA_NS {

constexpr int kDotRows = 16;  // 16 sums + 8 code registers + scales fit the 32 registers

template <Layout L>
struct Codes {
  __m512i quad[8];  // 16 columns x 4 values each

  FLARE_INLINE_MEMBER explicit Codes(const uint8_t* block) {
    if constexpr (L == Layout::q8p16) {
      for (int t = 0; t < 8; ++t) quad[t] = _mm512_loadu_si512(block + 64 * t);
    } else {
      const __m512i mask = _mm512_set1_epi8(15);
      for (int j = 0; j < 4; ++j) {
        const __m512i bytes = _mm512_loadu_si512(block + 64 * j);
        quad[2 * j] = _mm512_and_si512(bytes, mask);
        quad[2 * j + 1] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
      }
    }
  }

  FLARE_INLINE_MEMBER V dot(const int8_t* q, int32_t start) const {
    __m512i sum = _mm512_set1_epi32(start);
    for (int t = 0; t < 8; ++t) {
      int32_t word;
      std::memcpy(&word, q + 4 * t, sizeof word);
      sum = _mm512_dpbusd_epi32(sum, quad[t], _mm512_set1_epi32(word));
    }
    return {_mm512_cvtepi32_ps(sum)};
  }
};

}  // namespace FLARE_ISA_NS
}  // namespace flare
