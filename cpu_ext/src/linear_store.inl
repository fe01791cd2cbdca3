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

// Finishes one row of one panel (none) or of a gate and an up panel (*_mul).
// sums: the row's accumulators of panels `panel` and `panel + 1`; count: panels present.
FLARE_INLINE void finish_row(const LinearArgs& args, int row, int panel, int count, V first,
                             V second) {
  first = with_bias(args, first, panel);
  if (args.activation == Activation::none) {
    store_columns(args, first, row, panel * kPanel, args.n);
    if (count > 1) {
      second = with_bias(args, second, panel + 1);
      store_columns(args, second, row, (panel + 1) * kPanel, args.n);
    }
    return;
  }
  second = with_bias(args, second, panel + 1);
  const V gate = args.activation == Activation::silu_mul ? silu(first) : gelu_tanh(first);
  store_columns(args, gate * second, row, panel / 2 * kPanel, args.n / 2);
}

// Finishes `rows` rows from accumulators kept as [panel][row][16] floats, row stride 16.
static void finish_rows(const LinearArgs& args, int first_row, int rows, int panel, int count,
                        const float* sums, int panel_stride) {
  for (int r = 0; r < rows; ++r) {
    const float* sum = sums + r * kPanel;
    const V second = count > 1 ? load(sum + panel_stride) : zero();
    finish_row(args, first_row + r, panel, count, load(sum), second);
  }
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
