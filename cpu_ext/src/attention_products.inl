// Attention's products in vector form: where a tile of keys and a query lie, scores, and the
// weighing of values. The order is that of attention.inl.

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

}  // namespace FLARE_ISA_NS
}  // namespace flare
