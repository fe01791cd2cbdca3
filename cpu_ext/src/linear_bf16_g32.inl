// bf16_g32 on vectors: the order of TDPBF16PS within a group, on codes as they are; the group's
// factors come after (engine/kernels/numerics.py).
//
// Needs kTileRows: rows that share one widened pair of codes.

namespace flare {
namespace FLARE_ISA_NS {

// The factors of a block's 16 columns: acc + scale * C + offset * S.
template <Layout L>
struct GroupFactors {
  V scale, offset;

  FLARE_INLINE_MEMBER explicit GroupFactors(const uint8_t* block) {
    if constexpr (L == Layout::q4p16) {
      const V d = load_half(block + 256), m = load_half(block + 288);
      scale = splat(16.0f) * d;  // exact
      offset = fma(splat(-16.0f), d, m);
    } else {
      scale = load_half(block + 512);
      offset = zero();
    }
  }

  // products: C of 16 columns for one row, sum: that row's S.
  FLARE_INLINE_MEMBER V add(V products, const float* sum, V acc) const {
    acc = fma(scale, products, acc);
    return L == Layout::q4p16 ? fma(offset, splat(*sum), acc) : acc;
  }
};

#if !defined(FLARE_TILES)

// Codes of 16 columns at `k` of a block: 1 + code / 16, or code - 128.
template <Layout L>
FLARE_INLINE V load_code(const uint8_t* block, int k) {
  if constexpr (L == Layout::q4p16) {
    return load_unit(block + k / 8 * 64, 8 * (k % 4) + (k % 8 < 4 ? 0 : 4));
  } else {
    return load_field(block + k / 4 * 64, 8 * (k % 4), 255u) - splat(128.0f);
  }
}

// Accumulates R rows over one panel; x and row_sums: the first row's floats and S in the first
// group.
template <Layout L, int R>
static void g32_rows(const uint8_t* w, int groups, const float* x, const float* row_sums, int pitch,
                     float* sums) {
  constexpr int bytes = L == Layout::q4p16 ? 320 : 544;
  V acc[R];
  FLARE_UNROLL
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (int g = 0; g < groups; ++g, w += bytes, x += pitch * kGroup, row_sums += pitch) {
    prefetch_block<bytes>(w);
    V even[R], odd[R];
    FLARE_UNROLL
    for (int r = 0; r < R; ++r) even[r] = odd[r] = zero();
    FLARE_UNROLL
    for (int k = 0; k < kGroup; k += 2) {
      const V first = load_code<L>(w, k), second = load_code<L>(w, k + 1);
      FLARE_UNROLL
      for (int r = 0; r < R; ++r) {
        even[r] = fma(splat(x[r * kGroup + k]), first, even[r]);
        odd[r] = fma(splat(x[r * kGroup + k + 1]), second, odd[r]);
      }
    }
    const GroupFactors<L> factors(w);
    FLARE_UNROLL
    for (int r = 0; r < R; ++r) {
      acc[r] = factors.add((even[r] + odd[r]) + zero(), row_sums + r, acc[r]);
    }
  }
  FLARE_UNROLL
  for (int r = 0; r < R; ++r) store(sums + r * kPanel, acc[r]);
}

using G32Rows = void (*)(const uint8_t*, int, const float*, const float*, int, float*);

template <Layout L, int R = kTileRows>
static G32Rows g32_rows_for(int rows) {
  if constexpr (R == 1) {
    return g32_rows<L, 1>;
  } else {
    return rows == R ? g32_rows<L, R> : g32_rows_for<L, R - 1>(rows);
  }
}

// One row block against one panel.
static void g32_block(Layout layout, const uint8_t* w, int groups, const uint8_t* base, int rows,
                      float* sums) {
  const int pitch = row_pitch(rows);
  const float* x = reinterpret_cast<const float*>(base);
  const float* row_sums = x + groups * pitch * kGroup;
  for (int r = 0; r < rows; r += kTileRows) {
    const int count = rows - r < kTileRows ? rows - r : kTileRows;
    const G32Rows kernel = layout == Layout::q4p16 ? g32_rows_for<Layout::q4p16>(count)
                                                   : g32_rows_for<Layout::q8p16>(count);
    kernel(w, groups, x + r * kGroup, row_sums + r, pitch, sums + r * kPanel);
  }
}

#endif  // FLARE_TILES

}  // namespace FLARE_ISA_NS
}  // namespace flare
