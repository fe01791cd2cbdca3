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
      soften_prompt(scores + g * kKeyTile, counts[g], tile.first_key == 0, padded, states[g]);
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
