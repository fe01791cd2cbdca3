// int8_g32 on vectors: up to kDotRows rows share one unpacked group.
//
// Needs from the instruction set's file: kDotRows, and for q4p16 and q8p16 a struct Codes<L> that
// is built from a block and gives, for 16 columns, the float of the exact integer sum of w * q:
//   V dot(const int8_t* q, int32_t start) const;   // q8p16: start = -128 * sum of q

namespace flare {
namespace FLARE_ISA_NS {

// Bytes ahead of the group at hand that are asked for from memory.
constexpr int kPrefetchBytes = 3072;

template <int Bytes>
FLARE_INLINE void prefetch_block(const uint8_t* block) {
  for (int i = 0; i < Bytes; i += 64) __builtin_prefetch(block + kPrefetchBytes + i, 0, 3);
}

// Accumulates R rows over one panel: sums[r] gets 16 columns. q and scales: the first row's codes
// and scale in the first group; pitch: words from a row's scale to its sum.
template <Layout L, int R>
static void int8_rows(const uint8_t* w, int groups, const int8_t* q, const float* scales, int pitch,
                      float* sums) {
  constexpr bool minima = L == Layout::q4p16;
  constexpr int code_bytes = minima ? 256 : 512;
  constexpr int bytes = minima ? 320 : 544;
  const int step = pitch * kCodeRowBytes;
  V acc[R];
  FLARE_UNROLL
  for (int r = 0; r < R; ++r) acc[r] = zero();
  for (int g = 0; g < groups; ++g) {
    prefetch_block<bytes>(w);
    const Codes<L> codes(w);
    const V d = load_half(w + code_bytes);
    const V m = minima ? load_half(w + code_bytes + 32) : zero();
    FLARE_UNROLL
    for (int r = 0; r < R; ++r) {
      int32_t start = 0;
      if (!minima) std::memcpy(&start, scales + pitch + r, sizeof start);
      const V dot = codes.dot(q + r * kGroup, start);
      acc[r] = fma(dot, d * splat(scales[r]), acc[r]);
      if (minima) acc[r] = fma(m, splat(scales[pitch + r]), acc[r]);
    }
    w += bytes;
    q += step;
    scales += step / 4;
  }
  FLARE_UNROLL
  for (int r = 0; r < R; ++r) store(sums + r * kPanel, acc[r]);
}

using Int8Rows = void (*)(const uint8_t*, int, const int8_t*, const float*, int, float*);

template <Layout L, int R = kDotRows>
static Int8Rows int8_rows_for(int rows) {
  if constexpr (R == 1) {
    return int8_rows<L, 1>;
  } else {
    return rows == R ? int8_rows<L, R> : int8_rows_for<L, R - 1>(rows);
  }
}

// One row block against one panel.
static void int8_block(Layout layout, const uint8_t* w, int groups, const uint8_t* base, int rows,
                       float* sums) {
  const int pitch = row_pitch(rows);
  for (int r = 0; r < rows; r += kDotRows) {
    const int count = rows - r < kDotRows ? rows - r : kDotRows;
    const Int8Rows kernel = layout == Layout::q4p16 ? int8_rows_for<Layout::q4p16>(count)
                                                    : int8_rows_for<Layout::q8p16>(count);
    const int8_t* q = reinterpret_cast<const int8_t*>(base) + r * kGroup;
    const float* scales = reinterpret_cast<const float*>(base + pitch * kGroup) + r;
    kernel(w, groups, q, scales, pitch, sums + r * kPanel);
  }
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
