// Norm, rope, attention and sampler passes: the avx2 path.
#define FLARE_ISA_NS avx2
#include "kernels.inl"
