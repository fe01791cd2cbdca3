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

// As finish, as bfloat16 into the tiles of the linear that follows.
FLARE_INLINE void finish_tiles(const RowTiles& tiles, int row, int column, const float* sum,
                               const float* out, int head_dim) {
  const V inverse = splat(1.0f / hsum(load(sum)));
  for (int d = 0; d < head_dim; d += 32) {
    uint8_t* y = tile_row(tiles, row, (column + d) / 32);
    store_bf16(y, fma(load(out + d), inverse, zero()));
    store_bf16(y + 32, fma(load(out + d + kLanes), inverse, zero()));
  }
}

FLARE_INLINE void finish_item(const AttentionArgs& a, const AttentionItem& item, int kv_head,
                              const TileRows& rows, const float* out) {
  const int dim = a.shape->head_dim, width = a.heads * dim;
  for (int i = 0; i < item.queries; ++i, out += a.shape->padded_dim) {
    const float* sum = rows.sum + i * kLanes;
    const int64_t offset = offset_of(a, item, kv_head, i);
    if (a.tiles.base != nullptr) {
      const int row = static_cast<int>(offset / width), column = static_cast<int>(offset % width);
      finish_tiles(a.tiles, row, column, sum, out, dim);
    } else {
      finish(sum, out, dim, a.y + offset);
    }
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
  publish();
  for (int half = 0; half < H; ++half) start_references(rows, here, 16 * half);
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
  finish_item(a, item, kv_head, rows, s.out);
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
