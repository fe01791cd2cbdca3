// Linears: amx unit.
#if defined(__x86_64__)
#define FLARE_ISA_NS amx
#define FLARE_TILES
#include "flare/math.h"
#include "linear_geometry.h"

#include "linear_dot_avx512.inl"
#include "linear_tiles.inl"
#include "linear_rows.inl"
#include "linear_store.inl"
#include "linear_int.inl"
#include "linear_bf16.inl"
#include "linear_bf16_g32.inl"
#include "linear_amx_int.inl"
#include "linear_amx_bf16.inl"
#include "linear_amx_g32.inl"
#include "linear_amx_bf16_g32.inl"
#include "linear_amx_int12.inl"
#include "linear_run.inl"
#endif
