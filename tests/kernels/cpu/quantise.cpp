// Rows as products take them: what is written of each kind, its padding, and the norm before it.
#include "quantise.h"

#include <cmath>
#include <random>
#include <vector>

#include "check.h"

namespace {

using Rows = std::vector<float>;
using Random = std::mt19937;

Rows random_row(Random& random, int k) {
  Rows row(static_cast<size_t>(k));
  for (float& x : row) x = std::normal_distribution<float>(0, 3)(random);
  return row;
}

HrLinear linear_of(int32_t weights, int group, int k, bool has_minimums) {
  static const uint16_t minimum = 0;  // only whether there are some matters here
  HrLinear w{};
  w.weights = weights, w.group = group, w.k = k, w.k_pad = (k + 63) / 64 * 64;
  w.minimums = has_minimums ? &minimum : nullptr;
  return w;
}

// One row prepared in memory of its own; `row` 1 of 2, so that a write before its beginning is seen too.
struct Prepared {
  std::vector<char> memory;
  hr::Activations a;
  static constexpr int row = 1;

  explicit Prepared(const HrLinear& w) : memory(size_t(hr::activation_bytes(w.k_pad, 2)), 77), a(w, memory.data()) {}
};

// Codes are the nearest to x / scale, the largest of a group is 127; what pads is zero; sums are those of the codes.
void quantised_rows_are_nearest(Random& random, const HrLinear& w) {
  Rows x = random_row(random, w.k);
  if (w.k > 64) std::fill(x.begin(), x.begin() + 64, 0.f);
  Prepared prepared(w);
  hr::prepare_row(w, prepared.a, Prepared::row, x.data());
  const int8_t* codes = (const int8_t*)prepared.a.values(Prepared::row);
  for (int i = 0; i < w.k_pad; i++) {
    const float scale = prepared.a.scales(Prepared::row)[i / 64];
    if (i >= w.k || scale == 0) {
      CHECK(codes[i] == 0);
      continue;
    }
    CHECK(std::fabs(x[size_t(i)] / scale - codes[i]) <= 0.5001);
    if (std::fabs(x[size_t(i)]) >= 127 * scale * 0.9999f) CHECK(std::abs(codes[i]) == 127);
  }
  for (int begin = 0; begin < w.k_pad; begin += w.group) {
    int sum = 0;
    for (int i = begin; i < begin + w.group; i++) sum += codes[i];
    const int g = begin / w.group;
    const float scale = prepared.a.scales(Prepared::row)[begin / 64];
    if (w.minimums) CHECK(prepared.a.scaled_sums(Prepared::row)[g] == scale * float(sum));
    if (!w.minimums) CHECK(prepared.a.starts(Prepared::row)[g] == -sum * (w.weights == HR_INT8 ? 128 : 8));
  }
  for (int i = 0; i < int(prepared.a.stride); i++) CHECK(prepared.memory[size_t(i)] == 77);
}

void float_rows_are_rounded_and_padded(Random& random, const HrLinear& w) {
  const Rows x = random_row(random, w.k);
  Prepared prepared(w);
  hr::prepare_row(w, prepared.a, Prepared::row, x.data());
  const char* values = prepared.a.values(Prepared::row);
  for (int i = 0; i < w.k_pad; i++) {
    const float wanted = i < w.k ? x[size_t(i)] : 0.f;
    if (w.weights == HR_F32) CHECK(((const float*)values)[i] == wanted);
    if (w.weights == HR_BF16) CHECK(((const uint16_t*)values)[i] == hr::to_bf16(wanted));
  }
}

// Half of bfloat16's steps round to even, NaN stays NaN, and sixteen at once are the scalar ones (but for denormals).
void bfloat16_rounds_to_nearest_even() {
  const float cases[16] = {1.00390625f, 1.01171875f, -1.00390625f, 0, -0.f, 1e-30f, 3.4e38f, INFINITY, NAN, 1, 2, 3};
  CHECK(hr::to_bf16(1.00390625f) == 0x3f80 && hr::to_bf16(1.01171875f) == 0x3f82);
  CHECK(hr::to_bf16(3.4e38f) == 0x7f80 && std::isnan(hr::from_bf16(hr::to_bf16(NAN))));
  const hr::u16x16 all = hr::to_bf16(hr::load(cases));
  for (int i = 0; i < 16; i++) CHECK(all[i] == hr::to_bf16(cases[i]));
}

// The norm against double precision; prepared with its norm a row is what the normed row is when it is prepared.
void the_norm_is_the_same_before_and_inside(Random& random, const HrLinear& w) {
  const Rows x = random_row(random, w.k), weight = random_row(random, w.k);
  Rows normed(x);
  hr::rms_norm_row(normed.data(), weight.data(), 1e-5f, w.k, normed.data());
  double squares = 0;
  for (float v : x) squares += double(v) * v;
  for (size_t i = 0; i < x.size(); i++) {
    const double wanted = x[i] / std::sqrt(squares / w.k + 1e-5) * weight[i];
    CHECK(std::fabs(normed[i] - wanted) <= 1e-6 * std::fabs(wanted));
  }
  Prepared inside(w), before(w);
  hr::prepare_normed_row(w, inside.a, Prepared::row, x.data(), weight.data(), 1e-5f);
  hr::prepare_row(w, before.a, Prepared::row, normed.data());
  CHECK(inside.memory == before.memory);
}

}  // namespace

int main() {
  Random random(3);
  bfloat16_rounds_to_nearest_even();
  for (int k : {1, 15, 16, 17, 63, 64, 65, 100, 128, 576, 1000}) {
    for (int group : {32, 64})
      for (const HrLinear& w : {linear_of(HR_INT8, group, k, false), linear_of(HR_INT4, group, k, false),
                                linear_of(HR_INT4, group, k, true)}) {
        quantised_rows_are_nearest(random, w);
        the_norm_is_the_same_before_and_inside(random, w);
      }
    for (int32_t weights : {HR_F32, HR_BF16}) {
      float_rows_are_rounded_and_padded(random, linear_of(weights, 64, k, false));
      the_norm_is_the_same_before_and_inside(random, linear_of(weights, 64, k, false));
    }
  }
}
