// AMX tiles (Intel SDM volume 1, chapter 18): registers 0-3 accumulate, 4-5 hold rows, 6-7 weights.
//
// Written as assembly with memory clobbers: a compiler does not see what a tile load reads and may
// drop or delay the stores that fill a buffer.

namespace flare {
namespace FLARE_ISA_NS {

struct alignas(64) TileShape {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles belong to the thread while this lives; released state costs nothing at a context switch.
class TileUse {
 public:
  TileUse() = default;
  ~TileUse() {
    if (key_ != 0) asm volatile("tilerelease" ::: "memory");
  }
  TileUse(const TileUse&) = delete;
  TileUse& operator=(const TileUse&) = delete;

  // k_bytes: bytes of one row along k (64: 32 bfloat16; 32: 32 int8). rows, columns: of the sums.
  void shape(int k_bytes, int rows = 16, int columns = 16) {
    const int key = (k_bytes << 16) | (rows << 8) | columns;
    if (key == key_) return;
    key_ = key;
    TileShape shape;
    for (int t = 0; t < 8; ++t) {
      shape.row_bytes[t] = static_cast<uint16_t>(t == 4 || t == 5 ? k_bytes : 4 * columns);
      shape.rows[t] = static_cast<uint8_t>(t >= 6 ? k_bytes / 4 : rows);
    }
    asm volatile("ldtilecfg %0" ::"m"(shape) : "memory");
  }

 private:
  int key_ = 0;
};

template <int T>
FLARE_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(T));
}
template <int T>
FLARE_INLINE void tile_load(const void* p, int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(p), "r"(stride) : "memory");
}
// As tile_load, for data that is not used again soon.
template <int T>
FLARE_INLINE void tile_load_once(const void* p, int64_t stride) {
  asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(T), "r"(p), "r"(stride) : "memory");
}
template <int T>
FLARE_INLINE void tile_store(void* p, int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(T), "r"(p), "r"(stride) : "memory");
}
template <int C, int A, int B>
FLARE_INLINE void tile_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
// Signed rows, unsigned weights.
template <int C, int A, int B>
FLARE_INLINE void tile_int8() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
