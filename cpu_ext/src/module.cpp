// The Python face of the extension: arrays and launches in, checked C++ objects out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "flare/executable.h"
#include "flare/features.h"
#include "flare/sampler.h"

namespace nb = nanobind;

namespace flare {
namespace {

template <typename T, int N>
using Array = nb::ndarray<T, nb::ndim<N>, nb::c_contig, nb::device::cpu>;
template <typename T, int N>
using View = nb::ndarray<nb::numpy, T, nb::ndim<N>, nb::c_contig>;
using Bytes = Array<const uint8_t, 1>;

nb::dict feature_dict() {
  const Features& f = features();
  nb::dict out;
  out["avx2"] = f.avx2;
  out["avx512"] = f.avx512;
  out["amx"] = f.amx;
  out["neon"] = f.neon;
  return out;
}

// ---- context ----

using InputGetter = int32_t* (Context::*)() const noexcept;
using SizeMember = int64_t ContextSizes::*;

template <InputGetter kGet, SizeMember kSize, int kExtra>
View<int32_t, 1> input_view(nb::handle_t<Context> self) {
  const Context& c = nb::cast<const Context&>(self);
  const size_t count = static_cast<size_t>(c.sizes().*kSize + kExtra);
  return View<int32_t, 1>((c.*kGet)(), {count}, self);
}

View<int32_t, 2> table_view(nb::handle_t<Context> self) {
  const Context& c = nb::cast<const Context&>(self);
  return View<int32_t, 2>(c.block_tables(),
                          {static_cast<size_t>(c.sizes().max_seqs),
                           static_cast<size_t>(c.sizes().max_blocks)},
                          self);
}

View<uint8_t, 1> arena_view(nb::handle_t<Context> self) {
  const Context& c = nb::cast<const Context&>(self);
  return View<uint8_t, 1>(c.arena(), {static_cast<size_t>(c.sizes().arena_bytes)}, self);
}

View<uint8_t, 1> cache_view(nb::handle_t<Context> self) {
  const Context& c = nb::cast<const Context&>(self);
  const size_t bytes = static_cast<size_t>(c.layer_bytes() * c.sizes().layers);
  return View<uint8_t, 1>(c.cache(), {bytes}, self);
}

void new_context(Context* self, std::shared_ptr<ThreadPool> pool, const std::string& isa,
                 int64_t arena_bytes, int64_t max_tokens, int64_t max_seqs, int64_t max_logits,
                 int64_t max_blocks, int64_t layers, int64_t kv_heads, int64_t head_dim,
                 int64_t block_size, int64_t num_blocks) {
  const ContextSizes sizes{arena_bytes, max_tokens, max_seqs, max_logits, max_blocks,
                           layers,      kv_heads,   head_dim, block_size, num_blocks};
  new (self) Context(std::move(pool), parse_isa(isa.c_str()), sizes);
}

void bind_context(nb::module_& m) {
  nb::class_<ThreadPool>(m, "ThreadPool")
      .def(nb::init<int>(), nb::arg("threads"))
      .def_prop_ro("threads", &ThreadPool::threads);

  using C = Context;
  using S = ContextSizes;
  nb::class_<Context>(m, "Context")
      .def("__init__", &new_context, nb::arg("pool"), nb::arg("isa"), nb::arg("arena_bytes"),
           nb::arg("max_tokens"), nb::arg("max_seqs"), nb::arg("max_logits"),
           nb::arg("max_blocks"), nb::arg("layers"), nb::arg("kv_heads"), nb::arg("head_dim"),
           nb::arg("block_size"), nb::arg("num_blocks"))
      .def_prop_ro("isa", [](const Context& c) { return isa_name(c.isa()); })
      .def_prop_ro("scratch_bytes", &Context::scratch_bytes)
      .def_prop_ro("token_ids", &input_view<&C::token_ids, &S::max_tokens, 0>)
      .def_prop_ro("positions", &input_view<&C::positions, &S::max_tokens, 0>)
      .def_prop_ro("slots", &input_view<&C::slots, &S::max_tokens, 0>)
      .def_prop_ro("seg_starts", &input_view<&C::seg_starts, &S::max_seqs, 1>)
      .def_prop_ro("seq_lens", &input_view<&C::seq_lens, &S::max_seqs, 0>)
      .def_prop_ro("logit_rows", &input_view<&C::logit_rows, &S::max_logits, 0>)
      .def_prop_ro("block_tables", &table_view)
      .def_prop_ro("arena", &arena_view)
      .def_prop_ro("kv_cache", &cache_view);
}

// ---- executable ----

using RawOperand = std::pair<std::string, std::variant<int64_t, std::string>>;
using RawLaunch = std::tuple<std::string, std::vector<RawOperand>, std::vector<RawOperand>,
                             std::map<std::string, Attribute>>;

Operand read_operand(const RawOperand& raw) {
  const auto& [kind, value] = raw;
  const int64_t* number = std::get_if<int64_t>(&value);
  const std::string* name = std::get_if<std::string>(&value);
  if (kind == "arena" && number != nullptr) return {Operand::Kind::arena, *number, {}};
  if (kind == "weight" && number != nullptr) return {Operand::Kind::weight, *number, {}};
  if (kind == "input" && name != nullptr) return {Operand::Kind::input, 0, *name};
  if (kind == "state" && name != nullptr) return {Operand::Kind::state, 0, *name};
  throw std::invalid_argument("unknown operand kind '" + kind + "'");
}

std::vector<Operand> read_operands(const std::vector<RawOperand>& raw) {
  std::vector<Operand> out;
  out.reserve(raw.size());
  for (const RawOperand& operand : raw) out.push_back(read_operand(operand));
  return out;
}

// An executable together with the arrays that its weights lie in.
class BoundExecutable {
 public:
  BoundExecutable(std::shared_ptr<Context> context, const Domain& domain,
                  const std::vector<LaunchSpec>& launches, std::vector<Bytes> weights)
      : weights_(std::move(weights)),
        executable_(std::move(context), domain, launches, views(weights_)) {}
  BoundExecutable(const BoundExecutable&) = delete;
  BoundExecutable& operator=(const BoundExecutable&) = delete;

  void replay(const BatchShape& shape) { executable_.replay(shape); }

 private:
  static std::vector<WeightView> views(const std::vector<Bytes>& arrays) {
    std::vector<WeightView> out;
    out.reserve(arrays.size());
    for (const Bytes& array : arrays) out.push_back({array.data(), array.size()});
    return out;
  }

  std::vector<Bytes> weights_;
  Executable executable_;
};

void new_executable(BoundExecutable* self, std::shared_ptr<Context> context,
                    const std::tuple<int64_t, int64_t, int64_t>& domain,
                    const std::vector<RawLaunch>& launches, std::vector<Bytes> weights) {
  std::vector<LaunchSpec> specs;
  specs.reserve(launches.size());
  for (const auto& [op, inputs, outputs, attributes] : launches) {
    specs.push_back({op, read_operands(inputs), read_operands(outputs), attributes});
  }
  const auto& [tokens, seqs, logits] = domain;
  new (self) BoundExecutable(std::move(context), Domain{tokens, seqs, logits}, specs,
                             std::move(weights));
}

void bind_executable(nb::module_& m) {
  nb::class_<BoundExecutable>(m, "Executable")
      .def("__init__", &new_executable, nb::arg("context"), nb::arg("domain"),
           nb::arg("launches"), nb::arg("weights").noconvert())
      .def(
          "replay",
          [](BoundExecutable& self, int64_t tokens, int64_t seqs, int64_t generated_tokens,
             int64_t generated_seqs, int64_t logits, int64_t generated_logits) {
            self.replay({tokens, seqs, generated_tokens, generated_seqs, logits,
                         generated_logits});
          },
          nb::arg("tokens"), nb::arg("seqs"), nb::arg("generated_tokens"),
          nb::arg("generated_seqs"), nb::arg("logits"), nb::arg("generated_logits"),
          nb::call_guard<nb::gil_scoped_release>());
}

// ---- sampler ----

using Ints = Array<const int32_t, 1>;
using Flags = Array<const uint8_t, 1>;
using Logits = Array<const float, 2>;
using OutInts = Array<int32_t, 1>;
using OutFloats = Array<float, 1>;
using OutIntTable = Array<int32_t, 2>;
using OutFloatTable = Array<float, 2>;

template <typename A>
void check_length(const A& array, size_t count, const char* name) {
  if (array.shape(0) < count) {
    throw std::invalid_argument(std::string(name) + " must have " + std::to_string(count) +
                                " entries, not " + std::to_string(array.shape(0)));
  }
}

template <typename A>
void check_table(const A& array, size_t count, const char* name) {
  check_length(array, count, name);
  if (array.shape(1) != kMaxAlternatives) {
    throw std::invalid_argument(std::string(name) + " must be 20 wide");
  }
}

void check_logits(const Sampler& sampler, const Logits& logits) {
  if (static_cast<int64_t>(logits.shape(1)) != sampler.logits_width()) {
    throw std::invalid_argument("logits must be " + std::to_string(sampler.logits_width()) +
                                " wide, not " + std::to_string(logits.shape(1)));
  }
}

template <typename T>
std::vector<T> copy(const Array<const T, 1>& array) {
  return std::vector<T>(array.data(), array.data() + array.shape(0));
}

void set_slot(Sampler& self, int64_t slot, double temperature, int64_t top_k, double top_p,
              double min_p, double presence_penalty, double frequency_penalty,
              double repetition_penalty, uint64_t seed, const Ints& bias_ids,
              const Array<const float, 1>& bias_values, const Ints& stop_ids,
              const Ints& prompt_ids, const Ints& output_ids) {
  if (top_k < 0) throw std::invalid_argument("top_k is out of range");
  Slot state;
  SlotParameters& p = state.parameters;
  p.temperature = static_cast<float>(temperature);
  p.top_k = static_cast<int>(std::min<int64_t>(top_k, 1 << 30));
  p.top_p = static_cast<float>(top_p);
  p.min_p = static_cast<float>(min_p);
  p.presence_penalty = static_cast<float>(presence_penalty);
  p.frequency_penalty = static_cast<float>(frequency_penalty);
  p.repetition_penalty = static_cast<float>(repetition_penalty);
  p.seed = seed;
  state.bias_ids = copy(bias_ids);
  state.bias_values = copy(bias_values);
  state.stop_ids = copy(stop_ids);
  self.set(slot, std::move(state), copy(prompt_ids), copy(output_ids));
}

void sample(Sampler& self, const Logits& logits, const Ints& rows, const Ints& slots,
            const Ints& positions, const Flags& forbid_stop, const Ints& top_n,
            const OutInts& tokens, const OutFloats& logprobs, const OutIntTable& top_ids,
            const OutFloatTable& top_logprobs) {
  const size_t n = rows.shape(0);
  check_logits(self, logits);
  check_length(slots, n, "slots");
  check_length(positions, n, "positions");
  check_length(forbid_stop, n, "forbid_stop");
  check_length(top_n, n, "top_n");
  check_length(tokens, n, "tokens");
  check_length(logprobs, n, "logprobs");
  check_table(top_ids, n, "top_ids");
  check_table(top_logprobs, n, "top_logprobs");
  const SampleRequest request{
      logits.data(),      static_cast<int64_t>(logits.shape(0)), static_cast<int64_t>(n),
      rows.data(),        slots.data(),                          positions.data(),
      forbid_stop.data(), top_n.data(),                          tokens.data(),
      logprobs.data(),    top_ids.data(),                        top_logprobs.data()};
  const nb::gil_scoped_release release;
  self.sample(request);
}

void score(Sampler& self, const Logits& logits, const Ints& rows, const Ints& targets,
           const Ints& top_n, const OutFloats& logprobs, const OutIntTable& top_ids,
           const OutFloatTable& top_logprobs) {
  const size_t n = rows.shape(0);
  check_logits(self, logits);
  check_length(targets, n, "targets");
  check_length(top_n, n, "top_n");
  check_length(logprobs, n, "logprobs");
  check_table(top_ids, n, "top_ids");
  check_table(top_logprobs, n, "top_logprobs");
  const ScoreRequest request{logits.data(),
                             static_cast<int64_t>(logits.shape(0)),
                             static_cast<int64_t>(n),
                             rows.data(),
                             targets.data(),
                             top_n.data(),
                             logprobs.data(),
                             top_ids.data(),
                             top_logprobs.data()};
  const nb::gil_scoped_release release;
  self.score(request);
}

void new_sampler(Sampler* self, std::shared_ptr<ThreadPool> pool, const std::string& isa,
                 int64_t vocab_size, int64_t logits_width, int64_t slots) {
  new (self) Sampler(std::move(pool), parse_isa(isa.c_str()), vocab_size, logits_width, slots);
}

void bind_sampler(nb::module_& m) {
  nb::class_<Sampler>(m, "Sampler")
      .def("__init__", &new_sampler, nb::arg("pool"), nb::arg("isa"), nb::arg("vocab_size"),
           nb::arg("logits_width"), nb::arg("slots"))
      .def("set", &set_slot, nb::arg("slot"), nb::arg("temperature"), nb::arg("top_k"),
           nb::arg("top_p"), nb::arg("min_p"), nb::arg("presence_penalty"),
           nb::arg("frequency_penalty"), nb::arg("repetition_penalty"), nb::arg("seed"),
           nb::arg("bias_ids"), nb::arg("bias_values"), nb::arg("stop_ids"),
           nb::arg("prompt_ids"), nb::arg("output_ids"))
      .def("clear", &Sampler::clear, nb::arg("slot"))
      .def("rewind", &Sampler::rewind, nb::arg("slot"), nb::arg("count"))
      .def("sample", &sample, nb::arg("logits").noconvert(), nb::arg("rows"), nb::arg("slots"),
           nb::arg("positions"), nb::arg("forbid_stop"), nb::arg("top_n"),
           nb::arg("tokens").noconvert(), nb::arg("logprobs").noconvert(),
           nb::arg("top_ids").noconvert(), nb::arg("top_logprobs").noconvert())
      .def("score", &score, nb::arg("logits").noconvert(), nb::arg("rows"), nb::arg("targets"),
           nb::arg("top_n"), nb::arg("logprobs").noconvert(), nb::arg("top_ids").noconvert(),
           nb::arg("top_logprobs").noconvert());
}

// ---- one linear, for kernel tests ----

template <typename T>
T named(const std::string& name, std::initializer_list<std::pair<const char*, T>> choices) {
  for (const auto& entry : choices) {
    if (name == entry.first) return entry.second;
  }
  throw std::invalid_argument("unknown name '" + name + "'");
}

Numerics numerics_of(const std::string& name) {
  return named<Numerics>(name,
                         {{"int8_g32", Numerics::int8_g32}, {"bf16_t32", Numerics::bf16_t32}});
}

struct LinearCall {
  LinearArgs args;
  const Context* context;
  Region scratch;
};

void run_linear(LinearCall& call) {
  const auto body = [](void* argument, int tid) {
    LinearCall& c = *static_cast<LinearCall*>(argument);
    ThreadPool& pool = c.context->pool();
    linear(c.context->isa(), c.args, c.scratch.data(), tid, pool.crew());
  };
  const nb::gil_scoped_release release;
  call.context->pool().run(body, &call);
}

void check_linear(const LinearArgs& a, const Array<const float, 2>& x, const Bytes& weight) {
  const bool gated = a.activation != Activation::none;
  if (a.n < 1 || a.k < 1 || a.rows < 1) throw std::invalid_argument("empty linear");
  if (x.shape(1) != static_cast<size_t>(a.k)) throw std::invalid_argument("x must be k wide");
  if (a.layout != Layout::bf16p16 && a.k % 32 != 0) throw std::invalid_argument("k % 32 != 0");
  if (gated && a.n % 32 != 0) throw std::invalid_argument("n % 32 != 0");
  if (!linear_supports(a.layout, a.generated) || !linear_supports(a.layout, a.prompt)) {
    throw std::invalid_argument("int8_g32 needs a quantised layout");
  }
  if (weight.size() != packed_bytes(a.layout, a.n, a.k) ||
      reinterpret_cast<uintptr_t>(weight.data()) % 64 != 0) {
    throw std::invalid_argument("weight must have the packed size and be 64-byte aligned");
  }
  if (a.generated_rows < 0 || a.generated_rows > a.rows) {
    throw std::invalid_argument("generated_rows is out of range");
  }
}

nb::object test_linear(const Context& context, const Array<const float, 2>& x,
                       const Bytes& weight, const std::string& layout, int n, int k,
                       const std::string& numerics,
                       const std::optional<Array<const float, 1>>& bias,
                       const std::optional<Array<const float, 2>>& residual,
                       const std::string& activation, std::optional<int> generated_rows,
                       const std::optional<std::string>& prompt_numerics, bool in_place) {
  LinearCall call{};
  call.context = &context;
  LinearArgs& a = call.args;
  a.rows = static_cast<int>(x.shape(0));
  a.generated_rows = generated_rows.value_or(a.rows);
  a.n = n;
  a.k = k;
  a.layout = named<Layout>(layout, {{"q4p16", Layout::q4p16},
                                    {"q8p16", Layout::q8p16},
                                    {"bf16p16", Layout::bf16p16}});
  a.activation = named<Activation>(activation, {{"none", Activation::none},
                                                {"silu_mul", Activation::silu_mul},
                                                {"gelu_mul", Activation::gelu_mul}});
  a.generated = numerics_of(numerics);
  a.prompt = prompt_numerics ? numerics_of(*prompt_numerics) : a.generated;
  check_linear(a, x, weight);
  const size_t width = static_cast<size_t>(a.activation == Activation::none ? n : n / 2);
  const size_t rows = static_cast<size_t>(a.rows);
  if (bias && bias->shape(0) != static_cast<size_t>(n)) {
    throw std::invalid_argument("bias must have n entries");
  }
  if (residual && (residual->shape(0) != rows || residual->shape(1) != width)) {
    throw std::invalid_argument("residual must have the output's shape");
  }
  auto y = std::make_unique<float[]>(rows * width);
  if (residual && in_place) std::copy_n(residual->data(), rows * width, y.get());
  a.x = x.data();
  a.ldx = k;
  a.w = weight.data();
  a.bias = bias ? bias->data() : nullptr;
  a.residual = residual ? (in_place ? y.get() : residual->data()) : nullptr;
  a.y = y.get();
  a.ldr = a.ldy = static_cast<int64_t>(width);
  call.scratch = Region(linear_scratch_bytes(a.rows, k, n, context.pool().threads()));
  run_linear(call);
  float* data = y.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return nb::cast(View<float, 2>(data, {rows, width}, owner));
}

}  // namespace
}  // namespace flare

NB_MODULE(flare_cpu, m) {
  m.doc() = "Native CPU runtime: replay of captured programs, kernels, sampler.";
  m.def("features", &flare::feature_dict);
  flare::bind_context(m);
  flare::bind_executable(m);
  flare::bind_sampler(m);
  m.def("test_linear", &flare::test_linear, nb::arg("context"), nb::arg("x").noconvert(),
        nb::arg("weight").noconvert(), nb::arg("layout"), nb::arg("n"), nb::arg("k"),
        nb::arg("numerics"), nb::arg("bias") = nb::none(), nb::arg("residual") = nb::none(),
        nb::arg("activation") = "none", nb::arg("generated_rows") = nb::none(),
        nb::arg("prompt_numerics") = nb::none(), nb::arg("in_place") = false);
}
