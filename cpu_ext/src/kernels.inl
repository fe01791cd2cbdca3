// Everything that one instruction set's unit holds. The unit defines FLARE_ISA_NS, and FLARE_TILES
// where prompt attention runs on AMX tiles.

#include "flare/kernels.h"
#include "flare/math.h"
#include "flare/simd.h"

#include "norm_rope.inl"
#include "attention_products.inl"
#include "attention_softmax.inl"
#include "attention.inl"
#if defined(FLARE_TILES)
#include "linear_geometry.h"

#include "attention_amx_softmax.inl"
#include "attention_amx.inl"
#endif
#include "sampling.inl"

namespace flare {
namespace FLARE_ISA_NS {

// Found by dispatch.cpp.
extern const Kernels kKernels;
const Kernels kKernels = {
    rms_norm,     rope_store, attend_begin, attend_end, attend_prompt, attend_generated,
    attend_merge, scan,       find,         exponentials, count,       gather,
    exponential,
};

}  // namespace FLARE_ISA_NS
}  // namespace flare
