// The two kinds of cache: how M query rows are prepared for it, meet 16 * N keys, and sum 16 * N dimensions of values.
//
//   HR_KV_BF16  query and probabilities are rounded to bfloat16, sums are float
//   HR_KV_INT8  query in 16 bits, scale = amax / 32512, as two bytes; probability times the value's scale in 16 bits,
//               scale = (largest of the row and block) / 65535, as two bytes; sums of a block are exact integers
//
// Root mean square error of a score (of unit variance, 64 dimensions, normal keys): bfloat16 0.0024, int8 0.0060; with
// a query of 8 bits it would be 0.0085. Probabilities of 8 bits would take the error of the output from 0.9 % to 1.1 %,
// and lose what lies below a 500th of the block's largest: beside a sink, everything.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "attention_rows.h"
#include "dot_in_place.h"
#include "kv.h"
#include "quantise.h"
#include "simd.h"

namespace hr {

struct Bf16Cache {
  static constexpr int together = 2;  // tokens whose values one product takes: a pair
  static constexpr bool has_scales = false;

  static void take_query(const QueryRows& rows, int row, const float* x, int head_dim, float softmax_scale) {
    round_head(x, head_dim, (uint16_t*)rows.query + row * head_dim);
    rows.scales[row] = softmax_scale;
  }

  // out [M][KEY_BLOCK]: the scores of the rows from `row` on with the keys of N tiles, before rows.scales.
  template <int M, int N>
  HR_INLINE void scores(const QueryRows& rows, int row, const uint8_t* const* keys, NextLines next, int head_dim,
                        float* out) {
    const uint16_t* query = (const uint16_t*)rows.query + row * head_dim;
    f32x16 sum[M][N] = {};
    for (int i = 0; i < head_dim / 2; i++) {
      if (next)
        for (int n = 0; n < N; n++) fetch(next[n] + i * 64);
      Words key[N];
      for (int n = 0; n < N; n++) key[n] = words(keys[n] + i * 64);
      for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) add_dot2(sum[m][n], key[n], query + m * head_dim + 2 * i);
    }
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) store(out + m * KEY_BLOCK + n * TILE, sum[m][n]);
  }

  // M rows' probabilities of a block.
  template <int M>
  struct Weights {
    alignas(64) uint16_t of[M][KEY_BLOCK];

    // Takes p(t), row m's probabilities of tile t, for the tiles begin..end - 1. Returns `sum` plus what is rounded, by
    // lanes: what rounding adds to the values' sum it adds to the divisor too, so that a row's weights sum to 1. Where
    // values have a mean of twice their spread the error is 0.00024 with it and 0.00029 without; elsewhere the same.
    template <class Probabilities>
    inline __attribute__((always_inline)) f32x16 take(int m, const KeyBlock&, int, int begin, int end, f32x16 sum,
                                                      Probabilities&& p) {
      static constexpr uint16_t ones[2] = {0x3f80, 0x3f80};
      for (int t = 0; t < BLOCK_TILES; t++) {
        const u16x16 rounded = t >= begin && t < end ? to_bf16(p(t)) : u16x16{};
        std::memcpy(of[m] + t * TILE, &rounded, sizeof rounded);
      }
      for (int t = 0; t < BLOCK_TILES; t += 2) add_dot2(sum, words(of[m] + t * TILE), ones);
      return sum;
    }
  };

  // out [M][head_dim], from dimension d on: times `factors`, plus the sum over the pairs begin..end - 1. values[i]: of
  // pair i, [head_dim][2].
  template <int M, int N>
  HR_INLINE void weigh(const Weights<M>& weights, const uint8_t* const* values, NextLines next, int begin, int end,
                       int d, int head_dim, const float* factors, float* out) {
    f32x16 sum[M][N];
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) sum[m][n] = load(out + m * head_dim + d + n * LANES) * splat(factors[m]);
    for (int i = begin; i < end; i++) {
      if (next)
        for (int n = 0; n < N; n++) fetch(next[i] + (d + n * LANES) * 4);
      Words value[N];
      for (int n = 0; n < N; n++) value[n] = words(values[i] + (d + n * LANES) * 4);
      for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) add_dot2(sum[m][n], value[n], weights.of[m] + 2 * i);
    }
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) store(out + m * head_dim + d + n * LANES, sum[m][n]);
  }
};

struct Int8Cache {
  static constexpr int together = 4;  // a quad
  static constexpr bool has_scales = true;

  static void take_query(const QueryRows& rows, int row, const float* x, int head_dim, float softmax_scale) {
    constexpr float most = 127 * 256;
    const float amax = largest_magnitude(x, head_dim);
    const bool usable = amax > NOTHING && amax < INFINITY;
    const f32x16 inverse = splat(usable ? most / amax : 0.f);
    int8_t* high = (int8_t*)rows.query + row * head_dim;
    i32x16 sum = splat(0);
    for (int d = 0; d < head_dim; d += LANES) {
      const i32x16 code = to_int(usable ? load(x + d) * inverse : inverse);
      const i32x16 upper = (code + 128) >> 8;
      const i8x16 high_bytes = __builtin_convertvector(upper, i8x16);
      const i8x16 low_bytes = __builtin_convertvector(code - upper * 256, i8x16);
      std::memcpy(high + d, &high_bytes, sizeof high_bytes);
      std::memcpy(high + QUERY_TILE * head_dim + d, &low_bytes, sizeof low_bytes);
      sum += code;
    }
    rows.offsets[row] = -128 * reduce_add(sum);
    rows.scales[row] = amax <= NOTHING ? softmax_scale : amax / most * softmax_scale;  // NaN stays NaN
  }

  template <int M, int N>
  HR_INLINE void scores(const QueryRows& rows, int row, const uint8_t* const* keys, NextLines next, int head_dim,
                        float* out) {
    const int8_t* query = (const int8_t*)rows.query + row * head_dim;
    i32x16 sum[M][N] = {};  // at most 255 * 32512 * 256 dimensions: below 2^31
    for (int part = 0; part < 2; part++) {
      shift(sum);
      for (int i = 0; i < head_dim / 4; i++) {
        if (next)
          for (int n = part; n < N; n += 2) fetch(next[n] + i * 64);
        Words key[N];
        for (int n = 0; n < N; n++) key[n] = words(keys[n] + i * 64);
        for (int m = 0; m < M; m++)
          for (int n = 0; n < N; n++) add_dot4(sum[m][n], key[n], query + m * head_dim + 4 * i);
      }
      query += QUERY_TILE * head_dim;
    }
    for (int n = 0; n < N; n++) {
      const f32x16 key_scales = load((const float*)(keys[n] + TILE * head_dim));
      for (int m = 0; m < M; m++)
        store(out + m * KEY_BLOCK + n * TILE, to_float(sum[m][n] + rows.offsets[row + m]) * key_scales);
    }
  }

  template <int M>
  struct Weights {
    alignas(64) uint8_t parts[2][M][KEY_BLOCK];  // high, low
    float scales[M];

    template <class Probabilities>
    inline __attribute__((always_inline)) f32x16 take(int m, const KeyBlock& block, int head_dim, int begin, int end,
                                                      f32x16 sum, Probabilities&& probabilities) {
      f32x16 weight[BLOCK_TILES], most = splat(0.f);
      for (int t = begin; t < end; t++) {
        const float* value_scales = (const float*)(block.keys[t] + 2 * TILE * head_dim) + TILE;
        const f32x16 p = probabilities(t);
        sum += p;
        // Where p is 0 the scale may be anything.
        weight[t] = select(less(splat(0.f), p), p * load(value_scales), splat(0.f));
        most = maximum(most, weight[t]);
      }
      const float top = reduce_max(most);
      const f32x16 inverse = splat(top > NOTHING ? 65535.f / top : 0.f);
      for (int t = begin; t < end; t++) {
        const i32x16 code = to_int(weight[t] * inverse);
        const i8x16 high = __builtin_convertvector(code >> 8, i8x16), low = __builtin_convertvector(code, i8x16);
        std::memcpy(parts[0][m] + t * TILE, &high, sizeof high);
        std::memcpy(parts[1][m] + t * TILE, &low, sizeof low);
      }
      scales[m] = top / 65535.f;
      return sum;
    }
  };

  template <int M, int N>
  HR_INLINE void weigh(const Weights<M>& weights, const uint8_t* const* values, NextLines next, int begin, int end,
                       int d, int head_dim, const float* factors, float* out) {
    i32x16 sum[M][N] = {};  // at most 127 * 65535 * 128 keys: below 2^31
    for (int part = 0; part < 2; part++) {
      shift(sum);
      for (int i = begin; i < end; i++) {
        if (next)
          for (int n = part; n < N; n += 2) fetch(next[i] + (d + n * LANES) * 4);
        Words value[N];
        for (int n = 0; n < N; n++) value[n] = words(values[i] + (d + n * LANES) * 4);
        for (int m = 0; m < M; m++)
          for (int n = 0; n < N; n++) add_dot4_signed(sum[m][n], value[n], weights.parts[part][m] + 4 * i);
      }
    }
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) {
        float* at = out + m * head_dim + d + n * LANES;
        store(at, fma(to_float(sum[m][n]), splat(weights.scales[m]), load(at) * splat(factors[m])));
      }
  }

 private:
  // The sums of the high parts count 256 times those of the low ones.
  template <int M, int N>
  HR_INLINE void shift(i32x16 (&sum)[M][N]) {
    for (int m = 0; m < M; m++)
      for (int n = 0; n < N; n++) sum[m][n] <<= 8;
  }
};

}  // namespace hr
