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

  // 16-bit products (at most 255 * 127) in the codes' own order, which compilers vectorise.
  V dot(const int8_t* q, int32_t start) const {
    int32_t lane[kPanel * 4] = {};
    for (int t = 0; t < kGroup / 4; ++t) {
      const int16_t once[4] = {q[4 * t], q[4 * t + 1], q[4 * t + 2], q[4 * t + 3]};
      int16_t four[kPanel * 4];
      for (int c = 0; c < kPanel; ++c) std::memcpy(four + 4 * c, once, sizeof once);
      for (int i = 0; i < kPanel * 4; ++i) {
        lane[i] += static_cast<int16_t>(static_cast<int16_t>(code[t][i]) * four[i]);
      }
    }
    alignas(64) int32_t sum[kPanel];
    for (int c = 0; c < kPanel; ++c) {
      sum[c] = start + lane[4 * c] + lane[4 * c + 1] + lane[4 * c + 2] + lane[4 * c + 3];
    }
    return load_i32(sum);
  }
};

}  // namespace FLARE_ISA_NS
}  // namespace flare
