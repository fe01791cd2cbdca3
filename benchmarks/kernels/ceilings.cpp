// Measures what the processor can do at best: read bandwidth by working set, and arithmetic peaks.
//
//   c++ -O3 -std=c++17 -pthread benchmarks/kernels/ceilings.cpp -o ceilings && ./ceilings THREADS
//
// Prints one "name value" a line: read_gb_s_SIZE_MIB in GB/s for the sum of all threads (each reads
// a share of its own again and again), bf16_amx, int8_amx, int8_vnni and f32_fma in GFLOP/s (a
// multiply and an add count as two, also of integers). Peaks are loops over registers, with enough
// independent chains to hide latency. What a processor lacks is not printed.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kTries = 15;

// Runs work(thread) on all threads at once; seconds from the common start to the last end.
double together(int threads, const std::function<void(int)>& work) {
  std::atomic<int> waiting{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> crew;
  for (int t = 0; t < threads; ++t) {
    crew.emplace_back([&, t] {
      waiting.fetch_add(1);
      while (!go.load()) {
      }
      work(t);
    });
  }
  while (waiting.load() < threads) {
  }
  const auto start = Clock::now();
  go.store(true);
  for (auto& thread : crew) thread.join();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double best_seconds(int threads, const std::function<void(int)>& work) {
  double best = 1e30;
  for (int i = 0; i < kTries; ++i) best = std::min(best, together(threads, work));
  return best;
}

#if defined(__x86_64__)
#define FLARE_WIDE __attribute__((noinline, target("avx2")))
using Words = __m256i;
#else
#define FLARE_WIDE __attribute__((noinline))
using Words = uint64_t __attribute__((vector_size(32)));
#endif

// Sums all words through eight accumulators; count is a multiple of 32.
FLARE_WIDE uint64_t sum(const uint64_t* words, size_t count) {
  Words a[8] = {};
  const auto* v = reinterpret_cast<const Words*>(words);
  for (size_t i = 0; i < count / 4; i += 8) {
#pragma GCC unroll 8
    for (size_t j = 0; j < 8; ++j) a[j] += v[i + j];
  }
  for (size_t j = 1; j < 8; ++j) a[0] += a[j];
  return static_cast<uint64_t>(a[0][0] + a[0][1] + a[0][2] + a[0][3]);
}

void bandwidth(int threads, size_t mib) {
  const size_t bytes = (mib << 20) / static_cast<size_t>(threads) / 4096 * 4096;
  const int passes = static_cast<int>(std::max<size_t>(1, (size_t{256} << 20) / (mib << 20)));
  std::vector<uint64_t*> shares;
  for (int t = 0; t < threads; ++t) {
    auto* share = static_cast<uint64_t*>(std::aligned_alloc(4096, bytes));
    if (share == nullptr) std::exit(1);
    std::memset(share, t + 1, bytes);
    shares.push_back(share);
  }
  std::atomic<uint64_t> sink{0};
  const double seconds = best_seconds(threads, [&](int t) {
    for (int i = 0; i < passes; ++i) {
      sink += sum(shares[static_cast<size_t>(t)], bytes / 8);
      asm volatile("" ::: "memory");
    }
  });
  const double read = static_cast<double>(bytes) * threads * passes;
  std::printf("read_gb_s_%zu %.2f\n", mib, read / seconds * 1e-9);
  for (uint64_t* share : shares) std::free(share);
}

#if defined(__x86_64__)
constexpr int kRounds = 1 << 20;

__attribute__((target("avx512f,avx512vnni"))) void vnni(int) {
  __m512i a[16], x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(1);
  for (auto& each : a) each = _mm512_setzero_si512();
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 16
    for (auto& each : a) {
      asm volatile("vpdpbusd %2, %1, %0" : "+v"(each) : "v"(x), "v"(y));
    }
  }
}

__attribute__((target("avx512f"))) void fma512(int) {
  __m512 a[16], x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(1.0f);
  for (auto& each : a) each = _mm512_setzero_ps();
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 16
    for (auto& each : a) {
      each = _mm512_fmadd_ps(each, x, y);
      asm volatile("" : "+v"(each));
    }
  }
}

struct alignas(64) TileConfig {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t columns[16] = {};
  uint8_t rows[16] = {};
};

// Four accumulators (tiles 0-3) from two A (4, 5) and two B tiles (6, 7), as a kernel would.
__attribute__((target("amx-tile,amx-bf16,amx-int8"))) void tiles(bool bf16) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.columns[i] = 64;
    config.rows[i] = 16;
  }
  asm volatile("" : : "r"(&config) : "memory");  // all of it is read, not its first bytes alone
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int i = 0; i < kRounds / 16; ++i) {
    if (bf16) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    } else {
      _tile_dpbusd(0, 4, 6);
      _tile_dpbusd(1, 4, 7);
      _tile_dpbusd(2, 5, 6);
      _tile_dpbusd(3, 5, 7);
    }
  }
  _tile_release();
}

void peak(const char* name, int threads, double operations, const std::function<void(int)>& work) {
  std::printf("%s %.1f\n", name, operations * threads / best_seconds(threads, work) * 1e-9);
}

bool tiles_allowed() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(2)
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// CPUID leaf 7: AMX-BF16 and AMX-INT8 are bits 22 and 25 of EDX, which GCC 12 has no names for.
bool has_tiles() {
  unsigned a = 7, b = 0, c = 0, d = 0;
  asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  return (d >> 22 & 1) != 0 && (d >> 25 & 1) != 0 && tiles_allowed();
}

void peaks(int threads) {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) peak("f32_fma", threads, 16.0 * 32 * kRounds, fma512);
  if (__builtin_cpu_supports("avx512vnni")) peak("int8_vnni", threads, 16.0 * 128 * kRounds, vnni);
  if (!has_tiles()) return;
  // 16 x 16 results of 32 (bf16) or 64 (int8) products, four a round.
  peak("bf16_amx", threads, 4.0 * 16384 * (kRounds / 16), [](int) { tiles(true); });
  peak("int8_amx", threads, 4.0 * 32768 * (kRounds / 16), [](int) { tiles(false); });
}
#else
void peaks(int) {}
#endif

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  if (threads < 1) {
    std::fprintf(stderr, "ceilings THREADS\n");
    return 2;
  }
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) {
    std::fprintf(stderr, "ceilings: needs AVX2\n");
    return 1;
  }
#endif
  for (const size_t mib : {1, 8, 64, 96, 256}) bandwidth(threads, mib);
  peaks(threads);
}
