// Work items of attention. See plan.h.
#include "flare/plan.h"

#include <algorithm>

namespace flare {
namespace {

int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace

void AttentionPlan::reserve(int64_t tokens, int64_t seqs, int64_t max_keys) {
  const int parts = partitions(static_cast<int>(max_keys - 1));
  const int64_t whole = ceil_div(tokens * group, kGeneratedQueries) + seqs;
  items.reserve(static_cast<size_t>(whole + int64_t{max_split_groups()} * parts));
  const int64_t queries = std::min(group, kGeneratedQueries);
  max_partials = threads > 1 ? int64_t{max_split_groups()} * kv_heads * parts * queries : 0;
}

// Splitting pays only when there are too few items to keep the threads busy.
bool AttentionPlan::should_split(const int32_t* seg_starts, const int32_t* seq_lens,
                                 int generated_seqs) const {
  if (threads == 1) return false;
  int64_t groups = 0, partials = 0;
  int most = 1;
  for (int s = 0; s < generated_seqs; ++s) {
    const int64_t queries = int64_t{seg_starts[s + 1] - seg_starts[s]} * group;
    const int parts = partitions(seq_lens[s] - 1);
    groups += ceil_div(queries, kGeneratedQueries);
    partials += queries * parts * kv_heads;
    most = std::max(most, parts);
    if (groups >= max_split_groups() || partials > max_partials) return false;
  }
  return most > 1;
}

void AttentionPlan::add_prompt(int segment, int first_row, int rows, int keys) {
  const int position = keys - rows;
  const int queries = rows * group;
  const int pieces = ceil_div(queries, kPromptQueries);
  for (int i = pieces - 1; i >= 0; --i) {
    const int first = i * kPromptQueries;
    items.push_back({first_row, position, segment, first,
                     std::min(kPromptQueries, queries - first), keys, -1, -1, -1});
  }
}

void AttentionPlan::add_generated(int segment, int first_row, int rows, int keys, bool split) {
  const int position = keys - rows;
  const int queries = rows * group;
  for (int first = 0; first < queries; first += kGeneratedQueries) {
    AttentionItem item{first_row, position, segment, first,
                       std::min(kGeneratedQueries, queries - first), keys, -1, -1, -1};
    const int parts = partitions(position + (first + item.queries - 1) / group);
    if (!split || parts == 1) {
      items.push_back(item);
      continue;
    }
    item.partial = static_cast<int32_t>(next_partial_);
    item.counter = split_groups++;
    next_partial_ += int64_t{item.queries} * parts * kv_heads;
    for (item.part = 0; item.part < parts; ++item.part) items.push_back(item);
  }
}

void AttentionPlan::build(const int32_t* seg_starts, const int32_t* seq_lens, int seqs,
                          int generated_seqs) {
  items.clear();
  split_groups = 0;
  next_partial_ = 0;
  for (int s = generated_seqs; s < seqs; ++s) {
    add_prompt(s, seg_starts[s], seg_starts[s + 1] - seg_starts[s], seq_lens[s]);
  }
  prompt_items = static_cast<int>(items.size());
  const bool split = should_split(seg_starts, seq_lens, generated_seqs);
  for (int s = 0; s < generated_seqs; ++s) {
    add_generated(s, seg_starts[s], seg_starts[s + 1] - seg_starts[s], seq_lens[s], split);
  }
}

}  // namespace flare
