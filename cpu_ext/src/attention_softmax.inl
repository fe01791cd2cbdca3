// Softmax of one query's scores over a tile of 64 keys, for both numerics classes (attention.inl).

namespace flare {
namespace FLARE_ISA_NS {

alignas(64) static const float kLaneIndex[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                 8, 9, 10, 11, 12, 13, 14, 15};

// The scores of one query; those from `count` on far below any other.
FLARE_INLINE void load_visible(const float* s, int count, V* v) {
  for (int n = 0; n < 4; ++n) {
    v[n] = load(s + n * kLanes);
    if (count < (n + 1) * kLanes) {
      const V limit = splat(static_cast<float>(count - n * kLanes));
      v[n] = select_lt(load(kLaneIndex), limit, v[n], splat(kLowest));
    }
  }
}

FLARE_INLINE float highest_of(const V* v) { return hmax(max(max(v[0], v[1]), max(v[2], v[3]))); }

FLARE_INLINE void rescale(AttentionState& state, V alpha, int padded) {
  for (int d = 0; d < padded; d += kLanes) store(state.out + d, load(state.out + d) * alpha);
}

// Turns the scores of one query into probabilities; the first `count` keys are visible to it.
FLARE_INLINE void soften(float* s, int count, int padded, AttentionState& state) {
  V v[4];
  load_visible(s, count, v);
  const float highest = highest_of(v);
  const float maximum = highest > state.maximum ? highest : state.maximum;
  const V m = splat(maximum);
  const V alpha = exp2_nonpositive(splat(state.maximum) - m);
  for (int n = 0; n < 4; ++n) {
    v[n] = exp2_nonpositive(v[n] - m);
    if (count < (n + 1) * kLanes) {
      const V limit = splat(static_cast<float>(count - n * kLanes));
      v[n] = select_lt(load(kLaneIndex), limit, v[n], zero());
    }
    store(s + n * kLanes, v[n]);
  }
  store(state.sum, fma(load(state.sum), alpha, (v[0] + v[1]) + (v[2] + v[3])));
  if (maximum != state.maximum) rescale(state, alpha, padded);  // else alpha is 1
  state.maximum = maximum;
}

constexpr float kRaise = 1048576.0f;  // a prompt tile's sum that makes its reference too low
constexpr float kExp2Cubic = 0.055008746683597565f, kExp2Square = 0.2422107607126236f,
                kExp2Linear = 0.6932829022407532f;

// 2^x in the prompt class, whose probabilities are rounded to bfloat16 anyway: relative error 1e-4
// (our own minimax fit of (2^r - 1) / r). 0 gives 1; x < -126 gives 0; x >= 127 at least 2^127; NaN
// stays NaN.
FLARE_INLINE V exp2_prompt(V x) {
  const V low = splat(-126.0f);
  const V c = min(splat(127.0f), max(low, x));
  const V t = c + splat(kRoundMagic);
  const V r = c - (t - splat(kRoundMagic));
  V q = splat(kExp2Cubic);
  q = fma(q, r, splat(kExp2Square));
  q = fma(q, r, splat(kExp2Linear));
  const V y = scale_by_low_bits(fma(q, r, splat(1.0f)), t);
  return select_lt(x, low, zero(), y);
}

// The prompt class's reference for scores of up to `highest`: at least that, a multiple of 16.
FLARE_INLINE V reference_above(V highest) {
  return rint(fma(highest, splat(0.0625f), splat(0.5f))) * splat(16.0f);
}
FLARE_INLINE float raised(float reference, float highest) {
  return highest > reference ? hmax(reference_above(splat(highest))) : reference;
}

// 2^(v - maximum), rounded, into p. Returns their 16 sums, lane i: of keys 2 i and 2 i + 1 and of
// those 32 behind, the odd ones first.
FLARE_INLINE V soften_from(const V* v, float maximum, float* p) {
  alignas(64) uint16_t narrow16[kKeyTile];
  for (int n = 0; n < 4; ++n) {
    store_bf16(narrow16 + n * kLanes, exp2_prompt(v[n] - splat(maximum)));
    store(p + n * kLanes, load_bf16(narrow16 + n * kLanes));
  }
  const Pairs a = load_bf16_pairs(narrow16), b = load_bf16_pairs(narrow16 + 2 * kLanes);
  return (((zero() + a.odd) + a.even) + b.odd) + b.even;
}

// As soften, for the prompt class. The first tile's reference is too low for any score: it is raised
// at once, with nothing summed that would have to be scaled.
FLARE_INLINE void soften_prompt(float* s, int count, bool first, int padded,
                                AttentionState& state) {
  V v[4];
  load_visible(s, count, v);
  if (first) state.maximum = raised(state.maximum, highest_of(v));
  const V part = soften_from(v, state.maximum, s);
  if (!(hmax(part) > kRaise)) {
    store(state.sum, load(state.sum) + part);
    return;
  }
  const float maximum = raised(state.maximum, highest_of(v));
  const V alpha = exp2_prompt(splat(state.maximum) - splat(maximum));
  store(state.sum, fma(load(state.sum), alpha, soften_from(v, maximum, s)));
  rescale(state, alpha, padded);
  state.maximum = maximum;
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
