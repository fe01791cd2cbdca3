// Conversion of rows to bf16_g32, and to int12_g32 for tiles. bf16_g32: values rounded to bfloat16
// and, per group, their sum S in the order of TDPBF16PS with ones (engine/kernels/numerics.py), which
// layouts with minima need.

namespace flare {
namespace FLARE_ISA_NS {

#if defined(FLARE_TILES)

// Rows of the tiles that hold `pitch` rows of bf16_g32.
constexpr int tile_rows(int pitch) { return pitch == 1 ? 4 : kBlockRows; }

FLARE_INLINE uint8_t* page_after(uint8_t* p) {
  return p + (-reinterpret_cast<uintptr_t>(p) & (kPage - 1));
}

// Where a row block keeps rows for tiles: a kilobyte per group at a page, and their sums (int12_g32:
// per group R' scales and R' sums). The rows R' .. 15 of a group are zeros, and so is the kilobyte
// before: tiles begin up to 16 - R' rows early, which moves the rows down in them.
struct G32Rows {
  uint8_t* tiles;
  float* sums;
};

FLARE_INLINE G32Rows g32_rows(uint8_t* block, int groups) {
  uint8_t* tiles = page_after(block + kTileBytes);
  return {tiles, reinterpret_cast<float*>(tiles + groups * kTileBytes)};
}

// Zeros around the rows of group g, -1 for the kilobyte before the first.
FLARE_INLINE void clear_around(uint8_t* tiles, int g, int pitch) {
  uint8_t* tile = tiles + g * kTileBytes;
  if (pitch == 1) {  // tiles of four rows
    std::memset(tile + 64, 0, 3 * 64);
    std::memset(tile + 13 * 64, 0, 3 * 64);
  } else {
    std::memset(tile + pitch * 64, 0, (kBlockRows - pitch) * 64);
  }
}

// S of all groups of a row, which are a kilobyte apart: up to 16 groups at a time against a column
// of ones. The last tile may overlap the one before.
static void sum_groups(const uint8_t* row, int groups, float* sums, int pitch, TileUse& use) {
  alignas(64) uint16_t ones[32];
  for (uint16_t& one : ones) one = 0x3f80;
  const int rows = groups < kBlockRows ? groups : kBlockRows;
  use.shape(64, rows, 1);
  tile_load<6>(ones, 4);
  for (int g = 0; g < groups; g += rows) {
    const int first = g + rows <= groups ? g : groups - rows;
    tile_zero<0>();
    tile_load<4>(row + first * kTileBytes, kTileBytes);
    tile_bf16<0, 4, 6>();
    tile_store<0>(sums + first * pitch, 4 * pitch);
  }
}

static void convert_row_g32(const float* x, uint8_t* block, int groups, int pitch, int row,
                            bool summed, TileUse& use) {
  const G32Rows at = g32_rows(block, groups);
  for (int g = 0; g < groups; ++g) {
    round_group(x + g * kGroup, kGroup, at.tiles + g * kTileBytes + row * 64);
  }
  for (int g = -1; row == 0 && g < groups; ++g) clear_around(at.tiles, g, pitch);
  if (summed) sum_groups(at.tiles + row * 64, groups, at.sums + row, pitch, use);
}

// Whether rows of int12_g32 are kept as tiles of both planes: fewer are faster on vectors, and sixteen
// times a code of eight bits is no byte.
constexpr bool in_tiles(Layout layout, int pitch) {
  return layout == Layout::q4p16 && pitch >= 8;
}

// A row's 64 bytes in a group are its 32 high bytes and its 32 low ones.
static void convert_row_int12(const float* x, uint8_t* block, int groups, int pitch, int row) {
  const G32Rows at = g32_rows(block, groups);
  for (int g = 0; g < groups; ++g) {
    int8_t* codes = reinterpret_cast<int8_t*>(at.tiles + g * kTileBytes) + row * 64;
    quantise_group<2>(x + g * kGroup, true, codes, at.sums + 2 * g * pitch + row, pitch);
  }
  for (int g = -1; row == 0 && g < groups; ++g) clear_around(at.tiles, g, pitch);
}

#else

struct TileUse {};

constexpr bool in_tiles(Layout, int) { return false; }
static void convert_row_int12(const float*, uint8_t*, int, int, int) {}

// S of all groups of a row of floats, which are `step` floats apart: four at a time, each in two
// lanes for its even and odd elements.
static void sum_groups(const float* row, int step, int groups, float* sums, int pitch) {
  typedef float Pair __attribute__((vector_size(8)));
  for (int first = 0; first < groups; first += 4) {
    const int count = groups - first < 4 ? groups - first : 4;
    const float* values[4];
    for (int j = 0; j < 4; ++j) values[j] = row + (first + (j < count ? j : 0)) * step;
    Pair chains[4] = {};
    for (int i = 0; i < kGroup; i += 2) {
      FLARE_UNROLL
      for (int j = 0; j < 4; ++j) {
        Pair pair;
        std::memcpy(&pair, values[j] + i, sizeof pair);
        chains[j] += pair;
      }
    }
    for (int j = 0; j < count; ++j) {
      sums[(first + j) * pitch] = (chains[j][0] + chains[j][1]) + 0.0f;
    }
  }
}

static void convert_row_g32(const float* x, uint8_t* block, int groups, int pitch, int row,
                            bool summed, TileUse&) {
  float* values = reinterpret_cast<float*>(block) + row * kGroup;
  float* sums = reinterpret_cast<float*>(block) + groups * pitch * kGroup + row;
  const int step = pitch * kGroup;
  for (int g = 0; g < groups; ++g) {
    round_group(x + g * kGroup, kGroup, reinterpret_cast<uint8_t*>(values + g * step));
  }
  if (summed) sum_groups(values, step, groups, sums, pitch);
}

#endif

}  // namespace FLARE_ISA_NS
}  // namespace flare
