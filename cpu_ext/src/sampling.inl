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
  V below = zero();  // at most n / 16 per lane: exact
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) below = below + select_lt(load(z + i), t, one, zero());
  int found = i - static_cast<int>(hsum(below));
  for (; i < n; ++i) found += z[i] < threshold ? 0 : 1;
  return found;
}

static int gather(const float* z, int n, float threshold, int32_t* ids) {
  int found = 0;
  for (int i = 0; i < n;) {
    if (i + 4 * kLanes <= n) {
      const V a = max(load(z + i), load(z + i + kLanes));
      const V b = max(load(z + i + 2 * kLanes), load(z + i + 3 * kLanes));
      if (hmax(max(a, b)) < threshold) {
        i += 4 * kLanes;
        continue;
      }
    }
    const int last = i + 4 * kLanes < n ? i + 4 * kLanes : n;
    for (; i < last; ++i) {
      ids[found] = i;
      found += z[i] < threshold ? 0 : 1;
    }
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
