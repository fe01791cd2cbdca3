// Where a linear keeps its rows and tiles: sizes of packed blocks and of the scratch.
//
// Rows are kept in blocks of 16; a block of R rows is stored with a row pitch of R' rows, its k-groups one
// after another, so that a kernel walks it forwards:
//   int8_g32: per group R' x 32 bytes of codes, R' float scales s, R' words (float s * sum for
//             layouts with minima, int32 -128 * sum for q8p16): 40 R' bytes;
//   int12_g32: the same, with 32 high and 32 low bytes for each row: 72 R' bytes; for tiles, codes as
//             rows of bf16_g32, and after the last group, per group R' scales and R' sums;
//   bf16_t32: per group R' x 32 values, as bfloat16 for tiles and as float32 for vectors;
//   bf16_g32: as bf16_t32, and after the last group, per group R' float sums S. For tiles, the rows
//             of a group are 16, zeros after the first R'.
#pragma once

#include "flare/linear.h"

namespace flare {

constexpr int kPanel = 16;     // output columns of a panel
constexpr int kGroup = 32;     // values along k of a packed block
constexpr int kBlockRows = 16; // rows of a row block
// Bytes of a row and group of int8_g32 (one plane of codes) or int12_g32 (two).
constexpr int code_row_bytes(int planes) { return kGroup * planes + 8; }
constexpr int kTileBytes = 1024;  // 16 pairs x 16 columns x 2 bfloat16
constexpr int kSumStride = 256;           // floats of a panel's 16 x 16 sums
constexpr int kRun = kMaxRun;             // panels that are walked together at most
constexpr size_t kSumBytes = kRun * kSumStride * 4;  // or two row blocks x two panels, and integers
constexpr size_t kPage = 4096;  // of memory addresses that look alike to a load
constexpr size_t kSlack = 4096;   // tiles may be loaded past the last rows; never used as values

static inline int ceil_div(int a, int b) { return (a + b - 1) / b; }
static inline size_t align64(size_t bytes) { return (bytes + 63) / 64 * 64; }

static inline int block_bytes(Layout layout) {
  return layout == Layout::q4p16 ? 320 : layout == Layout::q8p16 ? 544 : kTileBytes;
}

// Row pitch of a block that holds `rows` rows: few rows stay dense, many are ready for tiles.
static inline int row_pitch(int rows) { return rows == 1 ? 1 : rows <= 4 ? 4 : rows <= 8 ? 8 : 16; }

// The 64 bytes of a row of the launch in one group; those of the next row follow, within a block.
static inline uint8_t* tile_row(const RowTiles& tiles, int row, int group) {
  const int index = row - tiles.first, block = index / kBlockRows * kBlockRows;
  const int left = tiles.rows - block, pitch = row_pitch(left < kBlockRows ? left : kBlockRows);
  return tiles.base + (static_cast<int64_t>(block) * tiles.groups + group * pitch + index - block) * 64;
}
static inline bool starts_block(const RowTiles& tiles, int row) {
  return (row - tiles.first) % kBlockRows == 0;
}

// Bytes of a row of bf16_g32, the largest class, in a block of 16.
static inline size_t g32_row_bytes(int groups) {
  const size_t group = (kGroup + 1) * sizeof(float);
  return static_cast<size_t>(groups) * group + 2 * kPage / kBlockRows;
}

// Bytes of `rows` converted rows of one role, worst class.
static inline size_t span_bytes(int rows, int groups) {
  const size_t padded = static_cast<size_t>(ceil_div(rows, kBlockRows)) * kBlockRows;
  return padded * g32_row_bytes(groups) + kSlack;
}

// One thread's area: up to kMaxOwn converted rows, a pair of panels as tiles, accumulators.
struct ThreadArea {
  size_t row, tiles, sums, bytes;
  explicit ThreadArea(int groups) {
    const size_t k = static_cast<size_t>(groups);
    row = 0;
    tiles = row + align64(k * (kTileBytes + 64) + 2 * kPage + kSlack);
    sums = tiles + 2 * k * kTileBytes + 3 * kPage;
    bytes = sums + kSumBytes + 64;
  }
};

// A range of items.
struct Share {
  int begin, end;
};

// These keep flare/pool.h out of the vector units.
int crew_threads(const Crew& crew);
void crew_begin(Crew& crew, int tid, int64_t total, int64_t grain);
bool crew_next(Crew& crew, int tid, Share* piece);

namespace portable {
void linear_run(const LinearArgs& args, const LinearScratch& scratch, int tid, Crew& crew);
void linear_convert(const LinearArgs& args, uint8_t* rows, const float* x, Share share);
RowTiles linear_tiles(const LinearArgs& args, uint8_t* rows);
}
namespace avx2 {
void linear_run(const LinearArgs& args, const LinearScratch& scratch, int tid, Crew& crew);
void linear_convert(const LinearArgs& args, uint8_t* rows, const float* x, Share share);
RowTiles linear_tiles(const LinearArgs& args, uint8_t* rows);
}
namespace avx512 {
void linear_run(const LinearArgs& args, const LinearScratch& scratch, int tid, Crew& crew);
void linear_convert(const LinearArgs& args, uint8_t* rows, const float* x, Share share);
RowTiles linear_tiles(const LinearArgs& args, uint8_t* rows);
}
namespace amx {
void linear_run(const LinearArgs& args, const LinearScratch& scratch, int tid, Crew& crew);
void linear_convert(const LinearArgs& args, uint8_t* rows, const float* x, Share share);
RowTiles linear_tiles(const LinearArgs& args, uint8_t* rows);
}
namespace neon {
void linear_run(const LinearArgs& args, const LinearScratch& scratch, int tid, Crew& crew);
void linear_convert(const LinearArgs& args, uint8_t* rows, const float* x, Share share);
RowTiles linear_tiles(const LinearArgs& args, uint8_t* rows);
}

}  // namespace flare
