// What a thread keeps of the query rows that it works on, and where a block of their keys and values lies.
#pragma once

#include <cstdint>
#include <utility>

#include "attention_work.h"
#include "kv.h"
#include "simd.h"

namespace hr {

constexpr int BLOCK_TILES = KEY_BLOCK / TILE;

// The state of one item's rows, in a thread's scratch memory.
struct QueryRows {
  uint8_t* query;         // bfloat16 [QUERY_TILE][head_dim], or int8 [2][QUERY_TILE][head_dim]: high parts, low ones
  float* out;             // [QUERY_TILE][head_dim], sum of probability times value, against the maximum so far
  float* sums;            // [QUERY_TILE][16], of the probabilities, by lanes
  float* maxima;          // [QUERY_TILE + 16], of the scaled scores
  float* scales;          // [QUERY_TILE + 16], of the scores
  int32_t* offsets;       // [QUERY_TILE], int8 only: -128 * sum of the query's integers
  int32_t *first, *last;  // [QUERY_TILE], positions of the keys that a row sees
  uint8_t* last_pair;     // bfloat16 [head_dim][2], where the context's last token has no partner yet

  QueryRows(void* scratch, int head_dim) {
    uint8_t* free = (uint8_t*)((uintptr_t(scratch) + 63) / 64 * 64);
    const auto take = [&](int64_t bytes) { return std::exchange(free, free + (bytes + 63) / 64 * 64); };
    query = take(int64_t(QUERY_TILE) * head_dim * 2);
    out = (float*)take(int64_t(QUERY_TILE) * head_dim * 4);
    sums = (float*)take(QUERY_TILE * LANES * 4);
    maxima = (float*)take((QUERY_TILE + LANES) * 4);
    scales = (float*)take((QUERY_TILE + LANES) * 4);
    offsets = (int32_t*)take(QUERY_TILE * 4);
    first = (int32_t*)take(QUERY_TILE * 4);
    last = (int32_t*)take(QUERY_TILE * 4);
    last_pair = take(int64_t(head_dim) * 4);
  }
};

// Bytes of scratch memory that a thread needs.
HR_INLINE int64_t attention_scratch_bytes(int head_dim) {
  return int64_t(QUERY_TILE) * head_dim * 6 + QUERY_TILE * (LANES + 5) * 4 + LANES * 8 + head_dim * 4 + 10 * 64;
}

// The keys of a span from position `first` on, a multiple of KEY_BLOCK. An item sees some of the tiles begin..end - 1.
struct KeyBlock {
  int first, begin, end;
  const uint8_t* keys[BLOCK_TILES];  // of each tile; its values follow
};

// Lines of the next block to fetch while this one is worked on, by place in the block; null: nothing to fetch.
using NextLines = const uint8_t* const*;

HR_INLINE void fetch(const void* line) { __builtin_prefetch(line, 0, 2); }

}  // namespace hr
