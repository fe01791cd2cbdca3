// Linears: neon unit.
#if defined(__aarch64__)
#define FLARE_ISA_NS neon
#include "flare/math.h"
#include "linear_geometry.h"

namespace flare::FLARE_ISA_NS {
constexpr int kTileRows = 2;  // rows whose sums and chains fit the registers (linear_bf16.inl)
}

#include "linear_dot_neon.inl"
#include "linear_rows.inl"
#include "linear_store.inl"
#include "linear_int.inl"
#include "linear_bf16.inl"
#include "linear_bf16_g32.inl"
#include "linear_run.inl"
#endif
