// Where write_kv puts a token's key and value, what it stores, and norm and rotation of a head.
#include "kv.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "check.h"

using hr::KvLayout;
using hr::TILE;

static std::vector<float> head(int head_dim, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(head_dim));
  for (float& value : x) value = normal(random);
  return x;
}

// What the cache holds of one element, by the layout's description in words: bfloat16 bits, or an int8 code.
static int stored(const KvLayout& layout, const std::vector<uint8_t>& cache, int slot, int kv_head, bool is_value,
                  int d) {
  const bool int8 = layout.kv == HR_KV_INT8;
  const int together = int8 ? 4 : 2, size = int8 ? 1 : 2, token = slot % TILE;
  const int64_t side = int64_t(TILE) * layout.head_dim * size + (int8 ? 64 : 0);
  const int64_t base = ((slot / TILE) * int64_t(layout.num_kv_heads) + kv_head) * 2 * side + (is_value ? side : 0);
  const int64_t element = is_value ? (int64_t(token / together) * layout.head_dim + d) * together + token % together
                                   : (int64_t(d / together) * TILE + token) * together + d % together;
  const uint8_t* at = &cache[size_t(base + element * size)];
  if (int8) return is_value ? int(int8_t(*at)) : int(*at) - 128;
  return at[0] | at[1] << 8;
}

static float stored_scale(const KvLayout& layout, const std::vector<uint8_t>& cache, int slot, int kv_head,
                          bool is_value) {
  const int64_t side = int64_t(TILE) * layout.head_dim + 64;
  const int64_t base = ((slot / TILE) * int64_t(layout.num_kv_heads) + kv_head) * 2 * side + (is_value ? side : 0);
  float scale;
  std::memcpy(&scale, &cache[size_t(base + int64_t(TILE) * layout.head_dim + (slot % TILE) * 4)], sizeof scale);
  return scale;
}

static void check_head(const KvLayout& layout, const std::vector<uint8_t>& cache, int slot, int kv_head, bool is_value,
                       const std::vector<float>& x) {
  float amax = 0;
  for (float value : x) amax = std::max(amax, std::fabs(value));
  for (int d = 0; d < layout.head_dim; d++) {
    const int got = stored(layout, cache, slot, kv_head, is_value, d);
    const float value = x[size_t(d)];
    CHECK(got == (layout.kv == HR_KV_INT8 ? int(std::nearbyintf(value * (127.f / amax))) : hr::to_bf16(value)));
  }
  if (layout.kv == HR_KV_INT8) CHECK(stored_scale(layout, cache, slot, kv_head, is_value) == amax / 127.f);
}

static void writes_a_head_to_its_place_and_nothing_else(const KvLayout& layout, std::mt19937& random) {
  const int num_tiles = 3;
  std::vector<uint8_t> cache(size_t(layout.tile_bytes() * num_tiles), 0x5a);
  for (int slot : {0, 1, 15, 16, 21, 47})
    for (int kv_head = 0; kv_head < layout.num_kv_heads; kv_head++) {
      const auto key = head(layout.head_dim, random), value = head(layout.head_dim, random);
      const auto before = cache;
      hr::write_kv(layout, cache.data(), slot, kv_head, key.data(), value.data());
      check_head(layout, cache, slot, kv_head, false, key);
      check_head(layout, cache, slot, kv_head, true, value);
      int changed = 0;
      for (size_t i = 0; i < cache.size(); i++) changed += cache[i] != before[i];
      CHECK(changed <= 2 * layout.head_dim * (layout.kv == HR_KV_INT8 ? 1 : 2) + (layout.kv == HR_KV_INT8 ? 8 : 0));
    }
}

static void zeros_and_tiny_heads_have_codes_zero_and_what_is_no_number_keeps_its_scale() {
  const KvLayout layout{HR_KV_INT8, 1, 32};
  for (float filling : {0.f, 1e-38f, 1e-42f}) {
    std::vector<uint8_t> cache(size_t(layout.tile_bytes()), 0x5a);
    const std::vector<float> x(32, filling);
    hr::write_kv(layout, cache.data(), 3, 0, x.data(), x.data());
    for (int d = 0; d < 32; d++)
      for (bool is_value : {false, true}) CHECK(stored(layout, cache, 3, 0, is_value, d) == 0);
    CHECK(stored_scale(layout, cache, 3, 0, false) == filling / 127.f);
  }
  for (float wrong : {NAN, INFINITY}) {
    std::vector<uint8_t> cache(size_t(layout.tile_bytes()), 0x5a);
    std::vector<float> x(32, 1.f);
    x[20] = wrong;
    hr::write_kv(layout, cache.data(), 3, 0, x.data(), x.data());
    CHECK(!std::isfinite(stored_scale(layout, cache, 3, 0, true)) && stored(layout, cache, 3, 0, true, 0) == 0);
  }
}

static void sizes_are_what_the_capacity_is_counted_by() {
  CHECK(hr_kv_tile_bytes(HR_KV_BF16, 3, 64) == 3 * TILE * 64 * 2 * 2);
  CHECK(hr_kv_tile_bytes(HR_KV_INT8, 3, 64) == 3 * TILE * (64 * 2 + 8));
}

static void turns_pairs_of_the_two_halves(std::mt19937& random) {
  for (int half : {8, 24, 32, 128}) {
    std::vector<float> x = head(2 * half, random), cos, sin;
    const auto before = x;
    for (int d = 0; d < half; d++) cos.push_back(std::cos(0.3f * float(d))), sin.push_back(std::sin(0.3f * float(d)));
    hr::rotate(x.data(), cos.data(), sin.data(), half);
    for (int d = 0; d < half; d++) {
      const float a = before[size_t(d)], b = before[size_t(d + half)], c = cos[size_t(d)], s = sin[size_t(d)];
      CHECK(x[size_t(d)] == a * c - b * s && x[size_t(d + half)] == b * c + a * s);
    }
  }
}

int main() {
  std::mt19937 random(3);
  for (int kv : {HR_KV_BF16, HR_KV_INT8})
    for (int head_dim : {16, 48, 64, 256}) writes_a_head_to_its_place_and_nothing_else({kv, 2, head_dim}, random);
  zeros_and_tiny_heads_have_codes_zero_and_what_is_no_number_keeps_its_scale();
  sizes_are_what_the_capacity_is_counted_by();
  turns_pairs_of_the_two_halves(random);
}
