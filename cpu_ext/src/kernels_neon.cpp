// Norm, rope, attention and sampler passes: the neon path.
#define FLARE_ISA_NS neon
#include "kernels.inl"
