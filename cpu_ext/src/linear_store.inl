// What follows the products: bias, activation, residual, and the store of 16 columns of one row.

namespace flare {
namespace FLARE_ISA_NS {

FLARE_INLINE V with_bias(const LinearArgs& args, V sum, int panel) {
  if (!args.bias) return sum;
  const float* bias = args.bias + panel * kPanel;
  const int columns = args.n - panel * kPanel;
  return sum + (columns >= kPanel ? load(bias) : load_partial(bias, columns));
}

// Writes 16 output columns (fewer at the right edge) of one row, starting at `column`.
FLARE_INLINE void store_columns(const LinearArgs& args, V value, int row, int column, int width) {
  float* y = args.y + row * args.ldy + column;
  const float* residual = args.residual ? args.residual + row * args.ldr + column : nullptr;
  const int columns = width - column;
  if (columns >= kPanel) {
    store(y, residual ? value + load(residual) : value);
  } else {
    store_partial(y, residual ? value + load_partial(residual, columns) : value, columns);
  }
}

// Finishes one row of one or two panels, the right edge among them. *_mul: n is a multiple of 32,
// so both panels are whole.
FLARE_INLINE void finish_row(const LinearArgs& args, int row, int panel, int count, V first,
                             V second) {
  store_columns(args, with_bias(args, first, panel), row, panel * kPanel, args.n);
  if (count < 2) return;
  store_columns(args, with_bias(args, second, panel + 1), row, (panel + 1) * kPanel, args.n);
}

// Finishes rows of a whole pair of panels (*_mul: of a gate and an up panel), the usual case.
template <Activation A, bool Bias, bool Residual>
static void finish_pair(const LinearArgs& args, int first_row, int rows, int panel,
                        const float* sums) {
  constexpr bool mul = A != Activation::none;
  const int column = (mul ? panel / 2 : panel) * kPanel;
  float* y = args.y + first_row * args.ldy + column;
  const float* residual = Residual ? args.residual + first_row * args.ldr + column : nullptr;
  const V left = Bias ? load(args.bias + panel * kPanel) : zero();
  const V right = Bias ? load(args.bias + (panel + 1) * kPanel) : zero();
  for (int r = 0; r < rows; ++r, y += args.ldy, sums += kPanel) {
    V first = load(sums), second = load(sums + kSumStride);
    if constexpr (Bias) {
      first = first + left;
      second = second + right;
    }
    if constexpr (mul) {
      const V gate = A == Activation::silu_mul ? silu(first) : gelu_tanh(first);
      first = gate * second;
    }
    if constexpr (Residual) {
      first = first + load(residual);
      if constexpr (!mul) second = second + load(residual + kPanel);
      residual += args.ldr;
    }
    store(y, first);
    if constexpr (!mul) store(y + kPanel, second);
  }
}

#if defined(FLARE_TILES)

// The same for a gate and an up panel, into the tiles that the next linear reads.
template <Activation A, bool Bias>
static void finish_tiles(const LinearArgs& args, int first_row, int rows, int panel,
                         const float* sums) {
  const int half = panel / 2 % 2 * 32;  // of a row's 64 bytes in a group
  const V left = Bias ? load(args.bias + panel * kPanel) : zero();
  const V right = Bias ? load(args.bias + (panel + 1) * kPanel) : zero();
  uint8_t* y = nullptr;
  for (int r = 0; r < rows; ++r, y += 64, sums += kPanel) {
    if (r == 0 || starts_block(args.tiles, first_row + r)) {
      y = tile_row(args.tiles, first_row + r, panel / 4) + half;
    }
    V first = load(sums), second = load(sums + kSumStride);
    if constexpr (Bias) {
      first = first + left;
      second = second + right;
    }
    const V gate = A == Activation::silu_mul ? silu(first) : gelu_tanh(first);
    store_bf16(y, gate * second);
  }
}

#endif

using FinishPair = void (*)(const LinearArgs&, int, int, int, const float*);

template <Activation A>
static FinishPair finish_pair_for(const LinearArgs& args) {
  if (args.bias) return args.residual ? finish_pair<A, true, true> : finish_pair<A, true, false>;
  return args.residual ? finish_pair<A, false, true> : finish_pair<A, false, false>;
}

#if defined(FLARE_TILES)
template <Activation A>
static FinishPair finish_tiles_for(const LinearArgs& args) {
  return args.bias ? finish_tiles<A, true> : finish_tiles<A, false>;
}
#endif

// Finishes rows of whole pairs of panels: as floats, and as tiles where those are wanted.
class Finish {
 public:
  explicit Finish(const LinearArgs& args) : args_(args), begin_(args.rows) {
    switch (args.activation) {
      case Activation::silu_mul: floats_ = finish_pair_for<Activation::silu_mul>(args); break;
      case Activation::gelu_mul: floats_ = finish_pair_for<Activation::gelu_mul>(args); break;
      default: floats_ = finish_pair_for<Activation::none>(args);
    }
#if defined(FLARE_TILES)
    if (args.tiles.base == nullptr) return;
    begin_ = args.tiles.begin;
    tiles_ = args.activation == Activation::silu_mul ? finish_tiles_for<Activation::silu_mul>(args)
                                                     : finish_tiles_for<Activation::gelu_mul>(args);
#endif
  }

  void operator()(int first_row, int rows, int panel, const float* sums) const {
    const int before = begin_ - first_row, floats = before < rows ? before : rows;
    if (floats > 0) floats_(args_, first_row, floats, panel, sums);
#if defined(FLARE_TILES)
    if (before >= rows) return;
    const int skip = before > 0 ? before : 0;
    tiles_(args_, first_row + skip, rows - skip, panel, sums + skip * kPanel);
#endif
  }

 private:
  const LinearArgs& args_;
  FinishPair floats_;
  FinishPair tiles_ = nullptr;
  int begin_;  // first row of tiles
};

// Finishes `rows` rows of the panels from accumulators kept as [panel][16][16].
static void finish_rows(const LinearArgs& args, int first_row, int rows, Panels panels,
                        const float* sums) {
  if (panels.count == 2 && (panels.first + 2) * kPanel <= args.n) {
    const Finish finish(args);
    finish(first_row, rows, panels.first, sums);
    return;
  }
  for (int r = 0; r < rows; ++r, sums += kPanel) {
    finish_row(args, first_row + r, panels.first, panels.count, load(sums),
               load(sums + kSumStride));
  }
}

// The same for any number of panels.
static void finish_run(const LinearArgs& args, int first_row, int rows, Panels panels,
                       const float* sums) {
  for (int p = 0; p < panels.count; p += 2) {
    const Panels pair = {panels.first + p, panels.count - p < 2 ? 1 : 2};
    finish_rows(args, first_row, rows, pair, sums + p * kSumStride);
  }
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
