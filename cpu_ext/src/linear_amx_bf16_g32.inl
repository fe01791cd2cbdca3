// bf16_g32 on AMX tiles.

namespace flare {
namespace FLARE_ISA_NS {

// Four pairs of k of a q4p16 block as bfloat16 1 + code / 16. A byte window that starts three bits
// below a code puts it at the top of bfloat16's fraction.
FLARE_INLINE void unit_codes_q4(const uint8_t* block, uint8_t* tile) {
  const __m512i mask = _mm512_set1_epi32(0x00780078), one = _mm512_set1_epi32(0x3f803f80);
  FLARE_UNROLL
  for (int run = 0; run < 4; ++run) {
    const __m512i bytes = _mm512_loadu_si512(block + 64 * run);
    FLARE_UNROLL
    for (int pair = 0; pair < 4; ++pair) {
      // Columns 2 i and 2 i + 1 are 64 bits: windows for their words' low bytes.
      const uint64_t bit = static_cast<uint64_t>(pair < 2 ? 16 * pair : 16 * (pair - 2) + 4);
      const uint64_t windows = ((bit + 61) % 64) | ((bit + 5) % 64) << 16 |
                               ((bit + 29) % 64) << 32 | ((bit + 37) % 64) << 48;
      const __m512i select = _mm512_set1_epi64(static_cast<long long>(windows));
      const __m512i placed = _mm512_multishift_epi64_epi8(select, bytes);
      _mm512_store_si512(tile + 64 * (4 * run + pair),
                         _mm512_ternarylogic_epi32(placed, mask, one, 0xea));
    }
  }
}

// 16 bytes' columns at one byte of each word, as floats minus 128 (exact).
FLARE_INLINE __m512i signed_codes(__m512i words, int mask, int magic, float bias) {
  const __m512i bits = _mm512_ternarylogic_epi32(words, _mm512_set1_epi32(mask),
                                                 _mm512_set1_epi32(magic), 0xea);
  return _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(bias)));
}

FLARE_INLINE __m512i signed_pairs(__m512i words) {
  // 2^23 + byte 0, and 2^15 + byte 1 where it lies; the first's upper half goes below the second's.
  const __m512i first = signed_codes(words, 0xff, 0x4b000000, 0x1p23f + 128.0f);
  const __m512i second = signed_codes(words, 0xff00, 0x47000000, 0x1p15f + 128.0f);
  const __m512i lower = _mm512_set4_epi32(0x0f0e0f0e, 0x0b0a0b0a, 0x07060706, 0x03020302);
  return _mm512_mask_shuffle_epi8(second, 0x3333333333333333, first, lower);
}

FLARE_INLINE void signed_codes_q8(const uint8_t* block, uint8_t* tile) {
  FLARE_UNROLL
  for (int run = 0; run < 8; ++run) {
    const __m512i words = _mm512_loadu_si512(block + 64 * run);
    _mm512_store_si512(tile + 128 * run, signed_pairs(words));
    _mm512_store_si512(tile + 128 * run + 64, signed_pairs(_mm512_srli_epi32(words, 16)));
  }
}

// Codes of a block as a bfloat16 tile.
template <Layout L>
FLARE_INLINE void unpack_tile(const uint8_t* block, uint8_t* tile) {
  if constexpr (L == Layout::q4p16) {
    unit_codes_q4(block, tile);
  } else {
    signed_codes_q8(block, tile);
  }
}

// bf16_g32 in the pipeline: rows have a sum S in each group.
template <Layout L>
class Bf16Group {
 public:
  static constexpr int kFloats = 1;

  FLARE_INLINE_MEMBER explicit Bf16Group(const uint8_t* block) : factors_(block) {}
  FLARE_INLINE_MEMBER static void unpack(const uint8_t* block, uint8_t* tile) {
    unpack_tile<L>(block, tile);
  }
  template <int T, int A, int B>
  FLARE_INLINE_MEMBER static void multiply() {
    tile_bf16<T, A, B>();
  }
  template <int R>
  FLARE_INLINE_MEMBER V add(int r, const uint8_t* products, const float* sums, V acc) const {
    return factors_.add(load(reinterpret_cast<const float*>(products) + r * kPanel), sums + r, acc);
  }

 private:
  const GroupFactors<L> factors_;
};

template <Layout L>
static G32Tiles bf16_tiles(int pitch) {
  switch (pitch) {
    case 1: return g32_tiles<Bf16Group, L, 1>;
    case 4: return g32_tiles<Bf16Group, L, 4>;
    case 8: return g32_tiles<Bf16Group, L, 8>;
    default: return g32_tiles<Bf16Group, L, 16>;
  }
}

static G32Tiles bf16_tiles_for(Layout layout, int pitch) {
  return layout == Layout::q4p16 ? bf16_tiles<Layout::q4p16>(pitch)
                                 : bf16_tiles<Layout::q8p16>(pitch);
}

static void span_g32(const Work& work, const Span& span, Panels panels, TileUse& use) {
  for (int block = 0; block < ceil_div(span.rows, kBlockRows); ++block) {
    block_tiles(work, span, block, panels, use, bf16_tiles_for);
  }
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
