// The walk over a linear's panels. The unit includes the other linear_*.inl files first.

namespace flare {
namespace FLARE_ISA_NS {

#if !defined(FLARE_TILES)
static void span_int8(const Work& work, const Span& span, Panels panels, TileUse&) {
  for (int block = 0; block < ceil_div(span.rows, kBlockRows); ++block) {
    block_vectors<1>(work, span, block, panels);
  }
}

static void span_int12(const Work& work, const Span& span, Panels panels, TileUse&) {
  for (int block = 0; block < ceil_div(span.rows, kBlockRows); ++block) {
    block_vectors<2>(work, span, block, panels);
  }
}

static void span_g32(const Work& work, const Span& span, Panels panels, TileUse&) {
  const uint8_t* w = work.args.w + panels.first * work.panel_bytes;
  const int blocks = ceil_div(span.rows, kBlockRows);
  for (int block = 0; block < blocks; ++block) {
    const int rows = rows_in_block(span, block);
    const uint8_t* base = block_base(span, work.groups, block);
    for (int p = 0; p < panels.count; ++p) {
      g32_block(work.args.layout, w + p * work.panel_bytes, work.groups, base, rows,
                work.sums + p * kSumStride);
    }
    finish_run(work.args, span.first + block * kBlockRows, rows, panels, work.sums);
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

// Some units of panels, two panels at a time: the generated rows, then the prompt rows, while the
// panels are in cache. A unit is a panel, or a gate and an up panel. bf16_g32 or int12_g32 alone
// takes more at a time: its pipeline is long.
//
// prompt: work on the weight that rows of the prompt role read.
static void walk_panels(const Work& work, const Work& prompt, const Spans& spans, Share units,
                        int unit, TileUse& use) {
  const int all = ceil_div(work.args.n, kPanel);
  const int end = units.end * unit < all ? units.end * unit : all;
  const Numerics first = spans.span[0].numerics;
  const bool alone =
      spans.count == 1 && (first == Numerics::bf16_g32 || first == Numerics::int12_g32);
  const int step = !alone ? 2 : work.args.run > 0 ? work.args.run : kRun;
  for (int panel = units.begin * unit; panel < end; panel += step) {
    const Panels here = {panel, end - panel < step ? end - panel : step};
    for (int i = 0; i < spans.count; ++i) {
      const Numerics numerics = spans.span[i].numerics;
      const Work& own = numerics == work.args.generated ? work : prompt;
      switch (numerics) {
        case Numerics::int8_g32: span_int8(own, spans.span[i], here, use); break;
        case Numerics::int12_g32: span_int12(own, spans.span[i], here, use); break;
        case Numerics::bf16_g32: span_g32(own, spans.span[i], here, use); break;
        case Numerics::bf16_t32: span_bf16(own, spans.span[i], here, use); break;
      }
    }
  }
}

// Pieces that each thread should find in a phase: enough for the others to take some over. Cores
// may differ in speed by a factor of two and more, so long work is cut as finely as it goes.
constexpr int kPieces = 8;
constexpr int kManyRows = 9, kManyPieces = 12;
constexpr int kLongRows = 32;  // of the prompt role

// Units of panels in a piece: whole pairs of panels, which the kernels walk together, and a number of
// pieces that the threads can share evenly, where there is one near.
FLARE_INLINE int piece_units(const LinearArgs& args, int units, int unit, int threads) {
  const int pair = 2 / unit;
  if (args.pieces == 0 && args.rows - args.generated_rows >= kLongRows) return pair;
  const bool many = args.rows >= kManyRows;
  const int pieces = args.pieces > 0 ? args.pieces : many ? kManyPieces : kPieces;
  const int grain = ceil_div(units * unit, threads * pieces * 2) * pair;
  const int first = many ? grain - pair : grain;  // long pieces for few rows: filling the pipeline
  const int choices[] = {first, first + pair, many ? first + 2 * pair : grain - pair};
  for (const int near : choices) {
    if (near > 0 && ceil_div(units, near) % threads == 0) return near;
  }
  return grain;
}

void linear_run(const LinearArgs& args, const LinearScratch& scratch, int tid, Crew& crew) {
  if (args.rows == 0) return;
  const int groups = ceil_div(args.k, kGroup);
  const ThreadArea area(groups);
  uint8_t* const own = scratch.own;
  const int open = args.rows - args.converted;
  // A few rows of one class are converted by every thread for itself: cheaper than waiting for each
  // other. But only while it holds a piece: then no later phase can have overwritten the rows.
  const Spans shared = make_spans(args, groups, scratch.rows);
  bool convert_own = args.converted == 0 && args.rows <= (args.own > 0 ? args.own : kMaxOwn) &&
                     (args.rows == 1 || shared.count == 1);
  const Spans spans = convert_own ? make_spans(args, groups, own + area.row) : shared;
  TileUse use;
  Share piece;
  if (!convert_own && open > 0) {
    crew_begin(crew, tid, open, ceil_div(open, crew_threads(crew) * kPieces));
    while (crew_next(crew, tid, &piece)) {
      convert_rows(args, spans, groups, piece, args.x + piece.begin * args.ldx, use);
    }
  }
  const auto work_on = [&](const LinearArgs& weight) {
    return Work{weight, groups, static_cast<size_t>(groups) * block_bytes(weight.layout),
                own + area.tiles, reinterpret_cast<float*>(own + area.sums)};
  };
  LinearArgs prompt = args;
  if (args.prompt_w != nullptr) {
    prompt.w = args.prompt_w;
    prompt.layout = args.prompt_layout;
  }
  const Work work = work_on(args), prompt_work = work_on(prompt);
  const int unit = args.activation == Activation::none ? 1 : 2;
  const int units = ceil_div(args.n, kPanel * unit);
  crew_begin(crew, tid, units, piece_units(args, units, unit, crew_threads(crew)));
  while (crew_next(crew, tid, &piece)) {
    if (convert_own) {
      const float* x = args.x;
      if (args.source.make != nullptr) {
        float* const row = linear_spare(scratch, args.k);
        args.source.make(args.source.from, row);
        x = row;
      }
      convert_rows(args, spans, groups, Share{0, args.rows}, x, use);
    }
    convert_own = false;
    walk_panels(work, prompt_work, spans, piece, unit, use);
  }
}

void linear_convert(const LinearArgs& args, uint8_t* rows, const float* x, Share share) {
  const int groups = ceil_div(args.k, kGroup);
  TileUse use;
  convert_rows(args, make_spans(args, groups, rows), groups, share, x, use);
}

RowTiles linear_tiles(const LinearArgs& args, uint8_t* rows) {
  RowTiles tiles;
#if defined(FLARE_TILES)
  const int groups = ceil_div(args.k, kGroup);
  const Spans spans = make_spans(args, groups, rows);
  const Span& last = spans.span[spans.count - 1];
  if (last.numerics == Numerics::bf16_t32 && args.generated_rows < args.rows) {
    tiles = {last.base, last.first, last.rows, args.generated_rows, groups};
  }
#else
  (void)args, (void)rows;
#endif
  return tiles;
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
