// Integer dot products of one group with SDOT (signed codes).

namespace flare {
namespace FLARE_ISA_NS {

constexpr int kDotRows = 4;

template <Layout L>
struct Codes {
  int8x16_t quad[8][4];  // [quad of k][4 columns]

  FLARE_INLINE_MEMBER explicit Codes(const uint8_t* block) {
    for (int part = 0; part < 4; ++part) {
      if constexpr (L == Layout::q8p16) {
        for (int t = 0; t < 8; ++t) {
          const uint8x16_t bytes = vld1q_u8(block + 64 * t + 16 * part);
          quad[t][part] = vreinterpretq_s8_u8(veorq_u8(bytes, vdupq_n_u8(0x80)));
        }
      } else {
        for (int j = 0; j < 4; ++j) {
          const uint8x16_t bytes = vld1q_u8(block + 64 * j + 16 * part);
          quad[2 * j][part] = vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(15)));
          quad[2 * j + 1][part] = vreinterpretq_s8_u8(vshrq_n_u8(bytes, 4));
        }
      }
    }
  }

  FLARE_INLINE_MEMBER V dot(const int8_t* q, int32_t) const {
    int32x4_t sum[4] = {};
    for (int t = 0; t < 8; ++t) {
      int32_t word;
      std::memcpy(&word, q + 4 * t, sizeof word);
      const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(word));
      for (int part = 0; part < 4; ++part) sum[part] = vdotq_s32(sum[part], quad[t][part], four);
    }
    V out;
    for (int part = 0; part < 4; ++part) out.r[part] = vcvtq_f32_s32(sum[part]);
    return out;
  }
};

}  // namespace FLARE_ISA_NS
}  // namespace flare
