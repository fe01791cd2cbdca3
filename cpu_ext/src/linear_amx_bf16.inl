// bf16_t32 on AMX tiles: two row blocks by two panels at a time.

namespace flare {
namespace FLARE_ISA_NS {

// A 16 x 32 block to a bfloat16 tile, faster than the general form (linear_bf16.inl), same bits:
// a 4-bit code becomes a float by a table look-up that ignores the higher bits of its index.
FLARE_INLINE void dequantise_q4(const uint8_t* block, uint8_t* tile) {
  const __m512 table = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i weave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512 d = load_half(block + 256).r, m = load_half(block + 288).r;
  for (int j = 0; j < 4; ++j) {
    const __m512i run = _mm512_loadu_si512(block + 64 * j);
    for (int pair = 0; pair < 4; ++pair) {
      const int shift = pair < 2 ? 16 * pair : 16 * (pair - 2) + 4;
      const __m512i first = _mm512_srli_epi32(run, static_cast<unsigned>(shift));
      const __m512i second = _mm512_srli_epi32(run, static_cast<unsigned>(shift + 8));
      const __m512 even = _mm512_fmadd_ps(_mm512_permutexvar_ps(first, table), d, m);
      const __m512 odd = _mm512_fmadd_ps(_mm512_permutexvar_ps(second, table), d, m);
      const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
      _mm512_store_si512(tile + 64 * (4 * j + pair), _mm512_permutexvar_epi16(weave, halves));
    }
  }
}

FLARE_INLINE void dequantise(Layout layout, const uint8_t* block, uint8_t* tile) {
  if (layout == Layout::q4p16) {
    dequantise_q4(block, tile);
  } else {
    dequantise_block<Layout::q8p16>(block, tile);
  }
}

static void dequantise_panels(const Work& work, int panel, int count) {
  const int bytes = block_bytes(work.args.layout);
  const uint8_t* w = work.args.w + panel * work.panel_bytes;
  const int blocks = count * work.groups;  // panels follow each other in both places
  for (int g = 0; g < blocks; ++g) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(w + g * bytes + kPrefetchBytes + i);
    dequantise(work.args.layout, w + g * bytes, work.tiles + g * kTileBytes);
  }
}

// A row block's tiles, a step apart along k.
struct RowTiles {
  const uint8_t* base;
  int64_t step;
};

static RowTiles row_tiles(const Span& span, int groups, int block) {
  const int pitch = row_pitch(rows_in_block(span, block));
  return {block_base(span, groups, block), static_cast<int64_t>(pitch) * 64};
}

template <int A, int P>
FLARE_INLINE void bf16_step(const RowTiles* rows, const uint8_t* w, size_t panel_tiles, int g) {
  tile_load<6>(w + g * kTileBytes, 64);
  tile_load<4>(rows[0].base + g * rows[0].step, 64);
  tile_bf16<0, 4, 6>();
  if constexpr (P == 2) {
    tile_load<7>(w + panel_tiles + g * kTileBytes, 64);
    tile_bf16<1, 4, 7>();
  }
  if constexpr (A == 2) {
    tile_load<5>(rows[1].base + g * rows[1].step, 64);
    tile_bf16<2, 5, 6>();
    if constexpr (P == 2) tile_bf16<3, 5, 7>();
  }
}

// A row blocks against P panels; sums: [block][panel][16][16].
template <int A, int P, bool Stream>
static void bf16_tiles(const RowTiles* rows, const uint8_t* w, size_t panel_tiles, int groups,
                       float* sums) {
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  for (int g = 0; g < groups; ++g) {
    if constexpr (Stream) {
      prefetch_block<kTileBytes>(w + g * kTileBytes);
      if constexpr (P == 2) prefetch_block<kTileBytes>(w + panel_tiles + g * kTileBytes);
    }
    bf16_step<A, P>(rows, w, panel_tiles, g);
  }
  tile_store<0>(sums, 64);
  if constexpr (P == 2) tile_store<1>(sums + 256, 64);
  if constexpr (A == 2) tile_store<2>(sums + 512, 64);
  if constexpr (A == 2 && P == 2) tile_store<3>(sums + 768, 64);
}

template <bool Stream>
static void bf16_blocks(const Work& work, const Span& span, const uint8_t* w, int panel, int count,
                        int block, int blocks) {
  const size_t panel_tiles = static_cast<size_t>(work.groups) * kTileBytes;
  RowTiles rows[2] = {row_tiles(span, work.groups, block), {}};
  if (blocks == 2) rows[1] = row_tiles(span, work.groups, block + 1);
  const auto kernel = blocks == 2 ? (count == 2 ? bf16_tiles<2, 2, Stream> : bf16_tiles<2, 1, Stream>)
                                  : (count == 2 ? bf16_tiles<1, 2, Stream> : bf16_tiles<1, 1, Stream>);
  kernel(rows, w, panel_tiles, work.groups, work.sums);
  for (int b = 0; b < blocks; ++b) {
    finish_rows(work.args, span.first + (block + b) * kBlockRows, rows_in_block(span, block + b),
                panel, count, work.sums + 512 * b, 256);
  }
}

static void span_bf16(const Work& work, const Span& span, int panel, int count) {
  const bool packed = work.args.layout != Layout::bf16p16;
  if (packed) dequantise_panels(work, panel, count);
  shape_tiles(64);
  const uint8_t* w = packed ? work.tiles : work.args.w + panel * work.panel_bytes;
  const int blocks = ceil_div(span.rows, kBlockRows);
  for (int block = 0; block < blocks; block += 2) {
    const int here = blocks - block < 2 ? 1 : 2;
    if (!packed && block == 0) {
      bf16_blocks<true>(work, span, w, panel, count, block, here);
    } else {
      bf16_blocks<false>(work, span, w, panel, count, block, here);
    }
  }
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
