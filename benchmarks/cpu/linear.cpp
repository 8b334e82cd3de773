// What benchmarks/cpu_linear.py times: products over many copies of a weight, a plain read of the same bytes, and the
// dot products of each kind from registers alone. Built by kernels/cpu/build.py from this folder.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <numeric>
#include <vector>

#include "../../kernels/cpu/src/linear.h"
#include "../../kernels/cpu/src/team.h"

namespace {

using namespace hr;

// Calls body(0) .. body(parts - 1), all of them `repeats` times, and adds up each part's fastest call, in seconds: a
// part is short enough to pass between two interruptions by other processes.
template <class Body>
double fastest(int repeats, int parts, Body&& body) {
  std::vector<double> best(static_cast<size_t>(parts), 1e30);
  for (int repeat = 0; repeat < repeats; repeat++)
    for (int part = 0; part < parts; part++) {
      const auto begin = std::chrono::steady_clock::now();
      body(part);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
      best[size_t(part)] = std::min(best[size_t(part)], taken.count());
    }
  return std::accumulate(best.begin(), best.end(), 0.);
}

// Zeroed memory in huge pages where the system has them: of 4 KiB a plain read of 135 MB reaches 43 GB/s, not 62.
class Memory {
 public:
  explicit Memory(int64_t bytes) : bytes_(size_t(bytes)) {
    at_ = static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (at_ == MAP_FAILED) throw std::bad_alloc();
    madvise(at_, bytes_, MADV_HUGEPAGE);
  }
  ~Memory() { munmap(at_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  char* take(int64_t bytes) {
    char* taken = at_ + taken_;
    taken_ += (bytes + 63) / 64 * 64;
    return taken;
  }
  const char* begin() const { return at_; }
  int64_t taken() const { return taken_; }

 private:
  size_t bytes_;
  char* at_;
  int64_t taken_ = 0;
};

// The exclusive or of all bytes, 16 words at a time, so that all are read.
int32_t read(const char* begin, const char* end) {
  i32x16 bits[4] = {};
  for (; begin + 256 <= end; begin += 256)
    for (int i = 0; i < 4; i++) bits[i] ^= load_as<i32x16>(begin + 64 * i);
  return reduce_add((bits[0] ^ bits[1]) ^ (bits[2] ^ bits[3]));
}

// Operations (two for each product) per second of a tile's inner loop over what stays in registers and the first cache.
template <class Kind>
double peak_of(Team& team, const HrLinear& w, int repeats) {
  constexpr int rounds = 1 << 16, num_rows = MAX_ROWS;
  std::vector<char> values(num_rows * 64, 1), panel(128, 1);
  const double seconds = fastest(repeats, 1, [&](int) {
    team.each(team.num_threads(), [&](int, int) noexcept {
      typename Kind::Sum sum[num_rows][2] = {}, kept[num_rows][2];
      for (int round = 0; round < rounds; round++) step<Kind>(sum, panel.data(), values.data(), 64);
      std::memcpy(kept, sum, sizeof kept);
      asm volatile("" : : "m"(kept));
    });
  });
  return 2. * num_rows * PANEL * (4 / value_bytes(w.weights)) * rounds * team.num_threads() / seconds;
}

}  // namespace

extern "C" {

// Operations per second of the dot product that `w` uses.
double hr_bench_peak(const HrLinear* w, int32_t num_threads, int32_t repeats) {
  Team team(num_threads, {});
  switch (w->weights) {
    case HR_F32: return peak_of<F32>(team, *w, repeats);
    case HR_BF16: return peak_of<Bf16>(team, *w, repeats);
    default: return peak_of<Int8>(team, *w, repeats);
  }
}

// seconds[0]: of the products of x [num_rows][w.k] with `copies` copies of w, one after the other, rows prepared
// before;
// seconds[1]: of a plain read of all their bytes, whose number is the result.
int64_t hr_bench_linear(const HrLinear* w, int32_t copies, const float* x, int32_t num_rows, int32_t num_threads,
                        int32_t repeats, double* seconds) {
  Team team(num_threads, {});
  const int64_t codes = int64_t(w->n_pad) * w->k_pad * value_bytes(w->weights) / (w->weights == HR_INT4 ? 2 : 1);
  const int64_t per_group = w->scales ? int64_t(w->n_pad) * w->k_pad / w->group * 2 : 0;
  Memory weights(copies * (codes + 2 * per_group + 192));
  std::vector<HrLinear> linears(static_cast<size_t>(copies), *w);
  for (HrLinear& linear : linears) {
    linear.codes = std::memcpy(weights.take(codes), w->codes, size_t(codes));
    for (const uint16_t** part : {&linear.scales, &linear.minimums})
      if (*part) *part = (uint16_t*)std::memcpy(weights.take(per_group), *part, size_t(per_group));
  }
  Memory rows(activation_bytes(w->k_pad, num_rows)), outputs(int64_t(num_rows) * w->n_pad * 4);
  const Activations a(*w, rows.take(1));
  for (int row = 0; row < num_rows; row++) prepare_row(*w, a, row, x + int64_t(row) * w->k);
  float* y = (float*)outputs.take(1);
  const int panels = w->n_pad / PANEL, chunks = std::min(panels, 4 * num_threads);
  seconds[0] = fastest(repeats, copies, [&](int copy) {
    team.each(chunks, [&](int chunk, int) noexcept {
      multiply(linears[size_t(copy)], a, 0, num_rows, panels * chunk / chunks, panels * (chunk + 1) / chunks,
               [&](int row, int panel, f32x16 low, f32x16 high) {
                 float* to = y + int64_t(row) * w->n_pad + panel * PANEL;
                 store(to, low);
                 store(to + LANES, high);
                 write_next(to + PANEL, PANEL);
               });
    });
  });
  std::vector<int32_t> read_bits(static_cast<size_t>(chunks));
  seconds[1] = fastest(repeats, copies, [&](int copy) {
    team.each(chunks, [&](int chunk, int) noexcept {
      const int64_t slices = int64_t(copies) * chunks, slice = int64_t(copy) * chunks + chunk;
      read_bits[size_t(chunk)] ^= read(weights.begin() + weights.taken() * slice / slices,
                                       weights.begin() + weights.taken() * (slice + 1) / slices);
    });
  });
  return weights.taken();
}

}  // extern "C"
