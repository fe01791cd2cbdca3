// Binding of one linear by itself, for kernel tests.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings.h"
#include "flare/context.h"
#include "flare/linear.h"

namespace flare {
namespace {

template <typename T>
T named(const std::string& name, std::initializer_list<std::pair<const char*, T>> choices) {
  for (const auto& entry : choices) {
    if (name == entry.first) return entry.second;
  }
  throw std::invalid_argument("unknown name '" + name + "'");
}

Numerics numerics_of(const std::string& name) {
  return named<Numerics>(name, {{"int8_g32", Numerics::int8_g32},
                                {"int12_g32", Numerics::int12_g32},
                                {"bf16_t32", Numerics::bf16_t32},
                                {"bf16_g32", Numerics::bf16_g32}});
}

struct LinearCall {
  LinearArgs args;
  const Context* context;
  Region scratch;
  size_t rows_bytes, thread_bytes;
};

void run_linear(LinearCall& call) {
  const auto body = [](void* argument, int tid) {
    LinearCall& c = *static_cast<LinearCall*>(argument);
    ThreadPool& pool = c.context->pool();
    uint8_t* const rows = c.scratch.data();
    const LinearScratch scratch{rows, rows + c.rows_bytes + tid * c.thread_bytes};
    linear(c.context->isa(), c.args, scratch, tid, pool.crew());
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
    throw std::invalid_argument("int8_g32, int12_g32 and bf16_g32 need a quantised layout");
  }
  if (weight.size() != packed_bytes(a.layout, a.n, a.k) ||
      reinterpret_cast<uintptr_t>(weight.data()) % 64 != 0) {
    throw std::invalid_argument("weight must have the packed size and be 64-byte aligned");
  }
  if (a.pieces < 0 || a.pieces > kMaxPieces || a.run < 0 || a.run > kMaxRun || a.run % 2 != 0 ||
      a.own < 0 || a.own > kMaxOwn) {
    throw std::invalid_argument("pieces, run or own is out of range");
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
                       const std::optional<std::string>& prompt_numerics, bool in_place,
                       int pieces, int run, int own, const std::optional<Bytes>& prompt_weight) {
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
  if (prompt_weight) {
    if (prompt_weight->size() != packed_bytes(a.prompt_layout, n, k) || a.prompt == a.generated ||
        reinterpret_cast<uintptr_t>(prompt_weight->data()) % 64 != 0) {
      throw std::invalid_argument("prompt_weight must be bf16p16, aligned, of a class of its own");
    }
    a.prompt_w = prompt_weight->data();
  }
  a.pieces = pieces;
  a.run = run;
  a.own = own;
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
  call.rows_bytes = linear_rows_bytes(a.rows, k);
  call.thread_bytes = linear_thread_bytes(k);
  const size_t threads = static_cast<size_t>(context.pool().threads());
  call.scratch = Region(call.rows_bytes + threads * call.thread_bytes);
  run_linear(call);
  float* data = y.release();
  const nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return nb::cast(View<float, 2>(data, {rows, width}, owner));
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def("test_linear", &test_linear, nb::arg("context"), nb::arg("x").noconvert(),
        nb::arg("weight").noconvert(), nb::arg("layout"), nb::arg("n"), nb::arg("k"),
        nb::arg("numerics"), nb::arg("bias") = nb::none(), nb::arg("residual") = nb::none(),
        nb::arg("activation") = "none", nb::arg("generated_rows") = nb::none(),
        nb::arg("prompt_numerics") = nb::none(), nb::arg("in_place") = false, nb::arg("pieces") = 0,
        nb::arg("run") = 0, nb::arg("own") = 0, nb::arg("prompt_weight") = nb::none());
}

}  // namespace flare
