// Norm, rope, attention and sampler passes: the amx path.
#define FLARE_ISA_NS amx
#define FLARE_TILES
#include "kernels.inl"
