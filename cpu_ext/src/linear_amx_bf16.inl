// bf16_t32 on AMX tiles: two row blocks by two panels at a time. What follows the products of one
// such square runs on vectors beside the products of the next, a few rows at every step along k.

namespace flare {
namespace FLARE_ISA_NS {

FLARE_INLINE __m512i weave_pairs(__m512 even, __m512 odd) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

// Four pairs of k of a q4p16 block as bfloat16; the bits of linear_bf16.inl. A code becomes a float
// by a table look-up that ignores the higher bits of its index.
FLARE_INLINE void dequantise_quarter_q4(const uint8_t* block, int quarter, uint8_t* tile) {
  const __m512 table = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512 d = load_half(block + 256).r, m = load_half(block + 288).r;
  const __m512i run = _mm512_loadu_si512(block + 64 * quarter);
  FLARE_UNROLL
  for (int pair = 0; pair < 4; ++pair) {
    const unsigned shift = static_cast<unsigned>(pair < 2 ? 16 * pair : 16 * (pair - 2) + 4);
    const __m512 first = _mm512_permutexvar_ps(_mm512_srli_epi32(run, shift), table);
    const __m512 second = _mm512_permutexvar_ps(_mm512_srli_epi32(run, shift + 8), table);
    const __m512i pairs =
        weave_pairs(_mm512_fmadd_ps(first, d, m), _mm512_fmadd_ps(second, d, m));
    _mm512_store_si512(tile + 64 * (4 * quarter + pair), pairs);
  }
}

FLARE_INLINE void dequantise_quarter_q8(const uint8_t* block, int quarter, uint8_t* tile) {
  const __m512 d = load_half(block + 512).r;
  const __m512 m = _mm512_mul_ps(d, _mm512_set1_ps(-128.0f));  // exact
  const __m512i byte = _mm512_set1_epi32(255);
  FLARE_UNROLL
  for (int pair = 0; pair < 4; ++pair) {
    const __m512i run = _mm512_loadu_si512(block + 64 * (2 * quarter + pair / 2));
    const __m512i shifted = _mm512_srli_epi32(run, static_cast<unsigned>(16 * (pair % 2)));
    const __m512 first = _mm512_cvtepi32_ps(_mm512_and_si512(shifted, byte));
    const __m512 second = _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(shifted, 8), byte));
    const __m512i pairs =
        weave_pairs(_mm512_fmadd_ps(first, d, m), _mm512_fmadd_ps(second, d, m));
    _mm512_store_si512(tile + 64 * (4 * quarter + pair), pairs);
  }
}

// The bfloat16 tiles of neighbouring panels, which follow each other in both places.
template <Layout L>
static void dequantise_panels(const uint8_t* block, int blocks, uint8_t* tile) {
  constexpr int bytes = L == Layout::q4p16 ? 320 : 544;
  for (int i = 0; i < blocks; ++i, block += bytes, tile += kTileBytes) {
    prefetch_block<bytes>(block);
    for (int quarter = 0; quarter < 4; ++quarter) {
      if constexpr (L == Layout::q4p16) {
        dequantise_quarter_q4(block, quarter, tile);
      } else {
        dequantise_quarter_q8(block, quarter, tile);
      }
    }
  }
}

// Row blocks' tiles, a step apart along k, and panels' tiles.
struct Operands {
  const uint8_t *first, *second;  // row blocks
  int64_t first_step, second_step;
  const uint8_t *left, *right;  // panels
};

// Rows pass through once per panel pair: they must not displace the panels from the first cache.
template <int A, int P>
FLARE_INLINE void bf16_step(const Operands& o, int g) {
  tile_load<6>(o.left + g * kTileBytes, 64);
  tile_load_once<4>(o.first + g * o.first_step, 64);
  tile_bf16<0, 4, 6>();
  if constexpr (P == 2) {
    tile_load<7>(o.right + g * kTileBytes, 64);
    tile_bf16<1, 4, 7>();
  }
  if constexpr (A == 2) {
    tile_load_once<5>(o.second + g * o.second_step, 64);
    tile_bf16<2, 5, 6>();
    if constexpr (P == 2) tile_bf16<3, 5, 7>();
  }
}

// Sums, [block][panel][16][16], of which some rows are still to be finished.
class Unfinished {
 public:
  explicit Unfinished(const LinearArgs& args) : args_(args), finish_(args) {}

  // Takes the sums of `rows` rows and the panels.
  void take(int first_row, int rows, Panels panels, const float* sums) {
    first_row_ = first_row;
    rows_ = rows;
    done_ = 0;
    panels_ = panels;
    sums_ = sums;
    whole_ = panels.count == 2 && (panels.first + 2) * kPanel <= args_.n;
  }
  // Finishes `count` more rows, a divisor of 16, of a whole pair of panels.
  void advance(int count) {
    if (done_ < rows_ && whole_) finish(count);
  }
  void complete() {
    for (; done_ < rows_; done_ += kBlockRows - done_ % kBlockRows) {
      const int left = kBlockRows - done_ % kBlockRows;
      finish_rows(args_, first_row_ + done_, rows_ - done_ < left ? rows_ - done_ : left, panels_,
                  at(done_));
    }
    done_ = rows_;
  }

 private:
  const float* at(int row) const {
    return sums_ + row / kBlockRows * (2 * kSumStride) + row % kBlockRows * kPanel;
  }
  void finish(int count) {
    const int rows = rows_ - done_ < count ? rows_ - done_ : count;
    finish_(first_row_ + done_, rows, panels_.first, at(done_));
    done_ += rows;
  }

  const LinearArgs& args_;
  const Finish finish_;
  int first_row_ = 0, rows_ = 0, done_ = 0;
  Panels panels_ = {};
  const float* sums_ = nullptr;
  bool whole_ = false;
};

// Rows to finish at each of `groups` steps, so that two blocks are done in time: a power of two.
FLARE_INLINE int rows_per_step(int groups) {
  int rows = 1;
  while (rows < kBlockRows && rows * groups < 2 * kBlockRows) rows *= 2;
  return rows;
}

// A row blocks against P panels; sums: [block][panel][16][16]. Stream: the panels come from memory.
template <int A, int P, bool Stream>
static void bf16_tiles(const Operands& o, int groups, float* sums, Unfinished& before) {
  const int rows = rows_per_step(groups);
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  for (int g = 0; g < groups; ++g) {
    if constexpr (Stream) {
      prefetch_block<kTileBytes>(o.left + g * kTileBytes);
      if constexpr (P == 2) prefetch_block<kTileBytes>(o.right + g * kTileBytes);
    }
    bf16_step<A, P>(o, g);
    before.advance(rows);
  }
  before.complete();
  tile_store<0>(sums, 64);
  if constexpr (P == 2) tile_store<1>(sums + 256, 64);
  if constexpr (A == 2) tile_store<2>(sums + 512, 64);
  if constexpr (A == 2 && P == 2) tile_store<3>(sums + 768, 64);
}

using Bf16Tiles = void (*)(const Operands&, int, float*, Unfinished&);

template <bool Stream>
static Bf16Tiles bf16_tiles_for(int blocks, int panels) {
  if (blocks == 2) return panels == 2 ? bf16_tiles<2, 2, Stream> : bf16_tiles<2, 1, Stream>;
  return panels == 2 ? bf16_tiles<1, 2, Stream> : bf16_tiles<1, 1, Stream>;
}

// One or two row blocks, from `block`, against one or two panels.
static void bf16_blocks(const Work& work, const Span& span, Panels panels, const uint8_t* tiles,
                        int block, int blocks, bool stream, Unfinished& before) {
  const auto step = [&](int b) { return int64_t{64} * row_pitch(rows_in_block(span, b)); };
  Operands o = {block_base(span, work.groups, block), nullptr, step(block), 0, tiles,
                tiles + static_cast<size_t>(work.groups) * kTileBytes};
  if (blocks == 2) {
    o.second = block_base(span, work.groups, block + 1);
    o.second_step = step(block + 1);
  }
  const Bf16Tiles kernel = stream ? bf16_tiles_for<true>(blocks, panels.count)
                                  : bf16_tiles_for<false>(blocks, panels.count);
  float* sums = work.sums + block / 2 % 2 * (4 * kSumStride);
  const int first = block * kBlockRows, left = span.rows - first;
  const int rows = left < blocks * kBlockRows ? left : blocks * kBlockRows;
  kernel(o, work.groups, sums, before);
  before.take(span.first + first, rows, panels, sums);
}

static void span_bf16(const Work& work, const Span& span, Panels panels, TileUse& use) {
  const uint8_t* w = work.args.w + panels.first * work.panel_bytes;
  const bool packed = work.args.layout != Layout::bf16p16;
  const int tiles = panels.count * work.groups;
  if (work.args.layout == Layout::q4p16) {
    dequantise_panels<Layout::q4p16>(w, tiles, work.tiles);
  } else if (packed) {
    dequantise_panels<Layout::q8p16>(w, tiles, work.tiles);
  }
  use.shape(64);
  const int blocks = ceil_div(span.rows, kBlockRows);
  Unfinished before(work.args);
  for (int block = 0; block < blocks; block += 2) {
    bf16_blocks(work, span, panels, packed ? work.tiles : w, block, blocks - block < 2 ? 1 : 2,
                !packed && block == 0, before);
  }
  before.complete();
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
