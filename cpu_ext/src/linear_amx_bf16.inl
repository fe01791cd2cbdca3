// bf16_t32 on AMX tiles: two row blocks by two panels at a time.
//
// While tiles multiply, the vector units do the chores: they prepare the next panels (dequantise
// them, or ask for them from memory) and finish the rows before (bias, activation, residual).

namespace flare {
namespace FLARE_ISA_NS {

constexpr int kQuarters = 4;  // of a tile: the step in which panels are prepared

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

// Makes the tiles of one or two panels, a quarter of a tile at a time. bf16p16 panels are tiles as
// they lie: they are only asked for from memory.
struct Preparation {
  Layout layout = Layout::q4p16;
  const uint8_t* block = nullptr;
  uint8_t* tile = nullptr;
  int done = 0, left = 0;  // quarters

  void start(const Work& work, Panels panels, uint8_t* tiles) {
    layout = work.args.layout;
    block = work.args.w + panels.first * work.panel_bytes;
    tile = tiles;
    done = 0;
    left = panels.count * work.groups * kQuarters;
  }

  void step() {
    if (layout == Layout::q4p16) {
      dequantise_quarter_q4(block, done, tile);
    } else if (layout == Layout::q8p16) {
      dequantise_quarter_q8(block, done, tile);
    } else {
      for (int i = 0; i < 256; i += 64) __builtin_prefetch(block + 256 * done + i, 0, 2);
    }
    --left;
    if (++done < kQuarters) return;
    done = 0;
    block += block_bytes(layout);
    tile += kTileBytes;
    for (int i = 0; i < block_bytes(layout); i += 64) {
      __builtin_prefetch(block + kPrefetchBytes + i, 0, 3);
    }
  }
};

// Up to 32 rows of one or two panels whose sums are ready: [block][panel][16][16].
struct Completion {
  const float* sums = nullptr;
  Panels panels = {};
  int row = 0, done = 0, left = 0;

  void step(const LinearArgs& args) {
    const float* sum = sums + done / kBlockRows * 512 + done % kBlockRows * kPanel;
    finish_row(args, row + done, panels.first, panels.count, load(sum), load(sum + 256));
    ++done;
    --left;
  }
};

// Work for the vector units, spread over the k-steps of a multiplication.
class Chores {
 public:
  Chores(const LinearArgs& args) : args_(args) {}
  Preparation preparation;
  Completion completion;

  // Plans for `steps` calls of step(): the whole completion and `quarters` of the preparation.
  void plan(int steps, int quarters) {
    steps_ = steps;
    rows_ = completion.left;
    quarters_ = quarters < preparation.left ? quarters : preparation.left;
    row_debt_ = quarter_debt_ = 0;
  }

  __attribute__((noinline)) void step() {
    for (quarter_debt_ += quarters_; quarter_debt_ >= steps_; quarter_debt_ -= steps_) {
      preparation.step();
    }
    for (row_debt_ += rows_; row_debt_ >= steps_; row_debt_ -= steps_) completion.step(args_);
  }

  void prepare_rest() {
    while (preparation.left > 0) preparation.step();
  }
  void complete_rest() {
    while (completion.left > 0) completion.step(args_);
  }

 private:
  const LinearArgs& args_;
  int steps_ = 1, rows_ = 0, quarters_ = 0, row_debt_ = 0, quarter_debt_ = 0;
};

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

// A row blocks against P panels; sums: [block][panel][16][16].
template <int A, int P>
static void bf16_tiles(const Operands& o, int groups, float* sums, Chores& chores) {
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  for (int g = 0; g < groups; ++g) {
    bf16_step<A, P>(o, g);
    chores.step();
  }
  tile_store<0>(sums, 64);
  if constexpr (P == 2) tile_store<1>(sums + 256, 64);
  if constexpr (A == 2) tile_store<2>(sums + 512, 64);
  if constexpr (A == 2 && P == 2) tile_store<3>(sums + 768, 64);
}

// A thread's walk over its panels: the next pair is prepared, and the rows before are completed,
// while a pair is multiplied.
class Walk {
 public:
  explicit Walk(const Work& work) : chores_(work.args) {}

  void span_bf16(const Work& work, const Span& span, Panels here, Panels next) {
    const size_t panel_tiles = static_cast<size_t>(work.groups) * kTileBytes;
    const bool packed = work.args.layout != Layout::bf16p16;
    uint8_t* room[2] = {work.tiles, work.tiles + 2 * panel_tiles};
    if (ready_ != here.first) {
      chores_.preparation.start(work, here, room[turn_]);
      chores_.prepare_rest();
    }
    const uint8_t* tiles = packed ? room[turn_] : work.args.w + here.first * work.panel_bytes;
    turn_ ^= 1;
    chores_.preparation.start(work, next, room[turn_]);
    ready_ = next.first;
    shape_tiles(64);
    const int blocks = ceil_div(span.rows, kBlockRows);
    for (int block = 0; block < blocks; block += 2) {
      const int pairs_left = ceil_div(blocks - block, 2);
      chores_.plan(work.groups, ceil_div(chores_.preparation.left, pairs_left));
      multiply(work, span, here, tiles, block, blocks - block < 2 ? 1 : 2);
    }
    chores_.prepare_rest();
  }

  void finish() { chores_.complete_rest(); }

 private:
  void multiply(const Work& work, const Span& span, Panels here, const uint8_t* tiles, int block,
                int blocks) {
    Operands o = {block_base(span, work.groups, block), nullptr, pitch_bytes(span, block), 0,
                  tiles, tiles + static_cast<size_t>(work.groups) * kTileBytes};
    int rows = rows_in_block(span, block);
    if (blocks == 2) {
      o.second = block_base(span, work.groups, block + 1);
      o.second_step = pitch_bytes(span, block + 1);
      rows += rows_in_block(span, block + 1);
    }
    float* sums = work.sums + 1024 * flip_;
    flip_ ^= 1;
    const auto kernel = blocks == 2 ? (here.count == 2 ? bf16_tiles<2, 2> : bf16_tiles<2, 1>)
                                    : (here.count == 2 ? bf16_tiles<1, 2> : bf16_tiles<1, 1>);
    kernel(o, work.groups, sums, chores_);
    chores_.complete_rest();
    chores_.completion = {sums, here, span.first + block * kBlockRows, 0, rows};
  }

  static int64_t pitch_bytes(const Span& span, int block) {
    return static_cast<int64_t>(row_pitch(rows_in_block(span, block))) * 64;
  }

  Chores chores_;
  int ready_ = -1;  // first panel whose tiles lie in room turn_
  int turn_ = 0;
  int flip_ = 0;
};

}  // namespace FLARE_ISA_NS
}  // namespace flare
