// Conversion of a launch's float rows to what the kernels read (see linear_geometry.h).

namespace flare {
namespace FLARE_ISA_NS {

// Rows of one role, converted to one class. `tiles`: bf16_t32 rows are kept as bfloat16.
struct Span {
  int first, rows;  // rows [first, first + rows) of the launch
  Numerics numerics;
  uint8_t* base;
};

// What one thread works with.
struct Work {
  const LinearArgs& args;
  int groups;          // of 32 along k
  size_t panel_bytes;  // of the packed weight
  uint8_t* tiles;      // room for two panels as bfloat16 tiles
  float* sums;         // room for kSumBytes of accumulators
};

// Neighbouring panels, the unit of the walk: one or two, of bf16_g32 alone up to kRun.
struct Panels {
  int first, count;
};

#if defined(FLARE_TILES)
constexpr int kBf16RowBytes = 64;
#else
constexpr int kBf16RowBytes = 128;
#endif

FLARE_INLINE int rows_in_block(const Span& span, int block) {
  const int left = span.rows - block * kBlockRows;
  return left < kBlockRows ? left : kBlockRows;
}

// Bytes of a row in a full block.
FLARE_INLINE size_t row_bytes(Numerics numerics, int groups) {
  const size_t k = static_cast<size_t>(groups);
  switch (numerics) {
    case Numerics::int8_g32: return k * code_row_bytes(1);
    case Numerics::bf16_t32: return k * kBf16RowBytes;
    default: return g32_row_bytes(groups);
  }
}

// First byte of a row block; all blocks before it are full.
FLARE_INLINE uint8_t* block_base(const Span& span, int groups, int block) {
  return span.base + static_cast<size_t>(block) * kBlockRows * row_bytes(span.numerics, groups);
}

// 16 integers of up to 12 bits as high and low bytes: 16 high + low. Both are signed bytes, as
// |q| <= 16 * 127.
FLARE_INLINE void store_planes(int8_t* high, V q) {
  const V upper = rint(q * splat(0.0625f));
  store_i8(high, upper);
  store_i8(high + kGroup, fma(splat(-16.0f), upper, q));
}

// One group of one row to integer codes, its scale and, `pitch` words after it, its sum
// (engine/kernels/numerics.py). A scale that is zero or not finite gives zero codes; NaN and
// infinity live on in the scale.
template <int Planes>
FLARE_INLINE void quantise_group(const float* x, bool minima, int8_t* codes, float* scale,
                                 int pitch) {
  constexpr float largest = Planes == 1 ? 127.0f : 16 * 127.0f;
  const V a = load(x), b = load(x + 16);
  const float amax = hmax_abs(a, b);
  const float s = amax / largest;
  float sum = 0.0f;
  if (s > 0.0f && s < __builtin_inff()) {
    const V inverse = splat(largest / amax);
    const V qa = rint(a * inverse), qb = rint(b * inverse);
    if constexpr (Planes == 1) {
      store_i8(codes, qa);
      store_i8(codes + 16, qb);
    } else {
      store_planes(codes, qa);
      store_planes(codes + 16, qb);
    }
    sum = hsum(qa + qb);  // integers: exact in any order
  } else {
    std::memset(codes, 0, kGroup * Planes);
  }
  *scale = s;
  if (minima) {
    scale[pitch] = s * sum;
  } else {
    const int32_t start = -128 * static_cast<int32_t>(sum);
    std::memcpy(scale + pitch, &start, sizeof start);
  }
}

template <int Planes>
static void convert_row_int(const float* x, uint8_t* block, int groups, int pitch, int row,
                            bool minima) {
  for (int g = 0; g < groups; ++g, x += kGroup, block += pitch * code_row_bytes(Planes)) {
    int8_t* codes = reinterpret_cast<int8_t*>(block) + row * kGroup * Planes;
    float* scales = reinterpret_cast<float*>(block + pitch * kGroup * Planes);
    quantise_group<Planes>(x, minima, codes, scales + row, pitch);
  }
}

FLARE_INLINE void round_group(const float* x, int count, uint8_t* out) {
  const V a = count >= 16 ? load(x) : load_partial(x, count);
  const V b = count >= 32 ? load(x + 16) : count > 16 ? load_partial(x + 16, count - 16) : zero();
#if defined(FLARE_TILES)
  store_bf16(out, a);
  store_bf16(out + 32, b);
#else
  store(reinterpret_cast<float*>(out), round_bf16(a));
  store(reinterpret_cast<float*>(out) + 16, round_bf16(b));
#endif
}

}  // namespace FLARE_ISA_NS
}  // namespace flare

#include "linear_rows_g32.inl"

namespace flare {
namespace FLARE_ISA_NS {

static void convert_row(const LinearArgs& args, const Span& span, int groups, int index,
                        const float* x, TileUse& use) {
  const int block = index / kBlockRows, row = index % kBlockRows;
  const int pitch = row_pitch(rows_in_block(span, block));
  uint8_t* out = block_base(span, groups, block);
  const bool minima = args.layout == Layout::q4p16;
  switch (span.numerics) {
    case Numerics::bf16_g32: convert_row_g32(x, out, groups, pitch, row, minima, use); break;
    case Numerics::int8_g32: convert_row_int<1>(x, out, groups, pitch, row, minima); break;
    case Numerics::int12_g32:
      if (in_tiles(args.layout, pitch)) {
        convert_row_int12(x, out, groups, pitch, row);
      } else {
        convert_row_int<2>(x, out, groups, pitch, row, minima);
      }
      break;
    case Numerics::bf16_t32:
      for (int g = 0; g < groups; ++g, out += pitch * kBf16RowBytes, x += kGroup) {
        round_group(x, args.k - g * kGroup, out + row * kBf16RowBytes);
      }
  }
}

struct Spans {
  Span span[2];
  int count;
};

// The roles' rows. Equal classes make one span, so that row blocks fill up.
static Spans make_spans(const LinearArgs& args, int groups, uint8_t* base) {
  const int generated = args.generated_rows;
  if (generated == 0) return {{{0, args.rows, args.prompt, base}, {}}, 1};
  if (generated == args.rows || args.generated == args.prompt) {
    return {{{0, args.rows, args.generated, base}, {}}, 1};
  }
  uint8_t* second = base + align64(span_bytes(generated, groups));
  return {{{0, generated, args.generated, base},
           {generated, args.rows - generated, args.prompt, second}},
          2};
}

// x: the floats of the first of `rows`.
static void convert_rows(const LinearArgs& args, const Spans& spans, int groups, Share rows,
                         const float* x, TileUse& use) {
  for (int i = 0; i < spans.count; ++i) {
    const Span& span = spans.span[i];
    const int begin = rows.begin > span.first ? rows.begin - span.first : 0;
    const int end = rows.end - span.first < span.rows ? rows.end - span.first : span.rows;
    for (int index = begin; index < end; ++index) {
      const float* from = x + (span.first + index - rows.begin) * args.ldx;
      convert_row(args, span, groups, index, from, use);
    }
  }
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
