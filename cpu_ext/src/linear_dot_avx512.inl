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

  // sum + the products of 16 columns' codes with four activations that all columns share.
  FLARE_INLINE_MEMBER static __m512i add(__m512i sum, __m512i codes, const int8_t* four) {
    typedef int32_t __attribute__((may_alias, aligned(1))) Word;
    asm("vpdpbusd %2%{1to16%}, %1, %0"
        : "+v"(sum)
        : "v"(codes), "m"(*reinterpret_cast<const Word*>(four)));
    return sum;
  }

  // Two chains, or the scheduler fills up with waiting instructions.
  FLARE_INLINE_MEMBER V dot(const int8_t* q, int32_t start) const {
    __m512i even = _mm512_set1_epi32(start), odd = _mm512_setzero_si512();
    FLARE_UNROLL
    for (int t = 0; t < 8; t += 2) {
      even = add(even, quad[t], q + 4 * t);
      odd = add(odd, quad[t + 1], q + 4 * t + 4);
    }
    return {_mm512_cvtepi32_ps(_mm512_add_epi32(even, odd))};
  }
};

}  // namespace FLARE_ISA_NS
}  // namespace flare
