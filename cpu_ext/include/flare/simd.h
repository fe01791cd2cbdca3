// A vector of 16 float lanes, compiled once per instruction set, with the same bits on each.
//
// Usage: a translation unit defines FLARE_ISA_NS (portable, avx2, avx512, amx or neon) and includes
// this header; everything lands in namespace flare::FLARE_ISA_NS. The portable unit also defines
// FLARE_SIMD_PORTABLE, so that it stays portable whatever the compiler flags are.
//
// Rules that keep the bits equal:
// - compile with -ffp-contract=off: a product and a sum fuse only where fma() says so;
// - subnormals are flushed (FTZ and DAZ in MXCSR, FZ in FPCR) by whoever calls: the thread pool
//   sets the mode around a replay, and kernel tests set it too;
// - max(a, b) is a > b ? a : b and min(a, b) is a < b ? a : b: a NaN in either yields b;
// - horizontal sums fold halves: 16 -> 8 -> 4 -> 2 -> 1, lane i with lane i + half.
//
// Units built for one instruction set must not instantiate shared templates or inline functions
// (std::vector, std::min ...): the linker may keep that unit's copy for the whole program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifndef FLARE_ISA_NS
#error "define FLARE_ISA_NS before including flare/simd.h"
#endif

#define FLARE_INLINE static inline __attribute__((always_inline))
#define FLARE_INLINE_MEMBER inline __attribute__((always_inline))

// Before a loop whose arrays must live in registers: unrolls it whole.
#if defined(__clang__)
#define FLARE_UNROLL _Pragma("unroll")
#else
#define FLARE_UNROLL _Pragma("GCC unroll 32")
#endif

namespace flare {
namespace FLARE_ISA_NS {
constexpr int kLanes = 16;
}  // namespace FLARE_ISA_NS
}  // namespace flare

#if defined(FLARE_SIMD_PORTABLE)
#include "flare/simd_portable.h"
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512BF16__)
#include "flare/simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "flare/simd_avx2.h"
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include "flare/simd_neon.h"
#else
#include "flare/simd_portable.h"
#endif

namespace flare {
namespace FLARE_ISA_NS {

FLARE_INLINE V fnma(V a, V b, V c) { return fma(neg(a), b, c); }  // c - a * b, rounded once

// Lanes n .. 15 are zero. 0 <= n <= 16; reads only n floats.
FLARE_INLINE V load_partial(const float* p, int n) {
  alignas(64) float lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return load(lanes);
}

// Writes only the first n lanes.
FLARE_INLINE void store_partial(float* p, V v, int n) {
  alignas(64) float lanes[kLanes];
  store(lanes, v);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}

// bfloat16 with round to nearest even; subnormals become zero, NaN stays NaN (as VCVTNEPS2BF16,
// Intel SDM volume 2).
FLARE_INLINE uint16_t bf16_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  if (magnitude < 0x00800000u) return static_cast<uint16_t>((bits >> 16) & 0x8000u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

FLARE_INLINE float bf16_to_float(uint16_t value) {
  const uint32_t bits = static_cast<uint32_t>(value) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

}  // namespace FLARE_ISA_NS
}  // namespace flare
