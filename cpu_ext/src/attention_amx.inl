// Prompt attention on AMX tiles: 32 queries by 64 keys at a time, in the order of attention.inl.
//
// Tiles 0-3 accumulate (two halves of 16 queries by two groups of 16 columns), 4-5 hold queries or
// probabilities, 6-7 keys or values, which lie in the cache as B operands.

namespace flare {
namespace FLARE_ISA_NS {

// The compiler does not know what memory the tile instructions read.
FLARE_INLINE void publish() { asm volatile("" ::: "memory"); }

struct alignas(64) TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

static void attend_begin() {
  TileConfig config{};
  config.palette = 1;
  for (int t = 0; t < 8; ++t) {
    config.row_bytes[t] = 64;
    config.rows[t] = 16;
  }
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}

static void attend_end() { _tile_release(); }

// exp2_prompt in fewer instructions: VREDUCEPS leaves what rounding to an integer takes away (of an
// infinity zero), and VSCALEFPS flushes results below the normal range to zero just where that
// function selects zero. Beyond 2^127 the two differ, where both only make the reference rise.
FLARE_INLINE V exp2_tile(V x) {
  const V r = {_mm512_reduce_ps(x.r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  const V n = x - r;  // exact
  V q = splat(kExp2Cubic);
  q = fma(q, r, splat(kExp2Square));
  q = fma(q, r, splat(kExp2Linear));
  return {_mm512_scalef_ps(fma(q, r, splat(1.0f)).r, n.r)};
}

// What one tile of keys needs: its two phases on tiles are cut into pieces, so that they can run
// beside another tile's softmax.
struct TileWork {
  Tile tile;
  int blocks;               // groups of 32 keys that any query sees
  const uint8_t* values[2]; // of each group
  float* scores;            // [32][64]
  uint16_t* p16;            // [32][64]
};

// Softmax state of an item's queries.
struct alignas(64) TileRows {
  float sum[kPromptQueries * kLanes];
  float maximum[kPromptQueries];
  int position[kPromptQueries];
  uint32_t low;  // a bit per query whose reference is too low for the tile at hand
};

// The scores of 16 keys, those from `count` on far below any other.
template <bool kMasked>
FLARE_INLINE V visible_scores(const float* s, int count) {
  if (!kMasked) return load(s);
  const unsigned mask = count >= kLanes ? 0xffffu : count > 0 ? (1u << count) - 1 : 0;
  return {_mm512_mask_loadu_ps(splat(kLowest).r, static_cast<__mmask16>(mask), s)};
}

// Scores of one row to probabilities, packed as an A operand. Returns their sums as soften_from.
template <bool kMasked>
FLARE_INLINE V pack_row(const float* s, int count, V maximum, uint16_t* p16) {
  V v[4];
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) {
    v[n] = exp2_tile(visible_scores<kMasked>(s + n * kLanes, count - n * kLanes) - maximum);
  }
  const __m512bh a = _mm512_cvtne2ps_pbh(v[1].r, v[0].r);
  const __m512bh b = _mm512_cvtne2ps_pbh(v[3].r, v[2].r);
  _mm512_store_si512(p16, (__m512i)a);
  _mm512_store_si512(p16 + 32, (__m512i)b);
  // Adds the odd ones, then the even ones (Intel SDM volume 2, VDPBF16PS).
  const __m512bh ones = (__m512bh)_mm512_set1_epi32(0x3f803f80);
  return {_mm512_dpbf16_ps(_mm512_dpbf16_ps(_mm512_setzero_ps(), a, ones), b, ones)};
}

// Softmax of one tile, a few rows at a time between the products of other tiles: the processor
// finds both in its window only when they lie close together.
template <bool kMasked>
struct Softmax {
  TileRows& rows;
  const TileWork& work;
  int count;  // of rows
  int turns;  // among which they are shared evenly
  int next = 0, credit = 0;

  FLARE_INLINE_MEMBER void soften_row(int i) {
    const int visible = rows.position[i] + 1 - work.tile.first_key;
    const V part = pack_row<kMasked>(work.scores + i * kKeyTile, visible,
                                     splat(rows.maximum[i]), work.p16 + i * kKeyTile);
    if (_mm512_cmp_ps_mask(part.r, splat(kRaise).r, _CMP_GT_OQ)) {
      rows.low |= 1u << i;
    } else {
      store(rows.sum + i * kLanes, load(rows.sum + i * kLanes) + part);
    }
  }
  FLARE_INLINE_MEMBER void turn() {
    for (credit += count; credit >= turns; credit -= turns) soften_row(next++);
  }
  FLARE_INLINE_MEMBER void rest() {
    for (; next < count; ++next) soften_row(next);
  }
};

// Where there is no softmax to do beside the products.
struct Nothing {
  FLARE_INLINE_MEMBER void turn() {}
};

template <int H>
FLARE_INLINE void zero_tiles() {
  _tile_zero(0);
  _tile_zero(1);
  if (H == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

// One step of 32 along k: a holds the queries' side (rows `a_stride` bytes apart), b two groups.
// Keys and values pass through once per item: they must not displace the item's own scores, which
// fill most of the first cache.
template <int H, typename Beside>
FLARE_INLINE void multiply(const void* a, int64_t a_stride, const uint8_t* b, int64_t b_stride,
                           Beside& beside) {
  const uint8_t* rows = static_cast<const uint8_t*>(a);
  _tile_loadd(4, rows, a_stride);
  _tile_stream_loadd(6, b, b_stride);
  _tile_dpbf16ps(0, 4, 6);
  beside.turn();
  _tile_stream_loadd(7, b + 64, b_stride);
  _tile_dpbf16ps(1, 4, 7);
  beside.turn();
  if (H == 2) {
    _tile_loadd(5, rows + 16 * a_stride, a_stride);
    _tile_dpbf16ps(2, 5, 6);
    beside.turn();
    _tile_dpbf16ps(3, 5, 7);
    beside.turn();
  }
}

template <int H>
FLARE_INLINE void store_tiles(float* to, int64_t stride) {
  _tile_stored(0, to, stride * 4);
  _tile_stored(1, to + 16, stride * 4);
  if (H == 2) {
    _tile_stored(2, to + 16 * stride, stride * 4);
    _tile_stored(3, to + 16 * stride + 16, stride * 4);
  }
}

template <int H>
FLARE_INLINE void load_tiles(const float* from, int64_t stride) {
  _tile_loadd(0, from, stride * 4);
  _tile_loadd(1, from + 16, stride * 4);
  if (H == 2) {
    _tile_loadd(2, from + 16 * stride, stride * 4);
    _tile_loadd(3, from + 16 * stride + 16, stride * 4);
  }
}

// Scores of 32 keys.
template <int H, typename Beside>
FLARE_INLINE void score_block(const TileWork& w, int block, int padded, const uint16_t* q16,
                              Beside& beside) {
  zero_tiles<H>();
  for (int d = 0; d < padded; d += 32) {
    multiply<H>(q16 + d, padded * 2, w.tile.keys + d / 2 * (kKeyTile * 4) + block * 128,
                kKeyTile * 4, beside);
  }
  store_tiles<H>(w.scores + block * 32, kKeyTile);
}

// out += probabilities x values for 32 dimensions from d on.
template <int H, typename Beside>
FLARE_INLINE void weigh_block(const TileWork& w, int d, int padded, float* out, Beside& beside) {
  load_tiles<H>(out + d, padded);
  for (int block = 0; block < w.blocks; ++block) {
    multiply<H>(w.p16 + block * 32, kKeyTile * 2, w.values[block] + d * 4, padded * 4,
                beside);
  }
  store_tiles<H>(out + d, padded);
}

// The values of keys [32 block, 32 block + 32) with zeros from key `valid` of the tile on.
FLARE_INLINE const uint8_t* edge_values(const Tile& t, int block, int valid, int padded,
                                        AttentionScratch& s) {
  const uint8_t* values = t.values + static_cast<int64_t>(block) * 16 * padded * 4;
  const int left = valid - block * 32;
  if (left >= 32) return values;
  uint16_t* edge = s.edge;
  for (int pair = 0; pair < 16; ++pair, edge += 2 * padded) {
    const int keys = left - 2 * pair;
    for (int d = 0; d < 2 * padded; d += 32) {
      __m512i v = _mm512_setzero_si512();
      const uint8_t* line = values + static_cast<int64_t>(pair) * padded * 4 + d * 2;
      if (keys >= 1) v = _mm512_loadu_si512(line);
      if (keys == 1) v = _mm512_and_si512(v, _mm512_set1_epi32(0xffff));
      _mm512_store_si512(edge + d, v);
    }
  }
  return reinterpret_cast<const uint8_t*>(s.edge);
}

// What remains of soften_prompt for a row whose reference was too low.
static __attribute__((noinline)) void raise_row(TileRows& rows, const TileWork& w, int i,
                                                int padded, float* out) {
  const int count = rows.position[i] + 1 - w.tile.first_key;
  const float* scores = w.scores + i * kKeyTile;
  V v[4];
  for (int n = 0; n < 4; ++n) {
    v[n] = visible_scores<true>(scores + n * kLanes, count - n * kLanes);
  }
  const float highest = highest_of(v), old = rows.maximum[i];
  const float maximum = highest > old ? reference_above(highest) : old;
  const V alpha = exp2_prompt(splat(old) - splat(maximum));
  const V part = pack_row<true>(scores, count, splat(maximum), w.p16 + i * kKeyTile);
  store(rows.sum + i * kLanes, fma(load(rows.sum + i * kLanes), alpha, part));
  for (int d = 0; d < padded; d += kLanes) store(out + d, load(out + d) * alpha);
  rows.maximum[i] = maximum;
}

FLARE_INLINE void start_rows(const AttentionArgs& a, const AttentionItem& item, int count,
                             TileRows& rows) {
  for (int i = 0; i < count; ++i) {
    rows.maximum[i] = kLowest;
    rows.position[i] = position_of(a, item, i < item.queries ? i : item.queries - 1);
    store(rows.sum + i * kLanes, zero());
  }
}

FLARE_INLINE TileWork work_on(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                              int tile, int last, AttentionScratch& s) {
  TileWork w;
  w.tile = tile_at(a, item, kv_head, tile);
  w.blocks = last - w.tile.first_key >= 32 ? 2 : 1;
  for (int block = 0; block < w.blocks; ++block) {
    w.values[block] =
        edge_values(w.tile, block, item.keys - w.tile.first_key, a.shape->padded_dim, s);
  }
  w.scores = s.scores + tile % 2 * (kPromptQueries * kKeyTile);
  w.p16 = s.p16 + tile % 2 * (kPromptQueries * kKeyTile);
  return w;
}

// The softmax of one tile, while the tiles score the next keys and weigh the values of the keys
// before.
template <int H, bool kMasked>
static void attend_step(const TileWork* before, const TileWork& here, const TileWork* next,
                        TileRows& rows, int padded, AttentionScratch& s) {
  const int scored = next != nullptr ? next->blocks : 0;
  const int products = scored + (before != nullptr ? before->blocks : 0);
  Softmax<kMasked> softmax{rows, here, 16 * H, products * (padded / 32) * 2 * H};
  rows.low = 0;
  publish();
  for (int block = 0; block < scored; ++block) {
    score_block<H>(*next, block, padded, s.q16, softmax);
  }
  if (before != nullptr) {
    for (int d = 0; d < padded; d += 32) weigh_block<H>(*before, d, padded, s.out, softmax);
  }
  softmax.rest();
  publish();
  for (uint32_t low = rows.low; low != 0; low &= low - 1) {
    const int i = __builtin_ctz(low);
    raise_row(rows, here, i, padded, s.out + i * padded);
  }
}

template <int H>
static void attend_tiles(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                         AttentionScratch& s) {
  const int padded = a.shape->padded_dim;
  const int last = last_position(a, item);
  TileRows rows;
  Nothing nothing;
  start_rows(a, item, 16 * H, rows);
  TileWork before{}, here = work_on(a, item, kv_head, 0, last, s), next{};
  publish();
  for (int block = 0; block < here.blocks; ++block) {
    score_block<H>(here, block, padded, s.q16, nothing);
  }
  for (int tile = 0; tile * kKeyTile <= last; ++tile) {
    const bool more = (tile + 1) * kKeyTile <= last;
    if (more) next = work_on(a, item, kv_head, tile + 1, last, s);
    const TileWork* weighed = tile > 0 ? &before : nullptr;
    if (item.position + item.first_query / a.group + 1 - here.tile.first_key >= kKeyTile) {
      attend_step<H, false>(weighed, here, more ? &next : nullptr, rows, padded, s);
    } else {
      attend_step<H, true>(weighed, here, more ? &next : nullptr, rows, padded, s);
    }
    before = here;
    here = next;
  }
  publish();
  for (int d = 0; d < padded; d += 32) weigh_block<H>(before, d, padded, s.out, nothing);
  publish();
  for (int i = 0; i < item.queries; ++i) {
    finish(rows.sum + i * kLanes, s.out + i * padded, a.shape->head_dim,
           a.y + offset_of(a, item, kv_head, i));
  }
}

static void attend_prompt(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                          AttentionScratch& s) {
  const int padded = a.shape->padded_dim;
  const int rows = item.queries > 16 ? 32 : 16;
  load_queries<true>(a, item, kv_head, s);
  for (int d = 0; d < rows * padded; d += kLanes) {
    store_bf16(s.q16 + d, d < item.queries * padded ? load(s.q + d) : zero());
    store(s.out + d, zero());
  }
  if (rows == 32) {
    attend_tiles<2>(a, item, kv_head, s);
  } else {
    attend_tiles<1>(a, item, kv_head, s);
  }
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
