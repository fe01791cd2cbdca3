// Feature detection: CPUID and XCR0 on x86 (Intel SDM volume 1, chapters 13, 14 and 18), the
// auxiliary vector on ARM.
#include "flare/features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace flare {
namespace {

#if defined(__x86_64__)

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Leaf leaf(unsigned number, unsigned sub) {
  Leaf r;
  if (!__get_cpuid_count(number, sub, &r.eax, &r.ebx, &r.ecx, &r.edx)) return Leaf{};
  return r;
}

unsigned long long enabled_state() {
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<unsigned long long>(high) << 32) | low;
}

constexpr bool all(unsigned long long value, unsigned long long mask) {
  return (value & mask) == mask;
}

constexpr unsigned bit(int n) { return 1u << n; }

bool amx_permitted() {
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILE_DATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Features detect() {
  Features f;
  const Leaf one = leaf(1, 0);
  if (!all(one.ecx, bit(27) | bit(28))) return f;  // OSXSAVE, AVX
  const Leaf seven = leaf(7, 0);
  const Leaf seven_one = leaf(7, 1);
  const unsigned long long state = enabled_state();
  const bool ymm = all(state, 0x6);
  const bool zmm = all(state, 0xe6);
  const bool tiles = all(state, 0x60000);
  f.avx2 = ymm && all(one.ecx, bit(12) | bit(29)) && all(seven.ebx, bit(5));
  f.avx512 = f.avx2 && zmm && all(seven.ebx, bit(16) | bit(17) | bit(30) | bit(31)) &&
             all(seven.ecx, bit(11)) && all(seven_one.eax, bit(5));
  // Beside tiles: VBMI, which every processor with tiles has.
  f.amx = f.avx512 && tiles && all(seven.edx, bit(22) | bit(24) | bit(25)) &&
          all(seven.ecx, bit(1)) && amx_permitted();
  return f;
}

#elif defined(__aarch64__)

Features detect() {
  Features f;
#if defined(__linux__)
  constexpr unsigned long kDotProduct = 1ul << 20;  // HWCAP_ASIMDDP
  f.neon = (getauxval(AT_HWCAP) & kDotProduct) != 0;
#elif defined(__APPLE__)
  f.neon = true;  // every Apple processor of this architecture has it
#endif
  return f;
}

#else

Features detect() { return Features{}; }

#endif

}  // namespace

const Features& features() {
  static const Features found = detect();
  return found;
}

}  // namespace flare
