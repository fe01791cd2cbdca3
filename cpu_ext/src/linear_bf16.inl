// bf16_t32 on vectors: the order of TDPBF16PS with float32 fused multiply-adds.
//
// Needs kTileRows: rows that share one widened pair of weights.

namespace flare {
namespace FLARE_ISA_NS {

// One q4p16 or q8p16 block as a bfloat16 tile: [pair of k][16 columns][2].
template <Layout L>
FLARE_INLINE void dequantise_block(const uint8_t* block, uint8_t* tile) {
  constexpr bool minima = L == Layout::q4p16;
  constexpr int code_bytes = minima ? 256 : 512;
  const V d = load_half(block + code_bytes);
  const V m = minima ? load_half(block + code_bytes + 32) : splat(-128.0f) * d;  // exact
  for (int pair = 0; pair < kGroup / 2; ++pair) {
    V value[2];
    for (int i = 0; i < 2; ++i) {
      const int k = 2 * pair + i;
      const uint8_t* run = block + (minima ? k / 8 : k / 4) * 64;
      const int shift = 8 * (k % 4) + (minima && k % 8 >= 4 ? 4 : 0);
      value[i] = fma(load_field(run, shift, minima ? 15u : 255u), d, m);
    }
    store_bf16_pairs(tile + 64 * pair, value[0], value[1]);
  }
}

#if !defined(FLARE_TILES)

static void dequantise_panel(Layout layout, const uint8_t* w, int groups, uint8_t* tiles) {
  const int bytes = block_bytes(layout);
  for (int g = 0; g < groups; ++g, w += bytes, tiles += kTileBytes) {
    if (layout == Layout::q4p16) {
      dequantise_block<Layout::q4p16>(w, tiles);
    } else {
      dequantise_block<Layout::q8p16>(w, tiles);
    }
  }
}

// Accumulates R rows over one panel of tiles; x: the first row's floats in the first group.
template <int R>
static void bf16_rows(const uint8_t* tiles, int groups, const float* x, int pitch, float* sums) {
  V acc[R];
  FLARE_UNROLL
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (int g = 0; g < groups; ++g, tiles += kTileBytes, x += pitch * kGroup) {
    V even[R], odd[R];
    FLARE_UNROLL
    for (int r = 0; r < R; ++r) even[r] = odd[r] = zero();
    for (int pair = 0; pair < kGroup / 2; ++pair) {
      const Pairs w = load_bf16_pairs(tiles + 64 * pair);
      FLARE_UNROLL
      for (int r = 0; r < R; ++r) {
        even[r] = fma(splat(x[r * kGroup + 2 * pair]), w.even, even[r]);
        odd[r] = fma(splat(x[r * kGroup + 2 * pair + 1]), w.odd, odd[r]);
      }
    }
    FLARE_UNROLL
    for (int r = 0; r < R; ++r) acc[r] = acc[r] + (even[r] + odd[r]);
  }
  FLARE_UNROLL
  for (int r = 0; r < R; ++r) store(sums + r * kPanel, acc[r]);
}

using Bf16Rows = void (*)(const uint8_t*, int, const float*, int, float*);

template <int R = kTileRows>
static Bf16Rows bf16_rows_for(int rows) {
  if constexpr (R == 1) {
    return bf16_rows<1>;
  } else {
    return rows == R ? bf16_rows<R> : bf16_rows_for<R - 1>(rows);
  }
}

// One row block against one panel of tiles.
static void bf16_block(const uint8_t* tiles, int groups, const uint8_t* base, int rows,
                       float* sums) {
  const int pitch = row_pitch(rows);
  for (int r = 0; r < rows; r += kTileRows) {
    const int count = rows - r < kTileRows ? rows - r : kTileRows;
    const float* x = reinterpret_cast<const float*>(base) + r * kGroup;
    bf16_rows_for(count)(tiles, groups, x, pitch, sums + r * kPanel);
  }
}

#endif  // FLARE_TILES

}  // namespace FLARE_ISA_NS
}  // namespace flare
