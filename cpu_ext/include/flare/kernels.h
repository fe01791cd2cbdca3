// The kernels that are compiled once per instruction set, beside the linear ones (linear.h).
// Raw pointers and sizes; the executable has checked them. All paths give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flare/linear.h"

namespace flare {

constexpr int kKeyTile = 64;       // keys per attention tile = tokens per cache block
constexpr int kPartitionTiles = 4; // tiles that a generated row accumulates before a merge
constexpr int kPartitionKeys = kKeyTile * kPartitionTiles;
constexpr int kGeneratedQueries = 16;  // queries per generated work item
constexpr int kPromptQueries = 32;     // queries per prompt work item
constexpr int kMaxHeadDim = 256;

// Geometry of one layer's cache (engine/core/schema.py, KVLayout). Sizes in bytes.
struct CacheShape {
  int kv_heads = 0;
  int head_dim = 0;
  int padded_dim = 0;    // head_dim rounded up to 32
  int num_blocks = 0;
  int64_t value_offset = 0;  // from a head's keys to its values
  int64_t head_bytes = 0;
  int64_t block_bytes = 0;
};

struct RmsNormArgs {
  const float* x;  // rows x width, dense
  const float* weight;
  float* y;  // may be x
  int width;
  float eps;
};

struct RopeStoreArgs {
  const float* qkv;   // rows x (heads + 2 kv_heads) * head_dim, dense
  const float* rope;  // positions x head_dim: cos | sin
  const int32_t* positions;
  const int32_t* slots;
  uint8_t* cache;  // of the layer
  float* q;        // rows x heads * head_dim, dense
  int heads;
  const CacheShape* shape;
};

struct AttentionArgs {
  const float* q;        // rows x heads * head_dim, dense
  float* y;              // the same shape
  const uint8_t* cache;  // of the layer
  const int32_t* tables;
  int64_t table_stride;
  int heads;
  int group;  // query heads per kv head
  float scale;  // times log2(e): the softmax is taken in base 2
  const CacheShape* shape;
  float* partials;     // states of (kv head, partition, query) from AttentionItem::partial on
  int partial_stride;  // floats per state
  RowTiles tiles;  // where the outputs of prompt rows go instead; head_dim is a multiple of 32 then
};

// One piece of attention, for each kv head. Queries of a segment and kv head are numbered
// row-major: query i is the segment's row i / group, head i % group within the kv head.
struct AttentionItem {
  int32_t first_row;    // of the segment, in the launch
  int32_t position;     // absolute position of first_row
  int32_t segment;      // row of the block tables
  int32_t first_query;  // queries [first_query, first_query + queries)
  int32_t queries;
  int32_t keys;  // of the segment's last row; cache content behind them is not the segment's
  // Generated rows: the partition to compute into `partials`, or -1: all of them, into y.
  int32_t part;
  // Where the partials of the item's kv heads and partitions begin, and which counter they share.
  int32_t partial;
  int32_t counter;
};

// State of one query over some keys: running maximum, 16 partial sums, unnormalised output.
struct AttentionState {
  float maximum;
  float pad[15];
  float sum[16];
  float out[kMaxHeadDim];
};

// Per-thread working memory of attention; 64-byte aligned.
struct alignas(64) AttentionScratch {
  float q[kPromptQueries * kMaxHeadDim];
  float scores[2 * kPromptQueries * kKeyTile];  // two tiles' in turn
  float out[kPromptQueries * kMaxHeadDim];  // tiles: kept apart from `state`
  uint16_t q16[kPromptQueries * kMaxHeadDim];
  uint16_t p16[2 * kPromptQueries * kKeyTile];
  uint16_t edge[32 * kMaxHeadDim];  // values of the last keys, with zeros behind them
  AttentionState state[kPromptQueries];
  AttentionState total[kGeneratedQueries];
};

struct Kernels {
  // Rows [first, last).
  void (*rms_norm)(const RmsNormArgs&, int first, int last);
  // Units [first, last); unit = row * (heads + 2 kv_heads) + head, q heads first, then k, then v.
  void (*rope_store)(const RopeStoreArgs&, int64_t first, int64_t last);
  // Every thread calls attend_begin before its first prompt item of a launch and attend_end after
  // its last (tile configuration).
  void (*attend_begin)();
  void (*attend_end)();
  void (*attend_prompt)(const AttentionArgs&, const AttentionItem&, int kv_head, AttentionScratch&);
  // `next`: the item after this one, or null; its first keys are asked for ahead.
  void (*attend_generated)(const AttentionArgs&, const AttentionItem&, int kv_head,
                           const AttentionItem* next, AttentionScratch&);
  // Merges the partitions of an item that were computed apart, in ascending order, into y.
  void (*attend_merge)(const AttentionArgs&, const AttentionItem&, int kv_head, AttentionScratch&);

  // Sampler passes over one row of n logits.
  // Maximum; *finite is false when any value is infinite or NaN.
  float (*scan)(const float* z, int n, bool* finite);
  // Lowest index whose value equals `value`; n when there is none.
  int (*find)(const float* z, int n, float value);
  // e[i] = exp((z[i] - maximum) * inverse_temperature) and one sum per 256 values into `sums`
  // (ceil(n / 256) of them); e may be null.
  void (*exponentials)(const float* z, int n, float maximum, float inverse_temperature, float* e,
                       float* sums);
  // How many values are at least `threshold`.
  int (*count)(const float* z, int n, float threshold);
  // Their indices, ascending; `ids` has room for all and 16 more.
  int (*gather)(const float* z, int n, float threshold, int32_t* ids);
  // e^x of one value, with the vector function's bits.
  float (*exponential)(float x);
};

// The kernels of an instruction set that this build has. Null when it has not.
const Kernels* kernels(Isa isa);

// Number of key partitions of a query at `position`.
constexpr int partitions(int position) { return position / kPartitionKeys + 1; }

}  // namespace flare
