// Rows of activations as a product with packed weights takes them: quantised, rounded to bfloat16, or as they are.
//
// For integer weights a row is quantised by groups of 64: code = round(x * (127 / amax)), scale = amax / 127. Int8
// weights are stored as code + 128 and symmetric int4 ones as code + 8, for the byte product takes weights unsigned;
// that zero point times the sum of a group's codes is known before the product starts, and is what it starts from.
// Source: Yao et al., "ZeroQuant", 2022, section 3 (by groups); the zero point as in Jacob et al., 2018, section 2.3.
#pragma once

#include <cmath>
#include <cstdint>

#include "simd.h"
#include "step.h"

namespace hr {

constexpr int ACTIVATION_GROUP = 64;
constexpr float NOTHING = 1e-30f;  // the reciprocal of a smaller amax may not be finite: such a group counts as zero

HR_INLINE bool is_integer(const HrLinear& w) { return w.weights == HR_INT8 || w.weights == HR_INT4; }

// What a stored code of `w` stands above the code that it means; 0 where minimums say where a group begins.
HR_INLINE int zero_point(const HrLinear& w) { return w.weights == HR_INT8 ? 128 : w.minimums ? 0 : 8; }

HR_INLINE int value_bytes(int32_t weights) { return weights == HR_F32 ? 4 : weights == HR_BF16 ? 2 : 1; }

// A view of rows prepared for the product with one weight. One row, in bytes from its beginning:
//   values  [k_pad]                int8, bfloat16 or float; zero from k on
//   scales  float [k_pad / 64]     of int8 values only, and
//   offsets [k_pad / group]        int32 -zero_point * (sum of the group's codes), or with minimums
//                                  float scale * (sum of the group's codes)
struct Activations {
  char* rows;
  int64_t stride;  // bytes
  int32_t scales_at, offsets_at;

  Activations(const HrLinear& w, void* memory) : rows((char*)memory) {
    scales_at = w.k_pad * value_bytes(w.weights);
    offsets_at = scales_at + (is_integer(w) ? w.k_pad / ACTIVATION_GROUP * 4 : 0);
    const int64_t bytes = offsets_at + (is_integer(w) ? w.k_pad / w.group * 4 : 0);
    stride = ((bytes + 63) / 64 | 1) * 64;  // an odd number of cache lines: rows side by side fill all sets of a cache
  }
  char* values(int row) const { return rows + row * stride; }
  float* scales(int row) const { return (float*)(values(row) + scales_at); }
  int32_t* starts(int row) const { return (int32_t*)(values(row) + offsets_at); }
  float* scaled_sums(int row) const { return (float*)(values(row) + offsets_at); }
};

// Bytes that `num_rows` rows need, for any kind of weight of at most k_pad inputs.
HR_INLINE int64_t activation_bytes(int k_pad, int num_rows) { return num_rows * (int64_t(k_pad) * 4 + 128); }

// One group of 64: codes to `codes`, their sums by halves to `sums`; returns the scale. A group of zeros has codes 0;
// one with a NaN or an infinity has such a scale, so that its products are no numbers either.
HR_INLINE float quantise_group(const f32x16 (&x)[4], int8_t* codes, int32_t (&sums)[2]) {
  i32x16 most = (i32x16)magnitude(x[0]);  // as integers the magnitudes stand in the same order, and NaN above all
  for (int i = 1; i < 4; i++) {
    const i32x16 bits = (i32x16)magnitude(x[i]);
    most = bits > most ? bits : most;
  }
  const int32_t bits = reduce_max(most);
  float amax;
  std::memcpy(&amax, &bits, 4);
  const bool usable = amax > NOTHING && amax < INFINITY;
  const f32x16 inverse = splat(usable ? 127.f / amax : 0.f);
  i32x16 code[4];
  for (int i = 0; i < 4; i++) {
    code[i] = to_int(usable ? x[i] * inverse : inverse);
    const i8x16 bytes = __builtin_convertvector(code[i], i8x16);
    std::memcpy(codes + LANES * i, &bytes, LANES);
  }
  for (int half = 0; half < 2; half++) sums[half] = reduce_add(code[2 * half] + code[2 * half + 1]);
  return amax / 127.f;
}

// Quantises a row for `w`; x(i) gives the values i .. i + 15 of it.
template <class Source>
HR_INLINE void quantise_row(const HrLinear& w, const Activations& a, int row, Source&& x) {
  int8_t* codes = (int8_t*)a.values(row);
  for (int g = 0; g < w.k_pad / ACTIVATION_GROUP; g++) {
    const int at = g * ACTIVATION_GROUP;
    const f32x16 group[4] = {x(at), x(at + 16), x(at + 32), x(at + 48)};
    int32_t sums[2];
    const float scale = quantise_group(group, codes + at, sums);
    a.scales(row)[g] = scale;
    if (w.group == ACTIVATION_GROUP) sums[0] += sums[1];
    for (int part = 0; part < ACTIVATION_GROUP / w.group; part++) {
      const int offset = at / w.group + part;
      if (w.minimums)
        a.scaled_sums(row)[offset] = scale * float(sums[part]);
      else
        a.starts(row)[offset] = -zero_point(w) * sums[part];
    }
  }
}

// Writes a row as the product with `w` takes it; x(i) gives the values i .. i + 15 of it, zeros from w.k on.
template <class Source>
HR_INLINE void prepare(const HrLinear& w, const Activations& a, int row, Source&& x) {
  if (is_integer(w)) return quantise_row(w, a, row, x);
  for (int i = 0; i < w.k_pad; i += LANES) {
    if (w.weights == HR_F32) {
      store((float*)a.values(row) + i, x(i));
    } else {
      const u16x16 rounded = to_bf16(x(i));
      std::memcpy(a.values(row) + 2 * i, &rounded, sizeof rounded);
    }
  }
}

// Writes the row x [w.k].
static inline void prepare_row(const HrLinear& w, const Activations& a, int row, const float* x) {
  prepare(w, a, row, [&](int i) { return load(x + i, w.k - i); });
}

// 1 / sqrt(mean(x^2) + eps) of x [k]. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, eq. 4.
static inline float inverse_rms(const float* x, int k, float eps) {
  f32x16 squares = splat(0.f);
  for (int i = 0; i < k; i += LANES) {
    const f32x16 v = load(x + i, k - i);
    squares = fma(v, v, squares);
  }
  return 1.f / std::sqrt(reduce_add(squares) / float(k) + eps);
}

// Writes the norm of the row x [w.k], times `weight` [w.k].
static inline void prepare_normed_row(const HrLinear& w, const Activations& a, int row, const float* x,
                                      const float* weight, float eps) {
  const f32x16 scale = splat(inverse_rms(x, w.k, eps));
  prepare(w, a, row, [&](int i) { return load(x + i, w.k - i) * scale * load(weight + i, w.k - i); });
}

// The same norm as floats: out [k] may be x.
static inline void rms_norm_row(const float* x, const float* weight, float eps, int k, float* out) {
  const f32x16 scale = splat(inverse_rms(x, k, eps));
  int i = 0;
  for (; i + LANES <= k; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
  const f32x16 rest = load(x + i, k - i) * scale * load(weight + i, k - i);
  if (i < k) std::memcpy(out + i, &rest, size_t(k - i) * sizeof(float));
}

}  // namespace hr
