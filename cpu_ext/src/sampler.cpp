// Slots, processing order and reports of the sampler. See sampler.h.
#include "flare/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace flare {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

[[noreturn]] void fail(const std::string& what) { throw std::invalid_argument(what); }

void check_number(double value, double low, double high, const char* name) {
  if (!(value >= low && value <= high)) {  // false for NaN
    fail(std::string(name) + " is out of range");
  }
}

void check_ids(const std::vector<int32_t>& ids, int vocab, const char* name) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      fail(std::string(name) + " holds " + std::to_string(id) + ", which is not within 0 to " +
           std::to_string(vocab - 1));
    }
  }
}

void check_parameters(const SlotParameters& p) {
  constexpr double kLargest = 1e30;
  check_number(p.temperature, 0, kLargest, "temperature");
  check_number(p.top_p, 0, 1, "top_p");
  check_number(p.min_p, 0, 1, "min_p");
  check_number(p.top_k, 0, std::numeric_limits<int>::max(), "top_k");
  check_number(p.presence_penalty, -kLargest, kLargest, "presence_penalty");
  check_number(p.frequency_penalty, -kLargest, kLargest, "frequency_penalty");
  check_number(p.repetition_penalty, 1e-6, kLargest, "repetition_penalty");
}

void penalise(const Slot& slot, float* z) {
  const SlotParameters& p = slot.parameters;
  for (const History::Entry& e : slot.history.entries()) {
    float& logit = z[e.id];
    if (e.prompt + e.output == 0) continue;
    logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    if (e.output == 0) continue;
    logit -= p.frequency_penalty * static_cast<float>(e.output);
    logit -= p.presence_penalty;
  }
}

// Per byte of a mask, what its eight logits may be at most: infinity where the bit is set. Taking
// minima has no branches, which masks of mixed bits would mislead.
constexpr std::array<std::array<float, 8>, 256> make_ceilings() {
  std::array<std::array<float, 8>, 256> ceilings{};
  for (size_t byte = 0; byte < 256; ++byte) {
    for (size_t bit = 0; bit < 8; ++bit) {
      ceilings[byte][bit] = (byte >> bit & 1) != 0 ? kInfinity : -kInfinity;
    }
  }
  return ceilings;
}
constexpr std::array<std::array<float, 8>, 256> kCeilings = make_ceilings();

void apply_mask(const uint32_t* mask, int vocab, float* z) {
  for (int first = 0; first < vocab; first += 8) {
    const uint32_t word = mask[first / 32];
    if (word == ~uint32_t{0}) {
      first += 24 - first % 32;
      continue;
    }
    const float* ceilings = kCeilings[word >> first % 32 & 255].data();
    float* eight = z + first;
    if (first + 8 <= vocab) {
      for (int i = 0; i < 8; ++i) eight[i] = eight[i] < ceilings[i] ? eight[i] : ceilings[i];
    } else {
      for (int i = 0; i < vocab - first; ++i) eight[i] = std::min(eight[i], ceilings[i]);
    }
  }
}

RowLogprobs row_logprobs(float* logprobs, int32_t* top_ids, float* top_logprobs, int64_t i) {
  RowLogprobs out{logprobs + i, top_ids + i * kMaxAlternatives,
                  top_logprobs + i * kMaxAlternatives};
  *out.logprob = kNan;
  std::fill_n(out.top_ids, kMaxAlternatives, -1);
  std::fill_n(out.top_logprobs, kMaxAlternatives, kNan);
  return out;
}

// Runs body(i, tid) for every i in [0, count) on the pool's threads.
template <typename F>
void for_each(ThreadPool& pool, int64_t count, const F& body) {
  struct Job {
    Crew& crew;
    int64_t count;
    const F& body;
  } job{pool.crew(), count, body};
  const auto run = [](void* argument, int tid) {
    Job& j = *static_cast<Job*>(argument);
    j.crew.begin(tid, j.count, 1);
    for (int64_t first, last; j.crew.next(tid, &first, &last);) {
      for (int64_t i = first; i < last; ++i) j.body(i, tid);
    }
  };
  pool.run(run, &job);
}

}  // namespace

Sampler::Sampler(std::shared_ptr<ThreadPool> pool, Isa isa, int64_t vocab_size,
                 int64_t logits_width, int64_t slots)
    : pool_(std::move(pool)), kernels_(flare::kernels(isa)) {
  if (kernels_ == nullptr) fail("this build lacks the instruction set");
  if (vocab_size < 1 || vocab_size > (1 << 24)) fail("vocab_size must be 1 to 16777216");
  if (logits_width < vocab_size) fail("logits_width must not be below vocab_size");
  if (slots < 1 || slots > (1 << 20)) fail("slots must be 1 to 1048576");
  vocab_size_ = static_cast<int>(vocab_size);
  logits_width_ = logits_width;
  slots_.resize(static_cast<size_t>(slots));
  seen_.resize(static_cast<size_t>(slots));
  for (int i = 0; i < pool_->threads(); ++i) draws_.emplace_back(*kernels_, vocab_size_);
}

Slot& Sampler::slot(int64_t index) {
  if (index < 0 || index >= static_cast<int64_t>(slots_.size())) {
    fail("slot must be 0 to " + std::to_string(slots_.size() - 1) + ", not " +
         std::to_string(index));
  }
  return slots_[static_cast<size_t>(index)];
}

void Sampler::set(int64_t index, Slot state, const std::vector<int32_t>& prompt_ids,
                  const std::vector<int32_t>& output_ids) {
  const std::lock_guard<std::mutex> turn(turn_);
  Slot& target = slot(index);
  target = Slot{};
  check_parameters(state.parameters);
  if (state.bias_ids.size() != state.bias_values.size()) fail("bias ids and values must pair");
  check_ids(state.bias_ids, vocab_size_, "bias_ids");
  for (const float value : state.bias_values) check_number(value, -1e30, 1e30, "bias");
  check_ids(prompt_ids, vocab_size_, "prompt_ids");
  check_ids(output_ids, vocab_size_, "output_ids");
  // An end token that the vocabulary does not hold is never drawn: nothing to forbid.
  const auto unknown = [this](int32_t id) { return id < 0 || id >= vocab_size_; };
  std::vector<int32_t>& stops = state.stop_ids;
  stops.erase(std::remove_if(stops.begin(), stops.end(), unknown), stops.end());
  if (state.penalised()) {
    state.history.prepare(prompt_ids.size() + output_ids.size());
    for (const int32_t id : prompt_ids) state.history.add_prompt(id);
    for (const int32_t id : output_ids) state.history.add_output(id);
  }
  state.used = true;
  target = std::move(state);
}

void Sampler::clear(int64_t index) {
  const std::lock_guard<std::mutex> turn(turn_);
  slot(index) = Slot{};
}

void Sampler::rewind(int64_t index, int64_t count) {
  const std::lock_guard<std::mutex> turn(turn_);
  Slot& target = slot(index);
  if (count < 0) fail("count must not be negative");
  if (!target.penalised()) return;  // keeps no history
  if (count > static_cast<int64_t>(target.history.outputs())) {
    fail("cannot take back " + std::to_string(count) + " tokens of " +
         std::to_string(target.history.outputs()));
  }
  target.history.rewind(static_cast<size_t>(count));
}

void Sampler::check_rows(const int32_t* rows, int64_t count, int64_t logit_rows) const {
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i] < 0 || rows[i] >= logit_rows) {
      fail("rows[" + std::to_string(i) + "] = " + std::to_string(rows[i]) +
           " is not one of the " + std::to_string(logit_rows) + " rows of logits");
    }
  }
}

void Sampler::check(const SampleRequest& r) {
  check_rows(r.rows, r.count, r.logit_rows);
  std::fill(seen_.begin(), seen_.end(), uint8_t{0});
  for (int64_t i = 0; i < r.count; ++i) {
    Slot& s = slot(r.slots[i]);
    if (!s.used) fail("slot " + std::to_string(r.slots[i]) + " is not set");
    if (r.positions[i] < 0) fail("positions must not be negative");
    if (r.top_n[i] < -1 || r.top_n[i] > kMaxAlternatives) fail("top_n must be -1 to 20");
    if (r.masks != nullptr && (r.mask_rows[i] < -1 || r.mask_rows[i] >= r.mask_count)) {
      fail("mask_rows must be -1 to " + std::to_string(r.mask_count - 1));
    }
    if (i > 0 && r.slots[i] == r.slots[i - 1]) continue;
    uint8_t& seen = seen_[static_cast<size_t>(r.slots[i])];
    if (seen != 0) fail("entries of slot " + std::to_string(r.slots[i]) + " must be adjacent");
    seen = 1;
    int64_t end = i + 1;
    while (end < r.count && r.slots[end] == r.slots[i]) ++end;
    if (s.penalised()) s.history.prepare(static_cast<size_t>(end - i));
  }
}

void Sampler::sample(const SampleRequest& request) {
  const std::lock_guard<std::mutex> turn(turn_);
  check(request);
  for_each(*pool_, request.count, [&](int64_t i, int tid) {
    sample_run(request, i, draws_[static_cast<size_t>(tid)]);
  });
}

// Adjacent entries of one slot are drawn in order, by whoever claims the first of them.
void Sampler::sample_run(const SampleRequest& r, int64_t first, Draw& draw) {
  if (first > 0 && r.slots[first] == r.slots[first - 1]) return;
  for (int64_t i = first; i < r.count && r.slots[i] == r.slots[first]; ++i) {
    sample_row(r, i, draw);
  }
}

const uint32_t* Sampler::mask_of(const SampleRequest& r, int64_t i) const {
  if (r.masks == nullptr || r.mask_rows[i] < 0) return nullptr;
  return r.masks + r.mask_rows[i] * mask_words();
}

// The row after penalties, bias and what is forbidden: itself, or a changed copy.
const float* Sampler::process(const Slot& slot, const float* raw, bool forbid_stop,
                              const uint32_t* mask, Draw& draw) const {
  const bool penalise_row = slot.penalised() && !slot.history.entries().empty();
  const bool forbid = forbid_stop && !slot.stop_ids.empty();
  if (!penalise_row && !forbid && mask == nullptr && slot.bias_ids.empty()) return raw;
  float* z = draw.copy(raw);
  if (penalise_row) penalise(slot, z);
  for (size_t i = 0; i < slot.bias_ids.size(); ++i) z[slot.bias_ids[i]] += slot.bias_values[i];
  if (forbid) {
    for (const int32_t id : slot.stop_ids) z[id] = -kInfinity;
  }
  if (mask != nullptr) apply_mask(mask, vocab_size_, z);
  return z;
}

void Sampler::sample_row(const SampleRequest& r, int64_t i, Draw& draw) {
  const RowLogprobs out = row_logprobs(r.logprobs, r.top_ids, r.top_logprobs, i);
  Slot& s = slots_[static_cast<size_t>(r.slots[i])];
  const float* raw = r.logits + r.rows[i] * logits_width_;
  r.tokens[i] = kBadRow;
  bool finite = false;
  const float raw_maximum = kernels_->scan(raw, vocab_size_, &finite);
  if (!finite) return;
  const float* z = process(s, raw, r.forbid_stop[i] != 0, mask_of(r, i), draw);
  const float maximum = z == raw ? raw_maximum : kernels_->scan(z, vocab_size_, &finite);
  if (!(std::fabs(maximum) < kInfinity)) return;  // no token is left, or a value overflowed
  const int32_t token = draw.token(s.parameters, z, maximum, r.positions[i]);
  r.tokens[i] = token;
  if (r.top_n[i] >= 0) report(raw, raw_maximum, token, r.top_n[i], out, draw);
  if (s.penalised()) s.history.add_output(token);
}

void Sampler::report(const float* raw, float maximum, int32_t token, int top_n,
                     const RowLogprobs& out, Draw& draw) const {
  const double log_sum = draw.log_sum(raw, maximum);
  *out.logprob = static_cast<float>(raw[token] - log_sum);
  if (top_n == 0) return;
  const std::vector<Candidate>& best = draw.best(raw, maximum, top_n);
  for (size_t i = 0; i < best.size(); ++i) {
    out.top_ids[i] = best[i].id;
    out.top_logprobs[i] = static_cast<float>(best[i].logit - log_sum);
  }
}

void Sampler::score(const ScoreRequest& r) {
  const std::lock_guard<std::mutex> turn(turn_);
  check_rows(r.rows, r.count, r.logit_rows);
  for (int64_t i = 0; i < r.count; ++i) {
    if (r.targets[i] < 0 || r.targets[i] >= vocab_size_) fail("targets must be token ids");
    if (r.top_n[i] < -1 || r.top_n[i] > kMaxAlternatives) fail("top_n must be -1 to 20");
  }
  for_each(*pool_, r.count, [&](int64_t i, int tid) {
    score_row(r, i, draws_[static_cast<size_t>(tid)]);
  });
}

void Sampler::score_row(const ScoreRequest& r, int64_t i, Draw& draw) {
  const RowLogprobs out = row_logprobs(r.logprobs, r.top_ids, r.top_logprobs, i);
  const float* raw = r.logits + r.rows[i] * logits_width_;
  bool finite = false;
  const float maximum = kernels_->scan(raw, vocab_size_, &finite);
  if (finite && r.top_n[i] >= 0) {
    report(raw, maximum, r.targets[i], r.top_n[i], out, draw);
  }
}

}  // namespace flare
