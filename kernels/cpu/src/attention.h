// Causal attention of packed query rows over the paged cache: decode rows, prefill chunks and rows to verify alike.
//
// A thread takes an item (attention_work.h), rounds its query rows once, and goes over the keys in blocks of 128 that
// begin at multiples of 128: scores, softmax against the largest score so far, weighted sum of the values. A masked key
// has probability exactly 0 and a block of such keys changes nothing, so a row's bits depend on its query and its
// context only, not on what else is in its item, its chunk or its batch.
//
// A row costs about 100 ns per 64 keys of 64 dimensions, 70 of them the two products (Zen 4, both kinds of cache).
//
// Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, section 3; Dao et al.,
// "FlashAttention", 2022, section 3.1 (the values' sum rescaled block by block).
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "attention_kinds.h"
#include "attention_rows.h"
#include "attention_work.h"
#include "kv.h"
#include "quantise.h"
#include "simd.h"
#include "step.h"

namespace hr {

#if defined(__AVX512F__)
constexpr int ROWS_AT_ONCE = 6, VECTORS_AT_ONCE = 4;  // of 32 registers 24 sums, 4 of the cache, 1 that is broadcast
#else
constexpr int ROWS_AT_ONCE = 2, VECTORS_AT_ONCE = 2;
#endif

// One layer's attention in one step.
struct Attention {
  const HrModel& model;
  const HrStep& step;
  const AttentionWork& work;
  uint8_t* cache;  // of the layer
  float* qkv;      // [num_rows][(num_heads + 2 * num_kv_heads) * head_dim]
  float* out;      // [num_rows][num_heads * head_dim]

  int group() const { return model.num_heads / model.num_kv_heads; }
  int64_t qkv_stride() const { return int64_t(model.num_heads + 2 * model.num_kv_heads) * model.head_dim; }
};

// First phase, for the rows begin..end - 1: norms (with `qk_norm`, see HrLayer) and rotates queries and keys in place,
// and writes keys and values to the cache. All rows must be through before the first item is attended to.
static inline void write_rows(const Attention& attention, const float* qk_norm, int begin, int end) {
  const HrModel& model = attention.model;
  const int head_dim = model.head_dim, num_turned = model.num_heads + model.num_kv_heads;
  const KvLayout layout = kv_layout(model);
  for (int row = begin; row < end; row++) {
    float* heads = attention.qkv + row * attention.qkv_stride();
    const int64_t slot = attention.work.slots[size_t(row)];
    const int64_t angles = int64_t(row) * (head_dim / 2);
    for (int head = 0; head < num_turned; head++) {
      float* x = heads + head * head_dim;
      if (qk_norm) rms_norm_row(x, qk_norm + head * head_dim, model.rms_norm_eps, head_dim, x);
      rotate(x, attention.step.cos + angles, attention.step.sin + angles, head_dim / 2);
    }
    for (int kv_head = 0; kv_head < model.num_kv_heads; kv_head++)
      write_kv(layout, attention.cache, slot, kv_head, heads + (model.num_heads + kv_head) * head_dim,
               heads + (num_turned + kv_head) * head_dim);
  }
}

// One thread's work: item after item, block after block. The tiles that it will need are fetched a block's worth ahead
// of the work, tile for tile across items: they lie scattered, where the processor's own prefetchers find no stream.
// Decode of 32 rows of SmolLM2 with a context of 256 on two Zen 4 cores: 5.4 ms a step instead of 7.1.
template <class Cache, class Claim>
class Attender {
 public:
  // claim() gives the index of the next item that is this thread's; beyond the last: none is left.
  Attender(const Attention& attention, void* scratch, Claim& claim)
      : attention_(attention),
        layout_(kv_layout(attention.model)),
        head_dim_(attention.model.head_dim),
        rows_(scratch, head_dim_),
        claim_(claim) {}

  void run() {
    for (int t = 0; t < BLOCK_TILES; t++)
      if (const uint8_t* tile = next_tile())
        for (int64_t at = 0; at < 2 * layout_.side_bytes(); at += 64) fetch(tile + at);
    while (num_taken_ > 0) {
      const AttentionItem& item = *taken_[oldest_++ % BLOCK_TILES];
      num_taken_--;
      begin(item);
      for (int first = first_seen(item) / KEY_BLOCK * KEY_BLOCK; first <= last_position(item); first += KEY_BLOCK)
        attend(item, block_at(item, first));
      finish(item);
    }
  }

 private:
  // The keys of the next tile to fetch, followed by its values; null where none is left.
  const uint8_t* next_tile() {
    if (ahead_ > ahead_last_) {
      const size_t index = size_t(claim_());
      if (index >= attention_.work.items.size()) return nullptr;
      const AttentionItem& item = attention_.work.items[index];
      taken_[(oldest_ + num_taken_++) % BLOCK_TILES] = &item;
      ahead_ = first_seen(item) / TILE * TILE;
      ahead_last_ = last_position(item);
      newest_ = &item;
    }
    return keys_at(*newest_, std::exchange(ahead_, ahead_ + TILE));
  }

  const HrSpan& span(const AttentionItem& item) const { return attention_.step.spans[item.span]; }
  int position(const AttentionItem& item, int packed) const {
    return span(item).position + packed / attention_.group();
  }
  int last_position(const AttentionItem& item) const { return position(item, item.end - 1); }
  int first_seen(const AttentionItem& item) const {
    return first_key(attention_.model, position(item, item.begin));
  }
  // The keys at a position, a multiple of TILE.
  const uint8_t* keys_at(const AttentionItem& item, int position_of_tile) const {
    const int block_size = attention_.step.block_size;
    const int32_t* table = attention_.step.tables + span(item).table;
    const int64_t slot = int64_t(table[position_of_tile / block_size]) * block_size + position_of_tile % block_size;
    return attention_.cache + layout_.keys_at(slot / TILE, item.kv_head);
  }

  KeyBlock block_at(const AttentionItem& item, int first) const {
    KeyBlock block{};
    block.first = first;
    block.begin = std::max(first_seen(item) - first, 0) / TILE;
    block.end = std::min((last_position(item) - first) / TILE + 1, BLOCK_TILES);
    for (int t = block.begin; t < block.end; t++) block.keys[t] = keys_at(item, first + t * TILE);
    return block;
  }

  // A row of the step and its head that a packed row stands for.
  int row_of(const AttentionItem& item, int packed) const { return span(item).row + packed / attention_.group(); }
  int head_of(const AttentionItem& item, int packed) const {
    return item.kv_head * attention_.group() + packed % attention_.group();
  }

  void begin(const AttentionItem& item) {
    const int num_rows = item.end - item.begin;
    const float softmax_scale = 1.f / std::sqrt(float(head_dim_));
    for (int i = 0; i < num_rows; i++) {
      const int packed = item.begin + i;
      const float* query = attention_.qkv + row_of(item, packed) * attention_.qkv_stride() +
                           int64_t(head_of(item, packed)) * head_dim_;
      Cache::take_query(rows_, i, query, head_dim_, softmax_scale);
      rows_.maxima[i] = -FLT_MAX;
      rows_.last[i] = position(item, packed);
      rows_.first[i] = first_key(attention_.model, rows_.last[i]);
    }
    std::memset(rows_.sums, 0, size_t(num_rows) * LANES * sizeof(float));
    std::memset(rows_.out, 0, size_t(num_rows) * size_t(head_dim_) * sizeof(float));
  }

  // All rows of an item against a block.
  void attend(const AttentionItem& item, const KeyBlock& block) {
    KeyBlock next = block;
    for (int t = block.begin; t < block.end; t++) {
      if (const uint8_t* tile = next_tile()) next.keys[t] = tile;
      if (Cache::has_scales) fetch(next.keys[t] + layout_.codes_bytes());
      if (Cache::has_scales) fetch(next.keys[t] + layout_.side_bytes() + layout_.codes_bytes());
    }
    const uint8_t *values[KEY_BLOCK / Cache::together], *next_values[KEY_BLOCK / Cache::together];
    list_values(block, values);
    list_values(next, next_values);
    const int context = span(item).position + span(item).num_rows - block.first;
    if (Cache::together == 2 && context % 2 == 1 && context < block.end * TILE)
      values[context / 2] = without_partner(values[context / 2]);
    const int num_rows = item.end - item.begin;
    for (int row = 0; row < num_rows; row += ROWS_AT_ONCE) {
      const NextLines next_keys = row == 0 ? next.keys : nullptr, then_values = row == 0 ? next_values : nullptr;
      switch (std::min(num_rows - row, ROWS_AT_ONCE)) {
        case 1: attend_rows<1>(block, values, next_keys, then_values, row); break;
        case 2: attend_rows<2>(block, values, next_keys, then_values, row); break;
#if defined(__AVX512F__)
        case 3: attend_rows<3>(block, values, next_keys, then_values, row); break;
        case 4: attend_rows<4>(block, values, next_keys, then_values, row); break;
        case 5: attend_rows<5>(block, values, next_keys, then_values, row); break;
        case 6: attend_rows<6>(block, values, next_keys, then_values, row); break;
#endif
      }
    }
  }

  // The values of a block by what one product takes: [head_dim][2] of each pair of tokens, [head_dim][4] of each quad.
  void list_values(const KeyBlock& block, const uint8_t** values) const {
    constexpr int per_tile = TILE / Cache::together;
    for (int t = block.begin; t < block.end; t++)
      for (int i = 0; i < per_tile; i++)
        values[t * per_tile + i] = block.keys[t] + layout_.side_bytes() + int64_t(i) * head_dim_ * 4;
  }

  // A pair of bfloat16 values, zero in the second token's place: it is not written yet, and zero times what lies there
  // might not be zero.
  const uint8_t* without_partner(const uint8_t* pair) const {
    for (int d = 0; d < head_dim_; d++) {
      const uint32_t first = load_as<uint32_t>(pair + 4 * d) & 0xffffu;
      std::memcpy(rows_.last_pair + 4 * d, &first, sizeof first);
    }
    return rows_.last_pair;
  }

  // The rows row..row + M - 1 of an item against a block.
  template <int M>
  void attend_rows(const KeyBlock& block, const uint8_t* const* values, NextLines next_keys, NextLines next_values,
                   int row) {
    const int last = rows_.last[row + M - 1] - block.first;  // of the block's keys that any of the rows sees
    const int first = std::max(rows_.first[row] - block.first, 0);
    if (last < 0 || first >= KEY_BLOCK) return;
    const int begin = first / TILE, end = std::min(last / TILE + 1, BLOCK_TILES);
    alignas(64) float scores[M][KEY_BLOCK], factors[LANES];
    for (int t = begin; t < end;) t += score(block, next_keys, row, t, end, scores);
    typename Cache::template Weights<M> weights;
    soften(block, row, begin, end, scores, factors, weights);
    const int from = begin * TILE / Cache::together;
    const int to = std::min(last / Cache::together + 1, KEY_BLOCK / Cache::together);
    float* out = rows_.out + row * head_dim_;
    int d = 0;
    for (; d + VECTORS_AT_ONCE * LANES <= head_dim_; d += VECTORS_AT_ONCE * LANES)
      Cache::template weigh<M, VECTORS_AT_ONCE>(weights, values, next_values, from, to, d, head_dim_, factors, out);
    for (; d < head_dim_; d += LANES)
      Cache::template weigh<M, 1>(weights, values, next_values, from, to, d, head_dim_, factors, out);
  }

  // The scores of M rows with some of the tiles t..end - 1; returns how many tiles.
  template <int M>
  int score(const KeyBlock& block, NextLines next, int row, int t, int end, float (&scores)[M][KEY_BLOCK]) const {
    next = next ? next + t : nullptr;
    float* out = scores[0] + t * TILE;
    if (t + VECTORS_AT_ONCE <= end) {
      Cache::template scores<M, VECTORS_AT_ONCE>(rows_, row, block.keys + t, next, head_dim_, out);
      return VECTORS_AT_ONCE;
    }
    Cache::template scores<M, 1>(rows_, row, block.keys + t, next, head_dim_, out);
    return 1;
  }

  // Online softmax of M rows: their weights of the tiles begin..end - 1, and what their sums so far shrink by.
  template <int M>
  void soften(const KeyBlock& block, int row, int begin, int end, float (&scores)[M][KEY_BLOCK], float* factors,
              typename Cache::template Weights<M>& weights) {
    alignas(64) float tops[LANES] = {}, maxima[LANES];
    for (int m = 0; m < M; m++) {
      mask(rows_.first[row + m] - block.first, rows_.last[row + m] - block.first, begin, end, scores[m]);
      f32x16 most = load(scores[m] + begin * TILE);
      for (int t = begin + 1; t < end; t++) most = maximum(most, load(scores[m] + t * TILE));
      tops[m] = reduce_max(most);
    }
    const f32x16 before = load(rows_.maxima + row);
    const f32x16 now = maximum(before, load(tops) * load(rows_.scales + row));
    store(factors, exponential(before - now));
    store(maxima, now);
    for (int m = 0; m < M; m++) {
      const f32x16 scale = splat(rows_.scales[row + m]), top = splat(-maxima[m]);
      float* sum = rows_.sums + (row + m) * LANES;
      const f32x16 faded = load(sum) * splat(factors[m]);
      store(sum, weights.take(m, block, head_dim_, begin, end, faded, [&](int t) {
        return exponential(fma(load(scores[m] + t * TILE), scale, top));
      }));
      rows_.maxima[row + m] = maxima[m];
    }
  }

  // The scores of a row that sees the keys first..last of the block: the others become -infinity.
  static void mask(int first, int last, int begin, int end, float* scores) {
    if (first <= begin * TILE && last >= end * TILE - 1) return;
    for (int t = begin; t < end; t++) {
      const i32x16 seen = first_lanes(last + 1 - t * TILE) & ~first_lanes(first - t * TILE);
      store(scores + t * TILE, select(seen, load(scores + t * TILE), splat(-INFINITY)));
    }
  }

  void finish(const AttentionItem& item) const {
    for (int i = 0; i < item.end - item.begin; i++) {
      const int packed = item.begin + i;
      float* out = attention_.out + int64_t(row_of(item, packed)) * attention_.model.num_heads * head_dim_ +
                   int64_t(head_of(item, packed)) * head_dim_;
      const f32x16 inverse = splat(1.f / reduce_add(load(rows_.sums + i * LANES)));
      for (int d = 0; d < head_dim_; d += LANES) {
        // Plus zero: a sum of nothing but underflows may be -0 where one with masked keys added is +0.
        store(out + d, load(rows_.out + i * head_dim_ + d) * inverse + splat(0.f));
      }
    }
  }

  const Attention& attention_;
  const KvLayout layout_;
  const int head_dim_;
  const QueryRows rows_;

  Claim& claim_;
  const AttentionItem* taken_[BLOCK_TILES];  // a ring: claimed and not begun; each has a tile fetched
  int oldest_ = 0, num_taken_ = 0;
  const AttentionItem* newest_ = nullptr;
  int ahead_ = 0, ahead_last_ = -1;  // positions of the newest item: the next tile to fetch, and the last token
};

// Second phase: attends to the items that `claim` gives this thread. `scratch`: attention_scratch_bytes(head_dim).
template <class Claim>
static inline void attend_items(const Attention& attention, void* scratch, Claim&& claim) {
  if (attention.model.kv == HR_KV_INT8)
    Attender<Int8Cache, Claim>(attention, scratch, claim).run();
  else
    Attender<Bf16Cache, Claim>(attention, scratch, claim).run();
}

}  // namespace hr
