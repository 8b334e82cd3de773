// What becomes of a product's outputs: stored, gated, or only the largest kept.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "linear.h"
#include "simd.h"

namespace hr {

// The first `count` of 32 outputs; all of them but in the last panel of a row.
HR_INLINE void store_outputs(float* to, int count, f32x16 first, f32x16 second) {
  if (count >= PANEL) {
    store(to, first);
    store(to + LANES, second);
  } else {
    const f32x16 both[2] = {first, second};
    std::memcpy(to, both, size_t(count) * sizeof(float));
  }
}

// The largest of a row's logits so far and its token; of equal ones the first. A panel seldom has a larger one.
struct Best {
  float logit = -INFINITY;
  int32_t token = -1;
  bool is_finite = true;

  inline __attribute__((always_inline)) void see(f32x16 first, f32x16 second, int32_t token_begin) {
    const f32x16 nothing = fma(first, splat(0.f), second * splat(0.f));  // NaN where one is not finite
    if (__builtin_expect(!any_above(maximum(first, second), logit) && !any_nan(nothing), 1)) return;
    const f32x16 both[2] = {first, second};
    for (int i = 0; i < PANEL; i++) {
      const float each = both[i / LANES][i % LANES];
      is_finite = is_finite && std::isfinite(each);
      if (each > logit) {
        logit = each;
        token = token_begin + i;
      }
    }
  }
};

// gate * sigmoid(gate) * up. Source: Shazeer, "GLU Variants Improve Transformer", 2020, SwiGLU.
HR_INLINE f32x16 silu_mul(f32x16 gate, f32x16 up) { return gate / (splat(1.f) + exponential(-gate)) * up; }

}  // namespace hr
