// From an instruction set to its kernels.
#include "flare/kernels.h"

namespace flare {

namespace portable {
extern const Kernels kKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}
namespace amx {
extern const Kernels kKernels;
}
#elif defined(__aarch64__)
namespace neon {
extern const Kernels kKernels;
}
#endif

const Kernels* kernels(Isa isa) {
  switch (isa) {
    case Isa::portable: return &portable::kKernels;
#if defined(__x86_64__)
    case Isa::avx2: return &avx2::kKernels;
    case Isa::avx512: return &avx512::kKernels;
    case Isa::amx: return &amx::kKernels;
#elif defined(__aarch64__)
    case Isa::neon: return &neon::kKernels;
#endif
    default: return nullptr;
  }
}

}  // namespace flare
