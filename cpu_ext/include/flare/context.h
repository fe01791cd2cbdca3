// What the executables of one rank share: threads, instruction set, arena, inputs, cache.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "flare/kernels.h"
#include "flare/pool.h"

namespace flare {

// Anonymous zeroed memory, 64-byte aligned (page aligned), huge pages advised. Pages cost nothing
// until they are touched. Throws std::bad_alloc.
class Region {
 public:
  Region() = default;
  explicit Region(size_t bytes);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  uint8_t* data() const noexcept { return data_; }
  size_t size() const noexcept { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

struct ContextSizes {
  int64_t arena_bytes = 0;
  int64_t max_tokens = 0;  // rows of a launch
  int64_t max_seqs = 0;    // segments of a launch
  int64_t max_logits = 0;
  int64_t max_blocks = 0;  // per sequence
  int64_t layers = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t block_size = 0;
  int64_t num_blocks = 0;
};

// Name of an instruction set, and back; throws std::invalid_argument for an unknown name.
const char* isa_name(Isa isa);
Isa parse_isa(const char* name);

class Context {
 public:
  // Throws std::invalid_argument when a size is out of range or the processor lacks `isa`.
  Context(std::shared_ptr<ThreadPool> pool, Isa isa, const ContextSizes& sizes);

  ThreadPool& pool() const noexcept { return *pool_; }
  Isa isa() const noexcept { return isa_; }
  const Kernels& kernels() const noexcept { return *kernels_; }
  const ContextSizes& sizes() const noexcept { return sizes_; }
  const CacheShape& shape() const noexcept { return shape_; }
  uint8_t* arena() const noexcept { return arena_.data(); }
  uint8_t* cache() const noexcept { return cache_.data(); }
  size_t cache_bytes() const noexcept { return cache_.size(); }
  int64_t layer_bytes() const noexcept { return shape_.block_bytes * sizes_.num_blocks; }

  // Host-filled inputs (engine/ir/ops.py INPUTS), at full capacity.
  int32_t* token_ids() const noexcept { return token_ids_; }
  int32_t* positions() const noexcept { return positions_; }
  int32_t* slots() const noexcept { return slots_; }
  int32_t* seg_starts() const noexcept { return seg_starts_; }
  int32_t* seq_lens() const noexcept { return seq_lens_; }
  int32_t* block_tables() const noexcept { return block_tables_; }
  int32_t* logit_rows() const noexcept { return logit_rows_; }

  // Working memory that replays share; they never run at once. Grows while executables are made:
  // then no replay may run (`turn` of the executable holds them off).
  void reserve_scratch(size_t bytes);
  void reserve_partials(size_t floats);
  uint8_t* scratch() const noexcept { return scratch_.data(); }
  float* partials() const noexcept { return reinterpret_cast<float*>(partials_.data()); }
  size_t scratch_bytes() const noexcept;
  AttentionScratch& attention(int tid) const noexcept {
    return reinterpret_cast<AttentionScratch*>(attention_.data())[tid];
  }
  std::mutex& turn() noexcept { return turn_; }

 private:
  std::shared_ptr<ThreadPool> pool_;
  Isa isa_;
  const Kernels* kernels_;
  ContextSizes sizes_;
  CacheShape shape_;
  Region arena_, cache_, inputs_, scratch_, partials_, attention_;
  int32_t *token_ids_, *positions_, *slots_, *seg_starts_, *seq_lens_, *block_tables_, *logit_rows_;
  std::mutex turn_;
};

}  // namespace flare
