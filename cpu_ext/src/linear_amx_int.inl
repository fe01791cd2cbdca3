// int8_g32 on AMX tiles, and int12_g32 on codes of eight bits: 16 rows by 16 columns by one group per
// instruction and plane, then the float part, which takes most of the time: beside tile instructions,
// 512-bit float operations were measured at one per cycle instead of two (Sapphire Rapids class).

namespace flare {
namespace FLARE_ISA_NS {

constexpr int kTileMinRows = 14;     // fewer rows of a block are faster on vectors
constexpr int kCodeTileBytes = 512;  // 8 quads of k x 16 columns x 4

// The unsigned codes of a panel as weight tiles; q8p16 has them as they lie.
static void unpack_panel_q4(const uint8_t* w, int groups, uint8_t* tiles) {
  const __m512i mask = _mm512_set1_epi8(15);
  for (int g = 0; g < groups; ++g, w += 320, tiles += kCodeTileBytes) {
    prefetch_block<320>(w);
    for (int j = 0; j < 4; ++j) {
      const __m512i bytes = _mm512_loadu_si512(w + 64 * j);
      _mm512_store_si512(tiles + 128 * j, _mm512_and_si512(bytes, mask));
      _mm512_store_si512(tiles + 128 * j + 64,
                         _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask));
    }
  }
}

constexpr int kDots = kBlockRows * kPanel;  // integer sums of a product

// The sums of row r: of int12_g32, those of the high bytes and then those of the low ones.
template <int Planes>
FLARE_INLINE __m512i load_dots(const int32_t* dots, int r) {
  const __m512i first = _mm512_load_si512(dots + r * kPanel);
  if (Planes == 1) return first;
  return _mm512_add_epi32(_mm512_slli_epi32(first, 4), _mm512_load_si512(dots + kDots + r * kPanel));
}

// acc[r] += the group's part, from the integer sums of 16 rows.
template <Layout L, int Planes>
FLARE_INLINE void add_group(const uint8_t* block, const float* scales, const int32_t* dots,
                            V* acc) {
  constexpr bool minima = L == Layout::q4p16;
  constexpr int code_bytes = minima ? 256 : 512;
  const V d = load_half(block + code_bytes);
  const V m = minima ? load_half(block + code_bytes + 32) : zero();
  FLARE_UNROLL
  for (int r = 0; r < kBlockRows; ++r) {
    __m512i sum = load_dots<Planes>(dots, r);
    if (!minima) {
      int32_t start;
      std::memcpy(&start, scales + kBlockRows + r, sizeof start);
      sum = _mm512_add_epi32(sum, _mm512_set1_epi32(start));
    }
    acc[r] = fma(V{_mm512_cvtepi32_ps(sum)}, d * splat(scales[r]), acc[r]);
    if (minima) acc[r] = fma(m, splat(scales[kBlockRows + r]), acc[r]);
  }
}

// Starts the products of one group: for each plane 16 rows x 16 columns of integers arrive at
// `dots`.
template <int Planes>
FLARE_INLINE void multiply_group(const uint8_t* rows, const uint8_t* tile, int32_t* dots) {
  tile_zero<0>();
  tile_load<4>(rows, kGroup * Planes);
  tile_load<6>(tile, 64);
  tile_int8<0, 4, 6>();
  if constexpr (Planes == 2) {
    tile_zero<1>();
    tile_load<5>(rows + kGroup, kGroup * Planes);
    tile_int8<1, 5, 6>();
    tile_store<1>(dots + kDots, 64);
  }
  tile_store<0>(dots, 64);
}

// One row block (pitch 16) against one panel. w: the packed panel; tiles: its codes, `tile_step`
// bytes apart. The products of the next group are under way while one is added, and the panel at
// `next_w` is asked for meanwhile.
template <Layout L, int Planes>
static void int_tiles(const uint8_t* w, const uint8_t* tiles, int tile_step, const uint8_t* next_w,
                       int groups, const uint8_t* rows, int32_t* dots, float* sums) {
  constexpr int step = kBlockRows * code_row_bytes(Planes), each = kDots * Planes;
  constexpr int bytes = L == Layout::q4p16 ? 320 : 544;
  V acc[kBlockRows];
  FLARE_UNROLL
  for (int r = 0; r < kBlockRows; ++r) acc[r] = zero();
  multiply_group<Planes>(rows, tiles, dots);
  for (int g = 0; g < groups; ++g) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(next_w + g * bytes + i, 0, 2);
    const int next = g + 1;
    if (next < groups) {
      multiply_group<Planes>(rows + next * step, tiles + next * tile_step,
                             dots + (next & 1) * each);
    }
    const uint8_t* scales = rows + g * step + kBlockRows * kGroup * Planes;
    add_group<L, Planes>(w + g * bytes, reinterpret_cast<const float*>(scales),
                         dots + (g & 1) * each, acc);
  }
  FLARE_UNROLL
  for (int r = 0; r < kBlockRows; ++r) store(sums + r * kPanel, acc[r]);
}

// Row block `block` against the panel at w, number p of the pair; the unpacked codes of both panels
// lie one after the other.
static void int8_panel(const Work& work, const Span& span, const uint8_t* w, int block, int p,
                       float* sums) {
  const int rows = rows_in_block(span, block);
  const uint8_t* base = block_base(span, work.groups, block);
  const uint8_t* next = w + 2 * work.panel_bytes;  // the same panel of the next pair
  int32_t* dots = reinterpret_cast<int32_t*>(work.sums + 4 * kSumStride);
  if (rows < kTileMinRows) {
    int_block<1>(work.args.layout, w, work.groups, base, rows, sums);
  } else if (work.args.layout == Layout::q4p16) {
    const uint8_t* tiles = work.tiles + p * work.groups * kCodeTileBytes;
    int_tiles<Layout::q4p16, 1>(w, tiles, kCodeTileBytes, next, work.groups, base, dots, sums);
  } else {
    int_tiles<Layout::q8p16, 1>(w, w, 544, next, work.groups, base, dots, sums);
  }
}

static void span_int8(const Work& work, const Span& span, Panels panels, TileUse& use) {
  const int blocks = ceil_div(span.rows, kBlockRows);
  const bool tiles = rows_in_block(span, 0) >= kTileMinRows;
  if (tiles) use.shape(32);
  for (int block = 0; block < blocks; ++block) {
    for (int p = 0; p < panels.count; ++p) {
      const uint8_t* w = work.args.w + (panels.first + p) * work.panel_bytes;
      if (tiles && block == 0 && work.args.layout == Layout::q4p16) {
        unpack_panel_q4(w, work.groups, work.tiles + p * work.groups * kCodeTileBytes);
      }
      int8_panel(work, span, w, block, p, work.sums + p * kSumStride);
    }
    finish_rows(work.args, span.first + block * kBlockRows, rows_in_block(span, block), panels,
                work.sums);
  }
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
