// The product of prepared rows and packed weights: against a plain loop in double precision, and its rows' bits.
#include "linear.h"

#include <algorithm>

#include "check.h"
#include "random_linear.h"

namespace {

using Rows = std::vector<float>;

Rows random_rows(Random& random, int num_rows, int k) {
  Rows rows(size_t(num_rows) * size_t(k));
  for (float& x : rows) x = uniform(random, -2, 2) * (below(random, 50) ? 1.f : 20.f);
  return rows;
}

// Rows prepared for a weight, in memory that ends where they end.
struct Prepared {
  std::vector<char> memory;
  hr::Activations activations;

  Prepared(const HrLinear& w, const Rows& x)
      : memory(size_t(hr::activation_bytes(w.k_pad, int(x.size()) / w.k))), activations(w, memory.data()) {
    for (int row = 0; row < int(x.size()) / w.k; row++) hr::prepare_row(w, activations, row, x.data() + row * w.k);
  }
};

// All outputs of rows [begin, end): [end - begin][n_pad].
Rows product(const HrLinear& w, const hr::Activations& a, int begin, int end, int panel_step) {
  Rows y(size_t(end - begin) * size_t(w.n_pad), -1.f);
  for (int panel = 0; panel < w.n_pad / hr::PANEL; panel += panel_step) {
    const int last = std::min(panel + panel_step, w.n_pad / hr::PANEL);
    hr::multiply(w, a, begin, end, panel, last, [&](int row, int at, hr::f32x16 low, hr::f32x16 high) {
      float* to = y.data() + int64_t(row - begin) * w.n_pad + at * hr::PANEL;
      hr::store(to, low);
      hr::store(to + hr::LANES, high);
    });
  }
  return y;
}

// What the row x [k] becomes when it is prepared, as doubles.
std::vector<double> meant(const HrLinear& w, const float* x) {
  std::vector<double> values(x, x + w.k);
  for (int begin = 0; begin < w.k; begin += 64) {
    const int end = std::min(begin + 64, w.k);
    float amax = 0;
    for (int i = begin; i < end; i++) amax = std::max(amax, std::fabs(x[i]));
    for (int i = begin; i < end; i++) {
      if (w.weights == HR_BF16) values[size_t(i)] = hr::from_bf16(hr::to_bf16(x[i]));
      if (hr::is_integer(w)) values[size_t(i)] = amax > 0 ? std::nearbyint(x[i] * (127 / amax)) * (amax / 127) : 0.;
    }
  }
  return values;
}

void equals_the_plain_loop(Random& random, const Kind& kind, int n, int k, int num_rows) {
  const RandomLinear weight(random, kind, n, k, n % 2);
  const HrLinear& w = weight.linear;
  const Rows x = random_rows(random, num_rows, k);
  const Prepared prepared(w, x);
  const Rows y = product(w, prepared.activations, 0, num_rows, 1 + below(random, 4));
  for (int row = 0; row < num_rows; row++) {
    const std::vector<double> values = meant(w, x.data() + row * k);
    for (int output = 0; output < w.n_pad; output++) {
      double wanted = 0, size = 0;
      for (int i = 0; i < k; i++) {
        const double product = values[size_t(i)] * weight.meaning[size_t(output) * size_t(k) + size_t(i)];
        wanted += product;
        size += std::fabs(product);
      }
      const double got = y[size_t(row) * size_t(w.n_pad) + size_t(output)];
      // With minimums a product is a difference of two larger ones.
      const double tolerance = (kind.has_minimums ? 4e-6 : 1e-6) * size;
      if (!(std::fabs(got - wanted) <= tolerance)) {
        std::fprintf(stderr, "%s, n %d, k %d, row %d of %d, output %d: %.9g, wanted %.9g +- %.2g\n", kind.name, n, k,
                     row, num_rows, output, got, wanted, tolerance);
        std::exit(1);
      }
    }
  }
}

// Whatever rows and panels are asked for together, a row's result has the same bits.
void a_rows_bits_are_its_own(Random& random, const Kind& kind, int n, int k, int num_rows) {
  const RandomLinear weight(random, kind, n, k, false);
  const HrLinear& w = weight.linear;
  const Rows x = random_rows(random, num_rows, k);
  const Prepared prepared(w, x);
  const Rows all = product(w, prepared.activations, 0, num_rows, 100);
  const auto same = [&](const Rows& y, int begin, int end) {
    CHECK(y.size() == size_t(end - begin) * size_t(w.n_pad));
    return std::memcmp(y.data(), all.data() + int64_t(begin) * w.n_pad, y.size() * sizeof(float)) == 0;
  };
  for (int row = 0; row < num_rows; row++) {
    CHECK(same(product(w, prepared.activations, row, row + 1, 1), row, row + 1));
    const int end = row + 1 + below(random, num_rows - row);
    CHECK(same(product(w, prepared.activations, row, end, 1 + below(random, 3)), row, end));
    const Prepared alone(w, Rows(x.begin() + row * k, x.begin() + (row + 1) * k));
    CHECK(same(product(w, alone.activations, 0, 1, 100), row, row + 1));
  }
}

// A row of zeros gives zeros; a row with a NaN or an infinity gives no numbers; both leave the other rows alone.
void rows_do_not_touch_each_other(Random& random, const Kind& kind) {
  const int k = 130, num_rows = 9;
  const RandomLinear weight(random, kind, 40, k, false);
  const HrLinear& w = weight.linear;
  Rows x = random_rows(random, num_rows, k);
  std::fill(x.begin() + k, x.begin() + 2 * k, 0.f);
  const Rows before = product(w, Prepared(w, x).activations, 0, num_rows, 1);
  x[size_t(3 * k + 77)] = NAN;
  x[size_t(6 * k + 129)] = -INFINITY;
  const Rows after = product(w, Prepared(w, x).activations, 0, num_rows, 1);
  for (int row = 0; row < num_rows; row++)
    for (int output = 0; output < w.n; output++) {
      const size_t at = size_t(row * w.n_pad + output);
      if (row == 1) CHECK(after[at] == 0);
      if (row == 3 || row == 6) CHECK(!std::isfinite(after[at]));
      if (row != 3 && row != 6) CHECK(after[at] == before[at]);
    }
}

}  // namespace

int main() {
  Random random(5);
  for (const Kind& kind : kinds) {
    for (int num_rows = 1; num_rows <= 100; num_rows += num_rows < 26 ? 1 : 37)
      equals_the_plain_loop(random, kind, 1 + below(random, 70), 2 * (1 + below(random, 100)), num_rows);
    if (hr::value_bytes(kind.weights) > 1 || kind.weights == HR_INT8)
      for (int k : {1, 63, 65, 191}) equals_the_plain_loop(random, kind, 33, k, 5);
    equals_the_plain_loop(random, kind, 64, 576, 14);
    a_rows_bits_are_its_own(random, kind, 70, 200, 97);
    a_rows_bits_are_its_own(random, kind, 32, 576, 13);
    rows_do_not_touch_each_other(random, kind);
  }
}
