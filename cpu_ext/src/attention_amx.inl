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

// exp2_nonpositive (math.h) in fewer instructions: results below the normal range flush to zero in
// VSCALEFPS just where that function selects zero.
FLARE_INLINE V exp2_tile(V x) {
  const V c = max(splat(-200.0f), x);
  const V n = rint(c);
  const V r = c - n;
  V q = splat(0.000153533605043776f);
  q = fma(q, r, splat(0.00133988750167191f));
  q = fma(q, r, splat(0.00961843691766262f));
  q = fma(q, r, splat(0.0555033236742020f));
  q = fma(q, r, splat(0.240226477384567f));
  q = fma(q, r, splat(0.693147182464600f));
  return {_mm512_scalef_ps(fma(q, r, splat(1.0f)).r, n.r)};
}

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
template <int H>
FLARE_INLINE void multiply(const void* a, int64_t a_stride, const uint8_t* b, int64_t b_stride) {
  const uint8_t* rows = static_cast<const uint8_t*>(a);
  _tile_loadd(4, rows, a_stride);
  _tile_loadd(6, b, b_stride);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, b + 64, b_stride);
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

// scores[32][64]: the first `blocks` groups of 32 keys.
template <int H>
static void score_tile(const Tile& t, int blocks, int padded, AttentionScratch& s) {
  publish();
  for (int block = 0; block < blocks; ++block) {
    zero_tiles<H>();
    for (int d = 0; d < padded; d += 32) {
      multiply<H>(s.q16 + d, padded * 2, t.keys + d / 2 * (kKeyTile * 4) + block * 128,
                  kKeyTile * 4);
    }
    store_tiles<H>(s.scores + block * 32, kKeyTile);
  }
  publish();
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
      if (keys >= 1) v = _mm512_loadu_si512(values + static_cast<int64_t>(pair) * padded * 4 + d * 2);
      if (keys == 1) v = _mm512_and_si512(v, _mm512_set1_epi32(0xffff));
      _mm512_store_si512(edge + d, v);
    }
  }
  return reinterpret_cast<const uint8_t*>(s.edge);
}

template <int H>
static void weigh_tile(const Tile& t, int blocks, int valid, int padded, AttentionScratch& s) {
  const uint8_t* values[2];
  for (int block = 0; block < blocks; ++block) {
    values[block] = edge_values(t, block, valid, padded, s);
  }
  publish();
  for (int d = 0; d < padded; d += 32) {
    load_tiles<H>(s.out + d, padded);
    for (int block = 0; block < blocks; ++block) {
      multiply<H>(s.p16 + block * 32, kKeyTile * 2, values[block] + d * 4, padded * 4);
    }
    store_tiles<H>(s.out + d, padded);
  }
  publish();
}

// soften<true> of attention.inl with the probabilities packed as an A operand.
template <bool kMasked>
FLARE_INLINE void soften_tile(const float* s, int count, int padded, AttentionState& state,
                              float* out, uint16_t* p16) {
  V v[4];
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) {
    v[n] = load(s + n * kLanes);
    if (kMasked) {
      const V limit = splat(static_cast<float>(count - n * kLanes));
      v[n] = select_lt(load(kLaneIndex), limit, v[n], splat(kLowest));
    }
  }
  const V top = max(max(v[0], v[1]), max(v[2], v[3]));
  const float highest = hmax(top);
  const float maximum = highest > state.maximum ? highest : state.maximum;
  const V m = splat(maximum);
  const V alpha = exp2_tile(splat(state.maximum) - m);
#pragma GCC unroll 4
  for (int n = 0; n < 4; ++n) {
    v[n] = exp2_tile(v[n] - m);
    if (kMasked) {
      const V limit = splat(static_cast<float>(count - n * kLanes));
      v[n] = select_lt(load(kLaneIndex), limit, v[n], zero());
    }
  }
  _mm512_store_si512(p16, (__m512i)_mm512_cvtne2ps_pbh(v[1].r, v[0].r));
  _mm512_store_si512(p16 + 32, (__m512i)_mm512_cvtne2ps_pbh(v[3].r, v[2].r));
  store(state.sum, fma(load(state.sum), alpha, (v[0] + v[1]) + (v[2] + v[3])));
  if (maximum != state.maximum) {
    for (int d = 0; d < padded; d += kLanes) store(out + d, load(out + d) * alpha);
  }
  state.maximum = maximum;
}

static void soften_rows(const AttentionArgs& a, const AttentionItem& item, const Tile& t,
                        AttentionScratch& s) {
  const int padded = a.shape->padded_dim;
  for (int i = 0; i < item.queries; ++i) {
    const int visible = position_of(a, item, i) + 1 - t.first_key;
    float* out = s.out + i * padded;
    uint16_t* p16 = s.p16 + i * kKeyTile;
    if (visible >= kKeyTile) {
      soften_tile<false>(s.scores + i * kKeyTile, kKeyTile, padded, s.state[i], out, p16);
    } else if (visible > 0) {
      soften_tile<true>(s.scores + i * kKeyTile, visible, padded, s.state[i], out, p16);
    } else {
      _mm512_store_si512(p16, _mm512_setzero_si512());
      _mm512_store_si512(p16 + 32, _mm512_setzero_si512());
    }
  }
}

template <int H>
static void attend_tiles(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                         AttentionScratch& s) {
  const int padded = a.shape->padded_dim;
  const int last = last_position(a, item);
  for (int tile = 0; tile * kKeyTile <= last; ++tile) {
    const Tile t = tile_at(a, item, kv_head, tile);
    const int blocks = last - t.first_key >= 32 ? 2 : 1;
    score_tile<H>(t, blocks, padded, s);
    soften_rows(a, item, t, s);
    weigh_tile<H>(t, blocks, item.keys - t.first_key, padded, s);
  }
}

static void attend_prompt(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                          AttentionScratch& s) {
  const int padded = a.shape->padded_dim;
  const int rows = item.queries > 16 ? 32 : 16;
  load_queries<true>(a, item, kv_head, s);
  clear(s.state, item.queries, 0);
  for (int d = 0; d < rows * padded; d += kLanes) {
    store_bf16(s.q16 + d, d < item.queries * padded ? load(s.q + d) : zero());
    store(s.out + d, zero());
  }
  if (rows == 32) {
    attend_tiles<2>(a, item, kv_head, s);
  } else {
    attend_tiles<1>(a, item, kv_head, s);
  }
  for (int i = 0; i < item.queries; ++i) {
    finish(s.state[i].sum, s.out + i * padded, a.shape->head_dim,
           a.y + offset_of(a, item, kv_head, i));
  }
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
