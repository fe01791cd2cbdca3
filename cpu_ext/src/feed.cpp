// Launches whose rows the next launch, a linear, takes over in converted form. See launch.h.
#include <cstdint>
#include <variant>

#include "flare/launch.h"

namespace flare {
namespace {

// Memory that a launch reads or writes at most.
struct Extent {
  const float* first = nullptr;
  const float* last = nullptr;
  bool meets(const Extent& other) const { return first < other.last && other.first < last; }
  bool covers(const Extent& other) const { return first <= other.first && other.last <= last; }
};

struct Access {
  Extent reads[2];
  Extent writes;
};

int output_width(const LinearArgs& a) { return a.activation == Activation::none ? a.n : a.n / 2; }

class Accesses {
 public:
  explicit Accesses(const Domain& domain) : domain_(domain) {}

  Access operator()(const EmbedStep& s) const { return {{}, rows(s.y, Rows::tokens, s.width)}; }
  Access operator()(const NormStep& s) const {
    return {{rows(s.args.x, s.rows, s.args.width)}, rows(s.args.y, s.rows, s.args.width)};
  }
  Access operator()(const LinearStep& s) const {
    const LinearArgs& a = s.args;
    const Extent residual = a.residual ? rows(a.residual, s.rows, output_width(a)) : Extent{};
    return {{rows(a.x, s.rows, a.k), residual}, rows(a.y, s.rows, output_width(a))};
  }
  Access operator()(const RopeStep& s) const {
    const int64_t q = s.args.heads, dim = s.args.shape->head_dim;
    const int64_t all = q + 2 * int64_t{s.args.shape->kv_heads};
    return {{rows(s.args.qkv, Rows::tokens, all * dim)}, rows(s.args.q, Rows::tokens, q * dim)};
  }
  Access operator()(const AttentionStep& s) const {
    const int64_t width = int64_t{s.args.heads} * s.args.shape->head_dim;
    return {{rows(s.args.q, Rows::tokens, width)}, rows(s.args.y, Rows::tokens, width)};
  }
  Access operator()(const GatherStep& s) const {
    return {{rows(s.x, Rows::tokens, s.width)}, rows(s.y, Rows::logits, s.width)};
  }

 private:
  Extent rows(const float* first, Rows rows, int64_t width) const {
    return {first, first + (rows == Rows::tokens ? domain_.tokens : domain_.logits) * width};
  }
  Domain domain_;
};

// Whether nothing behind step `consumer` reads what lies in `made` before it is written anew.
bool ends_with(const std::vector<Step>& steps, size_t consumer, const Extent& made,
               const Accesses& accesses) {
  for (size_t i = consumer + 1; i < steps.size(); ++i) {
    const Access access = std::visit(accesses, steps[i]);
    if (access.reads[0].meets(made) || access.reads[1].meets(made)) return false;
    if (access.writes.covers(made)) return true;
  }
  return true;
}

// The linear that alone reads what step i makes, or null.
LinearStep* sole_reader(std::vector<Step>& steps, size_t i, const Accesses& accesses) {
  if (i + 1 >= steps.size()) return nullptr;
  LinearStep* reader = std::get_if<LinearStep>(&steps[i + 1]);
  if (reader == nullptr) return nullptr;
  const Extent made = std::visit(accesses, steps[i]).writes;
  const Access access = accesses(*reader);
  const bool whole = access.reads[0].covers(made) && made.covers(access.reads[0]);
  if (!whole || access.reads[1].meets(made) || !ends_with(steps, i + 1, made, accesses)) {
    return nullptr;
  }
  return reader;
}

// Tiles hold whole groups of 32 columns.
bool reads_tiles(const LinearStep& linear, Isa isa) {
  return isa == Isa::amx && linear.args.prompt == Numerics::bf16_t32 && linear.args.k % 32 == 0;
}

}  // namespace

void link_feeds(std::vector<Step>& steps, const Domain& domain, Isa isa) {
  const Accesses accesses(domain);
  for (size_t i = 0; i < steps.size(); ++i) {
    LinearStep* const reader = sole_reader(steps, i, accesses);
    if (reader == nullptr) continue;
    if (auto* norm = std::get_if<NormStep>(&steps[i])) {
      if (norm->rows != reader->rows) continue;
      norm->feeds = reader;
      reader->fed = Fed::all;
      // A thread may still read the norm's row while another writes the linear's.
      const bool apart = !accesses(*norm).reads[0].meets(accesses(*reader).writes);
      reader->norm = apart ? norm : nullptr;
    } else if (auto* linear = std::get_if<LinearStep>(&steps[i])) {
      const bool gated = linear->args.activation != Activation::none && !linear->args.residual;
      if (!gated || linear->rows != reader->rows || !reads_tiles(*reader, isa)) continue;
      linear->feeds = reader;
      reader->fed = Fed::prompt;
      reader->area = 1 - linear->area;
    } else if (auto* attention = std::get_if<AttentionStep>(&steps[i])) {
      const bool whole = attention->args.shape->head_dim % 32 == 0;
      if (!whole || reader->rows != Rows::tokens || !reads_tiles(*reader, isa)) continue;
      attention->feeds = reader;
      reader->fed = Fed::prompt;
    }
  }
}

}  // namespace flare
