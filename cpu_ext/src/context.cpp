// Memory of one rank. See context.h.
#include "flare/context.h"

#include <sys/mman.h>

#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "flare/features.h"

namespace flare {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr int64_t kMaxCount = int64_t{1} << 30;

int64_t checked(int64_t value, int64_t low, int64_t high, const char* name) {
  if (value < low || value > high) {
    throw std::invalid_argument(std::string(name) + " must be " + std::to_string(low) + " to " +
                                std::to_string(high) + ", not " + std::to_string(value));
  }
  return value;
}

size_t product(size_t a, size_t b) {
  size_t result = 0;
  if (__builtin_mul_overflow(a, b, &result) ||
      result > static_cast<size_t>(std::numeric_limits<int64_t>::max() / 2)) {
    throw std::invalid_argument("the cache is larger than the address space");
  }
  return result;
}

CacheShape cache_shape(const ContextSizes& s) {
  CacheShape shape;
  shape.kv_heads = static_cast<int>(checked(s.kv_heads, 1, 4096, "kv_heads"));
  shape.head_dim = static_cast<int>(checked(s.head_dim, 2, kMaxHeadDim, "head_dim"));
  if (shape.head_dim % 2 != 0) throw std::invalid_argument("head_dim must be even");
  if (s.block_size != kKeyTile) throw std::invalid_argument("block_size must be 64");
  shape.padded_dim = (shape.head_dim + 31) / 32 * 32;
  // Slots are int32, so block * 64 + offset must fit.
  shape.num_blocks = static_cast<int>(checked(s.num_blocks, 1, (1 << 25) - 1, "num_blocks"));
  shape.value_offset = int64_t{2} * shape.padded_dim * kKeyTile;
  shape.head_bytes = 2 * shape.value_offset;
  shape.block_bytes = shape.kv_heads * shape.head_bytes;
  return shape;
}

bool available(Isa isa) {
  const Features& f = features();
  switch (isa) {
    case Isa::portable: return true;
    case Isa::avx2: return f.avx2;
    case Isa::avx512: return f.avx512;
    case Isa::amx: return f.amx;
    case Isa::neon: return f.neon;
  }
  return false;
}

constexpr std::pair<Isa, const char*> kIsaNames[] = {{Isa::portable, "portable"},
                                                     {Isa::avx2, "avx2"},
                                                     {Isa::avx512, "avx512"},
                                                     {Isa::amx, "amx"},
                                                     {Isa::neon, "neon"}};

}  // namespace

const char* isa_name(Isa isa) {
  for (const auto& entry : kIsaNames) {
    if (entry.first == isa) return entry.second;
  }
  return "unknown";
}

Isa parse_isa(const char* name) {
  for (const auto& entry : kIsaNames) {
    if (std::strcmp(entry.second, name) == 0) return entry.first;
  }
  throw std::invalid_argument(std::string("unknown instruction set '") + name + "'");
}

Region::Region(size_t bytes) {
  if (bytes == 0) return;
  const bool huge = bytes >= kHugePage;
  const size_t unit = huge ? kHugePage : size_t{4096};
  size_ = (bytes + unit - 1) / unit * unit;
  // A huge page more, so that the start can be put on a huge page's boundary.
  const size_t reserve = huge ? size_ + kHugePage : size_;
  void* raw = mmap(nullptr, reserve, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  uint8_t* start = static_cast<uint8_t*>(raw);
  if (huge) {
    const size_t lead = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
    if (lead > 0) munmap(start, lead);
    start += lead;
    if (lead < kHugePage) munmap(start + size_, kHugePage - lead);
#if defined(MADV_HUGEPAGE)
    madvise(start, size_, MADV_HUGEPAGE);  // only advice: without it pages are small
#endif
  }
  data_ = start;
}

Region::~Region() {
  if (data_ != nullptr) munmap(data_, size_);
}

Region::Region(Region&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Region& Region::operator=(Region&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Context::Context(std::shared_ptr<ThreadPool> pool, Isa isa, const ContextSizes& sizes)
    : pool_(std::move(pool)), isa_(isa), kernels_(flare::kernels(isa)), sizes_(sizes) {
  if (kernels_ == nullptr || !available(isa)) {
    throw std::invalid_argument(std::string("this processor has no ") + isa_name(isa));
  }
  shape_ = cache_shape(sizes);
  checked(sizes.arena_bytes, 0, int64_t{1} << 46, "arena_bytes");
  checked(sizes.layers, 1, 4096, "layers");
  const size_t tokens = checked(sizes.max_tokens, 1, kMaxCount, "max_tokens");
  const size_t seqs = checked(sizes.max_seqs, 1, kMaxCount, "max_seqs");
  const size_t logits = checked(sizes.max_logits, 1, kMaxCount, "max_logits");
  const size_t blocks = checked(sizes.max_blocks, 1, (1 << 25) - 1, "max_blocks");
  arena_ = Region(static_cast<size_t>(sizes.arena_bytes));
  cache_ = Region(product(product(static_cast<size_t>(shape_.block_bytes),
                                  static_cast<size_t>(sizes.num_blocks)),
                          static_cast<size_t>(sizes.layers)));
  attention_ = Region(sizeof(AttentionScratch) * static_cast<size_t>(pool_->threads()));
  const size_t tables = product(seqs, blocks);
  inputs_ = Region(product(3 * tokens + 2 * seqs + 1 + logits + tables + 7 * 16, 4));
  int32_t* next = reinterpret_cast<int32_t*>(inputs_.data());
  const auto take = [&next](size_t count) {
    int32_t* const taken = next;
    next += (count + 15) / 16 * 16;
    return taken;
  };
  token_ids_ = take(tokens);
  positions_ = take(tokens);
  slots_ = take(tokens);
  seg_starts_ = take(seqs + 1);
  seq_lens_ = take(seqs);
  logit_rows_ = take(logits);
  block_tables_ = take(tables);
}

void Context::reserve_scratch(size_t bytes) {
  if (bytes > scratch_.size()) scratch_ = Region(bytes);
}

void Context::reserve_partials(size_t floats) {
  if (floats * sizeof(float) > partials_.size()) partials_ = Region(floats * sizeof(float));
}

size_t Context::scratch_bytes() const noexcept {
  return scratch_.size() + partials_.size() + attention_.size();
}

}  // namespace flare
