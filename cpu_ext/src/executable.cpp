// Replay of a program: one parallel region, a phase of the crew per launch. See executable.h.
#include "flare/executable.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace flare {
namespace {

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument(what); }

void check_range(const int32_t* values, int64_t count, int64_t low, int64_t high,
                 const char* name) {
  for (int64_t i = 0; i < count; ++i) {
    if (values[i] < low || values[i] >= high) {
      fail(std::string(name) + "[" + std::to_string(i) + "] = " + std::to_string(values[i]) +
           " is not within " + std::to_string(low) + " to " + std::to_string(high - 1));
    }
  }
}

void check_count(int64_t value, int64_t low, int64_t high, const char* name) {
  if (value < low || value > high) {
    fail(std::string(name) + " must be " + std::to_string(low) + " to " + std::to_string(high) +
         ", not " + std::to_string(value));
  }
}

int64_t ceil_div(int64_t a, int64_t b) { return b > 0 ? (a + b - 1) / b : 0; }

}  // namespace

Executable::Executable(std::shared_ptr<Context> context, const Domain& domain,
                       const std::vector<LaunchSpec>& launches,
                       const std::vector<WeightView>& weights)
    : context_(std::move(context)), domain_(domain) {
  const ContextSizes& sizes = context_->sizes();
  check_count(domain.tokens, 1, sizes.max_tokens, "the domain's tokens");
  check_count(domain.seqs, 1, sizes.max_seqs, "the domain's seqs");
  check_count(domain.logits, 0, sizes.max_logits, "the domain's logits");
  steps_ = read_launches(launches, *context_, domain_, weights);
  link_feeds(steps_, domain_, context_->isa());
  reserve();
}

// Takes all memory that a replay needs.
void Executable::reserve() {
  const std::lock_guard<std::mutex> turn(context_->turn());
  const int threads = context_->pool().threads();
  plan_.threads = threads;
  plan_.kv_heads = context_->shape().kv_heads;
  plan_.group = 0;
  for (Step& step : steps_) {
    if (const auto* linear = std::get_if<LinearStep>(&step)) {
      const int64_t rows = linear->rows == Rows::tokens ? domain_.tokens : domain_.logits;
      rows_bytes_ = std::max(rows_bytes_, linear_rows_bytes(static_cast<int>(rows), linear->args.k));
      thread_bytes_ = std::max(thread_bytes_, linear_thread_bytes(linear->args.k));
    } else if (const auto* embed = std::get_if<EmbedStep>(&step)) {
      vocab_ = vocab_ == 0 ? embed->vocab : std::min<int64_t>(vocab_, embed->vocab);
    } else if (const auto* rope = std::get_if<RopeStep>(&step)) {
      angles_ = angles_ == 0 ? rope->angles : std::min(angles_, rope->angles);
    } else if (const auto* attention = std::get_if<AttentionStep>(&step)) {
      if (plan_.group != 0 && plan_.group != attention->args.group) {
        fail("all attention launches of a program must have the same heads");
      }
      plan_.group = attention->args.group;
    }
  }
  context_->reserve_scratch(2 * rows_bytes_ + static_cast<size_t>(threads) * thread_bytes_);
  if (plan_.group == 0) return;
  plan_.reserve(domain_.tokens, domain_.seqs, context_->sizes().max_blocks * kKeyTile);
  const int stride = 32 + context_->shape().padded_dim;
  context_->reserve_partials(static_cast<size_t>(plan_.max_partials * stride));
  merges_ = std::vector<Counter>(
      static_cast<size_t>(plan_.max_split_groups() * context_->shape().kv_heads));
}

int Executable::rows(Rows rows) const {
  return static_cast<int>(rows == Rows::tokens ? shape_.tokens : shape_.logits);
}

void Executable::check(const BatchShape& s) const {
  check_count(s.tokens, 1, domain_.tokens, "tokens");
  check_count(s.seqs, 1, std::min(domain_.seqs, s.tokens), "seqs");
  check_count(s.logits, 0, std::min(domain_.logits, s.tokens), "logits");
  check_count(s.generated_tokens, 0, s.tokens, "generated_tokens");
  check_count(s.generated_seqs, 0, std::min(s.seqs, s.generated_tokens), "generated_seqs");
  check_count(s.generated_logits, 0, std::min(s.logits, s.generated_tokens), "generated_logits");
  check_count(s.seqs - s.generated_seqs, 0, s.tokens - s.generated_tokens, "prompt segments");
  check_rows(s);
  check_segments(s);
}

void Executable::check_rows(const BatchShape& s) const {
  const Context& c = *context_;
  if (vocab_ > 0) check_range(c.token_ids(), s.tokens, 0, vocab_, "token_ids");
  if (angles_ > 0) {
    check_range(c.positions(), s.tokens, 0, angles_, "positions");
    check_range(c.slots(), s.tokens, 0, c.sizes().num_blocks * kKeyTile, "slots");
  }
  check_range(c.logit_rows(), s.generated_logits, 0, s.generated_tokens, "logit_rows");
  check_range(c.logit_rows() + s.generated_logits, s.logits - s.generated_logits,
              s.generated_tokens, s.tokens, "logit_rows (of the prompt role)");
}

void Executable::check_segments(const BatchShape& s) const {
  const Context& c = *context_;
  const int32_t* starts = c.seg_starts();
  if (starts[0] != 0 || starts[s.seqs] != s.tokens ||
      starts[s.generated_seqs] != s.generated_tokens) {
    fail("seg_starts must begin with 0, end with tokens and change role at generated_tokens");
  }
  for (int64_t i = 0; i < s.seqs; ++i) {
    const int64_t rows = int64_t{starts[i + 1]} - starts[i];
    if (rows < 1) fail("seg_starts[" + std::to_string(i + 1) + "] must exceed the one before");
    if (plan_.group == 0) continue;
    const int64_t keys = c.seq_lens()[i];
    check_count(keys, rows, c.sizes().max_blocks * kKeyTile,
                ("seq_lens[" + std::to_string(i) + "]").c_str());
    check_range(c.block_tables() + i * c.sizes().max_blocks, (keys + kKeyTile - 1) / kKeyTile, 0,
                c.sizes().num_blocks, ("block_tables[" + std::to_string(i) + "]").c_str());
    for (int64_t row = 0; row < rows; ++row) {
      if (c.positions()[starts[i] + row] != keys - rows + row) {
        fail("positions of segment " + std::to_string(i) + " must be consecutive and end at " +
             std::to_string(keys - 1));
      }
    }
  }
}

void Executable::replay(const BatchShape& shape) {
  const std::lock_guard<std::mutex> turn(context_->turn());
  check(shape);
  shape_ = shape;
  if (plan_.group > 0) {
    plan_.build(context_->seg_starts(), context_->seq_lens(), static_cast<int>(shape.seqs),
                static_cast<int>(shape.generated_seqs));
  }
  const auto body = [](void* self, int tid) { static_cast<Executable*>(self)->run(tid); };
  context_->pool().run(body, this);
}

void Executable::run(int tid) {
  for (const Step& step : steps_) {
    std::visit([this, tid](const auto& s) { run_step(s, tid); }, step);
  }
}

// Runs body(first, last) on pieces of [0, total), `grain` long, and returns when all are done by
// any thread.
template <typename F>
void Executable::walk(int tid, int64_t total, int64_t grain, const F& body) {
  Crew& crew = context_->pool().crew();
  crew.begin(tid, total, grain);
  for (int64_t first, last; crew.next(tid, &first, &last);) body(first, last);
}

// As walk, in `pieces` for each thread.
template <typename F>
void Executable::share(int tid, int64_t total, int64_t pieces, const F& body) {
  walk(tid, total, ceil_div(total, context_->pool().crew().threads() * pieces), body);
}

void Executable::run_step(const EmbedStep& step, int tid) {
  share(tid, shape_.tokens, step.pieces, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      embed_row(step.layout, step.weight, step.width, context_->token_ids()[row],
                step.y + row * step.width);
    }
  });
}

void Executable::run_step(const NormStep& step, int tid) {
  if (step.feeds != nullptr && step.feeds->norm != nullptr && rows(step.rows) == 1) return;
  if (step.feeds != nullptr && rows(step.rows) > 1) {
    norm_into(step, tid);
    return;
  }
  share(tid, rows(step.rows), step.pieces, [&](int64_t first, int64_t last) {
    context_->kernels().rms_norm(step.args, static_cast<int>(first), static_cast<int>(last));
  });
}

// A few rows at a time, by way of floats of the thread's own.
void Executable::norm_into(const NormStep& step, int tid) {
  const LinearArgs to = linear_args(*step.feeds);
  const LinearScratch scratch = linear_scratch(*step.feeds, tid);
  RmsNormArgs args = step.args;
  args.y = linear_spare(scratch, to.k);
  share(tid, to.rows, step.pieces, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; row += kSpareRows) {
      const int count = static_cast<int>(std::min<int64_t>(kSpareRows, last - row));
      args.x = step.args.x + row * args.width;
      context_->kernels().rms_norm(args, 0, count);
      const int from = static_cast<int>(row);
      linear_convert(context_->isa(), to, scratch, args.y, from, from + count);
    }
  });
}

LinearScratch Executable::linear_scratch(const LinearStep& step, int tid) const {
  uint8_t* const base = context_->scratch();
  return {base + static_cast<size_t>(step.area) * rows_bytes_,
          base + 2 * rows_bytes_ + static_cast<size_t>(tid) * thread_bytes_};
}

// The arguments for the batch at hand.
LinearArgs Executable::linear_args(const LinearStep& step) const {
  LinearArgs args = step.args;
  args.rows = rows(step.rows);
  args.generated_rows = static_cast<int>(step.rows == Rows::tokens ? shape_.generated_tokens
                                                                   : shape_.generated_logits);
  if (step.fed == Fed::all && args.rows > 1) args.converted = args.rows;
  if (step.fed == Fed::prompt) args.converted = args.rows - args.generated_rows;
  return args;
}

void Executable::run_step(const LinearStep& step, int tid) {
  LinearArgs args = linear_args(step);
  if (args.rows == 0) return;
  if (step.feeds != nullptr) {
    args.tiles = linear_tiles(context_->isa(), linear_args(*step.feeds),
                              linear_scratch(*step.feeds, tid));
  }
  struct NormedRow {
    const Kernels& kernels;
    RmsNormArgs args;
  } normed{context_->kernels(), {}};
  if (step.norm != nullptr && args.rows == 1) {
    normed.args = step.norm->args;
    const auto make = [](const void* from, float* row) {
      const auto& made = *static_cast<const NormedRow*>(from);
      RmsNormArgs norm = made.args;
      norm.y = row;
      made.kernels.rms_norm(norm, 0, 1);
    };
    args.source = {make, &normed};
  }
  linear(context_->isa(), args, linear_scratch(step, tid), tid, context_->pool().crew());
}

void Executable::run_step(const RopeStep& step, int tid) {
  const int64_t units = step.args.heads + int64_t{2} * step.args.shape->kv_heads;
  share(tid, shape_.tokens * units, step.pieces, [&](int64_t first, int64_t last) {
    context_->kernels().rope_store(step.args, first, last);
  });
}

void Executable::run_step(const AttentionStep& step, int tid) {
  AttentionArgs args = step.args;
  args.partials = context_->partials();
  args.partial_stride = 32 + args.shape->padded_dim;
  if (step.feeds != nullptr) {
    args.tiles = linear_tiles(context_->isa(), linear_args(*step.feeds),
                              linear_scratch(*step.feeds, tid));
  }
  const int heads = args.shape->kv_heads;
  // One kv head after the other: its keys and values stay in the second cache from item to item.
  const int64_t items = static_cast<int64_t>(plan_.items.size()), work = items * heads;
  if (plan_.prompt_items > 0) context_->kernels().attend_begin();
  walk(tid, work, step.claim, [&](int64_t first, int64_t last) {
    for (int64_t w = first; w < last; ++w) {
      attend(args, plan_.items[static_cast<size_t>(w % items)], static_cast<int>(w / items), tid);
    }
  });
  if (plan_.prompt_items > 0) context_->kernels().attend_end();
}

void Executable::attend(const AttentionArgs& args, const AttentionItem& item, int kv_head,
                        int tid) {
  const Kernels& kernels = context_->kernels();
  AttentionScratch& scratch = context_->attention(tid);
  if (item.first_row >= shape_.generated_tokens) {
    kernels.attend_prompt(args, item, kv_head, scratch);
    return;
  }
  const AttentionItem* last = plan_.items.data() + plan_.items.size() - 1;
  kernels.attend_generated(args, item, kv_head, &item < last ? &item + 1 : nullptr, scratch);
  if (item.part < 0) return;
  // Whoever finishes last merges; the counter is then ready for the next layer.
  const int parts = partitions(item.position + (item.first_query + item.queries - 1) / args.group);
  std::atomic<int>& done =
      merges_[static_cast<size_t>(item.counter * args.shape->kv_heads + kv_head)].value;
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == parts) {
    done.store(0, std::memory_order_relaxed);
    kernels.attend_merge(args, item, kv_head, scratch);
  }
}

void Executable::run_step(const GatherStep& step, int tid) {
  share(tid, shape_.logits, step.pieces, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const float* from = step.x + int64_t{context_->logit_rows()[row]} * step.width;
      std::memcpy(step.y + row * step.width, from, static_cast<size_t>(step.width) * 4);
    }
  });
}

}  // namespace flare
