// Reading and checking of launches. See launch.h.
#include "flare/launch.h"

#include <cmath>
#include <initializer_list>
#include <stdexcept>

namespace flare {
namespace {

constexpr int64_t kMaxWidth = int64_t{1} << 24;
constexpr float kLog2E = 1.44269504088896341f;

struct Span {
  int64_t first = 0, last = 0;  // bytes of the arena
  bool disjoint(const Span& other) const { return last <= other.first || other.last <= first; }
  bool same(const Span& other) const { return first == other.first && last == other.last; }
};

// One launch: its operands and attributes, with errors that name it.
class Reader {
 public:
  Reader(const LaunchSpec& spec, size_t index, const Context& context, const Domain& domain,
         const std::vector<WeightView>& weights)
      : spec_(spec), index_(index), context_(context), domain_(domain), weights_(weights) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument("launch " + std::to_string(index_) + " (" + spec_.op +
                                "): " + what);
  }

  void expect_operands(size_t inputs, size_t outputs) const {
    if (spec_.inputs.size() != inputs || spec_.outputs.size() != outputs) {
      fail("takes " + std::to_string(inputs) + " inputs and " + std::to_string(outputs) +
           " outputs, not " + std::to_string(spec_.inputs.size()) + " and " +
           std::to_string(spec_.outputs.size()));
    }
  }

  void expect_attributes(std::initializer_list<const char*> names) const {
    for (const auto& entry : spec_.attributes) {
      bool known = false;
      for (const char* name : names) known = known || entry.first == name;
      if (!known) fail("unknown attribute '" + entry.first + "'");
    }
  }

  int integer(const char* name, int64_t low, int64_t high) const {
    const int64_t* value = std::get_if<int64_t>(&attribute(name));
    if (value == nullptr) fail(std::string(name) + " must be an integer");
    if (*value < low || *value > high) {
      fail(std::string(name) + " must be " + std::to_string(low) + " to " + std::to_string(high) +
           ", not " + std::to_string(*value));
    }
    return static_cast<int>(*value);
  }

  // A parameter of the launch's kernel, or `absent`.
  int parameter(const char* name, int64_t low, int64_t high, int absent) const {
    return has(name) ? integer(name, low, high) : absent;
  }

  int pieces(int absent = 4) const { return parameter("pieces", 1, kMaxPieces, absent); }

  float real(const char* name) const {
    const Attribute& found = attribute(name);
    double value = 0;
    if (const double* real = std::get_if<double>(&found)) {
      value = *real;
    } else if (const int64_t* whole = std::get_if<int64_t>(&found)) {
      value = static_cast<double>(*whole);
    } else {
      fail(std::string(name) + " must be a number");
    }
    if (!(std::fabs(value) < 1e30)) fail(std::string(name) + " must be finite");
    return static_cast<float>(value);
  }

  template <typename T>
  T choice(const char* name, std::initializer_list<std::pair<const char*, T>> choices) const {
    const std::string& value = text(name);
    for (const auto& entry : choices) {
      if (value == entry.first) return entry.second;
    }
    fail("unknown " + std::string(name) + " '" + value + "'");
  }

  const std::string& text(const char* name) const {
    const std::string* value = std::get_if<std::string>(&attribute(name));
    if (value == nullptr) fail(std::string(name) + " must be a string");
    return *value;
  }

  bool has(const char* name) const { return spec_.attributes.count(name) != 0; }

  Layout layout(const char* name = "layout") const {
    return choice<Layout>(name, {{"q4p16", Layout::q4p16},
                                     {"q8p16", Layout::q8p16},
                                     {"bf16p16", Layout::bf16p16}});
  }

  Rows rows() const {
    return choice<Rows>("rows", {{"tokens", Rows::tokens}, {"logits", Rows::logits}});
  }

  bool flag(const char* name) const { return integer(name, 0, 1) != 0; }

  int64_t capacity(Rows rows) const {
    return rows == Rows::tokens ? domain_.tokens : domain_.logits;
  }

  // Floats [rows, width] in the arena.
  float* floats(const Operand& operand, const char* name, int64_t rows, int64_t width,
                Span& span) const {
    if (operand.kind != Operand::Kind::arena) fail(std::string(name) + " must be in the arena");
    const int64_t bytes = rows * width * 4;
    if (operand.value < 0 || operand.value % 64 != 0 ||
        operand.value > context_.sizes().arena_bytes ||
        bytes > context_.sizes().arena_bytes - operand.value) {
      fail(std::string(name) + " of " + std::to_string(bytes) + " bytes at offset " +
           std::to_string(operand.value) + " does not lie in the arena of " +
           std::to_string(context_.sizes().arena_bytes) + " bytes at a multiple of 64");
    }
    span = {operand.value, operand.value + bytes};
    return reinterpret_cast<float*>(context_.arena() + operand.value);
  }

  const WeightView& weight(const Operand& operand, const char* name) const {
    if (operand.kind != Operand::Kind::weight || operand.value < 0 ||
        operand.value >= static_cast<int64_t>(weights_.size())) {
      fail(std::string(name) + " must be one of the " + std::to_string(weights_.size()) +
           " weights");
    }
    return weights_[static_cast<size_t>(operand.value)];
  }

  const uint8_t* weight(const Operand& operand, const char* name, size_t bytes,
                        size_t alignment) const {
    const WeightView& view = weight(operand, name);
    if (view.bytes != bytes) {
      fail(std::string(name) + " must have " + std::to_string(bytes) + " bytes, not " +
           std::to_string(view.bytes));
    }
    if (reinterpret_cast<uintptr_t>(view.data) % alignment != 0) {
      fail(std::string(name) + " must be aligned to " + std::to_string(alignment) + " bytes");
    }
    return view.data;
  }

  const float* vector(const Operand& operand, const char* name, int64_t count) const {
    return reinterpret_cast<const float*>(
        weight(operand, name, static_cast<size_t>(count) * 4, alignof(float)));
  }

  void input(const Operand& operand, const char* name) const {
    if (operand.kind != Operand::Kind::input || operand.name != name) {
      fail(std::string("expects the input ") + name);
    }
  }

  uint8_t* layer_cache(const Operand& operand) const {
    if (operand.kind != Operand::Kind::state) fail("kv_cache must be the state");
    const int layer = integer("layer", 0, context_.sizes().layers - 1);
    return context_.cache() + layer * context_.layer_bytes();
  }

  void check_geometry() const {
    integer("kv_heads", context_.shape().kv_heads, context_.shape().kv_heads);
    integer("head_dim", context_.shape().head_dim, context_.shape().head_dim);
  }

  int heads() const {
    const int heads = integer("heads", 1, 65536);
    if (heads % context_.shape().kv_heads != 0) fail("heads must be a multiple of kv_heads");
    return heads;
  }

  const Operand& in(size_t i) const { return spec_.inputs[i]; }
  const Operand& out(size_t i) const { return spec_.outputs[i]; }
  size_t inputs() const { return spec_.inputs.size(); }
  const Context& context() const { return context_; }
  int64_t tokens() const { return domain_.tokens; }

 private:
  const Attribute& attribute(const char* name) const {
    const auto found = spec_.attributes.find(name);
    if (found == spec_.attributes.end()) fail("needs the attribute '" + std::string(name) + "'");
    return found->second;
  }

  const LaunchSpec& spec_;
  size_t index_;
  const Context& context_;
  const Domain& domain_;
  const std::vector<WeightView>& weights_;
};

Step read_embed(const Reader& r) {
  r.expect_operands(2, 1);
  r.expect_attributes({"vocab", "width", "layout", "pieces"});
  EmbedStep step{};
  step.pieces = r.pieces();
  r.input(r.in(0), "token_ids");
  step.layout = r.layout();
  step.vocab = r.integer("vocab", 1, kMaxWidth);
  step.width = r.integer("width", 1, kMaxWidth);
  if (step.layout != Layout::bf16p16 && step.width % 32 != 0) {
    r.fail("width must be a multiple of 32");
  }
  step.weight = r.weight(r.in(1), "weight", packed_bytes(step.layout, step.vocab, step.width), 64);
  Span span;
  step.y = r.floats(r.out(0), "x", r.tokens(), step.width, span);
  return step;
}

Step read_norm(const Reader& r) {
  r.expect_operands(2, 1);
  r.expect_attributes({"width", "eps", "rows", "pieces"});
  NormStep step{};
  step.pieces = r.pieces();
  step.rows = r.rows();
  step.args.width = r.integer("width", 1, kMaxWidth);
  step.args.eps = r.real("eps");
  if (step.args.eps < 0) r.fail("eps must not be negative");
  Span x, y;
  step.args.x = r.floats(r.in(0), "x", r.capacity(step.rows), step.args.width, x);
  step.args.weight = r.vector(r.in(1), "weight", step.args.width);
  step.args.y = r.floats(r.out(0), "y", r.capacity(step.rows), step.args.width, y);
  if (!x.disjoint(y) && !x.same(y)) r.fail("y overlaps x");
  return step;
}

Numerics read_class(const Reader& r, const char* name, Layout layout) {
  const Numerics found = r.choice<Numerics>(
      name, {{"int8_g32", Numerics::int8_g32},
             {"int12_g32", Numerics::int12_g32},
             {"bf16_t32", Numerics::bf16_t32},
             {"bf16_g32", Numerics::bf16_g32}});
  if (!linear_supports(layout, found)) {
    r.fail(std::string(name) + " " + r.text(name) + " needs a quantised layout");
  }
  return found;
}

void read_linear_shape(const Reader& r, LinearArgs& a) {
  a.layout = r.layout();
  a.n = r.integer("n", 1, kMaxWidth);
  a.k = r.integer("k", 1, kMaxWidth);
  if (a.layout != Layout::bf16p16 && a.k % 32 != 0) r.fail("k must be a multiple of 32");
  a.activation = r.choice<Activation>("activation", {{"none", Activation::none},
                                                     {"silu_mul", Activation::silu_mul},
                                                     {"gelu_mul", Activation::gelu_mul}});
  if (a.activation != Activation::none && a.n % 32 != 0) r.fail("n must be a multiple of 32");
  a.prompt = read_class(r, "prompt_class", a.layout);
  a.generated = read_class(r, "generated_class", a.layout);
  a.pieces = r.pieces(0);
  a.own = r.parameter("own", 1, kMaxOwn, 0);
  a.run = r.parameter("run", 2, kMaxRun, 0);
  if (a.run % 2 != 0) r.fail("run must be even, not " + std::to_string(a.run));
}

void read_prompt_weight(const Reader& r, LinearArgs& a) {
  a.prompt_layout = r.layout("prompt_layout");
  if (a.prompt == a.generated || !linear_supports(a.prompt_layout, a.prompt)) {
    r.fail("a weight for the prompt role needs a class of its own that its layout supports");
  }
  a.prompt_w = r.weight(r.in(2), "prompt_weight", packed_bytes(a.prompt_layout, a.n, a.k), 64);
}

Step read_linear(const Reader& r) {
  r.expect_attributes({"n", "k", "layout", "activation", "bias", "residual", "prompt_class",
                       "generated_class", "rows", "pieces", "run", "own", "prompt_layout"});
  const bool bias = r.flag("bias"), residual = r.flag("residual");
  const bool second = r.has("prompt_layout");  // of the weight, for rows of the prompt role
  r.expect_operands(2 + size_t{second} + size_t{bias} + size_t{residual}, 1);
  LinearStep step{};
  LinearArgs& a = step.args;
  step.rows = r.rows();
  read_linear_shape(r, a);
  const int64_t rows = r.capacity(step.rows);
  const int width = a.activation == Activation::none ? a.n : a.n / 2;
  Span x, y;
  a.x = r.floats(r.in(0), "x", rows, a.k, x);
  a.w = r.weight(r.in(1), "weight", packed_bytes(a.layout, a.n, a.k), 64);
  a.y = r.floats(r.out(0), "y", rows, width, y);
  a.ldx = a.k;
  a.ldy = width;
  a.ldr = width;
  if (!x.disjoint(y)) r.fail("y overlaps x");
  if (second) read_prompt_weight(r, a);
  if (bias) a.bias = r.vector(r.in(second ? 3 : 2), "bias", a.n);
  if (residual) {
    Span span;
    a.residual = r.floats(r.in(r.inputs() - 1), "residual", rows, width, span);
    if (!span.disjoint(y) && !span.same(y)) r.fail("y overlaps the residual, but is not it");
  }
  return step;
}

Step read_rope(const Reader& r) {
  r.expect_operands(5, 1);
  r.expect_attributes({"heads", "kv_heads", "head_dim", "layer", "pieces"});
  r.check_geometry();
  RopeStep step{};
  step.pieces = r.pieces();
  RopeStoreArgs& a = step.args;
  const CacheShape& shape = r.context().shape();
  a.heads = r.heads();
  a.shape = &shape;
  Span qkv, q;
  a.qkv = r.floats(r.in(0), "qkv", r.tokens(),
                   (a.heads + int64_t{2} * shape.kv_heads) * shape.head_dim, qkv);
  const WeightView& table = r.weight(r.in(1), "rope");
  const size_t row = static_cast<size_t>(shape.head_dim) * 4;
  if (table.bytes == 0 || table.bytes % row != 0 ||
      reinterpret_cast<uintptr_t>(table.data) % alignof(float) != 0) {
    r.fail("rope must be aligned float rows of head_dim");
  }
  a.rope = reinterpret_cast<const float*>(table.data);
  step.angles = static_cast<int64_t>(table.bytes / row);
  r.input(r.in(2), "positions");
  r.input(r.in(3), "slots");
  a.positions = r.context().positions();
  a.slots = r.context().slots();
  a.cache = r.layer_cache(r.in(4));
  a.q = r.floats(r.out(0), "q", r.tokens(), int64_t{a.heads} * shape.head_dim, q);
  if (!qkv.disjoint(q)) r.fail("q overlaps qkv");
  return step;
}

Step read_attention(const Reader& r) {
  r.expect_operands(6, 1);
  r.expect_attributes({"heads", "kv_heads", "head_dim", "layer", "scale", "claim"});
  r.check_geometry();
  AttentionStep step{};
  step.claim = r.parameter("claim", 1, kMaxPieces, 1);
  AttentionArgs& a = step.args;
  a.shape = &r.context().shape();
  a.heads = r.heads();
  a.group = a.heads / a.shape->kv_heads;
  a.scale = r.real("scale") * kLog2E;
  Span q, y;
  a.q = r.floats(r.in(0), "q", r.tokens(), int64_t{a.heads} * a.shape->head_dim, q);
  a.cache = r.layer_cache(r.in(1));
  r.input(r.in(2), "positions");
  r.input(r.in(3), "seg_starts");
  r.input(r.in(4), "seq_lens");
  r.input(r.in(5), "block_tables");
  a.tables = r.context().block_tables();
  a.table_stride = r.context().sizes().max_blocks;
  a.y = r.floats(r.out(0), "y", r.tokens(), int64_t{a.heads} * a.shape->head_dim, y);
  if (!q.disjoint(y)) r.fail("y overlaps q");
  return step;
}

Step read_gather(const Reader& r) {
  r.expect_operands(2, 1);
  r.expect_attributes({"width", "pieces"});
  GatherStep step{};
  step.pieces = r.pieces();
  step.width = r.integer("width", 1, kMaxWidth);
  Span x, y;
  step.x = r.floats(r.in(0), "x", r.tokens(), step.width, x);
  r.input(r.in(1), "logit_rows");
  step.y = r.floats(r.out(0), "y", r.capacity(Rows::logits), step.width, y);
  if (!x.disjoint(y)) r.fail("y overlaps x");
  return step;
}

Step read_one(const Reader& r, const std::string& op) {
  if (op == "embed") return read_embed(r);
  if (op == "rms_norm") return read_norm(r);
  if (op == "linear") return read_linear(r);
  if (op == "rope_store_kv") return read_rope(r);
  if (op == "paged_attention") return read_attention(r);
  if (op == "gather_rows") return read_gather(r);
  r.fail("unknown op");
}

}  // namespace

std::vector<Step> read_launches(const std::vector<LaunchSpec>& launches, const Context& context,
                                const Domain& domain, const std::vector<WeightView>& weights) {
  std::vector<Step> steps;
  steps.reserve(launches.size());
  for (size_t i = 0; i < launches.size(); ++i) {
    const Reader reader(launches[i], i, context, domain, weights);
    steps.push_back(read_one(reader, launches[i].op));
  }
  return steps;
}

}  // namespace flare
