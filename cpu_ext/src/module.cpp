// The Python face of the extension: arrays and launches in, checked C++ objects out.
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "flare/executable.h"
#include "flare/features.h"

namespace flare {
namespace {

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

}  // namespace
}  // namespace flare

NB_MODULE(flare_cpu, m) {
  m.doc() = "Native CPU runtime: replay of captured programs, kernels, sampler.";
  m.def("features", &flare::feature_dict);
  flare::bind_context(m);
  flare::bind_executable(m);
  flare::bind_sampler(m);
  flare::bind_linear(m);
}
