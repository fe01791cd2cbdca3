// Sampling state per slot, and the sampler.
//
// Order for one row: raw logits -> (log-softmax of these, where log probabilities are asked for) ->
// repetition penalty over prompt and output (Keskar et al. 2019, CTRL: divide positive logits,
// multiply negative ones), then frequency and presence penalties over the output -> bias ->
// end tokens forbidden where asked, ids that a mask lacks forbidden -> temperature -> top_k ->
// top_p -> min_p -> draw. The draw inverts the cumulative distribution, ids ascending, at a uniform
// number that Philox 4x32-10 (Salmon et al. 2011) gives for key = seed, counter = position.
// Temperature 0 takes the highest processed logit. Ties, also at the border of top_k and top_p, go
// to the lowest ids. Ids from vocab_size on do not exist. A row depends on its logits, its slot and
// its position alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "flare/draw.h"
#include "flare/history.h"
#include "flare/kernels.h"
#include "flare/pool.h"

namespace flare {

constexpr int kMaxAlternatives = 20;
constexpr int32_t kBadRow = -1;  // the token of a row whose logits are not finite

struct Slot {
  bool used = false;
  SlotParameters parameters;
  std::vector<int32_t> bias_ids;
  std::vector<float> bias_values;
  std::vector<int32_t> stop_ids;
  History history;
  bool penalised() const {
    return parameters.presence_penalty != 0 || parameters.frequency_penalty != 0 ||
           parameters.repetition_penalty != 1;
  }
};

// A row's log probabilities: of its token, and the best alternatives, best first.
struct RowLogprobs {
  float* logprob;
  int32_t* top_ids;      // kMaxAlternatives; from top_n on: -1
  float* top_logprobs;   // kMaxAlternatives; from top_n on: NaN
};

struct SampleRequest {
  const float* logits;  // [logit_rows, logits_width]
  int64_t logit_rows;
  int64_t count;
  const int32_t* rows;       // [count] each: row of the logits
  const int32_t* slots;      // the same slot may come again in adjacent entries only
  const int32_t* positions;  // of the token to draw
  const uint8_t* forbid_stop;
  const int32_t* top_n;  // -1: no log probabilities
  // Ids that may be drawn: mask_count rows of a bit per id, lowest bit first; mask_rows [count]: row
  // of an entry, -1: all ids. Null: no entry has one.
  const uint32_t* masks;
  int64_t mask_count;
  const int32_t* mask_rows;
  int32_t* tokens;
  float* logprobs;
  int32_t* top_ids;  // [count, kMaxAlternatives]
  float* top_logprobs;
};

struct ScoreRequest {
  const float* logits;
  int64_t logit_rows;
  int64_t count;
  const int32_t* rows;
  const int32_t* targets;
  const int32_t* top_n;
  float* logprobs;
  int32_t* top_ids;
  float* top_logprobs;
};

class Sampler {
 public:
  // Throws std::invalid_argument when a size is out of range.
  Sampler(std::shared_ptr<ThreadPool> pool, Isa isa, int64_t vocab_size, int64_t logits_width,
          int64_t slots);

  // Starts a slot. Throws std::invalid_argument for a value out of range; the slot is then clear.
  void set(int64_t slot, Slot state, const std::vector<int32_t>& prompt_ids,
           const std::vector<int32_t>& output_ids);
  void clear(int64_t slot);
  // Takes back the last `count` drawn tokens of the slot's history.
  void rewind(int64_t slot, int64_t count);
  // Throws std::invalid_argument before anything is drawn when an argument is out of range.
  void sample(const SampleRequest& request);
  void score(const ScoreRequest& request);

  int64_t logits_width() const { return logits_width_; }
  int64_t mask_words() const { return (vocab_size_ + 31) / 32; }

 private:
  Slot& slot(int64_t index);
  void check_rows(const int32_t* rows, int64_t count, int64_t logit_rows) const;
  void check(const SampleRequest& request);
  void sample_run(const SampleRequest& request, int64_t first, Draw& draw);
  void sample_row(const SampleRequest& request, int64_t i, Draw& draw);
  void score_row(const ScoreRequest& request, int64_t i, Draw& draw);
  const uint32_t* mask_of(const SampleRequest& request, int64_t i) const;
  const float* process(const Slot& slot, const float* raw, bool forbid_stop, const uint32_t* mask,
                       Draw& draw) const;
  void report(const float* raw, float maximum, int32_t token, int top_n, const RowLogprobs& out,
              Draw& draw) const;

  std::shared_ptr<ThreadPool> pool_;
  const Kernels* kernels_;
  int vocab_size_;
  int64_t logits_width_;
  std::vector<Slot> slots_;
  std::vector<Draw> draws_;    // per thread
  std::vector<uint8_t> seen_;  // slots met in the call that is checked
  std::mutex turn_;
};

}  // namespace flare
