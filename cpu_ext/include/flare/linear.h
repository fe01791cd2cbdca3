// Linear layers on packed weights: y = activation(x W^T + bias) + residual.
//
// Layouts are those of engine/kernels/layouts.py, numerics classes those of
// engine/kernels/numerics.py. A row's bits depend on that row alone: not on the number of rows, on
// the threads, on its role's neighbours or on the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flare {

class Crew;  // flare/pool.h

enum class Isa { portable, avx2, avx512, amx, neon };
enum class Layout { q4p16, q8p16, bf16p16 };
enum class Numerics { int8_g32, int12_g32, bf16_t32, bf16_g32 };
enum class Activation { none, silu_mul, gelu_mul };

// Rows of a bf16_t32 linear as tiles (linear_geometry.h), for a kernel that writes the linear's
// input in this form itself, with the bits that conversion of its floats would give.
struct RowTiles {
  uint8_t* base = nullptr;  // null: floats are wanted
  int first = 0, rows = 0;  // those of the launch that lie there
  int begin = 0;            // first row that is to be written; the others are wanted as floats
  int groups = 0;           // of 32 along k
};

// Makes a linear's only row, instead of a launch of its own before it.
struct RowSource {
  void (*make)(const void* from, float* row) = nullptr;  // null: the row lies in x
  const void* from = nullptr;
};

struct LinearArgs {
  const float* x;         // rows x k
  int64_t ldx;            // floats from one row of x to the next
  const uint8_t* w;       // packed weight, 64-byte aligned
  const float* bias;      // n, or null
  const float* residual;  // rows x output width, or null; may be y itself (in place)
  int64_t ldr;
  float* y;               // rows x output width; must not overlap x
  int64_t ldy;
  int rows;
  int generated_rows;     // rows [0, generated_rows) use `generated`, the others `prompt`
  int n, k;               // logical sizes of W; output width is n, or n / 2 for *_mul
  Layout layout;
  Activation activation;  // *_mul: panels are gate, up, gate, up ...; n is a multiple of 32
  Numerics generated, prompt;
  int converted = 0;      // the last rows of x that lie in LinearScratch::rows already
  RowTiles tiles;         // *_mul without residual: where the last rows of y go instead
  // How the work is cut; changes no bit. 0: by the numbers of rows, panels and threads.
  int pieces = 0;  // pieces of panels per thread, 1 to kMaxPieces
  int run = 0;     // panels that bf16_g32 or int12_g32 alone walks together: even, 2 to kMaxRun
  int own = 0;     // rows of one class that each thread converts for itself, up to kMaxOwn
  // The same weight once more, as rows of the prompt role read it; null: they read w. Needs
  // classes that differ.
  const uint8_t* prompt_w = nullptr;
  Layout prompt_layout = Layout::bf16p16;
  RowSource source;  // rows is 1: every thread that takes part makes the row for itself
};
constexpr int kMaxPieces = 256, kMaxRun = 8, kMaxOwn = 8;

// Working memory of a linear, 64-byte aligned.
struct LinearScratch {
  uint8_t* rows;  // linear_rows_bytes: its input, converted; shared by the threads
  uint8_t* own;   // linear_thread_bytes: of the calling thread
};

// Bytes of LinearScratch for linears of up to max_k columns, multiples of 64. The next call may use
// the same memory once every thread has left this one.
size_t linear_rows_bytes(int max_rows, int max_k);
size_t linear_thread_bytes(int max_k);

// Whether the class can be computed on the layout: those in groups of 32 need q4p16 or q8p16.
bool linear_supports(Layout layout, Numerics numerics);

// Bytes of a packed n x k weight; k is a multiple of 32 (bf16p16: rounded up).
size_t packed_bytes(Layout layout, int n, int k);

// Computes one linear. Every thread of the crew calls it with its `tid`; y is complete, and scratch
// free again, when it returns. Arguments are not checked here: linear_supports, sizes and
// alignment are the caller's to check once. Subnormals must be flushed (see flare/simd.h).
void linear(Isa isa, const LinearArgs& args, const LinearScratch& scratch, int tid, Crew& crew);

// Converts rows [first, last) of the linear's input, whose floats lie from x on, args.ldx apart.
void linear_convert(Isa isa, const LinearArgs& args, const LinearScratch& scratch, const float* x,
                    int first, int last);

// Where the prompt rows of the linear's input lie as tiles; without a base when its kernels do not
// read tiles.
RowTiles linear_tiles(Isa isa, const LinearArgs& args, const LinearScratch& scratch);

// Room for floats in LinearScratch::own while no linear runs: so many rows of k values.
constexpr int kSpareRows = 8;
float* linear_spare(const LinearScratch& scratch, int k);

// Row `row` of a packed weight with k columns, dequantised: out[k] floats.
void embed_row(Layout layout, const uint8_t* w, int k, int row, float* out);

}  // namespace flare
