// Softmax of prompt attention on AMX tiles: as attention_softmax.inl, on rows that tile products left
// and in pieces that run beside other products.

namespace flare {
namespace FLARE_ISA_NS {

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

// Lane i: the highest of v[i].
FLARE_INLINE V highest_of_each(const V* v) {
  V lanes[4];  // [i]: of v[4 i ... 4 i + 3] in turn, four of each
  for (int i = 0; i < 4; ++i) {
    const __m512 a = v[4 * i].r, b = v[4 * i + 1].r, c = v[4 * i + 2].r, d = v[4 * i + 3].r;
    const __m512d ab = _mm512_castps_pd(
        _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    const __m512d cd = _mm512_castps_pd(
        _mm512_max_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
    lanes[i] = {_mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                              _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)))};
  }
  const auto fold = [](V x, V y) {
    return max(V{_mm512_shuffle_f32x4(x.r, y.r, 0x88)}, V{_mm512_shuffle_f32x4(x.r, y.r, 0xdd)});
  };
  return fold(fold(lanes[0], lanes[1]), fold(lanes[2], lanes[3]));
}

// The references of 16 rows for an item's first tile: nothing is summed yet that would have to be
// scaled, as raise_row does.
static void start_references(TileRows& rows, const TileWork& w, int first) {
  V high[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    const float* s = w.scores + (first + i) * kKeyTile;
    const int count = rows.position[first + i] + 1 - w.tile.first_key;
    V v[4];
    for (int n = 0; n < 4; ++n) v[n] = visible_scores<true>(s + n * kLanes, count - n * kLanes);
    high[i] = max(max(v[0], v[1]), max(v[2], v[3]));
  }
  const V highest = highest_of_each(high), low = splat(kLowest);
  store(rows.maximum + first, select_lt(low, highest, reference_above(highest), low));
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
  const float old = rows.maximum[i], maximum = raised(old, highest_of(v));
  const V alpha = exp2_prompt(splat(old) - splat(maximum));
  const V part = pack_row<true>(scores, count, splat(maximum), w.p16 + i * kKeyTile);
  store(rows.sum + i * kLanes, fma(load(rows.sum + i * kLanes), alpha, part));
  for (int d = 0; d < padded; d += kLanes) store(out + d, load(out + d) * alpha);
  rows.maximum[i] = maximum;
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

}  // namespace FLARE_ISA_NS
}  // namespace flare
