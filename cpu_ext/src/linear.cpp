// Dispatch of linears to an instruction set, their scratch, and the embedding look-up.
#define FLARE_ISA_NS portable
#define FLARE_SIMD_PORTABLE
#include "flare/linear.h"

#include "flare/pool.h"
#include "flare/simd.h"
#include "linear_geometry.h"

namespace flare {

namespace {

float bf16_value(const uint8_t* block, int column, int i) {
  uint16_t bits;
  std::memcpy(&bits, block + (i / 2) * 64 + column * 4 + (i % 2) * 2, sizeof bits);
  return portable::bf16_to_float(bits);
}

float factor(const uint8_t* block, int offset, int column) {
  uint16_t bits;
  std::memcpy(&bits, block + offset + 2 * column, sizeof bits);
  return portable::half_to_float(bits);
}

void q4_values(const uint8_t* block, int column, float* out) {
  const double d = factor(block, 256, column), m = factor(block, 288, column);
  for (int i = 0; i < kGroup; ++i) {
    const uint8_t byte = block[(i / 8) * 64 + column * 4 + i % 4];
    const int code = i % 8 < 4 ? byte & 15 : byte >> 4;
    out[i] = static_cast<float>(code * d + m);  // the sum is exact in double: rounded once
  }
}

void q8_values(const uint8_t* block, int column, float* out) {
  const float d = factor(block, 512, column);
  for (int i = 0; i < kGroup; ++i) {
    out[i] = static_cast<float>(block[(i / 4) * 64 + column * 4 + i % 4] - 128) * d;
  }
}

}  // namespace

size_t packed_bytes(Layout layout, int n, int k) {
  return static_cast<size_t>(ceil_div(n, kPanel)) * static_cast<size_t>(ceil_div(k, kGroup)) *
         static_cast<size_t>(block_bytes(layout));
}

bool linear_supports(Layout layout, Numerics numerics) {
  return numerics == Numerics::bf16_t32 || layout != Layout::bf16p16;
}

size_t linear_rows_bytes(int max_rows, int max_k) {
  // Two roles: each may end in a partly filled row block.
  return align64(span_bytes(max_rows + 2 * kBlockRows, ceil_div(max_k, kGroup)) + kSlack);
}

size_t linear_thread_bytes(int max_k) { return align64(ThreadArea(ceil_div(max_k, kGroup)).bytes); }

float* linear_spare(const LinearScratch& scratch, int k) {
  static_assert(kSpareRows * kGroup * sizeof(float) <= kTileBytes, "a tile area is large enough");
  return reinterpret_cast<float*>(scratch.own + ThreadArea(ceil_div(k, kGroup)).tiles);
}

int crew_threads(const Crew& crew) { return crew.threads(); }
void crew_begin(Crew& crew, int tid, int64_t total, int64_t grain) {
  crew.begin(tid, total, grain);
}
bool crew_next(Crew& crew, int tid, Share* piece) {
  int64_t first = 0, last = 0;
  if (!crew.next(tid, &first, &last)) return false;
  *piece = {static_cast<int>(first), static_cast<int>(last)};
  return true;
}

void embed_row(Layout layout, const uint8_t* w, int k, int row, float* out) {
  const int groups = ceil_div(k, kGroup), bytes = block_bytes(layout), column = row % kPanel;
  const uint8_t* block = w + static_cast<size_t>(row / kPanel) * groups * bytes;
  for (int g = 0; g < groups; ++g, block += bytes, out += kGroup) {
    if (layout == Layout::q4p16) {
      q4_values(block, column, out);
    } else if (layout == Layout::q8p16) {
      q8_values(block, column, out);
    } else {
      const int count = k - g * kGroup < kGroup ? k - g * kGroup : kGroup;
      for (int i = 0; i < count; ++i) out[i] = bf16_value(block, column, i);
    }
  }
}

// Calls a function of the instruction set's unit.
#if defined(__x86_64__)
#define FLARE_DISPATCH(isa, call)               \
  switch (isa) {                                \
    case Isa::avx2: return avx2::call;          \
    case Isa::avx512: return avx512::call;      \
    case Isa::amx: return amx::call;            \
    default: return portable::call;             \
  }
#elif defined(__aarch64__)
#define FLARE_DISPATCH(isa, call) \
  if (isa == Isa::neon) return neon::call; \
  return portable::call
#else
#define FLARE_DISPATCH(isa, call) return portable::call
#endif

void linear(Isa isa, const LinearArgs& args, const LinearScratch& scratch, int tid, Crew& crew) {
  FLARE_DISPATCH(isa, linear_run(args, scratch, tid, crew));
}

void linear_convert(Isa isa, const LinearArgs& args, const LinearScratch& scratch, const float* x,
                    int first, int last) {
  const Share share = {first, last};
  FLARE_DISPATCH(isa, linear_convert(args, scratch.rows, x, share));
}

RowTiles linear_tiles(Isa isa, const LinearArgs& args, const LinearScratch& scratch) {
  FLARE_DISPATCH(isa, linear_tiles(args, scratch.rows));
}

}  // namespace flare
