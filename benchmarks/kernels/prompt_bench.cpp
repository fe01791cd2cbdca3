// Times the replay of a prompt, whole and by op, on random weights: milliseconds, tokens per second.
//
// Built with -DFLARE_BENCHMARKS=ON (cpu_ext/CMakeLists.txt).
//
// prompt_bench ISA THREADS ROWS DEPTH [REPEATS] [STREAMS]
//   ROWS: prompt rows of a replay; DEPTH: keys of the prompt before them; STREAMS: generated rows of
//   as many sequences of 256 keys beside them (default 0).
// The model is that of linear_bench.cpp, its head left out. "by op": executables that hold the
// launches of one op only, over the same arena. Times are the least of the repeats.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "flare/executable.h"

namespace {

using flare::LaunchSpec;
using flare::Operand;
using Kind = Operand::Kind;

constexpr int64_t kLayers = 30, kWidth = 576, kFfn = 1536, kHeads = 9, kKvHeads = 3, kHeadDim = 64;
constexpr int64_t kQkv = (kHeads + 2 * kKvHeads) * kHeadDim;
constexpr int64_t kStreamKeys = 256;

uint8_t* region(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) std::abort();
  madvise(p, bytes, MADV_HUGEPAGE);
  return static_cast<uint8_t*>(p);
}

struct Model {
  int64_t rows;
  std::vector<flare::WeightView> weights;
  std::vector<LaunchSpec> launches;

  Operand packed(int64_t n, int64_t k) {
    const size_t bytes = flare::packed_bytes(flare::Layout::q4p16, static_cast<int>(n),
                                             static_cast<int>(k));
    uint8_t* w = region(bytes);
    uint32_t state = 12345 + static_cast<uint32_t>(weights.size());
    for (size_t i = 0; i < bytes; i += 2) {
      state = state * 1664525u + 1013904223u;
      const bool factor = i % 320 >= 256, minimum = i % 320 >= 288;
      const uint16_t value = static_cast<uint16_t>(
          !factor ? state >> 16 : minimum ? 0xac00u | (state >> 24) : 0x2000u | (state >> 24));
      std::memcpy(w + i, &value, sizeof value);
    }
    return add(w, bytes);
  }
  Operand floats(int64_t count, float value) {
    float* w = reinterpret_cast<float*>(region(static_cast<size_t>(count) * 4));
    std::fill(w, w + count, value);
    return add(reinterpret_cast<uint8_t*>(w), static_cast<size_t>(count) * 4);
  }
  Operand add(const uint8_t* w, size_t bytes) {
    weights.push_back({w, bytes});
    return {Kind::weight, static_cast<int64_t>(weights.size()) - 1, ""};
  }
  int64_t arena = 0;
  Operand buffer(int64_t width) {
    const Operand found{Kind::arena, arena, ""};
    arena += (rows * width * 4 + 4095) / 4096 * 4096 + 4096;
    return found;
  }
  void linear(const Operand& x, const Operand& y, const Operand* residual, int64_t n, int64_t k,
              const char* activation, const char* generated) {
    std::vector<Operand> in = {x, packed(n, k)};
    if (residual) in.push_back(*residual);
    launches.push_back({"linear", in, {y},
                        {{"n", n}, {"k", k}, {"layout", "q4p16"}, {"activation", activation},
                         {"bias", int64_t{0}}, {"residual", int64_t{residual != nullptr}},
                         {"prompt_class", "bf16_t32"}, {"generated_class", generated},
                         {"rows", "tokens"}}});
  }
  void norm(const Operand& x, const Operand& y) {
    launches.push_back({"rms_norm", {x, floats(kWidth, 1.0f)}, {y},
                        {{"width", kWidth}, {"eps", 1e-5}, {"rows", "tokens"}}});
  }
};

Operand input(const char* name) { return {Kind::input, 0, name}; }

void record(Model& m, int64_t positions) {
  const Operand x = m.buffer(kWidth), h = m.buffer(kWidth), qkv = m.buffer(kQkv);
  const Operand q = m.buffer(kWidth), a = m.buffer(kWidth), g = m.buffer(kFfn);
  const Operand rope = m.floats(positions * kHeadDim, 0.7f), state{Kind::state, 0, ""};
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::map<std::string, flare::Attribute> heads = {
        {"heads", kHeads}, {"kv_heads", kKvHeads}, {"head_dim", kHeadDim}, {"layer", layer}};
    m.norm(x, h);
    m.linear(h, qkv, nullptr, kQkv, kWidth, "none", "bf16_g32");
    m.launches.push_back({"rope_store_kv", {qkv, rope, input("positions"), input("slots"), state},
                          {q}, heads});
    auto attention = heads;
    attention["scale"] = 0.125;
    m.launches.push_back({"paged_attention",
                          {q, state, input("positions"), input("seg_starts"), input("seq_lens"),
                           input("block_tables")},
                          {a}, attention});
    m.linear(a, x, &x, kWidth, kWidth, "none", "bf16_g32");
    m.norm(x, h);
    m.linear(h, g, nullptr, 2 * kFfn, kWidth, "silu_mul", "bf16_g32");
    m.linear(g, x, &x, kWidth, kFfn, "none", "bf16_g32");
  }
}

double least(flare::Executable& e, const flare::BatchShape& shape, int repeats) {
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    e.replay(shape);
    const std::chrono::duration<double> d = std::chrono::steady_clock::now() - start;
    best = std::min(best, d.count());
  }
  return best * 1e3;
}

// Rows of the streams first, one each, then those of the prompt.
void fill_inputs(const flare::Context& c, int64_t streams, int64_t rows, int64_t depth) {
  const int64_t stream_blocks = kStreamKeys / 64, max_blocks = c.sizes().max_blocks;
  for (int64_t s = 0; s <= streams; ++s) {
    const bool prompt = s == streams;
    const int64_t keys = prompt ? depth + rows : kStreamKeys, count = prompt ? rows : 1;
    c.seg_starts()[s] = static_cast<int32_t>(s);
    c.seq_lens()[s] = static_cast<int32_t>(keys);
    for (int64_t b = 0; b < (keys + 63) / 64; ++b) {
      c.block_tables()[s * max_blocks + b] = static_cast<int32_t>(s * stream_blocks + b);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t position = keys - count + i;
      c.positions()[s + i] = static_cast<int32_t>(position);
      c.slots()[s + i] = static_cast<int32_t>(s * kStreamKeys + position);
    }
  }
  c.seg_starts()[streams + 1] = static_cast<int32_t>(streams + rows);
}

void fill_floats(uint8_t* arena, int64_t bytes) {
  float* x = reinterpret_cast<float*>(arena);
  uint32_t state = 1;
  for (int64_t i = 0; i < bytes / 4; ++i) {
    state = state * 1664525u + 1013904223u;
    x[i] = (static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * 2.0f;
  }
}

// bfloat16 values of -2 to 2.
void fill_cache(uint8_t* cache, size_t bytes) {
  uint32_t state = 2;
  for (size_t i = 0; i < bytes; i += 2) {
    state = state * 1664525u + 1013904223u;
    const float value = (static_cast<float>(state >> 8) / 8388608.0f - 1.0f) * 2.0f;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const uint16_t high = static_cast<uint16_t>(bits >> 16);
    std::memcpy(cache + i, &high, sizeof high);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "prompt_bench ISA THREADS ROWS DEPTH [REPEATS] [STREAMS]\n");
    return 2;
  }
  const flare::Isa isa = flare::parse_isa(argv[1]);
  const int64_t rows = std::atoll(argv[3]), depth = std::atoll(argv[4]);
  const int repeats = argc > 5 ? std::atoi(argv[5]) : 5;
  const int64_t streams = argc > 6 ? std::atoll(argv[6]) : 0;
  const int64_t all = rows + streams, keys = rows + depth;
  Model model;
  model.rows = all;
  record(model, std::max(keys, kStreamKeys));
  flare::ContextSizes sizes;
  sizes.arena_bytes = model.arena;
  sizes.max_tokens = all;
  sizes.max_seqs = streams + 1;
  sizes.max_logits = 1;
  sizes.max_blocks = std::max(keys, kStreamKeys) / 64 + 1;
  sizes.layers = kLayers;
  sizes.kv_heads = kKvHeads;
  sizes.head_dim = kHeadDim;
  sizes.block_size = 64;
  sizes.num_blocks = streams * (kStreamKeys / 64) + sizes.max_blocks;
  const auto pool = std::make_shared<flare::ThreadPool>(std::atoi(argv[2]));
  const auto context = std::make_shared<flare::Context>(pool, isa, sizes);
  const flare::Domain domain{all, streams + 1, 0};
  fill_floats(context->arena(), model.arena);
  fill_inputs(*context, streams, rows, depth);
  fill_cache(context->cache(), context->cache_bytes());
  const flare::BatchShape shape{all, streams + 1, streams, streams, 0, 0};

  flare::Executable whole(context, domain, model.launches, model.weights);
  const double total = least(whole, shape, repeats);
  std::printf("whole %8.2f ms  %7.0f tok/s\n", total, static_cast<double>(rows) / total * 1e3);
  std::map<std::string, std::vector<LaunchSpec>> by_op;
  for (const LaunchSpec& l : model.launches) {
    std::string name = l.op;
    if (name == "linear") {
      name += " " + std::to_string(std::get<int64_t>(l.attributes.at("n"))) + "x" +
              std::to_string(std::get<int64_t>(l.attributes.at("k")));
    }
    by_op[name].push_back(l);
  }
  fill_floats(context->arena(), model.arena);
  for (const auto& [name, launches] : by_op) {
    flare::Executable part(context, domain, launches, model.weights);
    std::printf("  %-18s %8.2f ms\n", name.c_str(), least(part, shape, repeats));
  }
  return 0;
}
