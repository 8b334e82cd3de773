// Causal attention of packed query rows over the paged cache: decode rows, prefill chunks and rows to verify alike.
//
// A thread takes an item (attention_work.h), rounds its query rows once, and goes over the keys in blocks of 64 that
// begin at multiples of 64: scores, softmax against the largest score so far, weighted sum of the values. A masked key has
// probability exactly 0 and a block of such keys changes nothing, so a row's bits depend on its query and its context
// only, not on what else is in its item, its chunk or its batch.
//
//   HR_KV_BF16  query and probabilities are rounded to bfloat16, sums are float
//   HR_KV_INT8  query in 16 bits, scale = amax / 32512, as two bytes; probability times the value's scale in 16 bits,
//               scale = (largest of the row and block) / 65535, as two bytes; sums of a block are exact integers
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

#include "attention_work.h"
#include "kv.h"
#include "quantise.h"
#include "simd.h"
#include "step.h"

namespace hr {

#if defined(__AVX512F__)
constexpr int ROWS_AT_ONCE = 6, VECTORS_AT_ONCE = 4;  // 24 sums, 4 vectors of the cache and what is broadcast: 32 registers
#else
constexpr int ROWS_AT_ONCE = 2, VECTORS_AT_ONCE = 2;
#endif
constexpr int BLOCK_TILES = KEY_BLOCK / TILE;

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

// First phase, for the rows begin..end - 1: norms (with `qk_norm`, see HrLayer) and rotates queries and keys in place, and
// writes keys and values to the cache. All rows must be through before the first item is attended to.
static inline void write_rows(const Attention& attention, const float* qk_norm, int begin, int end) {
  const HrModel& model = attention.model;
  const int head_dim = model.head_dim, num_turned = model.num_heads + model.num_kv_heads;
  const KvLayout layout = kv_layout(model);
  for (int row = begin; row < end; row++) {
    float* heads = attention.qkv + row * attention.qkv_stride();
    const int64_t angles = int64_t(row) * (head_dim / 2);
    for (int head = 0; head < num_turned; head++) {
      float* x = heads + head * head_dim;
      if (qk_norm) rms_norm_row(x, qk_norm + head * head_dim, model.rms_norm_eps, head_dim, x);
      rotate(x, attention.step.cos + angles, attention.step.sin + angles, head_dim / 2);
    }
    for (int kv_head = 0; kv_head < model.num_kv_heads; kv_head++)
      write_kv(layout, attention.cache, attention.work.slots[size_t(row)], kv_head,
               heads + (model.num_heads + kv_head) * head_dim, heads + (num_turned + kv_head) * head_dim);
  }
}

// A thread's memory: the state of one item's rows.
struct ItemState {
  uint8_t* query;   // bfloat16 [QUERY_TILE][head_dim], or int8 [2][QUERY_TILE][head_dim]: high parts, then low ones
  float* out;       // [QUERY_TILE][head_dim], sum of probability times value, against the maximum so far
  float* sums;      // [QUERY_TILE][16], of the probabilities, by lanes
  float* maxima;    // [QUERY_TILE + 16], of the scaled scores
  float* scales;    // [QUERY_TILE + 16], of the scores
  int32_t* offsets;       // [QUERY_TILE], int8 only: -128 * sum of the query's integers
  int32_t *first, *last;  // [QUERY_TILE], positions of the keys that a row sees
  uint8_t* last_pair;  // bfloat16 [head_dim][2], where the context's last token has no partner yet

  ItemState(void* memory, int head_dim) {
    uint8_t* next = (uint8_t*)((uintptr_t(memory) + 63) / 64 * 64);
    const auto take = [&](int64_t bytes) { return std::exchange(next, next + (bytes + 63) / 64 * 64); };
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

HR_INLINE int64_t attention_scratch_bytes(int head_dim) {
  return int64_t(QUERY_TILE) * head_dim * 6 + QUERY_TILE * (LANES + 5) * 4 + LANES * 8 + head_dim * 4 + 10 * 64;
}

// The keys first..first + 63 of a span, as far as the rows of an item may see them: tiles begin..end - 1 of the block.
struct KeyBlock {
  int first, begin, end;
  const uint8_t* keys[BLOCK_TILES];
  const uint8_t* values[BLOCK_TILES];
};

// Asks for a line of the cache that will be read soon.
HR_INLINE void fetch(const void* line) { __builtin_prefetch(line, 0, 2); }

// The scores of M rows with 16 * N keys and the values' weighted sums, by kind of cache. `query` [M][head_dim].
struct Bf16Cache {
  static constexpr int together = 2;

  static void take_query(const ItemState& state, int row, const float* x, int head_dim, float softmax_scale) {
    round_head(x, head_dim, (uint16_t*)state.query + row * head_dim);
    state.scales[row] = softmax_scale;
  }

  template <int M, int N>
  HR_INLINE void scores(const ItemState& state, int row, const uint8_t* const* keys, const uint8_t* const* next,
                        int head_dim, float* out) {
    const uint16_t* query = (const uint16_t*)state.query + row * head_dim;
    f32x16 sum[M][N] = {};
    for (int i = 0; i < head_dim / 2; i++) {
      if (next)
        for (int n = 0; n < N; n++) fetch(next[n] + i * 64);
      u32x16 key[N];
      for (int n = 0; n < N; n++) key[n] = load_as<u32x16>(keys[n] + i * 64);
      for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) sum[m][n] = dot2(sum[m][n], key[n], query + m * head_dim + 2 * i);
    }
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) store(out + m * KEY_BLOCK + n * TILE, sum[m][n]);
  }

  // M rows' probabilities of a block.
  template <int M>
  struct Weights {
    alignas(64) uint16_t of[M][KEY_BLOCK];

    // p(t): the probabilities of tile t. Returns the sum by lanes, of the rounded ones: what a rounding adds to the
    // values' sum it adds to the divisor, so that a row's weights sum to 1.
    template <class Probabilities>
    inline __attribute__((always_inline)) f32x16 take(int m, const KeyBlock&, int begin, int end, f32x16 sum, Probabilities&& p) {
      alignas(4) static const uint16_t ones[2] = {0x3f80, 0x3f80};
      for (int t = 0; t < BLOCK_TILES; t++) {
        const u16x16 rounded = t >= begin && t < end ? to_bf16(p(t)) : u16x16{};
        std::memcpy(of[m] + t * TILE, &rounded, sizeof rounded);
      }
      for (int t = 0; t < BLOCK_TILES; t += 2) sum = dot2(sum, of[m] + t * TILE, ones);
      return sum;
    }
  };

  // out[m] = out[m] * factors[m] + the sum of 16 * N dimensions from d on; rows[i]: [head_dim][2] of pair i.
  template <int M, int N>
  HR_INLINE void weigh(const Weights<M>& weights, const uint8_t* const* rows, int begin, int end, const uint8_t* const* next, int d, int head_dim,
                       const float* factors, float* out) {
    f32x16 sum[M][N];
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) sum[m][n] = load(out + m * head_dim + n * LANES) * splat(factors[m]);
    for (int i = begin; i < end; i++) {
      if (next)
        for (int n = 0; n < N; n++) fetch(next[i] + (d + n * LANES) * 4);
      u32x16 value[N];
      for (int n = 0; n < N; n++) value[n] = load_as<u32x16>(rows[i] + (d + n * LANES) * 4);
      for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) sum[m][n] = dot2(sum[m][n], value[n], weights.of[m] + 2 * i);
    }
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) store(out + m * head_dim + n * LANES, sum[m][n]);
  }
};

struct Int8Cache {
  static constexpr int together = 4;

  static void take_query(const ItemState& state, int row, const float* x, int head_dim, float softmax_scale) {
    constexpr float most = 127 * 256;
    const float amax = largest_magnitude(x, head_dim);
    const bool usable = amax > NOTHING && amax < INFINITY;
    const f32x16 inverse = splat(usable ? most / amax : 0.f);
    int8_t* high = (int8_t*)state.query + row * head_dim;
    i32x16 sum = splat(0);
    for (int d = 0; d < head_dim; d += LANES) {
      const i32x16 code = to_int(usable ? load(x + d) * inverse : inverse);
      const i32x16 upper = (code + 128) >> 8;
      const i8x16 high_bytes = __builtin_convertvector(upper, i8x16);
      const i8x16 low_bytes = __builtin_convertvector(code - (upper << 8), i8x16);
      std::memcpy(high + d, &high_bytes, sizeof high_bytes);
      std::memcpy(high + QUERY_TILE * head_dim + d, &low_bytes, sizeof low_bytes);
      sum += code;
    }
    state.offsets[row] = -128 * reduce_add(sum);
    state.scales[row] = amax <= NOTHING ? softmax_scale : amax / most * softmax_scale;
  }

  template <int M, int N>
  HR_INLINE void scores(const ItemState& state, int row, const uint8_t* const* keys, const uint8_t* const* next,
                        int head_dim, float* out) {
    const int8_t* query = (const int8_t*)state.query + row * head_dim;
    i32x16 sum[M][N] = {};
    for (int part = 0; part < 2; part++) {
      for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) sum[m][n] <<= 8;
      for (int i = 0; i < head_dim / 4; i++) {
        if (next)
          for (int n = part; n < N; n += 2) fetch(next[n] + i * 64);
        u32x16 key[N];
        for (int n = 0; n < N; n++) key[n] = load_as<u32x16>(keys[n] + i * 64);
        for (int m = 0; m < M; m++)
          for (int n = 0; n < N; n++) sum[m][n] = dot4(sum[m][n], key[n], query + m * head_dim + 4 * i);
      }
      query += QUERY_TILE * head_dim;
    }
    for (int n = 0; n < N; n++) {
      const f32x16 key_scales = load((const float*)(keys[n] + TILE * head_dim));
      for (int m = 0; m < M; m++)
        store(out + m * KEY_BLOCK + n * TILE, to_float(sum[m][n] + state.offsets[row + m]) * key_scales);
    }
  }

  template <int M>
  struct Weights {
    alignas(64) uint8_t high[M][KEY_BLOCK], low[M][KEY_BLOCK];
    float scales[M];

    template <class Probabilities>
    inline __attribute__((always_inline)) f32x16 take(int m, const KeyBlock& block, int begin, int end, f32x16 sum, Probabilities&& probabilities) {
      f32x16 weight[BLOCK_TILES], most = splat(0.f);
      for (int t = begin; t < end; t++) {
        const f32x16 p = probabilities(t);
        sum += p;
        const f32x16 value_scales = load((const float*)(block.values[t] + head_bytes));
        weight[t] = select(p > splat(0.f), p * value_scales, splat(0.f));  // a masked key's scale may be anything
        most = maximum(most, weight[t]);
      }
      const float top = reduce_max(most);
      const f32x16 inverse = splat(top > NOTHING ? 65535.f / top : 0.f);
      for (int t = begin; t < end; t++) {
        const i32x16 code = to_int(weight[t] * inverse);
        const i8x16 high_bytes = __builtin_convertvector(code >> 8, i8x16), low_bytes = __builtin_convertvector(code, i8x16);
        std::memcpy(high[m] + t * TILE, &high_bytes, sizeof high_bytes);
        std::memcpy(low[m] + t * TILE, &low_bytes, sizeof low_bytes);
      }
      scales[m] = top / 65535.f;
      return sum;
    }
    int head_bytes;  // of a head's codes in a tile
  };

  template <int M, int N>
  HR_INLINE void weigh(const Weights<M>& weights, const uint8_t* const* rows, int begin, int end, const uint8_t* const* next, int d, int head_dim,
                       const float* factors, float* out) {
    i32x16 sum[M][N] = {};
    for (int part = 0; part < 2; part++) {
      const auto& codes = part ? weights.low : weights.high;
      for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) sum[m][n] <<= 8;
      for (int i = begin; i < end; i++) {
        if (next)
          for (int n = part; n < N; n += 2) fetch(next[i] + (d + n * LANES) * 4);
        u32x16 value[N];
        for (int n = 0; n < N; n++) value[n] = load_as<u32x16>(rows[i] + (d + n * LANES) * 4);
        for (int m = 0; m < M; m++)
          for (int n = 0; n < N; n++) sum[m][n] = dot4_signed(sum[m][n], value[n], codes[m] + 4 * i);
      }
    }
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) {
        float* at = out + m * head_dim + n * LANES;
        store(at, fma(to_float(sum[m][n]), splat(weights.scales[m]), load(at) * splat(factors[m])));
      }
  }
};

// The blocks of the items that one thread takes, in turn; what comes next is known one block ahead, to be fetched.
template <class Cache>
class Attender {
 public:
  Attender(const Attention& attention, void* scratch)
      : attention_(attention),
        layout_(kv_layout(attention.model)),
        head_dim_(attention.model.head_dim),
        state_(scratch, head_dim_) {}

  // claim() gives the index of the next item that is this thread's; beyond the last: none is left.
  template <class Claim>
  void run(Claim&& claim) {
    const AttentionItem* item = get(claim());
    if (!item) return;
    KeyBlock block = first_block(*item);
    prefetch(block);
    for (begin(*item); item;) {
      const bool is_last = block.first + KEY_BLOCK > last_position(*item);
      const AttentionItem* next_item = is_last ? get(claim()) : item;
      KeyBlock next = block;
      if (next_item) {
        next = is_last ? first_block(*next_item) : block_at(*item, block.first + KEY_BLOCK);
      }
      attend(*item, block, next);
      if (is_last) {
        finish(*item);
        if (next_item) begin(*next_item);
      }
      item = next_item;
      block = next;
    }
  }

 private:
  const AttentionItem* get(int index) const {
    const auto& items = attention_.work.items;
    return size_t(index) < items.size() ? &items[size_t(index)] : nullptr;
  }
  const HrSpan& span(const AttentionItem& item) const { return attention_.step.spans[item.span]; }
  int position(const AttentionItem& item, int packed) const {
    return span(item).position + packed / attention_.group();
  }
  int last_position(const AttentionItem& item) const { return position(item, item.end - 1); }
  int first_seen(const AttentionItem& item) const {
    return first_key(attention_.model, position(item, item.begin));
  }
  KeyBlock first_block(const AttentionItem& item) const {
    return block_at(item, first_seen(item) / KEY_BLOCK * KEY_BLOCK);
  }

  KeyBlock block_at(const AttentionItem& item, int first) const {
    KeyBlock block{};
    block.first = first;
    block.begin = std::max(first_seen(item) - first, 0) / TILE;
    block.end = std::min((last_position(item) - first) / TILE + 1, BLOCK_TILES);
    const int32_t* table = attention_.step.tables + span(item).table;
    const int block_size = attention_.step.block_size;
    for (int t = 0; t < BLOCK_TILES; t++) {
      const int token = first + std::min(std::max(t, block.begin), block.end - 1) * TILE;
      const int64_t tile = (int64_t(table[token / block_size]) * block_size + token % block_size) / TILE;
      block.keys[t] = attention_.cache + layout_.keys_at(tile, item.kv_head);
      block.values[t] = block.keys[t] + layout_.side_bytes();
    }
    return block;
  }

  void prefetch(const KeyBlock& block) const {
    for (int t = block.begin; t < block.end; t++)
      for (int64_t at = 0; at < 2 * layout_.side_bytes(); at += 64) __builtin_prefetch(block.keys[t] + at, 0, 3);
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
      Cache::take_query(state_, i, query, head_dim_, softmax_scale);
      state_.maxima[i] = -FLT_MAX;
      state_.last[i] = position(item, packed);
      state_.first[i] = first_key(attention_.model, state_.last[i]);
    }
    std::memset(state_.sums, 0, size_t(num_rows) * LANES * sizeof(float));
    std::memset(state_.out, 0, size_t(num_rows) * size_t(head_dim_) * sizeof(float));
  }

  void attend(const AttentionItem& item, const KeyBlock& block, const KeyBlock& next) {
    constexpr int together = Cache::together;
    const uint8_t *rows[KEY_BLOCK / together], *next_rows[KEY_BLOCK / together];
    list_rows(block, rows);
    list_rows(next, next_rows);
    const int context = span(item).position + span(item).num_rows - block.first;
    if (together == 2 && context % 2 == 1 && context < block.end * TILE) {
      // The last token's partner is not written yet: zero times what lies there might not be zero.
      uint32_t* pair = (uint32_t*)state_.last_pair;
      for (int d = 0; d < head_dim_; d++) pair[d] = load_as<uint32_t>(rows[context / 2] + 4 * d) & 0xffffu;
      rows[context / 2] = state_.last_pair;
    }
    if constexpr (Cache::together == 4)
      for (int t = 0; t < BLOCK_TILES; t++) {
        fetch(next.keys[t] + layout_.codes_bytes());
        fetch(next.values[t] + layout_.codes_bytes());
      }
    const int num_rows = item.end - item.begin;
    for (int row = 0; row < num_rows; row += ROWS_AT_ONCE) {
      switch (std::min(num_rows - row, ROWS_AT_ONCE)) {
        case 1: attend_rows<1>(item, block, rows, row ? nullptr : next.keys, next_rows, row); break;
        case 2: attend_rows<2>(item, block, rows, row ? nullptr : next.keys, next_rows, row); break;
#if defined(__AVX512F__)
        case 3: attend_rows<3>(item, block, rows, row ? nullptr : next.keys, next_rows, row); break;
        case 4: attend_rows<4>(item, block, rows, row ? nullptr : next.keys, next_rows, row); break;
        case 5: attend_rows<5>(item, block, rows, row ? nullptr : next.keys, next_rows, row); break;
        case 6: attend_rows<6>(item, block, rows, row ? nullptr : next.keys, next_rows, row); break;
#endif
      }
    }
  }

  // The values of a block by what one product takes: [head_dim][2] of each pair of tokens, [head_dim][4] of each quad.
  void list_rows(const KeyBlock& block, const uint8_t** rows) const {
    constexpr int per_tile = TILE / Cache::together;
    for (int t = 0; t < BLOCK_TILES; t++)
      for (int i = 0; i < per_tile; i++) rows[t * per_tile + i] = block.values[t] + int64_t(i) * head_dim_ * 4;
  }

  // The rows row..row + M - 1 of an item against a block.
  template <int M>
  void attend_rows(const AttentionItem& item, const KeyBlock& block, const uint8_t* const* value_rows,
                   const uint8_t* const* next_keys, const uint8_t* const* next_rows, int row) {
    if (!next_keys) next_rows = nullptr;
    const int last = state_.last[row + M - 1] - block.first;  // of the block's keys that any row sees
    const int first = std::max(state_.first[row] - block.first, 0);
    if (last < 0 || first >= KEY_BLOCK) return;
    const int begin = first / TILE, end = std::min(last / TILE + 1, BLOCK_TILES);

    alignas(64) float scores[M][KEY_BLOCK];
    int t = begin;
    for (; t + VECTORS_AT_ONCE <= end; t += VECTORS_AT_ONCE)
      Cache::template scores<M, VECTORS_AT_ONCE>(state_, row, block.keys + t, next_keys ? next_keys + t : nullptr, head_dim_, scores[0] + t * TILE);
    for (; t < end; t++) Cache::template scores<M, 1>(state_, row, block.keys + t, next_keys ? next_keys + t : nullptr, head_dim_, scores[0] + t * TILE);

    alignas(64) float tops[LANES] = {};
    for (int m = 0; m < M; m++) {
      mask(state_.first[row + m] - block.first, state_.last[row + m] - block.first, begin, end, scores[m]);
      f32x16 most = load(scores[m] + begin * TILE);
      for (t = begin + 1; t < end; t++) most = maximum(most, load(scores[m] + t * TILE));
      tops[m] = reduce_max(most);
    }
    const f32x16 before = load(state_.maxima + row);
    const f32x16 now = maximum(before, load(tops) * load(state_.scales + row));
    alignas(64) float factors[LANES], maxima[LANES];
    store(factors, exponential(before - now));
    store(maxima, now);

    typename Cache::template Weights<M> weights;
    if constexpr (Cache::together == 4) weights.head_bytes = TILE * head_dim_;
    for (int m = 0; m < M; m++) {
      const f32x16 scale = splat(state_.scales[row + m]), top = splat(-maxima[m]);
      float* sum = state_.sums + (row + m) * LANES;
      store(sum, weights.take(m, block, begin, end, load(sum) * splat(factors[m]), [&](int tile) {
        return exponential(fma(load(scores[m] + tile * TILE), scale, top));
      }));
      state_.maxima[row + m] = maxima[m];
    }

    constexpr int per_tile = TILE / Cache::together;
    const int units = std::min(last / Cache::together + 1, KEY_BLOCK / Cache::together);
    float* out = state_.out + row * head_dim_;
    int d = 0;
    for (; d + VECTORS_AT_ONCE * LANES <= head_dim_; d += VECTORS_AT_ONCE * LANES)
      Cache::template weigh<M, VECTORS_AT_ONCE>(weights, value_rows, begin * per_tile, units, next_rows, d, head_dim_, factors, out + d);
    for (; d < head_dim_; d += LANES)
      Cache::template weigh<M, 1>(weights, value_rows, begin * per_tile, units, next_rows, d, head_dim_, factors, out + d);
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
      const f32x16 inverse = splat(1.f / reduce_add(load(state_.sums + i * LANES)));
      for (int d = 0; d < head_dim_; d += LANES) {
        // Plus zero: a sum of nothing but underflows may be -0 where one with masked keys added is +0.
        store(out + d, load(state_.out + i * head_dim_ + d) * inverse + splat(0.f));
      }
    }
  }

  const Attention& attention_;
  const KvLayout layout_;
  const int head_dim_;
  const ItemState state_;
};

// Second phase: attends to the items that `claim` gives this thread. `scratch`: attention_scratch_bytes(head_dim).
template <class Claim>
static inline void attend_items(const Attention& attention, void* scratch, Claim&& claim) {
  if (attention.model.kv == HR_KV_INT8)
    Attender<Int8Cache>(attention, scratch).run(claim);
  else
    Attender<Bf16Cache>(attention, scratch).run(claim);
}

}  // namespace hr
