// Passes of the sampler over one row of logits. Included once per instruction set.

namespace flare {
namespace FLARE_ISA_NS {

constexpr int kSumSpan = 256;  // values per partial sum

// Any value times zero is zero, but for infinities and NaN.
static float scan(const float* z, int n, bool* finite) {
  V top[4], trace[4];
  for (int j = 0; j < 4; ++j) {
    top[j] = splat(-__builtin_inff());
    trace[j] = zero();
  }
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const V v = load(z + i + j * kLanes);
      top[j] = max(v, top[j]);
      trace[j] = fma(v, zero(), trace[j]);
    }
  }
  float maximum = hmax(max(max(top[0], top[1]), max(top[2], top[3])));
  float rest = hsum((trace[0] + trace[1]) + (trace[2] + trace[3]));
  for (; i < n; ++i) {
    if (z[i] > maximum) maximum = z[i];
    rest += z[i] * 0.0f;
  }
  *finite = rest == 0.0f;
  return maximum;
}

static int find(const float* z, int n, float value) {
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    const V a = max(load(z + i), load(z + i + kLanes));
    const V b = max(load(z + i + 2 * kLanes), load(z + i + 3 * kLanes));
    if (hmax(max(a, b)) >= value) break;
  }
  while (i < n && z[i] != value) ++i;
  return i;
}

static void exponentials(const float* z, int n, float maximum, float inverse_temperature, float* e,
                         float* sums) {
  const V m = splat(maximum), t = splat(inverse_temperature);
  for (int first = 0; first < n; first += kSumSpan) {
    const int last = n - first < kSumSpan ? n : first + kSumSpan;
    V sum = zero();
    for (int i = first; i < last; i += kLanes) {
      const int left = last - i;
      V v = left >= kLanes ? load(z + i) : load_partial(z + i, left);
      v = exp((v - m) * t);
      if (left < kLanes) {
        v = select_lt(load(kLaneIndex), splat(static_cast<float>(left)), v, zero());
      }
      sum = sum + v;
      if (e == nullptr) continue;
      if (left >= kLanes) {
        store(e + i, v);
      } else {
        store_partial(e + i, v, left);
      }
    }
    sums[first / kSumSpan] = hsum(sum);
  }
}

static int count(const float* z, int n, float threshold) {
  const V t = splat(threshold), one = splat(1.0f);
  V below[4] = {zero(), zero(), zero(), zero()};  // at most n / 64 per lane: exact
  int i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      below[j] = below[j] + select_lt(load(z + i + j * kLanes), t, one, zero());
    }
  }
  int found = i - static_cast<int>(hsum((below[0] + below[1]) + (below[2] + below[3])));
  for (; i < n; ++i) found += z[i] < threshold ? 0 : 1;
  return found;
}

// The indices of a whole vector's lanes that reach the threshold, from ids[found] on; may write
// 16 entries. Returns the new count.
#if defined(__AVX512F__) && !defined(FLARE_SIMD_PORTABLE)
FLARE_INLINE int gather_lanes(V v, float threshold, int first, int32_t* ids, int found) {
  const __mmask16 mask = _mm512_cmp_ps_mask(v.r, splat(threshold).r, _CMP_NLT_UQ);
  const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i index = _mm512_add_epi32(lane, _mm512_set1_epi32(first));
  _mm512_storeu_si512(ids + found, _mm512_maskz_compress_epi32(mask, index));
  return found + __builtin_popcount(mask);
}
#else
FLARE_INLINE int gather_lanes(V v, float threshold, int first, int32_t* ids, int found) {
  if (hmax(v) < threshold) return found;
  alignas(64) float lanes[kLanes];
  store(lanes, v);
  for (int i = 0; i < kLanes; ++i) {
    ids[found] = first + i;
    found += lanes[i] < threshold ? 0 : 1;
  }
  return found;
}
#endif

static int gather(const float* z, int n, float threshold, int32_t* ids) {
  int found = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    found = gather_lanes(load(z + i), threshold, i, ids, found);
  }
  for (; i < n; ++i) {
    ids[found] = i;
    found += z[i] < threshold ? 0 : 1;
  }
  return found;
}

static float exponential(float x) {
  alignas(64) float lanes[kLanes];
  store(lanes, exp(splat(x)));
  return lanes[0];
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
