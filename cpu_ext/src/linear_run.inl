// The walk over a linear's panels. The unit includes the other linear_*.inl files first.

namespace flare {
namespace FLARE_ISA_NS {

#if !defined(FLARE_TILES)
struct TileUse {};

static void span_int8(const Work& work, const Span& span, Panels panels, TileUse&) {
  const uint8_t* w = work.args.w + panels.first * work.panel_bytes;
  const int blocks = ceil_div(span.rows, kBlockRows);
  for (int block = 0; block < blocks; ++block) {
    const int rows = rows_in_block(span, block);
    const uint8_t* base = block_base(span, work.groups, block);
    for (int p = 0; p < panels.count; ++p) {
      int8_block(work.args.layout, w + p * work.panel_bytes, work.groups, base, rows,
                 work.sums + p * kSumStride);
    }
    finish_rows(work.args, span.first + block * kBlockRows, rows, panels, work.sums);
  }
}

static void span_bf16(const Work& work, const Span& span, Panels panels, TileUse&) {
  const uint8_t* w = work.args.w + panels.first * work.panel_bytes;
  const size_t panel_tiles = static_cast<size_t>(work.groups) * kTileBytes;
  const bool packed = work.args.layout != Layout::bf16p16;
  for (int p = 0; packed && p < panels.count; ++p) {
    dequantise_panel(work.args.layout, w + p * work.panel_bytes, work.groups,
                     work.tiles + p * panel_tiles);
  }
  const uint8_t* tiles = packed ? work.tiles : w;
  const int blocks = ceil_div(span.rows, kBlockRows);
  for (int block = 0; block < blocks; ++block) {
    const int rows = rows_in_block(span, block);
    const uint8_t* base = block_base(span, work.groups, block);
    for (int p = 0; p < panels.count; ++p) {
      bf16_block(tiles + p * panel_tiles, work.groups, base, rows,
                 work.sums + p * kSumStride);
    }
    finish_rows(work.args, span.first + block * kBlockRows, rows, panels, work.sums);
  }
}

#endif

// One thread's panels, two at a time: the generated rows, then the prompt rows, while the panels
// are in cache. Pairs start at even panels when they hold a gate and an up panel.
static void walk_panels(const Work& work, const Spans& spans, int tid, int threads) {
  const int unit = work.args.activation == Activation::none ? 1 : 2;
  const Share share(ceil_div(work.args.n, kPanel) / unit, tid, threads);
  const int end = share.end * unit;
  TileUse use;
  for (int panel = share.begin * unit; panel < end; panel += 2) {
    const Panels here = {panel, end - panel < 2 ? 1 : 2};
    for (int i = 0; i < spans.count; ++i) {
      if (spans.span[i].numerics == Numerics::int8_g32) {
        span_int8(work, spans.span[i], here, use);
      } else {
        span_bf16(work, spans.span[i], here, use);
      }
    }
  }
}

void linear_run(const LinearArgs& args, uint8_t* scratch, int tid, int threads, Barrier& barrier) {
  if (args.rows == 0) return;
  const int groups = ceil_div(args.k, kGroup);
  const ThreadArea area(groups);
  uint8_t* own = scratch + align64(span_bytes(args.rows + 2 * kBlockRows, groups) + kSlack) +
                 static_cast<size_t>(tid) * area.bytes;
  // One row is converted by every thread for itself: cheaper than waiting for each other.
  const bool alone = args.rows == 1;
  const Spans spans = make_spans(args, groups, alone ? own + area.row : scratch);
  convert_rows(args, spans, groups, alone ? Share(1, 0, 1) : Share(args.rows, tid, threads));
  if (!alone && threads > 1) barrier_wait(barrier, tid);
  const size_t panel_bytes = static_cast<size_t>(groups) * block_bytes(args.layout);
  const Work work{args, groups, panel_bytes, own + area.tiles,
                  reinterpret_cast<float*>(own + area.sums)};
  walk_panels(work, spans, tid, threads);
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
