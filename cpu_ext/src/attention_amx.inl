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
// function selects zero.
FLARE_INLINE V exp2_tile(V x) {
  const V r = {_mm512_reduce_ps(x.r, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  const V n = x - r;  // exact
  V q = splat(0.009582829661667347f);
  q = fma(q, r, splat(0.055906400084495544f));
  q = fma(q, r, splat(0.24024099111557007f));
  q = fma(q, r, splat(0.6931241750717163f));
  return {_mm512_scalef_ps(fma(q, r, splat(1.0f)).r, n.r)};
}

// Softmax state of 16 queries.
struct alignas(64) TileRows {
  float maximum[16];
  float alpha[16];  // of the tile at hand
  unsigned grown;   // a bit per query whose maximum the tile raised
  float sum[16 * kLanes];
  int position[16];
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
template <int H>
FLARE_INLINE void multiply(const void* a, int64_t a_stride, const uint8_t* b, int64_t b_stride) {
  const uint8_t* rows = static_cast<const uint8_t*>(a);
  _tile_loadd(4, rows, a_stride);
  _tile_stream_loadd(6, b, b_stride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_stream_loadd(7, b + 64, b_stride);
  _tile_dpbf16ps(1, 4, 7);
  if (H == 2) {
    _tile_loadd(5, rows + 16 * a_stride, a_stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
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

// What one tile of keys needs: its two phases on tiles are cut into pieces, so that they can run
// beside another tile's softmax.
struct TileWork {
  Tile tile;
  int blocks;               // groups of 32 keys that any query sees
  const uint8_t* values[2]; // of each group
  float* scores;            // [32][64]
  uint16_t* p16;            // [32][64]
};

// Scores of 32 keys.
template <int H>
FLARE_INLINE void score_block(const TileWork& w, int block, int padded, const uint16_t* q16) {
  publish();
  zero_tiles<H>();
  for (int d = 0; d < padded; d += 32) {
    multiply<H>(q16 + d, padded * 2, w.tile.keys + d / 2 * (kKeyTile * 4) + block * 128,
                kKeyTile * 4);
  }
  store_tiles<H>(w.scores + block * 32, kKeyTile);
}

// out += probabilities x values for 32 dimensions from d on.
template <int H>
FLARE_INLINE void weigh_block(const TileWork& w, int d, int padded, float* out) {
  publish();
  load_tiles<H>(out + d, padded);
  for (int block = 0; block < w.blocks; ++block) {
    multiply<H>(w.p16 + block * 32, kKeyTile * 2, w.values[block] + d * 4, padded * 4);
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

// The scores of 16 keys, those from `count` on far below any other.
template <bool kMasked>
FLARE_INLINE V visible_scores(const float* s, int count) {
  if (!kMasked) return load(s);
  const unsigned mask = count >= kLanes ? 0xffffu : count > 0 ? (1u << count) - 1 : 0;
  return {_mm512_mask_loadu_ps(splat(kLowest).r, static_cast<__mmask16>(mask), s)};
}

template <bool kMasked>
FLARE_INLINE V row_maxima(const float* s, int count) {
  const V a = visible_scores<kMasked>(s, count);
  const V b = visible_scores<kMasked>(s + kLanes, count - kLanes);
  const V c = visible_scores<kMasked>(s + 2 * kLanes, count - 2 * kLanes);
  const V d = visible_scores<kMasked>(s + 3 * kLanes, count - 3 * kLanes);
  return max(max(a, b), max(c, d));
}

// Lane-wise maxima of two vectors' halves, quarters ...: after the four steps of `maxima`, lane i
// holds the maximum of vector i.
FLARE_INLINE V fold8(V a, V b) {
  return max(V{_mm512_shuffle_f32x4(a.r, b.r, 0x44)}, V{_mm512_shuffle_f32x4(a.r, b.r, 0xee)});
}
FLARE_INLINE V fold4(V a, V b) {
  return max(V{_mm512_shuffle_f32x4(a.r, b.r, 0x88)}, V{_mm512_shuffle_f32x4(a.r, b.r, 0xdd)});
}
FLARE_INLINE V fold2(V a, V b) {
  return max(V{_mm512_shuffle_ps(a.r, b.r, 0x44)}, V{_mm512_shuffle_ps(a.r, b.r, 0xee)});
}
FLARE_INLINE V fold1(V a, V b) {
  return max(V{_mm512_shuffle_ps(a.r, b.r, 0x88)}, V{_mm512_shuffle_ps(a.r, b.r, 0xdd)});
}

// Maxima of 4 rows, one per 128-bit lane and position: rows 0 1 2 3 lie in lanes 0 .. 3 of each
// 128 bits, still 4 candidates each.
template <bool kMasked>
FLARE_INLINE V four_maxima(const float* s, const int* counts) {
  const V a = row_maxima<kMasked>(s, counts[0]);
  const V b = row_maxima<kMasked>(s + kKeyTile, counts[1]);
  const V c = row_maxima<kMasked>(s + 2 * kKeyTile, counts[2]);
  const V d = row_maxima<kMasked>(s + 3 * kKeyTile, counts[3]);
  return fold1(fold2(a, b), fold2(c, d));
}

// Lane i: the highest visible score of row i of 16.
template <bool kMasked>
FLARE_INLINE V maxima(const float* s, const int* counts) {
  const V a = four_maxima<kMasked>(s, counts);
  const V b = four_maxima<kMasked>(s + 4 * kKeyTile, counts + 4);
  const V c = four_maxima<kMasked>(s + 8 * kKeyTile, counts + 8);
  const V d = four_maxima<kMasked>(s + 12 * kKeyTile, counts + 12);
  return fold4(fold8(a, b), fold8(c, d));
}

// Scores of one row to probabilities, packed as an A operand; adds them to the row's sums.
template <bool kMasked>
FLARE_INLINE void soften_row(const float* s, int count, V maximum, V alpha, float* sum,
                             uint16_t* p16) {
  V v[4];
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) {
    v[n] = exp2_tile(visible_scores<kMasked>(s + n * kLanes, count - n * kLanes) - maximum);
  }
  _mm512_store_si512(p16, (__m512i)_mm512_cvtne2ps_pbh(v[1].r, v[0].r));
  _mm512_store_si512(p16 + 32, (__m512i)_mm512_cvtne2ps_pbh(v[3].r, v[2].r));
  store(sum, fma(load(sum), alpha, (v[0] + v[1]) + (v[2] + v[3])));
}

FLARE_INLINE void count_visible(const TileRows& rows, const Tile& t, int* counts) {
  for (int i = 0; i < 16; ++i) counts[i] = rows.position[i] + 1 - t.first_key;
}

// The rows' new maxima, and the factors of what was summed under the old ones.
FLARE_INLINE void raise_maxima(TileRows& rows, const Tile& t, const float* scores) {
  int counts[16];
  count_visible(rows, t, counts);
  const V old = load(rows.maximum);
  const bool all = counts[0] >= kKeyTile;  // positions ascend
  const V maximum = max(all ? maxima<false>(scores, counts) : maxima<true>(scores, counts), old);
  store(rows.maximum, maximum);
  store(rows.alpha, exp2_tile(old - maximum));
  rows.grown = _mm512_cmp_ps_mask(maximum.r, old.r, _CMP_NEQ_UQ);
}

FLARE_INLINE void rescale(const TileRows& rows, int padded, float* out) {
  for (unsigned grown = rows.grown; grown != 0; grown &= grown - 1) {
    const int i = __builtin_ctz(grown);
    const V a = splat(rows.alpha[i]);
    float* row = out + i * padded;
    for (int d = 0; d < padded; d += kLanes) store(row + d, load(row + d) * a);
  }
}

// soften<true> of attention.inl for 8 of 16 rows, from `first` on.
FLARE_INLINE void soften_rows(TileRows& rows, const Tile& t, int first, const float* scores,
                              uint16_t* p16) {
  int counts[16];
  count_visible(rows, t, counts);
  if (counts[first] >= kKeyTile) {
    for (int i = first; i < first + 8; ++i) {
      soften_row<false>(scores + i * kKeyTile, kKeyTile, splat(rows.maximum[i]),
                        splat(rows.alpha[i]), rows.sum + i * kLanes, p16 + i * kKeyTile);
    }
    return;
  }
  for (int i = first; i < first + 8; ++i) {
    soften_row<true>(scores + i * kKeyTile, counts[i], splat(rows.maximum[i]),
                     splat(rows.alpha[i]), rows.sum + i * kLanes, p16 + i * kKeyTile);
  }
}

FLARE_INLINE void start_rows(const AttentionArgs& a, const AttentionItem& item, int first,
                             TileRows& rows) {
  store(rows.maximum, splat(kLowest));
  for (int i = 0; i < 16; ++i) {
    const int query = first + i < item.queries ? first + i : item.queries - 1;
    rows.position[i] = position_of(a, item, query);
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

// While the softmax of one tile runs on vectors, the tiles score the next keys and weigh the
// values of the keys before: the processor finds both in its window.
template <int H>
static void attend_step(const TileWork* before, TileWork& here, const TileWork* next,
                        TileRows* rows, int padded, AttentionScratch& s) {
  for (int h = 0; h < H; ++h) raise_maxima(rows[h], here.tile, here.scores + 16 * h * kKeyTile);
  const int scoring = next != nullptr ? next->blocks : 0;
  const int pieces = scoring + (before != nullptr ? padded / 32 : 0);
  int piece = 0;
  for (int group = 0; group < 2 * H; ++group) {
    for (; piece * 2 * H < pieces * (group + 1); ++piece) {
      if (piece < scoring) {
        score_block<H>(*next, piece, padded, s.q16);
      } else {
        weigh_block<H>(*before, (piece - scoring) * 32, padded, s.out);
      }
    }
    const int half = group / 2 * 16 * kKeyTile;
    soften_rows(rows[group / 2], here.tile, group % 2 * 8, here.scores + half, here.p16 + half);
  }
  publish();
  for (int h = 0; h < H; ++h) rescale(rows[h], padded, s.out + 16 * h * padded);
}

template <int H>
static void attend_tiles(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                         AttentionScratch& s) {
  const int padded = a.shape->padded_dim;
  const int last = last_position(a, item);
  TileRows rows[H];
  for (int h = 0; h < H; ++h) start_rows(a, item, 16 * h, rows[h]);
  TileWork before{}, here = work_on(a, item, kv_head, 0, last, s), next{};
  for (int block = 0; block < here.blocks; ++block) score_block<H>(here, block, padded, s.q16);
  for (int tile = 0; tile * kKeyTile <= last; ++tile) {
    const bool more = (tile + 1) * kKeyTile <= last;
    if (more) next = work_on(a, item, kv_head, tile + 1, last, s);
    attend_step<H>(tile > 0 ? &before : nullptr, here, more ? &next : nullptr, rows, padded, s);
    before = here;
    here = next;
  }
  for (int d = 0; d < padded; d += 32) weigh_block<H>(before, d, padded, s.out);
  publish();
  for (int i = 0; i < item.queries; ++i) {
    finish(rows[i / 16].sum + i % 16 * kLanes, s.out + i * padded, a.shape->head_dim,
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
