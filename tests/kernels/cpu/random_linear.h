// A random weight in its canonical form, packed, and what it means as doubles.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "pack.h"

// What a kind of weight is in a test.
struct Kind {
  const char* name;
  int32_t weights, group;
  bool has_minimums;
};
constexpr Kind kinds[] = {
    {"f32", HR_F32, 64, false},         {"bf16", HR_BF16, 64, false},      {"int8 by 32", HR_INT8, 32, false},
    {"int8 by 64", HR_INT8, 64, false}, {"int4 by 32", HR_INT4, 32, false}, {"int4 by 64", HR_INT4, 64, false},
    {"int4 by 32, minimums", HR_INT4, 32, true},                           {"int4 by 64, minimums", HR_INT4, 64, true},
};

using Random = std::mt19937;

inline float uniform(Random& random, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(random);
}
inline int below(Random& random, int count) { return int(random() % uint32_t(count)); }

// A float16 beside x, whose magnitude is one of its normal range.
inline uint16_t to_f16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return uint16_t((bits >> 16 & 0x8000u) | (((bits & 0x7fffffffu) - (112u << 23)) >> 13));
}
inline double from_f16(uint16_t h) {
  const double size = std::ldexp(1024 + (h & 1023), (h >> 10 & 31) - 25);
  return h & 0x8000 ? -size : size;
}

// Owns what HrLinear points to. `meaning` is [n_pad][k], by outputs: zero where an output is padding.
struct RandomLinear {
  HrLinear linear{};
  std::vector<double> meaning;
  std::vector<char> codes;
  std::vector<uint16_t> scales, minimums;

  // With `shuffled` the outputs are canonical rows in a random order, with padding anywhere.
  RandomLinear(Random& random, const Kind& kind, int n, int k, bool shuffled) {
    const int n_pad = hr::padded(n, hr::PANEL) + (shuffled ? hr::PANEL : 0), k_pad = hr::padded(k, hr::INPUTS);
    const size_t num_scales = size_t(n_pad) * size_t(k_pad / kind.group);
    if (hr::value_bytes(kind.weights) == 1) scales.resize(num_scales);
    if (kind.has_minimums) minimums.resize(num_scales);
    codes.resize(size_t(hr_packed_bytes(kind.weights, n_pad, k_pad)));
    linear.codes = codes.data();
    linear.scales = scales.empty() ? nullptr : scales.data();
    linear.minimums = minimums.empty() ? nullptr : minimums.data();
    linear.weights = kind.weights;
    linear.n = n, linear.k = k, linear.n_pad = n_pad, linear.k_pad = k_pad, linear.group = kind.group;

    std::vector<int32_t> order(static_cast<size_t>(n_pad), -1);
    for (int i = 0; i < n; i++) order[size_t(i)] = i;
    if (shuffled) std::shuffle(order.begin(), order.end(), random);
    const std::vector<double> rows = pack(random, kind, n, k, shuffled ? order.data() : nullptr);
    meaning.assign(size_t(n_pad) * size_t(k), 0.);
    for (size_t o = 0; o < order.size(); o++)
      for (size_t i = 0; order[o] >= 0 && i < size_t(k); i++)
        meaning[o * size_t(k) + i] = rows[size_t(order[o]) * size_t(k) + i];
  }

private:
  // Packs random canonical rows; returns what they mean, [n][k].
  std::vector<double> pack(Random& random, const Kind& kind, int n, int k, const int32_t* order) {
    const size_t count = size_t(n) * size_t(k), groups = size_t(hr::padded(k, kind.group) / kind.group);
    std::vector<double> rows(count);
    if (kind.weights == HR_F32) {
      std::vector<float> values(count);
      for (size_t i = 0; i < count; i++) rows[i] = values[i] = uniform(random, -1, 1);
      hr_pack_f32(values.data(), n, k, linear.n_pad, order, (float*)codes.data());
      return rows;
    }
    if (kind.weights == HR_BF16) {
      std::vector<uint16_t> values(count);
      for (size_t i = 0; i < count; i++) rows[i] = hr::from_bf16(values[i] = hr::to_bf16(uniform(random, -1, 1)));
      hr_pack_bf16(values.data(), n, k, linear.n_pad, order, (uint16_t*)codes.data());
      return rows;
    }
    std::vector<uint16_t> row_scales(size_t(n) * groups), row_minimums(kind.has_minimums ? row_scales.size() : 0);
    for (uint16_t& scale : row_scales) scale = to_f16(uniform(random, 1e-3f, 1e-2f) * (below(random, 8) ? 1.f : -1.f));
    for (uint16_t& minimum : row_minimums) minimum = to_f16(uniform(random, -0.2f, -1e-3f));
    std::vector<int8_t> integers(count);
    const bool is_int8 = kind.weights == HR_INT8;
    for (size_t i = 0; i < count; i++) {
      integers[i] = int8_t(is_int8 ? below(random, 255) - 127 : below(random, 16));
      const size_t g = i / size_t(k) * groups + i % size_t(k) / size_t(kind.group);
      const int zero = is_int8 || kind.has_minimums ? 0 : 8;
      rows[i] = from_f16(row_scales[g]) * (integers[i] - zero) + (kind.has_minimums ? from_f16(row_minimums[g]) : 0.);
    }
    uint8_t* packed = (uint8_t*)codes.data();
    if (is_int8) {
      hr_pack_int8(integers.data(), row_scales.data(), n, k, linear.n_pad, kind.group, order, packed, scales.data());
      return rows;
    }
    std::vector<uint8_t> nibbles(count / 2);
    for (size_t i = 0; i < count / 2; i++) nibbles[i] = uint8_t(integers[2 * i] | integers[2 * i + 1] << 4);
    hr_pack_int4(nibbles.data(), row_scales.data(), kind.has_minimums ? row_minimums.data() : nullptr, n, k,
                 linear.n_pad, kind.group, order, packed, scales.data(), kind.has_minimums ? minimums.data() : nullptr);
    return rows;
  }
};
