// The paged cache of keys and values: where a token's head lies, and how it is written.
//
// A cache of one layer is tiles of 16 consecutive slots: tile = slot / 16, so a block is block_size / 16 tiles that
// follow one another. A tile holds head after head, of each its keys and then its values, laid out so that one product
// of a register (simd.h) gives 16 keys' part of their scores, or 16 dimensions' part of the values' weighted sum:
//   HR_KV_BF16  keys   bfloat16 [head_dim / 2][16 tokens][2]    values bfloat16 [8 pairs of tokens][head_dim][2]
//   HR_KV_INT8  keys   uint8    [head_dim / 4][16 tokens][4]    values int8     [4 quads of tokens][head_dim][4]
//               and after each its scales, float [16 tokens]; a key's byte is code + 128
// Codes are per token and head: scale = amax / 127, code = round(x * (127 / amax)), as in kernels/kv_quantise.py.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "quantise.h"
#include "simd.h"
#include "step.h"

namespace hr {

constexpr int TILE = 16;           // tokens
constexpr int MAX_HEAD_DIM = 256;  // and a multiple of 16

struct KvLayout {
  int32_t kv;  // HrKv
  int32_t num_kv_heads, head_dim;

  int64_t codes_bytes() const { return int64_t(TILE) * head_dim * (kv == HR_KV_INT8 ? 1 : 2); }
  // Of one head's keys, or of its values, in a tile.
  int64_t side_bytes() const { return codes_bytes() + (kv == HR_KV_INT8 ? TILE * int64_t(sizeof(float)) : 0); }
  int64_t tile_bytes() const { return 2 * side_bytes() * num_kv_heads; }
  int64_t keys_at(int64_t tile, int kv_head) const { return tile * tile_bytes() + 2 * side_bytes() * kv_head; }
};

HR_INLINE KvLayout kv_layout(const HrModel& model) { return {model.kv, model.num_kv_heads, model.head_dim}; }

// Puts a head of bfloat16 or of byte codes [head_dim] at its token's place among a tile's keys: the 4 bytes that one
// product takes stay together.
template <class Code>
HR_INLINE void place_key(uint8_t* keys, int token, const Code* head, int head_dim) {
  constexpr int together = 4 / int(sizeof(Code));
  for (int word = 0; word < head_dim / together; word++)
    std::memcpy(keys + (int64_t(word) * TILE + token) * 4, head + word * together, 4);
}

// The same among a tile's values. Element by element: what lies between may be written by another thread right now.
template <class Code>
HR_INLINE void place_value(uint8_t* values, int token, const Code* head, int head_dim) {
  constexpr int together = 4 / int(sizeof(Code));
  Code* first = (Code*)values + int64_t(token / together) * head_dim * together + token % together;
  for (int d = 0; d < head_dim; d++) first[d * together] = head[d];
}

HR_INLINE void round_head(const float* x, int head_dim, uint16_t* rounded) {
  for (int d = 0; d < head_dim; d += LANES) {
    const u16x16 v = to_bf16(load(x + d));
    std::memcpy(rounded + d, &v, sizeof v);
  }
}

// The largest magnitude in x [head_dim]; NaN stands above all.
HR_INLINE float largest_magnitude(const float* x, int head_dim) {
  i32x16 most = splat(0);
  // As integers the magnitudes stand in the same order.
  for (int d = 0; d < head_dim; d += LANES) most = maximum(most, (i32x16)magnitude(load(x + d)));
  const int32_t bits = reduce_max(most);
  float amax;
  std::memcpy(&amax, &bits, 4);
  return amax;
}

// Codes in -127..127 of x [head_dim]; returns the scale. Zeros have codes and scale 0; a head with a NaN or an infinity
// has codes 0 and such a scale.
HR_INLINE float quantise_head(const float* x, int head_dim, int8_t* codes) {
  const float amax = largest_magnitude(x, head_dim);
  const bool usable = amax > NOTHING && amax < INFINITY;
  const f32x16 inverse = splat(usable ? 127.f / amax : 0.f);
  for (int d = 0; d < head_dim; d += LANES) {
    const i8x16 bytes = __builtin_convertvector(to_int(usable ? load(x + d) * inverse : inverse), i8x16);
    std::memcpy(codes + d, &bytes, sizeof bytes);
  }
  return amax / 127.f;
}

// Writes one token's key and value [head_dim] of one head into its slot of a layer's cache. Threads may write the slots
// of one tile at the same time.
static inline void write_kv(const KvLayout& layout, uint8_t* cache, int64_t slot, int kv_head, const float* key,
                            const float* value) {
  uint8_t* keys = cache + layout.keys_at(slot / TILE, kv_head);
  uint8_t* values = keys + layout.side_bytes();
  const int token = int(slot % TILE), head_dim = layout.head_dim;
  if (layout.kv == HR_KV_INT8) {
    int8_t codes[MAX_HEAD_DIM];
    const float scale = quantise_head(value, head_dim, codes);
    place_value(values, token, codes, head_dim);
    std::memcpy(values + layout.codes_bytes() + token * sizeof scale, &scale, sizeof scale);
    const float key_scale = quantise_head(key, head_dim, codes);
    for (int d = 0; d < head_dim; d++) codes[d] = int8_t(uint8_t(codes[d]) ^ 0x80u);
    place_key(keys, token, codes, head_dim);
    std::memcpy(keys + layout.codes_bytes() + token * sizeof key_scale, &key_scale, sizeof key_scale);
  } else {
    uint16_t rounded[MAX_HEAD_DIM];
    round_head(value, head_dim, rounded);
    place_value(values, token, rounded, head_dim);
    round_head(key, head_dim, rounded);
    place_key(keys, token, rounded, head_dim);
  }
}

// Rotates x [2 * half] in place by the angles of its position, half-rotation layout (as kernels/rope.py).
// Source: Su et al., "RoFormer", 2021, section 3.2.2.
static inline void rotate(float* x, const float* cos, const float* sin, int half) {
  for (int d = 0; d < half; d++) {
    const float first = x[d], second = x[d + half];
    x[d] = first * cos[d] - second * sin[d];
    x[d + half] = second * cos[d] + first * sin[d];
  }
}

}  // namespace hr

// Bytes of 16 slots of one layer, keys and values of all heads.
extern "C" int64_t hr_kv_tile_bytes(int32_t kv, int32_t num_kv_heads, int32_t head_dim) {
  return hr::KvLayout{kv, num_kv_heads, head_dim}.tile_bytes();
}
