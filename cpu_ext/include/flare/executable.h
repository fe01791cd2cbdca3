// An instantiated program and its replay.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "flare/context.h"
#include "flare/launch.h"
#include "flare/plan.h"

namespace flare {

// Rows present in one replay (engine/device/base.py, BatchShape). Generated ones come first.
struct BatchShape {
  int64_t tokens, seqs, generated_tokens, generated_seqs, logits, generated_logits;
};

class Executable {
 public:
  // Throws std::invalid_argument for launches or a domain that do not fit the context. Keeps the
  // context alive; the weights' memory is the caller's to keep.
  Executable(std::shared_ptr<Context> context, const Domain& domain,
             const std::vector<LaunchSpec>& launches, const std::vector<WeightView>& weights);
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  // Runs the program on the rows that the context's inputs hold. What only the next launch reads may
  // be kept elsewhere than in the arena (link_feeds). Allocates nothing. Throws
  // std::invalid_argument, before anything runs, when counts or inputs are out of range.
  void replay(const BatchShape& shape);

 private:
  void reserve();
  void check(const BatchShape& shape) const;
  void check_rows(const BatchShape& shape) const;
  void check_segments(const BatchShape& shape) const;
  void run(int tid);
  void run_step(const EmbedStep& step, int tid);
  void run_step(const NormStep& step, int tid);
  void run_step(const LinearStep& step, int tid);
  void run_step(const RopeStep& step, int tid);
  void run_step(const AttentionStep& step, int tid);
  void run_step(const GatherStep& step, int tid);
  void attend(const AttentionArgs& args, const AttentionItem& item, int kv_head, int tid);
  template <typename F>
  void walk(int tid, int64_t total, int64_t grain, const F& body);
  template <typename F>
  void share(int tid, int64_t total, int64_t pieces, const F& body);
  int rows(Rows rows) const;
  void norm_into(const NormStep& step, int tid);
  LinearArgs linear_args(const LinearStep& step) const;
  LinearScratch linear_scratch(const LinearStep& step, int tid) const;

  struct alignas(64) Counter {
    std::atomic<int> value{0};
  };

  std::shared_ptr<Context> context_;
  Domain domain_;
  std::vector<Step> steps_;
  int64_t vocab_ = 0;      // ids below it have an embedding; 0: the program embeds nothing
  int64_t angles_ = 0;     // positions below it have an angle; 0: no rope
  size_t rows_bytes_ = 0, thread_bytes_ = 0;  // of LinearScratch; two places for rows, then threads
  AttentionPlan plan_;
  std::vector<Counter> merges_;  // per split item and kv head: partitions done
  BatchShape shape_{};
};

}  // namespace flare
