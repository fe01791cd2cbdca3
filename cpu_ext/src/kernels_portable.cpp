// Norm, rope, attention and sampler passes: the portable path.
#define FLARE_ISA_NS portable
#define FLARE_SIMD_PORTABLE
#include "kernels.inl"
