// Times the linears of one forward pass on random weights: milliseconds per pass, GB/s, GFLOP/s.
//
// Built with -DFLARE_BENCHMARKS=ON (cpu_ext/CMakeLists.txt).
//
// linear_bench ISA THREADS ROWS CLASS [REPEATS] [LAYOUT]
//   ISA: portable avx2 avx512 amx neon; ROWS: rows of the launch, one class for all;
//   CLASS: int8_g32 int12_g32 bf16_t32 bf16_g32;
//   LAYOUT of the layers: q4p16 (default) q8p16 bf16p16.
// The shapes are those of a 135-million-parameter Llama (30 layers, width 576, 49152 tokens); the
// head (q8p16, or bf16p16) is timed apart. Prints the sum over launches of each launch's tenth
// percentile ("good": what the kernels do on a machine that others share, without the outliers of
// a virtual clock) and the median whole pass.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "flare/features.h"
#include "flare/linear.h"
#include "flare/pool.h"

namespace {

using flare::Activation;
using flare::Isa;
using flare::Layout;
using flare::LinearArgs;
using flare::Numerics;

struct Shape {
  int n, k;
  Activation activation;
  bool residual;
};

constexpr int kLayers = 30;
constexpr Shape kLayer[] = {{960, 576, Activation::none, false},
                            {576, 576, Activation::none, true},
                            {3072, 576, Activation::silu_mul, false},
                            {576, 1536, Activation::none, true}};
constexpr Shape kHead = {49152, 576, Activation::none, false};

template <class T>
T named(const char* name, std::initializer_list<std::pair<const char*, T>> known) {
  for (const auto& [text, value] : known) {
    if (std::strcmp(text, name) == 0) return value;
  }
  std::fprintf(stderr, "unknown name: %s\n", name);
  std::exit(2);
}

Layout layout_named(const char* name) {
  return named<Layout>(name, {{"q4p16", Layout::q4p16},
                              {"q8p16", Layout::q8p16},
                              {"bf16p16", Layout::bf16p16}});
}

// Zeroed memory, huge pages advised, 64-byte aligned.
uint8_t* arena(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) std::abort();
  madvise(p, bytes, MADV_HUGEPAGE);
  return static_cast<uint8_t*>(p);
}

// Random codes, factors about 0.01, no NaN.
void fill(Layout layout, uint8_t* w, size_t bytes) {
  uint32_t state = 12345;
  const size_t block = layout == Layout::q4p16 ? 320 : layout == Layout::q8p16 ? 544 : 1024;
  const size_t codes = layout == Layout::q4p16 ? 256 : layout == Layout::q8p16 ? 512 : 0;
  for (size_t i = 0; i < bytes; i += 2) {
    state = state * 1664525u + 1013904223u;
    const bool factor = i % block >= codes;
    const uint32_t low = layout == Layout::bf16p16 ? 0x3c00u : 0x2000u;
    const uint16_t value = static_cast<uint16_t>(factor ? low | (state >> 24) : state >> 16);
    std::memcpy(w + i, &value, sizeof value);
  }
}

using Clock = std::chrono::steady_clock;

struct Bench {
  Isa isa;
  flare::ThreadPool* pool;
  std::vector<LinearArgs> launches;
  uint8_t* scratch;
  size_t rows_bytes, thread_bytes;
  std::vector<std::vector<double>> seconds = {};  // of each launch
};

void pass(void* argument, int tid) {
  Bench& bench = *static_cast<Bench*>(argument);
  const flare::LinearScratch scratch{
      bench.scratch, bench.scratch + bench.rows_bytes + tid * bench.thread_bytes};
  auto start = Clock::now();
  for (size_t i = 0; i < bench.launches.size(); ++i) {
    linear(bench.isa, bench.launches[i], scratch, tid, bench.pool->crew());
    if (tid != 0) continue;
    const auto now = Clock::now();
    bench.seconds[i].push_back(std::chrono::duration<double>(now - start).count());
    start = now;
  }
}

void report(const char* what, Bench& bench, int repeats, double bytes, double flops) {
  std::vector<double> seconds;
  bench.seconds.assign(bench.launches.size(), {});
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    bench.pool->run(pass, &bench);
    seconds.push_back(
        std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  double good = 0;
  for (auto& launch : bench.seconds) {
    std::sort(launch.begin(), launch.end());
    good += launch[launch.size() / 10];
  }
  std::printf("%-6s good %7.3f ms  median %7.3f ms  %6.1f GB/s  %7.1f GFLOP/s\n", what,
              good * 1e3, seconds[seconds.size() / 2] * 1e3, bytes / good * 1e-9,
              flops / good * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "linear_bench ISA THREADS ROWS CLASS [REPEATS] [LAYOUT]\n");
    return 2;
  }
  flare::features();  // asks for the tile permission
  const Isa isa = named<Isa>(argv[1], {{"portable", Isa::portable},
                                       {"avx2", Isa::avx2},
                                       {"avx512", Isa::avx512},
                                       {"amx", Isa::amx},
                                       {"neon", Isa::neon}});
  const int threads = std::atoi(argv[2]), rows = std::atoi(argv[3]);
  const Numerics numerics = named<Numerics>(
      argv[4], {{"int8_g32", Numerics::int8_g32},
                {"int12_g32", Numerics::int12_g32},
                {"bf16_t32", Numerics::bf16_t32},
                {"bf16_g32", Numerics::bf16_g32}});
  const int repeats = argc > 5 ? std::atoi(argv[5]) : 30;
  const Layout layout = layout_named(argc > 6 ? argv[6] : "q4p16");
  const Layout head_layout = layout == Layout::bf16p16 ? layout : Layout::q8p16;

  size_t layer_bytes = 0;
  for (const Shape& s : kLayer) layer_bytes += flare::packed_bytes(layout, s.n, s.k);
  const size_t head_bytes = flare::packed_bytes(head_layout, kHead.n, kHead.k);
  uint8_t* weights = arena(layer_bytes * kLayers + head_bytes);
  fill(layout, weights, layer_bytes * kLayers);
  fill(head_layout, weights + layer_bytes * kLayers, head_bytes);

  const int x_stride = 1536 + 16, y_stride = 3072 + 16, head_stride = kHead.n + 16;
  float* x = reinterpret_cast<float*>(arena(static_cast<size_t>(rows) * x_stride * 4));
  float* y = reinterpret_cast<float*>(arena(static_cast<size_t>(rows) * y_stride * 4));
  float* logits = reinterpret_cast<float*>(arena(static_cast<size_t>(rows) * head_stride * 4));
  for (int i = 0; i < rows * x_stride; ++i) x[i] = static_cast<float>(i % 251 - 125) * 0.01f;

  flare::ThreadPool pool(threads);
  const size_t rows_bytes = flare::linear_rows_bytes(rows, 1536);
  const size_t thread_bytes = flare::linear_thread_bytes(1536);
  uint8_t* scratch = arena(rows_bytes + threads * thread_bytes);
  const auto launch = [&](const Shape& s, const uint8_t* w, Layout l, float* out, int64_t stride) {
    const float* residual = s.residual ? out : nullptr;
    return LinearArgs{x,    x_stride, w,   nullptr, residual, stride,       out,      stride,
                      rows, rows,     s.n, s.k,     l,        s.activation, numerics, numerics,
                      0,    {}};
  };
  Bench layers{isa, &pool, {}, scratch, rows_bytes, thread_bytes};
  Bench head = layers;
  double params = 0;
  const uint8_t* w = weights;
  for (int i = 0; i < kLayers; ++i) {
    for (const Shape& s : kLayer) {
      layers.launches.push_back(launch(s, w, layout, y, y_stride));
      w += flare::packed_bytes(layout, s.n, s.k);
      params += static_cast<double>(s.n) * s.k;
    }
  }
  head.launches.push_back(launch(kHead, w, head_layout, logits, head_stride));
  const double head_params = static_cast<double>(kHead.n) * kHead.k;
  Bench both = layers;
  both.launches.push_back(head.launches[0]);
  report("layers", layers, repeats, static_cast<double>(layer_bytes) * kLayers,
         2.0 * rows * params);
  report("head", head, repeats, static_cast<double>(head_bytes), 2.0 * rows * head_params);
  report("all", both, repeats, static_cast<double>(layer_bytes) * kLayers + head_bytes,
         2.0 * rows * (params + head_params));
  return 0;
}
