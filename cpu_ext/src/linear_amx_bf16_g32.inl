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

// One row block against neighbouring panels.
struct G32Job {
  const uint8_t* w;
  int panels, groups;
  const uint8_t* rows;    // at a page; see convert_row_g32
  const float* row_sums;  // per group R sums S
  uint8_t* pages;         // two: tiles of codes, and of products
  float* sums;            // [panel][16][16]
};

// The pipeline. Step t multiplies group t (counted over all panels), adds the products of a group
// some steps before, stores those of the one two steps before, and unpacks the one four steps
// ahead: a load waits until stores are in the cache.
//
// The products of several groups share a tile: group t has tile register t % 4, and there the rows
// of its slot, while the rows of A are zero in the other slots, which leaves their products alone.
// So few rows need few tile stores, which would weigh most: 16 stores each, whatever they hold, and
// as much of the port that unpacking needs.
//
// A load waits for stores under way to any line with the same offset in a page, too. So tiles of
// codes and of products lie at the offsets t % 4 and t % 4 + 2 KiB, and rows at those of their
// groups.
template <Layout L, int R>
class G32Pipeline {
 public:
  FLARE_INLINE_MEMBER explicit G32Pipeline(const G32Job& job)
      : total_(job.panels * job.groups),
        groups_(job.groups),
        packed_(job.w),
        added_(job.w),
        rows_(job.rows),
        first_rows_(job.rows),
        row_sums_(job.row_sums),
        first_row_sums_(job.row_sums),
        pages_(job.pages),
        sums_(job.sums) {
    clear();
  }

  FLARE_INLINE_MEMBER void run() {
    unpack<0>(0);
    unpack<1>(1);
    unpack<2>(2);
    unpack<3>(3);
    for (int t = 0; t < total_ + kAddLag; t += 4) {
      step<0>(t);
      step<1>(t + 1);
      step<2>(t + 2);
      step<3>(t + 3);
    }
  }

 private:
  static constexpr int kBytes = L == Layout::q4p16 ? 320 : 544;
  static constexpr int kSlots = tile_rows(R) / R;
  static constexpr int kSlotSteps = 4 * (kSlots - 1);  // from a tile's first group to its last
  static constexpr int kAddLag = kSlotSteps + 6;

  static constexpr unsigned slot(int t) { return static_cast<unsigned>(t) / 4 % kSlots; }

  FLARE_INLINE_MEMBER void clear() {
    FLARE_UNROLL
    for (int r = 0; r < R; ++r) acc_[r] = zero();
  }

  template <int T>
  FLARE_INLINE_MEMBER void step(int t) {
    multiply<T>(t);
    add<(T + 2) % 4>(t - kAddLag);
    store_products<(T + 2) % 4>(t - 2);
    unpack<T>(t + 4);
  }

  template <int T>
  FLARE_INLINE_MEMBER void unpack(int t) {
    if (t >= total_) return;
    prefetch_block<kBytes>(packed_);
    unpack_tile<L>(packed_, pages_ + T * kTileBytes);
    packed_ += kBytes;
  }

  template <int T>
  FLARE_INLINE_MEMBER void multiply(int t) {
    if (t >= total_) return;
    constexpr int a = 4 + T % 2, b = 6 + T % 2;
    if (slot(t) == 0) tile_zero<T>();
    tile_load<a>(rows_ - slot(t) * R * 64, 64);
    tile_load<b>(pages_ + T * kTileBytes, 64);
    tile_bf16<T, a, b>();
    rows_ += kTileBytes;
    if (++multiplied_ == groups_) {
      multiplied_ = 0;
      rows_ = first_rows_;
    }
  }

  // After the last slot of a tile, whether or not a group came to it.
  template <int T>
  FLARE_INLINE_MEMBER void store_products(int t) const {
    if (t < kSlotSteps || t - kSlotSteps >= total_ || slot(t) != kSlots - 1) return;
    tile_store<T>(pages_ + kPage + (T + 2) % 4 * kTileBytes, 64);
  }

  template <int T>
  FLARE_INLINE_MEMBER void add(int t) {
    if (t < 0 || t >= total_) return;
    const GroupFactors<L> factors(added_);
    const uint8_t* tile = pages_ + kPage + (T + 2) % 4 * kTileBytes;
    const float* products = reinterpret_cast<const float*>(tile + slot(t) * R * 64);
    FLARE_UNROLL
    for (int r = 0; r < R; ++r) {
      acc_[r] = factors.add(load(products + r * kPanel), row_sums_ + r, acc_[r]);
    }
    added_ += kBytes;
    row_sums_ += R;
    if (++count_ < groups_) return;
    FLARE_UNROLL
    for (int r = 0; r < R; ++r) store(sums_ + r * kPanel, acc_[r]);
    sums_ += kSumStride;
    clear();
    count_ = 0;
    row_sums_ = first_row_sums_;
  }

  const int total_, groups_;
  const uint8_t *packed_, *added_;  // blocks to unpack and to add
  const uint8_t *rows_, *const first_rows_;
  const float *row_sums_, *const first_row_sums_;
  uint8_t* const pages_;
  float* sums_;
  int multiplied_ = 0, count_ = 0;  // groups of the panel that are multiplied, and added
  V acc_[R];
};

template <Layout L, int R>
static void g32_tiles(const G32Job& job) {
  G32Pipeline<L, R>(job).run();
}

using G32Tiles = void (*)(const G32Job&);

template <Layout L>
static G32Tiles g32_tiles_for(int pitch) {
  switch (pitch) {
    case 1: return g32_tiles<L, 1>;
    case 4: return g32_tiles<L, 4>;
    case 8: return g32_tiles<L, 8>;
    default: return g32_tiles<L, 16>;
  }
}

static void span_g32(const Work& work, const Span& span, Panels panels, TileUse& use) {
  const int blocks = ceil_div(span.rows, kBlockRows);
  const uint8_t* w = work.args.w + panels.first * work.panel_bytes;
  for (int block = 0; block < blocks; ++block) {
    const int rows = rows_in_block(span, block), pitch = row_pitch(rows);
    const G32Rows at = g32_rows(block_base(span, work.groups, block), work.groups);
    const G32Tiles kernel = work.args.layout == Layout::q4p16
                                ? g32_tiles_for<Layout::q4p16>(pitch)
                                : g32_tiles_for<Layout::q8p16>(pitch);
    use.shape(64, tile_rows(pitch));
    kernel({w, panels.count, work.groups, at.tiles, at.sums, page_after(work.tiles), work.sums});
    finish_run(work.args, span.first + block * kBlockRows, rows, panels, work.sums);
  }
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
