// Weights from canonical rows to the panels that linear.h reads; padding rows and inputs count as zero weights.
//
// `row_of_output` [n_pad] names the canonical row of each output, -1 for padding; null: output i is row i, and outputs
// from n on are padding. Canonical codes are rows of k inputs, scales and minimums rows of ceil(k / group).
#pragma once

#include <cstdint>
#include <cstring>

#include "linear.h"

namespace hr {

constexpr int INPUTS = 64;  // k_pad is a multiple of it

HR_INLINE int padded(int count, int unit) { return (count + unit - 1) / unit * unit; }

// The canonical row of an output, or -1.
HR_INLINE int row_of(const int32_t* row_of_output, int n, int output) {
  if (row_of_output) return row_of_output[output];
  return output < n ? output : -1;
}

// packed[panel][input / per_step][output in panel][input % per_step] = value(row, input), or `nothing` where it pads.
template <class T, class Value>
void pack_values(int n, int n_pad, int k, int k_pad, int per_step, const int32_t* row_of_output, T nothing, T* packed,
                 Value&& value) {
  for (int output = 0; output < n_pad; output++) {
    const int row = row_of(row_of_output, n, output);
    T* panel = packed + int64_t(output / PANEL) * k_pad * PANEL + output % PANEL * per_step;
    for (int i = 0; i < k_pad; i++)
      panel[i / per_step * PANEL * per_step + i % per_step] = row >= 0 && i < k ? value(row, i) : nothing;
  }
}

// Scales or minimums: packed[panel][group][output in panel], zero where it pads.
static inline void pack_groups(const uint16_t* rows, int n, int n_pad, int k, int k_pad, int group,
                               const int32_t* row_of_output, uint16_t* packed) {
  const int given = padded(k, group) / group;
  pack_values<uint16_t>(n, n_pad, given, k_pad / group, 1, row_of_output, 0, packed,
                        [&](int row, int i) { return rows[int64_t(row) * given + i]; });
}

}  // namespace hr

extern "C" {

// Bytes of the packed codes of a weight: HrWeights, outputs padded to a multiple of 32, inputs to one of 64.
int64_t hr_packed_bytes(int32_t weights, int32_t n_pad, int32_t k_pad) {
  const int64_t count = int64_t(n_pad) * k_pad;
  return weights == HR_INT4 ? count / 2 : count * hr::value_bytes(weights);
}

// codes int8 [n][k], scales float16 [n][ceil(k / group)].
void hr_pack_int8(const int8_t* codes, const uint16_t* scales, int32_t n, int32_t k, int32_t n_pad, int32_t group,
                  const int32_t* row_of_output, uint8_t* packed, uint16_t* packed_scales) {
  const int k_pad = hr::padded(k, hr::INPUTS);
  hr::pack_values<uint8_t>(n, n_pad, k, k_pad, 4, row_of_output, 128, packed,
                           [&](int row, int i) { return uint8_t(codes[int64_t(row) * k + i] + 128); });
  hr::pack_groups(scales, n, n_pad, k, k_pad, group, row_of_output, packed_scales);
}

// codes uint8 [n][k / 2], input 2i in the low nibble; minimums like scales, or null with packed_minimums null.
void hr_pack_int4(const uint8_t* codes, const uint16_t* scales, const uint16_t* minimums, int32_t n, int32_t k,
                  int32_t n_pad, int32_t group, const int32_t* row_of_output, uint8_t* packed, uint16_t* packed_scales,
                  uint16_t* packed_minimums) {
  const int k_pad = hr::padded(k, hr::INPUTS);
  const uint8_t nothing = minimums ? 0 : 8;
  const auto code = [&](int row, int i) {
    return row >= 0 && i < k ? uint8_t(codes[int64_t(row) * (k / 2) + i / 2] >> (i % 2 * 4) & 15) : nothing;
  };
  for (int output = 0; output < n_pad; output++) {
    if (output % hr::PANEL >= hr::LANES) continue;
    const int low = hr::row_of(row_of_output, n, output), high = hr::row_of(row_of_output, n, output + hr::LANES);
    uint8_t* panel = packed + int64_t(output / hr::PANEL) * k_pad * hr::LANES + output % hr::PANEL * 4;
    for (int i = 0; i < k_pad; i++) panel[i / 4 * 64 + i % 4] = uint8_t(code(low, i) | code(high, i) << 4);
  }
  hr::pack_groups(scales, n, n_pad, k, k_pad, group, row_of_output, packed_scales);
  if (minimums) hr::pack_groups(minimums, n, n_pad, k, k_pad, group, row_of_output, packed_minimums);
}

// values bfloat16 [n][k].
void hr_pack_bf16(const uint16_t* values, int32_t n, int32_t k, int32_t n_pad, const int32_t* row_of_output,
                  uint16_t* packed) {
  hr::pack_values<uint16_t>(n, n_pad, k, hr::padded(k, hr::INPUTS), 2, row_of_output, 0, packed,
                            [&](int row, int i) { return values[int64_t(row) * k + i]; });
}

// values float [n][k].
void hr_pack_f32(const float* values, int32_t n, int32_t k, int32_t n_pad, const int32_t* row_of_output,
                 float* packed) {
  hr::pack_values<float>(n, n_pad, k, hr::padded(k, hr::INPUTS), 1, row_of_output, 0.f, packed,
                         [&](int row, int i) { return values[int64_t(row) * k + i]; });
}

}  // extern "C"
