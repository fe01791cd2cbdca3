// The pipeline of classes in groups of 32 on AMX tiles. See linear_amx_bf16_g32.inl and
// linear_amx_int12.inl for the classes.

namespace flare {
namespace FLARE_ISA_NS {

// One row block against neighbouring panels.
struct G32Job {
  const uint8_t* w;
  int panels, groups;
  const uint8_t* rows;    // at a page; see G32Rows
  const float* row_sums;  // per group, kFloats of each row
  uint8_t* pages;         // two: tiles of codes, and of products
  float* sums;            // [panel][16][16]
};

// The pipeline. Step t multiplies group t (counted over all panels), adds the products of a group
// some steps before, stores those of the one two steps before, and unpacks the one four steps
// ahead: a load waits until stores are in the cache.
//
// The products of several groups share a tile: group t has tile register t % 4, and there the rows
// of its slot, while the rows of A are zero in the other slots, which leaves their products alone.
// So few rows need few tile stores, which would weigh most: 16 stores each, whatever they hold, and
// as much of the port that unpacking needs.
//
// A load waits for stores under way to any line with the same offset in a page, too. So tiles of
// codes and of products lie at the offsets t % 4 and t % 4 + 2 KiB, and rows at those of their
// groups.
// Class: how a class in groups of 32 unpacks a block, multiplies, and adds.
template <template <Layout> class Class, Layout L, int R>
class G32Pipeline {
  using Own = Class<L>;

 public:
  FLARE_INLINE_MEMBER explicit G32Pipeline(const G32Job& job)
      : total_(job.panels * job.groups),
        groups_(job.groups),
        packed_(job.w),
        added_(job.w),
        rows_(job.rows),
        first_rows_(job.rows),
        row_sums_(job.row_sums),
        first_row_sums_(job.row_sums),
        pages_(job.pages),
        sums_(job.sums) {
    clear();
  }

  FLARE_INLINE_MEMBER void run() {
    unpack<0>(0);
    unpack<1>(1);
    unpack<2>(2);
    unpack<3>(3);
    for (int t = 0; t < total_ + kAddLag; t += 4) {
      step<0>(t);
      step<1>(t + 1);
      step<2>(t + 2);
      step<3>(t + 3);
    }
  }

 private:
  static constexpr int kBytes = L == Layout::q4p16 ? 320 : 544;
  static constexpr int kSlots = tile_rows(R) / R;
  static constexpr int kSlotSteps = 4 * (kSlots - 1);  // from a tile's first group to its last
  static constexpr int kAddLag = kSlotSteps + 6;

  static constexpr unsigned slot(int t) { return static_cast<unsigned>(t) / 4 % kSlots; }

  FLARE_INLINE_MEMBER void clear() {
    FLARE_UNROLL
    for (int r = 0; r < R; ++r) acc_[r] = zero();
  }

  template <int T>
  FLARE_INLINE_MEMBER void step(int t) {
    multiply<T>(t);
    add<(T + 2) % 4>(t - kAddLag);
    store_products<(T + 2) % 4>(t - 2);
    unpack<T>(t + 4);
  }

  template <int T>
  FLARE_INLINE_MEMBER void unpack(int t) {
    if (t >= total_) return;
    prefetch_block<kBytes>(packed_);
    Own::unpack(packed_, pages_ + T * kTileBytes);
    packed_ += kBytes;
  }

  template <int T>
  FLARE_INLINE_MEMBER void multiply(int t) {
    if (t >= total_) return;
    constexpr int a = 4 + T % 2, b = 6 + T % 2;
    if (slot(t) == 0) tile_zero<T>();
    tile_load<a>(rows_ - slot(t) * R * 64, 64);
    tile_load<b>(pages_ + T * kTileBytes, 64);
    Own::template multiply<T, a, b>();
    rows_ += kTileBytes;
    if (++multiplied_ == groups_) {
      multiplied_ = 0;
      rows_ = first_rows_;
    }
  }

  // After the last slot of a tile, whether or not a group came to it.
  template <int T>
  FLARE_INLINE_MEMBER void store_products(int t) const {
    if (t < kSlotSteps || t - kSlotSteps >= total_ || slot(t) != kSlots - 1) return;
    tile_store<T>(pages_ + kPage + (T + 2) % 4 * kTileBytes, 64);
  }

  template <int T>
  FLARE_INLINE_MEMBER void add(int t) {
    if (t < 0 || t >= total_) return;
    const Own own(added_);
    const uint8_t* products = pages_ + kPage + (T + 2) % 4 * kTileBytes + slot(t) * R * 64;
    FLARE_UNROLL
    for (int r = 0; r < R; ++r) {
      acc_[r] = own.template add<R>(r, products, row_sums_, acc_[r]);
    }
    added_ += kBytes;
    row_sums_ += R * Own::kFloats;
    if (++count_ < groups_) return;
    FLARE_UNROLL
    for (int r = 0; r < R; ++r) store(sums_ + r * kPanel, acc_[r]);
    sums_ += kSumStride;
    clear();
    count_ = 0;
    row_sums_ = first_row_sums_;
  }

  const int total_, groups_;
  const uint8_t *packed_, *added_;  // blocks to unpack and to add
  const uint8_t *rows_, *const first_rows_;
  const float *row_sums_, *const first_row_sums_;
  uint8_t* const pages_;
  float* sums_;
  int multiplied_ = 0, count_ = 0;  // groups of the panel that are multiplied, and added
  V acc_[R];
};

template <template <Layout> class Class, Layout L, int R>
static void g32_tiles(const G32Job& job) {
  G32Pipeline<Class, L, R>(job).run();
}

using G32Tiles = void (*)(const G32Job&);

// A row block against neighbouring panels, with the kernel for its row pitch.
static void block_tiles(const Work& work, const Span& span, int block, Panels panels, TileUse& use,
                        G32Tiles (*kernel_for)(Layout, int pitch)) {
  const int rows = rows_in_block(span, block), pitch = row_pitch(rows);
  const uint8_t* w = work.args.w + panels.first * work.panel_bytes;
  const G32Rows at = g32_rows(block_base(span, work.groups, block), work.groups);
  use.shape(64, tile_rows(pitch));
  kernel_for(work.args.layout, pitch)(
      {w, panels.count, work.groups, at.tiles, at.sums, page_after(work.tiles), work.sums});
  finish_run(work.args, span.first + block * kBlockRows, rows, panels, work.sums);
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
