// Norm, rope, attention and sampler passes: the avx512 path.
#define FLARE_ISA_NS avx512
#include "kernels.inl"
