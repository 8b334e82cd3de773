// y = x W^T of prepared rows (quantise.h) and packed weights (pack.h), for every kind of weight.
//
// A panel is 32 outputs. In one step a row gives 4 bytes of its values (four int8, two bfloat16 or one float) and a
// panel the weights that these meet, so all kinds share one loop:
//   HR_INT8  uint8    [n_pad / 32][k_pad / 4][32][4]   code + 128
//   HR_INT4  uint8    [n_pad / 32][k_pad / 4][16][4]   low nibbles: outputs 0 to 15 of the panel, high ones: 16 to 31
//   HR_BF16  bfloat16 [n_pad / 32][k_pad / 2][32][2]
//   HR_F32   float    [n_pad / 32][k_pad][32]
//   scales and minimums, float16, [n_pad / 32][k_pad / group][32]
//
// Products are summed within a block of inputs (a group, of integers exactly; 64 bytes of a row otherwise), then the
// blocks in order. Nothing of that depends on how many rows go together: a row's result is always the same bits.
#pragma once

#include <cstdint>

#include "quantise.h"
#include "simd.h"
#include "step.h"

namespace hr {

constexpr int PANEL = 2 * LANES;

// The kinds: what a step loads for the two halves of a panel, and how a sum of 16 outputs takes it up.
struct Int8 {
  using Sum = i32x16;
  static constexpr bool is_scaled = true, has_minimums = false;
  static constexpr int step_bytes = 128;
  HR_INLINE int row_bytes(const HrLinear& w) { return w.k_pad; }
  HR_INLINE u32x16 low(const char* panel) { return load_as<u32x16>(panel); }
  HR_INLINE u32x16 high(const char* panel) { return load_as<u32x16>(panel + 64); }
  HR_INLINE Sum dot(Sum sum, u32x16 w, const char* values) { return dot4(sum, w, values); }
};

template <bool HAS_MINIMUMS>
struct Int4 {
  using Sum = i32x16;
  static constexpr bool is_scaled = true, has_minimums = HAS_MINIMUMS;
  static constexpr int step_bytes = 64;
  HR_INLINE int row_bytes(const HrLinear& w) { return w.k_pad; }
  HR_INLINE u32x16 low(const char* panel) { return load_as<u32x16>(panel) & 0x0f0f0f0fu; }
  HR_INLINE u32x16 high(const char* panel) { return (load_as<u32x16>(panel) >> 4) & 0x0f0f0f0fu; }
  HR_INLINE Sum dot(Sum sum, u32x16 w, const char* values) { return dot4(sum, w, values); }
};

struct Bf16 {
  using Sum = f32x16;
  static constexpr bool is_scaled = false, has_minimums = false;
  static constexpr int step_bytes = 128;
  HR_INLINE int row_bytes(const HrLinear& w) { return w.k_pad * 2; }
  HR_INLINE const char* low(const char* panel) { return panel; }
  HR_INLINE const char* high(const char* panel) { return panel + 64; }
  HR_INLINE Sum dot(Sum sum, const char* w, const char* values) {
    return dot2(sum, (const uint16_t*)w, (const uint16_t*)values);
  }
};

struct F32 {
  using Sum = f32x16;
  static constexpr bool is_scaled = false, has_minimums = false;
  static constexpr int step_bytes = 128;
  HR_INLINE int row_bytes(const HrLinear& w) { return w.k_pad * 4; }
  HR_INLINE f32x16 low(const char* panel) { return load((const float*)panel); }
  HR_INLINE f32x16 high(const char* panel) { return load((const float*)(panel + 64)); }
  HR_INLINE Sum dot(Sum sum, f32x16 w, const char* values) {
    float value;
    std::memcpy(&value, values, 4);
    return fma(w, splat(value), sum);
  }
};

template <class Kind>
HR_INLINE const char* panel_at(const HrLinear& w, int panel) {
  return (const char*)w.codes + int64_t(panel) * (Kind::row_bytes(w) / 4) * Kind::step_bytes;
}

// What ROWS rows, `stride` bytes apart, gain by one step.
template <class Kind, int ROWS>
HR_INLINE void step(typename Kind::Sum (&sum)[ROWS][2], const char* weights, const char* values, int64_t stride) {
  asm volatile("" ::: "memory");  // no load moves: gcc asks for some lines early, and the prefetchers lose the stream
  const auto low = Kind::low(weights), high = Kind::high(weights);
  for (int r = 0; r < ROWS; r++) {
    sum[r][0] = Kind::dot(sum[r][0], low, values + r * stride);
    sum[r][1] = Kind::dot(sum[r][1], high, values + r * stride);
  }
}

// What a tile fetches into the second-level cache while it computes: the next panel, or its part of it.
// Up to 5 rows the processor's own prefetchers come close to a plain read and only want to be led to the next panel, by
// one line in four; they lose the stream where computing takes longer, and rest while further tiles use a panel again.
// 576 -> 1536, 135 MB of int8 weights, two Zen 4 cores, GFLOP/s with and without this: 4 rows 360 and 290, 6 rows 600
// and 460, 8 rows 640 and 360, 32 rows 690 and 600.
struct Ahead {
  static constexpr int line = 64;
  const char* begin;
  int count;    // prefetches for every four steps
  int spacing;  // bytes

  // Of `num_tiles` tiles that share a panel, 4 * step_bytes for every four steps, for num_rows rows.
  static Ahead shared(int num_rows, int num_tiles, int step_bytes) {
    const int spacing = num_rows <= 5 ? 4 * line : line;
    return {nullptr, (4 * step_bytes / spacing + num_tiles - 1) / num_tiles, spacing};
  }
  HR_INLINE void fetch(Ahead& ahead) {
    for (int i = 0; i < ahead.count; i++, ahead.begin += ahead.spacing) __builtin_prefetch(ahead.begin, 0, 2);
  }
};

// The outputs of one panel for ROWS rows from `row` on: y[r] are the 32 outputs of row + r.
template <class Kind, int ROWS>
__attribute__((noinline)) void tile(const HrLinear& w, const Activations& a, int row, int panel, Ahead ahead,
                                    f32x16 (*y)[2]) {
  using Sum = typename Kind::Sum;
  const int block = Kind::is_scaled ? w.group : 64;  // bytes of a row
  const int num_blocks = Kind::row_bytes(w) / block;
  const char* weights = panel_at<Kind>(w, panel);
  const char* values = a.values(row);
  f32x16 total[ROWS][2];
  for (int r = 0; r < ROWS; r++) total[r][0] = total[r][1] = splat(0.f);
  for (int b = 0; b < num_blocks; b++) {
    Sum sum[ROWS][2];
    for (int r = 0; r < ROWS; r++)
      sum[r][0] = sum[r][1] = Kind::is_scaled && !Kind::has_minimums ? Sum(splat(a.starts(row + r)[b])) : Sum{};
    for (const char* end = values + block; values < end; values += 16, weights += 4 * Kind::step_bytes) {
      Ahead::fetch(ahead);
      step<Kind>(sum, weights, values, a.stride);
      step<Kind>(sum, weights + Kind::step_bytes, values + 4, a.stride);
      step<Kind>(sum, weights + 2 * Kind::step_bytes, values + 8, a.stride);
      step<Kind>(sum, weights + 3 * Kind::step_bytes, values + 12, a.stride);
    }
    if constexpr (Kind::is_scaled) {
      const int64_t at = (int64_t(panel) * num_blocks + b) * PANEL;
      const f32x16 scale[2] = {load_f16(w.scales + at), load_f16(w.scales + at + LANES)};
      for (int r = 0; r < ROWS; r++) {
        const f32x16 factor = splat(a.scales(row + r)[b * block / ACTIVATION_GROUP]);
        for (int h = 0; h < 2; h++) total[r][h] = fma(to_float(sum[r][h]), scale[h] * factor, total[r][h]);
      }
      if constexpr (Kind::has_minimums) {
        const f32x16 minimum[2] = {load_f16(w.minimums + at), load_f16(w.minimums + at + LANES)};
        for (int r = 0; r < ROWS; r++) {
          const f32x16 factor = splat(a.scaled_sums(row + r)[b]);
          for (int h = 0; h < 2; h++) total[r][h] = fma(minimum[h], factor, total[r][h]);
        }
      }
    } else {
      for (int r = 0; r < ROWS; r++)
        for (int h = 0; h < 2; h++) total[r][h] += sum[r][h];
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int h = 0; h < 2; h++) y[r][h] = total[r][h];
}

#if defined(__AVX512F__)
constexpr int MAX_ROWS = 6;  // a tile's sums and totals stay in the 32 registers
#else
constexpr int MAX_ROWS = 2;
#endif

// As `tile`, the number of rows (1 to MAX_ROWS) chosen at run time.
template <class Kind, int ROWS = MAX_ROWS>
void tile_of(int num_rows, const HrLinear& w, const Activations& a, int row, int panel, Ahead ahead, f32x16 (*y)[2]) {
  if (num_rows == ROWS) return tile<Kind, ROWS>(w, a, row, panel, ahead, y);
  if constexpr (ROWS > 1) tile_of<Kind, ROWS - 1>(num_rows, w, a, row, panel, ahead, y);
}

template <class Kind, class Out>
void multiply_as(const HrLinear& w, const Activations& a, int row_begin, int row_end, int panel_begin, int panel_end,
                 Out& out) {
  const int num_tiles = (row_end - row_begin + MAX_ROWS - 1) / MAX_ROWS;
  const Ahead share = Ahead::shared(row_end - row_begin, num_tiles, Kind::step_bytes);
  for (int panel = panel_begin; panel < panel_end; panel++) {
    const char* next = panel_at<Kind>(w, panel + 1);
    const char* const end = panel + 1 < panel_end ? panel_at<Kind>(w, panel + 2) : next;
    for (int t = 0, row = row_begin; t < num_tiles; t++) {
      const int num_rows = (row_end - row + num_tiles - t - 1) / (num_tiles - t);
      f32x16 y[MAX_ROWS][2];
      tile_of<Kind>(num_rows, w, a, row, panel, {next, next < end ? share.count : 0, share.spacing}, y);
      for (int r = 0; r < num_rows; r++) out(row + r, panel, y[r][0], y[r][1]);
      row += num_rows;
      next += int64_t(Kind::row_bytes(w)) / 16 * share.count * share.spacing;
    }
  }
}

// Calls out(row, panel, low, high) with the outputs 32 * panel .. + 15 and + 16 .. + 31 of each row in
// [row_begin, row_end), without bias, for each panel in [panel_begin, panel_end). `a` was prepared for `w`.
// Outputs that lie in other cores' caches or in memory are best fetched one panel ahead: `write_next`.
template <class Out>
void multiply(const HrLinear& w, const Activations& a, int row_begin, int row_end, int panel_begin, int panel_end,
              Out&& out) {
  switch (w.weights) {
    case HR_INT8: return multiply_as<Int8>(w, a, row_begin, row_end, panel_begin, panel_end, out);
    case HR_INT4:
      if (w.minimums) return multiply_as<Int4<true>>(w, a, row_begin, row_end, panel_begin, panel_end, out);
      return multiply_as<Int4<false>>(w, a, row_begin, row_end, panel_begin, panel_end, out);
    case HR_BF16: return multiply_as<Bf16>(w, a, row_begin, row_end, panel_begin, panel_end, out);
    case HR_F32: return multiply_as<F32>(w, a, row_begin, row_end, panel_begin, panel_end, out);
  }
}

// Says that an `out` writes `count` floats at `next` when it is called with the same row and the next panel.
// Stores that miss hold up the tiles behind them: 480 rows x 576 -> 1536, one Zen 4 core: 365 GFLOP/s instead of 310.
HR_INLINE void write_next(const float* next, int count) {
  for (int i = 0; i < count; i += 16) __builtin_prefetch(next + i, 1);
}

}  // namespace hr
