// int12_g32 on AMX tiles. Codes of four bits go through the pipeline: a row's high and low bytes lie
// one after the other along k, against sixteen times the codes and the codes. Those of eight bits
// take two products (linear_amx_int.inl).

namespace flare {
namespace FLARE_ISA_NS {

template <Layout L>
class Int12Group {
 public:
  static constexpr int kFloats = 2;  // a scale and, R floats on, a sum

  FLARE_INLINE_MEMBER explicit Int12Group(const uint8_t* block)
      : d_(load_half(block + 256)), m_(load_half(block + 288)) {}

  FLARE_INLINE_MEMBER static void unpack(const uint8_t* block, uint8_t* tile) {
    const __m512i low = _mm512_set1_epi8(15), high = _mm512_set1_epi8(static_cast<char>(0xf0));
    // Windows that start four bits below a byte, and above. Shifts would take port 0.
    const __m512i down = _mm512_set1_epi64(0x342c241c140c043c);
    const __m512i up = _mm512_set1_epi64(0x3c342c241c140c04);
    FLARE_UNROLL
    for (int run = 0; run < 4; ++run, tile += 128) {
      const __m512i bytes = _mm512_loadu_si512(block + 64 * run);
      _mm512_store_si512(tile, _mm512_and_si512(_mm512_multishift_epi64_epi8(down, bytes), high));
      _mm512_store_si512(tile + 64, _mm512_and_si512(bytes, high));
      _mm512_store_si512(tile + 512, _mm512_and_si512(bytes, low));
      _mm512_store_si512(tile + 576, _mm512_and_si512(_mm512_multishift_epi64_epi8(up, bytes), low));
    }
  }
  template <int T, int A, int B>
  FLARE_INLINE_MEMBER static void multiply() {
    tile_int8<T, A, B>();
  }
  template <int R>
  FLARE_INLINE_MEMBER V add(int r, const uint8_t* products, const float* scales, V acc) const {
    const int32_t* dots = reinterpret_cast<const int32_t*>(products) + r * kPanel;
    const V dot = R == kBlockRows && r % 2 != 0 ? load_by_sums(dots) : load_i32(dots);
    return fma(m_, splat(scales[R + r]), fma(dot, d_ * splat(scales[r]), acc));
  }

 private:
  // load_i32 of |dots| < 2^22, in two operations that do not need port 0: beside tile instructions
  // it alone takes products and conversions of 512 bits, which in full blocks take longest.
  FLARE_INLINE_MEMBER static V load_by_sums(const int32_t* dots) {
    const __m512i magic = _mm512_castps_si512(_mm512_set1_ps(kRoundMagic));
    const __m512i sum = _mm512_add_epi32(_mm512_loadu_si512(dots), magic);
    return V{_mm512_castsi512_ps(sum)} - splat(kRoundMagic);
  }

  const V d_, m_;
};

static G32Tiles int12_tiles_for(Layout, int pitch) {
  return pitch == 8 ? g32_tiles<Int12Group, Layout::q4p16, 8>
                    : g32_tiles<Int12Group, Layout::q4p16, 16>;
}

// A row block (pitch 16) against neighbouring panels of q8p16.
static void block_two_products(const Work& work, const Span& span, int block, Panels panels,
                               TileUse& use) {
  const uint8_t* base = block_base(span, work.groups, block);
  int32_t* dots = reinterpret_cast<int32_t*>(page_after(work.tiles));
  use.shape(32);
  for (int p = 0; p < panels.count; ++p) {
    const uint8_t* w = work.args.w + (panels.first + p) * work.panel_bytes;
    int_tiles<Layout::q8p16, 2>(w, w, 544, w + work.panel_bytes, work.groups, base, dots,
                                work.sums + p * kSumStride);
  }
  finish_run(work.args, span.first + block * kBlockRows, rows_in_block(span, block), panels,
             work.sums);
}

static void span_int12(const Work& work, const Span& span, Panels panels, TileUse& use) {
  for (int block = 0; block < ceil_div(span.rows, kBlockRows); ++block) {
    const int pitch = row_pitch(rows_in_block(span, block));
    if (in_tiles(work.args.layout, pitch)) {
      block_tiles(work, span, block, panels, use, int12_tiles_for);
    } else if (pitch == kBlockRows) {
      block_two_products(work, span, block, panels, use);
    } else {
      block_vectors<2>(work, span, block, panels);
    }
  }
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
