// RMS norm, rotary embedding with the cache store. Included once per instruction set.

namespace flare {
namespace FLARE_ISA_NS {

// Sum of squares in four interleaved vectors, combined (0 + 1) + (2 + 3), then hsum.
FLARE_INLINE float sum_of_squares(const float* x, int width) {
  V acc[4] = {zero(), zero(), zero(), zero()};
  int i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const V v = load(x + i + j * kLanes);
      acc[j] = fma(v, v, acc[j]);
    }
  }
  for (int j = 0; i < width; i += kLanes, ++j) {
    const int left = width - i;
    const V v = left >= kLanes ? load(x + i) : load_partial(x + i, left);
    acc[j] = fma(v, v, acc[j]);
  }
  return hsum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

static void rms_norm(const RmsNormArgs& a, int first, int last) {
  for (int row = first; row < last; ++row) {
    const float* x = a.x + static_cast<int64_t>(row) * a.width;
    float* y = a.y + static_cast<int64_t>(row) * a.width;
    const float mean = sum_of_squares(x, a.width) / static_cast<float>(a.width);
    const V inverse = splat(1.0f) / sqrt(splat(mean + a.eps));
    int i = 0;
    for (; i + kLanes <= a.width; i += kLanes) {
      store(y + i, (load(x + i) * inverse) * load(a.weight + i));
    }
    if (i < a.width) {
      const int left = a.width - i;
      const V v = (load_partial(x + i, left) * inverse) * load_partial(a.weight + i, left);
      store_partial(y + i, v, left);
    }
  }
}

// out = x rotated by the angles of one position: halves (x1, x2) -> (x1 c - x2 s, x2 c + x1 s).
FLARE_INLINE void rotate(const float* x, const float* angles, int head_dim, float* out) {
  const int half = head_dim / 2;
  const float* cosine = angles;
  const float* sine = angles + half;
  for (int i = 0; i < half; i += kLanes) {
    const int n = half - i < kLanes ? half - i : kLanes;
    const V c = load_partial(cosine + i, n), s = load_partial(sine + i, n);
    const V a = load_partial(x + i, n), b = load_partial(x + half + i, n);
    store_partial(out + i, fma(a, c, neg(b * s)), n);
    store_partial(out + half + i, fma(b, c, a * s), n);
  }
}

FLARE_INLINE void rotate_full(const float* x, const float* angles, int half, float* out) {
  for (int i = 0; i < half; i += kLanes) {
    const V c = load(angles + i), s = load(angles + half + i);
    const V a = load(x + i), b = load(x + half + i);
    store(out + i, fma(a, c, neg(b * s)));
    store(out + half + i, fma(b, c, a * s));
  }
}

FLARE_INLINE void rope(const float* x, const float* angles, int head_dim, float* out) {
  if (head_dim % (2 * kLanes) == 0) {
    rotate_full(x, angles, head_dim / 2, out);
  } else {
    rotate(x, angles, head_dim, out);
  }
}

// bf16 of x, dims padded with zeros to a multiple of 16.
FLARE_INLINE void narrow(const float* x, int head_dim, uint16_t* out) {
  for (int i = 0; i < head_dim; i += kLanes) {
    const int n = head_dim - i;
    store_bf16(out + i, n >= kLanes ? load(x + i) : load_partial(x + i, n));
  }
}

// Keys lie as [dim / 2][token][2]: one 32-bit store per pair of dimensions.
FLARE_INLINE void store_key(const uint16_t* k, int head_dim, uint8_t* keys, int offset) {
  for (int i = 0; i < head_dim; i += 2) {
    std::memcpy(keys + (static_cast<int64_t>(i / 2) * kKeyTile + offset) * 4, k + i, 4);
  }
}

// Values lie as [token / 2][dim][2].
FLARE_INLINE void store_value(const uint16_t* v, int head_dim, int padded_dim, uint8_t* values,
                              int offset) {
  uint16_t* out = reinterpret_cast<uint16_t*>(values) +
                  static_cast<int64_t>(offset / 2) * padded_dim * 2 + offset % 2;
  for (int i = 0; i < head_dim; ++i) out[2 * i] = v[i];
}

FLARE_INLINE uint8_t* cell_at(const RopeStoreArgs& a, int64_t row, int kv_head) {
  return a.cache + a.slots[row] / kKeyTile * a.shape->block_bytes +
         kv_head * a.shape->head_bytes;
}

// Asks for the lines that a row's key and value will be stored to: a key's lie far apart, and
// waiting for each in turn takes longer than the arithmetic.
FLARE_INLINE void ask_cell(const RopeStoreArgs& a, int64_t row, int kv_head) {
  const CacheShape& shape = *a.shape;
  const uint8_t* keys = cell_at(a, row, kv_head);
  const int offset = a.slots[row] % kKeyTile;
  for (int i = 0; i < shape.head_dim / 2; ++i) {
    __builtin_prefetch(keys + (static_cast<int64_t>(i) * kKeyTile + offset) * 4, 1);
  }
  const uint8_t* values = keys + shape.value_offset + int64_t{offset / 2} * shape.padded_dim * 4;
  for (int i = 0; i < shape.head_dim * 4; i += 64) __builtin_prefetch(values + i, 1);
}

static void rope_store(const RopeStoreArgs& a, int64_t first, int64_t last) {
  const CacheShape& shape = *a.shape;
  const int dim = shape.head_dim;
  const int units = a.heads + 2 * shape.kv_heads;
  const bool whole_rows = last - first >= units;  // else another thread may store what is asked for
  alignas(64) float rotated[kMaxHeadDim];
  alignas(64) uint16_t narrow16[kMaxHeadDim];
  for (int64_t unit = first; unit < last; ++unit) {
    const int64_t row = unit / units;
    const int head = static_cast<int>(unit % units);
    const float* x = a.qkv + unit * dim;
    const float* angles = a.rope + static_cast<int64_t>(a.positions[row]) * dim;
    if (head < a.heads) {
      if (whole_rows && head < shape.kv_heads) ask_cell(a, row, head);
      rope(x, angles, dim, a.q + (row * a.heads + head) * dim);
      continue;
    }
    const bool is_key = head < a.heads + shape.kv_heads;
    const int kv_head = head - a.heads - (is_key ? 0 : shape.kv_heads);
    const int slot = a.slots[row];
    uint8_t* cell = cell_at(a, row, kv_head);
    if (is_key) {
      rope(x, angles, dim, rotated);
      narrow(rotated, dim, narrow16);
      store_key(narrow16, dim, cell, slot % kKeyTile);
    } else {
      narrow(x, dim, narrow16);
      store_value(narrow16, dim, shape.padded_dim, cell + shape.value_offset, slot % kKeyTile);
    }
  }
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
