// Paged attention in vector form, for both numerics classes. Included once per instruction set.
//
// Order (both classes): scores of 16 keys in a vector; per 32 dimensions one fma chain over the
// even and one over the odd ones, each from 0, and their sum is added to the score. Softmax in base
// 2 per tile of 64 keys. Outputs of 16 dimensions in a vector; per 32 keys the same two chains.
// The prompt class (kRound) rounds scaled queries and probabilities to bfloat16, and is then the
// order of TDPBF16PS. Its reference is a multiple of 16, raised only when a tile's sums exceed a
// bound: what was summed before is then scaled by a power of two. The generated class starts afresh
// at every partition of 256 keys and merges the partitions in ascending order, so that threads may
// share the keys of one query.

namespace flare {
namespace FLARE_ISA_NS {

#if defined(__AVX512F__) && !defined(FLARE_SIMD_PORTABLE)
constexpr int kGroup = 4;   // queries that share a load
constexpr int kSpan = 2;    // score vectors at once
constexpr int kWide = 4;    // output vectors at once
#else
constexpr int kGroup = 2;
constexpr int kSpan = 1;
constexpr int kWide = 1;
#endif

constexpr int kAheadLocality = 2;    // of prefetches: the second-level cache
constexpr float kLowest = -1.0e30f;  // maximum before the first key; 2^(kLowest - m) is 0
constexpr float kRaise = 1048576.0f;  // a prompt tile's sum that makes its reference too low
constexpr float kExp2Cubic = 0.055008746683597565f, kExp2Square = 0.2422107607126236f,
                kExp2Linear = 0.6932829022407532f;
alignas(64) static const float kLaneIndex[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                 8, 9, 10, 11, 12, 13, 14, 15};

// 2^x in the prompt class, whose probabilities are rounded to bfloat16 anyway: relative error 1e-4
// (our own minimax fit of (2^r - 1) / r). 0 gives 1; x < -126 gives 0; x >= 127 at least 2^127; NaN
// stays NaN.
FLARE_INLINE V exp2_prompt(V x) {
  const V low = splat(-126.0f);
  const V c = min(splat(127.0f), max(low, x));
  const V t = c + splat(kRoundMagic);
  const V r = c - (t - splat(kRoundMagic));
  V q = splat(kExp2Cubic);
  q = fma(q, r, splat(kExp2Square));
  q = fma(q, r, splat(kExp2Linear));
  const V y = scale_by_low_bits(fma(q, r, splat(1.0f)), t);
  return select_lt(x, low, zero(), y);
}

// The prompt class's reference for scores of up to `highest`: at least that, a multiple of 16.
FLARE_INLINE float reference_above(float highest) {
  const V steps = rint(fma(splat(highest), splat(0.0625f), splat(0.5f)));
  return hmax(steps * splat(16.0f));
}

struct Tile {
  const uint8_t* keys;
  const uint8_t* values;
  int first_key;  // absolute position
};

FLARE_INLINE int position_of(const AttentionArgs& a, const AttentionItem& item, int query) {
  return item.position + (item.first_query + query) / a.group;
}

FLARE_INLINE int64_t offset_of(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                               int query) {
  const int index = item.first_query + query;
  const int64_t row = item.first_row + index / a.group;
  const int64_t head = static_cast<int64_t>(kv_head) * a.group + index % a.group;
  return (row * a.heads + head) * a.shape->head_dim;
}

FLARE_INLINE Tile tile_at(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                          int tile) {
  const int64_t block = a.tables[item.segment * a.table_stride + tile];
  const uint8_t* keys =
      a.cache + block * a.shape->block_bytes + kv_head * a.shape->head_bytes;
  return {keys, keys + a.shape->value_offset, tile * kKeyTile};
}

template <bool kRound>
FLARE_INLINE void load_queries(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                               AttentionScratch& s) {
  const int dim = a.shape->head_dim, padded = a.shape->padded_dim;
  const V scale = splat(a.scale);
  for (int i = 0; i < item.queries; ++i) {
    const float* from = a.q + offset_of(a, item, kv_head, i);
    float* to = s.q + i * padded;
    for (int d = 0; d < padded; d += kLanes) {
      const int left = dim - d;
      V v = left >= kLanes ? load(from + d) : load_partial(from + d, left > 0 ? left : 0);
      v = v * scale;
      if (kRound) v = round_bf16(v);
      store(to + d, v);
    }
  }
}

FLARE_INLINE void clear(AttentionState* states, int queries, int padded) {
  for (int i = 0; i < queries; ++i) {
    states[i].maximum = kLowest;
    store(states[i].sum, zero());
    for (int d = 0; d < padded; d += kLanes) store(states[i].out + d, zero());
  }
}

// Asks for N lines of what comes next, from memory into the second-level cache: tiles lie
// scattered, which the processor's own prefetchers do not see ahead.
template <int N>
FLARE_INLINE void ask(const uint8_t* ahead) {
#pragma GCC unroll 4
  for (int n = 0; n < N; ++n) __builtin_prefetch(ahead + n * 64, 0, kAheadLocality);
}

// scores[g][16 * n ...] for G queries and N vectors of 16 keys, from the one at `keys`. `ahead`:
// the same keys of the next tile.
template <int G, int N>
FLARE_INLINE void score(const uint8_t* keys, const uint8_t* ahead, const float* q, int padded,
                        float* scores) {
  V acc[G][N];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) acc[g][n] = zero();
  }
  for (int block = 0; block < padded; block += 32) {
    V even[G][N], odd[G][N];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) even[g][n] = odd[g][n] = zero();
    }
    for (int d = block; d < block + 32; d += 2) {
      const uint8_t* line = keys + d / 2 * (kKeyTile * 4);
      ask<N>(ahead + d / 2 * (kKeyTile * 4));
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        const Pairs k = load_bf16_pairs(line + n * 64);
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          even[g][n] = fma(k.even, splat(q[g * padded + d]), even[g][n]);
          odd[g][n] = fma(k.odd, splat(q[g * padded + d + 1]), odd[g][n]);
        }
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) acc[g][n] = acc[g][n] + (even[g][n] + odd[g][n]);
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(scores + g * kKeyTile + n * kLanes, acc[g][n]);
  }
}

// The scores of one query; those from `count` on far below any other.
FLARE_INLINE void load_visible(const float* s, int count, V* v) {
  for (int n = 0; n < 4; ++n) {
    v[n] = load(s + n * kLanes);
    if (count < (n + 1) * kLanes) {
      const V limit = splat(static_cast<float>(count - n * kLanes));
      v[n] = select_lt(load(kLaneIndex), limit, v[n], splat(kLowest));
    }
  }
}

FLARE_INLINE float highest_of(const V* v) { return hmax(max(max(v[0], v[1]), max(v[2], v[3]))); }

FLARE_INLINE void rescale(AttentionState& state, V alpha, int padded) {
  for (int d = 0; d < padded; d += kLanes) store(state.out + d, load(state.out + d) * alpha);
}

// Turns the scores of one query into probabilities; the first `count` keys are visible to it.
FLARE_INLINE void soften(float* s, int count, int padded, AttentionState& state) {
  V v[4];
  load_visible(s, count, v);
  const float highest = highest_of(v);
  const float maximum = highest > state.maximum ? highest : state.maximum;
  const V m = splat(maximum);
  const V alpha = exp2_nonpositive(splat(state.maximum) - m);
  for (int n = 0; n < 4; ++n) {
    v[n] = exp2_nonpositive(v[n] - m);
    if (count < (n + 1) * kLanes) {
      const V limit = splat(static_cast<float>(count - n * kLanes));
      v[n] = select_lt(load(kLaneIndex), limit, v[n], zero());
    }
    store(s + n * kLanes, v[n]);
  }
  store(state.sum, fma(load(state.sum), alpha, (v[0] + v[1]) + (v[2] + v[3])));
  if (maximum != state.maximum) rescale(state, alpha, padded);  // else alpha is 1
  state.maximum = maximum;
}

// 2^(v - maximum), rounded, into p. Returns their 16 sums, lane i: of keys 2 i and 2 i + 1 and of
// those 32 behind, the odd ones first.
FLARE_INLINE V soften_from(const V* v, float maximum, float* p) {
  alignas(64) uint16_t narrow16[kKeyTile];
  for (int n = 0; n < 4; ++n) {
    store_bf16(narrow16 + n * kLanes, exp2_prompt(v[n] - splat(maximum)));
    store(p + n * kLanes, load_bf16(narrow16 + n * kLanes));
  }
  const Pairs a = load_bf16_pairs(narrow16), b = load_bf16_pairs(narrow16 + 2 * kLanes);
  return (((zero() + a.odd) + a.even) + b.odd) + b.even;
}

// The same for the prompt class.
FLARE_INLINE void soften_prompt(float* s, int count, int padded, AttentionState& state) {
  V v[4];
  load_visible(s, count, v);
  const V part = soften_from(v, state.maximum, s);
  if (!(hmax(part) > kRaise)) {
    store(state.sum, load(state.sum) + part);
    return;
  }
  const float highest = highest_of(v);
  const float maximum = highest > state.maximum ? reference_above(highest) : state.maximum;
  const V alpha = exp2_prompt(splat(state.maximum) - splat(maximum));
  store(state.sum, fma(load(state.sum), alpha, soften_from(v, maximum, s)));
  rescale(state, alpha, padded);
  state.maximum = maximum;
}

// out[g][16 * n ...] += probabilities x values over the first `count` keys of the tile. `ahead`:
// the next tile's values.
template <int G, int N>
FLARE_INLINE void weigh(const uint8_t* values, const uint8_t* ahead, const float* p, int count,
                        int padded, AttentionState* states, int dim) {
  V acc[G][N];
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) acc[g][n] = load(states[g].out + dim + n * kLanes);
  }
  for (int block = 0; block < count; block += 32) {
    const int last = count < block + 32 ? count : block + 32;
    V even[G][N], odd[G][N];
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) even[g][n] = odd[g][n] = zero();
    }
    int k = block;
    for (; k + 1 < last; k += 2) {
      const int64_t offset = (static_cast<int64_t>(k / 2) * padded + dim) * 4;
      const uint8_t* line = values + offset;
      ask<N>(ahead + offset);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        const Pairs v = load_bf16_pairs(line + n * 64);
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          even[g][n] = fma(v.even, splat(p[g * kKeyTile + k]), even[g][n]);
          odd[g][n] = fma(v.odd, splat(p[g * kKeyTile + k + 1]), odd[g][n]);
        }
      }
    }
    if (k < last) {  // the pair's second token is not the segment's
      const uint8_t* line = values + (static_cast<int64_t>(k / 2) * padded + dim) * 4;
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        const Pairs v = load_bf16_pairs(line + n * 64);
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) {
          even[g][n] = fma(v.even, splat(p[g * kKeyTile + k]), even[g][n]);
        }
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) acc[g][n] = acc[g][n] + (even[g][n] + odd[g][n]);
    }
  }
#pragma GCC unroll 4
  for (int g = 0; g < G; ++g) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store(states[g].out + dim + n * kLanes, acc[g][n]);
  }
}

// One tile for G queries, of which query g sees counts[g] > 0 keys (ascending).
template <bool kRound, int G>
static void attend_group(const Tile& tile, const Tile& ahead, const float* q, const int* counts,
                         int padded, float* scores, AttentionState* states) {
  const int count = counts[G - 1];
  for (int n = 0; n * kLanes < count; n += kSpan) {
    score<G, kSpan>(tile.keys + n * 64, ahead.keys + n * 64, q, padded, scores + n * kLanes);
  }
  for (int g = 0; g < G; ++g) {
    if (kRound) {
      soften_prompt(scores + g * kKeyTile, counts[g], padded, states[g]);
    } else {
      soften(scores + g * kKeyTile, counts[g], padded, states[g]);
    }
  }
  int d = 0;
  constexpr int kDims = G == 4 && kWide > 2 ? 2 : kWide;
  for (; d + kDims * kLanes <= padded; d += kDims * kLanes) {
    weigh<G, kDims>(tile.values, ahead.values, scores, count, padded, states, d);
  }
  for (; d < padded; d += kLanes) {
    weigh<G, 1>(tile.values, ahead.values, scores, count, padded, states, d);
  }
}

// `ahead`: the tile that the thread is likely to come to next, itself when there is none.
template <bool kRound>
static void attend_tile(const AttentionArgs& a, const AttentionItem& item, const Tile& t,
                        Tile ahead, AttentionScratch& s) {
  const int padded = a.shape->padded_dim;
  for (int i = 0; i < item.queries;) {
    int counts[kGroup];
    int n = 0;
    for (; n < kGroup && i + n < item.queries; ++n) {
      const int visible = position_of(a, item, i + n) + 1 - t.first_key;
      if (visible <= 0) break;
      counts[n] = visible < kKeyTile ? visible : kKeyTile;
    }
    if (n == 0) {  // before this tile: all of it is in the query's future
      ++i;
      continue;
    }
    const float* q = s.q + i * padded;
    AttentionState* states = s.state + i;
    switch (n) {
      case 1: attend_group<kRound, 1>(t, ahead, q, counts, padded, s.scores, states); break;
      case 2: attend_group<kRound, 2>(t, ahead, q, counts, padded, s.scores, states); break;
#if defined(__AVX512F__) && !defined(FLARE_SIMD_PORTABLE)
      case 3: attend_group<kRound, 3>(t, ahead, q, counts, padded, s.scores, states); break;
      default: attend_group<kRound, 4>(t, ahead, q, counts, padded, s.scores, states); break;
#endif
    }
    i += n;
    ahead = t;  // asked for
  }
}

// y = out / sum; adding zero turns -0 into 0, so that a sign of zero never tells of masked keys.
FLARE_INLINE void finish(const float* sum, const float* out, int head_dim, float* y) {
  const V inverse = splat(1.0f / hsum(load(sum)));
  int d = 0;
  for (; d + kLanes <= head_dim; d += kLanes) store(y + d, fma(load(out + d), inverse, zero()));
  if (d < head_dim) store_partial(y + d, fma(load(out + d), inverse, zero()), head_dim - d);
}

FLARE_INLINE int last_position(const AttentionArgs& a, const AttentionItem& item) {
  return position_of(a, item, item.queries - 1);
}

// total = total and then part, both over their own keys.
FLARE_INLINE void merge(AttentionState& total, float part_maximum, const float* part_sum,
                        const float* part_out, int padded) {
  const float maximum = part_maximum > total.maximum ? part_maximum : total.maximum;
  const V m = splat(maximum);
  const V a = exp2_nonpositive(splat(total.maximum) - m);
  const V b = exp2_nonpositive(splat(part_maximum) - m);
  store(total.sum, fma(load(part_sum), b, load(total.sum) * a));
  for (int d = 0; d < padded; d += kLanes) {
    store(total.out + d, fma(load(part_out + d), b, load(total.out + d) * a));
  }
  total.maximum = maximum;
}

// Floats of a stored partial: maximum (padded to 16), sums, output.
FLARE_INLINE float* partial_at(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                               int part, int query) {
  const int parts = partitions(last_position(a, item));
  const int64_t index =
      item.partial + (static_cast<int64_t>(kv_head) * parts + part) * item.queries + query;
  return a.partials + index * a.partial_stride;
}

// `after`: the tile that the thread is likely to come to behind the item's last.
FLARE_INLINE void attend_partition(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                                   int part, const Tile& after, AttentionScratch& s) {
  clear(s.state, item.queries, a.shape->padded_dim);
  const int last = last_position(a, item) / kKeyTile;
  const int end = (part + 1) * kPartitionTiles;
  Tile t = tile_at(a, item, kv_head, part * kPartitionTiles);
  for (int tile = part * kPartitionTiles; tile < end && tile <= last; ++tile) {
    const bool more = tile < last && (item.part < 0 || tile + 1 < end);
    const Tile ahead = more ? tile_at(a, item, kv_head, tile + 1) : after;
    attend_tile<false>(a, item, t, ahead, s);
    t = ahead;
  }
}

// The first tile of the work that follows: the next item's, with the same kv head.
FLARE_INLINE Tile tile_after(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                             const AttentionItem* next) {
  const AttentionItem& to = next == nullptr ? item : *next;
  return tile_at(a, to, kv_head, to.part < 0 ? 0 : to.part * kPartitionTiles);
}

static void attend_generated(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                             const AttentionItem* next, AttentionScratch& s) {
  const int padded = a.shape->padded_dim;
  const Tile after = tile_after(a, item, kv_head, next);
  load_queries<false>(a, item, kv_head, s);
  if (item.part >= 0) {
    attend_partition(a, item, kv_head, item.part, after, s);
    for (int i = 0; i < item.queries; ++i) {
      float* to = partial_at(a, item, kv_head, item.part, i);
      to[0] = s.state[i].maximum;
      store(to + kLanes, load(s.state[i].sum));
      for (int d = 0; d < padded; d += kLanes) {
        store(to + 2 * kLanes + d, load(s.state[i].out + d));
      }
    }
    return;
  }
  const int parts = partitions(last_position(a, item));
  clear(s.total, item.queries, padded);
  for (int part = 0; part < parts; ++part) {
    attend_partition(a, item, kv_head, part, after, s);
    for (int i = 0; i < item.queries; ++i) {
      if (position_of(a, item, i) < part * kPartitionKeys) continue;
      merge(s.total[i], s.state[i].maximum, s.state[i].sum, s.state[i].out, padded);
    }
  }
  for (int i = 0; i < item.queries; ++i) {
    finish(s.total[i].sum, s.total[i].out, a.shape->head_dim,
           a.y + offset_of(a, item, kv_head, i));
  }
}

static void attend_merge(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                         AttentionScratch& s) {
  const int padded = a.shape->padded_dim;
  clear(s.total, item.queries, padded);
  for (int i = 0; i < item.queries; ++i) {
    for (int part = 0; part < partitions(position_of(a, item, i)); ++part) {
      const float* from = partial_at(a, item, kv_head, part, i);
      merge(s.total[i], from[0], from + kLanes, from + 2 * kLanes, padded);
    }
    finish(s.total[i].sum, s.total[i].out, a.shape->head_dim,
           a.y + offset_of(a, item, kv_head, i));
  }
}

#if !defined(FLARE_TILES)

static void attend_begin() {}
static void attend_end() {}

static void attend_prompt(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                          AttentionScratch& s) {
  load_queries<true>(a, item, kv_head, s);
  clear(s.state, item.queries, a.shape->padded_dim);
  const int last = last_position(a, item) / kKeyTile;
  for (int tile = 0; tile <= last; ++tile) {
    const Tile t = tile_at(a, item, kv_head, tile);
    attend_tile<true>(a, item, t, t, s);
  }
  for (int i = 0; i < item.queries; ++i) {
    finish(s.state[i].sum, s.state[i].out, a.shape->head_dim,
           a.y + offset_of(a, item, kv_head, i));
  }
}

#endif

}  // namespace FLARE_ISA_NS
}  // namespace flare
