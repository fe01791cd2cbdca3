// Instruction sets that this processor and operating system give.
#pragma once

namespace flare {

// avx2: AVX2, FMA, F16C. avx512: F, BW, VL, DQ, VNNI, BF16. amx: avx512, VBMI and AMX-TILE, INT8,
// BF16, with the permission of the kernel for this process. neon: ASIMD with the dot product
// instructions.
struct Features {
  bool avx2 = false;
  bool avx512 = false;
  bool amx = false;
  bool neon = false;
};

// Detected once, at the first call (thread safe); asks Linux for the AMX permission then.
const Features& features();

}  // namespace flare
