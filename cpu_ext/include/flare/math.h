// Elementary functions on 16 lanes; the same bits on every instruction set. Include after simd.h.
//
// Range reduction follows Cody and Waite (Software Manual for the Elementary Functions, 1980); the
// polynomials are our own weighted least-squares fits, iterated towards minimax: relative error
// below 4e-9 before rounding, about 1e-7 after.
#pragma once

#include "flare/simd.h"

namespace flare {
namespace FLARE_ISA_NS {

// Adding 1.5 * 2^23 rounds |x| < 2^22 to an integer and leaves it in the low mantissa bits.
constexpr float kRoundMagic = 12582912.0f;
constexpr float kLog2E = 1.44269504088896341f;

// e^x. exp(0) is 1; x < -87.33 (results below the normal range) gives 0, x > 88.72 infinity; NaN
// stays NaN.
FLARE_INLINE V exp(V x) {
  const V low = splat(-87.33f), high = splat(88.72f);
  const V c = min(high, max(low, x));  // a NaN in x passes: it is the second operand
  const V t = fma(c, splat(kLog2E), splat(kRoundMagic));
  const V n = t - splat(kRoundMagic);
  V r = fma(n, splat(-0.693359375f), c);  // ln 2 in two parts; the first product is exact
  r = fma(n, splat(2.12194440e-4f), r);
  V q = splat(0.00138145999517292f);
  q = fma(q, r, splat(0.00836871564388275f));
  q = fma(q, r, splat(0.0416683889925480f));
  q = fma(q, r, splat(0.166665211319923f));
  q = fma(q, r, splat(0.499999940395355f));
  const V p = fma(q, r * r, r) + splat(1.0f);
  const V y = scale_by_low_bits(p, t);
  const V bounded = select_lt(high, x, splat(__builtin_inff()), y);
  return select_lt(x, low, zero(), bounded);
}

// 2^x for x <= 0 (softmax in base 2): exp2_nonpositive(0) is 1; x < -126 and -infinity give 0; NaN
// stays NaN. Undefined for x > 0.
FLARE_INLINE V exp2_nonpositive(V x) {
  const V low = splat(-126.0f);
  const V c = max(low, x);
  const V t = c + splat(kRoundMagic);
  const V r = c - (t - splat(kRoundMagic));  // exact
  V q = splat(0.000153533605043776f);
  q = fma(q, r, splat(0.00133988750167191f));
  q = fma(q, r, splat(0.00961843691766262f));
  q = fma(q, r, splat(0.0555033236742020f));
  q = fma(q, r, splat(0.240226477384567f));
  q = fma(q, r, splat(0.693147182464600f));
  const V y = scale_by_low_bits(fma(q, r, splat(1.0f)), t);
  return select_lt(x, low, zero(), y);
}

// x * sigmoid(x) = x / (1 + e^-x).
FLARE_INLINE V silu(V x) { return x / (splat(1.0f) + exp(neg(x))); }

// Gaussian error linear unit, tanh form (Hendrycks & Gimpel 2016):
// x / 2 * (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2 / pi) * (x + 0.044715 x^3).
FLARE_INLINE V gelu_tanh(V x) {
  const V cubic = fma(splat(0.044715f) * (x * x), x, x);
  return x / (splat(1.0f) + exp(splat(-1.5957691216057308f) * cubic));
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
