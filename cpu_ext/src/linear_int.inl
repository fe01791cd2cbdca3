// int8_g32 and int12_g32 on vectors: up to kDotRows rows share one unpacked group.
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

// The same of `Planes` bytes per code, the 32 high ones first: 16 high + low. Every part is below
// 2^24, hence exact.
template <int Planes, Layout L>
FLARE_INLINE V dot_planes(const Codes<L>& codes, const int8_t* q, int32_t start) {
  if constexpr (Planes == 1) {
    return codes.dot(q, start);
  } else {
    return fma(splat(16.0f), codes.dot(q, 0), codes.dot(q + kGroup, start));
  }
}

// Accumulates R rows over one panel: sums[r] gets 16 columns. q and scales: the first row's codes
// and scale in the first group; pitch: words from a row's scale to its sum. Planes: bytes of a code,
// 1 for int8_g32, 2 for int12_g32.
template <Layout L, int R, int Planes>
static void int_rows(const uint8_t* w, int groups, const int8_t* q, const float* scales, int pitch,
                     float* sums) {
  constexpr bool minima = L == Layout::q4p16;
  constexpr int code_bytes = minima ? 256 : 512;
  constexpr int bytes = minima ? 320 : 544;
  const int step = pitch * code_row_bytes(Planes);
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
      const V dot = dot_planes<Planes>(codes, q + r * kGroup * Planes, start);
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

using IntRows = void (*)(const uint8_t*, int, const int8_t*, const float*, int, float*);

template <Layout L, int Planes, int R = kDotRows>
static IntRows int_rows_for(int rows) {
  if constexpr (R == 1) {
    return int_rows<L, 1, Planes>;
  } else {
    return rows == R ? int_rows<L, R, Planes> : int_rows_for<L, Planes, R - 1>(rows);
  }
}

// One row block against one panel.
template <int Planes>
static void int_block(Layout layout, const uint8_t* w, int groups, const uint8_t* base, int rows,
                      float* sums) {
  const int pitch = row_pitch(rows);
  for (int r = 0; r < rows; r += kDotRows) {
    const int count = rows - r < kDotRows ? rows - r : kDotRows;
    const IntRows kernel = layout == Layout::q4p16 ? int_rows_for<Layout::q4p16, Planes>(count)
                                                   : int_rows_for<Layout::q8p16, Planes>(count);
    const int8_t* q = reinterpret_cast<const int8_t*>(base) + r * kGroup * Planes;
    const float* scales = reinterpret_cast<const float*>(base + pitch * kGroup * Planes) + r;
    kernel(w, groups, q, scales, pitch, sums + r * kPanel);
  }
}

// Row block number `block` of a span against neighbouring panels.
template <int Planes>
static void block_vectors(const Work& work, const Span& span, int block, Panels panels) {
  const int rows = rows_in_block(span, block);
  const uint8_t* base = block_base(span, work.groups, block);
  for (int p = 0; p < panels.count; ++p) {
    const uint8_t* w = work.args.w + (panels.first + p) * work.panel_bytes;
    int_block<Planes>(work.args.layout, w, work.groups, base, rows, work.sums + p * kSumStride);
  }
  finish_run(work.args, span.first + block * kBlockRows, rows, panels, work.sums);
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
