// How one replay's attention is cut into work items. The cut never changes a bit: only which
// thread computes what.
#pragma once

#include <cstdint>
#include <vector>

#include "flare/kernels.h"

namespace flare {

struct AttentionPlan {
  std::vector<AttentionItem> items;  // prompt items first, those with most keys first
  int prompt_items = 0;
  int split_groups = 0;  // generated items whose partitions are computed apart

  // Capacities, set once.
  int threads = 1;
  int group = 1;  // query heads per kv head; 0: the program has no attention
  int kv_heads = 1;
  int64_t max_partials = 0;

  // Sets the capacities and reserves memory for every batch of `tokens` rows and `seqs` segments
  // with up to `max_keys` keys.
  void reserve(int64_t tokens, int64_t seqs, int64_t max_keys);
  // Most split groups that a replay may have.
  int max_split_groups() const { return threads > 1 ? 4 * threads / kv_heads + 1 : 0; }

  // Fills items for the segments. Allocates nothing.
  void build(const int32_t* seg_starts, const int32_t* seq_lens, int seqs, int generated_seqs);

 private:
  void add_prompt(int segment, int first_row, int rows, int keys);
  void add_generated(int segment, int first_row, int rows, int keys, bool split);
  bool should_split(const int32_t* seg_starts, const int32_t* seq_lens, int generated_seqs) const;
  int64_t next_partial_ = 0;
};

}  // namespace flare
