// Integer dot products of one group, plain C++.

namespace flare {
namespace FLARE_ISA_NS {

constexpr int kDotRows = 4;

template <Layout L>
struct Codes {
  uint8_t code[kGroup / 4][kPanel * 4];  // [quad of k][4 * column + i]

  explicit Codes(const uint8_t* block) {
    if constexpr (L == Layout::q8p16) {
      std::memcpy(code, block, sizeof code);
    } else {
      for (int j = 0; j < 4; ++j) {
        for (int i = 0; i < 64; ++i) {
          code[2 * j][i] = block[64 * j + i] & 15;
          code[2 * j + 1][i] = block[64 * j + i] >> 4;
        }
      }
    }
  }

  V dot(const int8_t* q, int32_t start) const {
    alignas(64) int32_t sum[kPanel];
    for (int c = 0; c < kPanel; ++c) {
      sum[c] = start;
      for (int t = 0; t < kGroup; ++t) sum[c] += code[t / 4][4 * c + t % 4] * q[t];
    }
    return load_i32(sum);
  }
};

}  // namespace FLARE_ISA_NS
}  // namespace flare
