// One step of a Llama-family decoder as a few calls: the layers, then the logits of the rows that somebody wants.
//
// The caller's thread runs plain sequential code and shares out loops (team.h): rows of a norm, panels of a product,
// items of attention. Of one row each loop is over in microseconds, so loops are few: seven to a layer.
#include "step.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "pack.h"
#include "quantise.h"
#include "simd.h"
#include "team.h"

namespace hr {
namespace {

constexpr int CHUNKS_PER_THREAD = 8;  // a thread that loses its core leaves what is left to the others
constexpr int FEW_ROWS = 4;           // not worth another thread where a row takes a microsecond
constexpr int ROWS_TOGETHER = 8;
constexpr int MIN_ROW_BLOCK = 24;     // rows that share the weights they load

// Memory aligned to cache lines, kept from step to step; only ever grows.
template <class T>
class Buffer {
 public:
  ~Buffer() { std::free(data_); }
  T* sized(int64_t count) {
    if (count > count_) {
      std::free(data_);
      data_ = static_cast<T*>(std::aligned_alloc(64, (size_t(count) * sizeof(T) + 4095) / 4096 * 4096));
      count_ = data_ ? count : 0;
      if (!data_) throw std::bad_alloc();
    }
    return data_;
  }
  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
  int64_t count_ = 0;
};

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

// gate * sigmoid(gate) * up. Source: Shazeer, "GLU Variants Improve Transformer", 2020, SwiGLU.
HR_INLINE f32x16 silu_mul(f32x16 gate, f32x16 up) { return gate / (splat(1.f) + exponential(-gate)) * up; }

}  // namespace
}  // namespace hr

using namespace hr;

// One model's decoder: its team of threads, and what a step keeps between two layers.
struct HrDecoder {
  HrDecoder(const HrModel& described, int num_threads, std::vector<int> cpus)
      : model(described), team(num_threads, std::move(cpus)) {}

  const HrModel model;
  Team team;
  AttentionWork attention_work;
  Buffer<float> residual, qkv, attended, gated;  // rows of hidden, of all heads, of the query heads, of intermediate
  Buffer<char> activations, scratch;
  double seconds[HR_NUM_PARTS] = {};
  std::chrono::steady_clock::time_point last;

  // Charges the time since the last call to a part.
  void tick(HrPart part) {
    const auto now = std::chrono::steady_clock::now();
    seconds[part] += std::chrono::duration<double>(now - last).count();
    last = now;
  }

  void begin(const HrStep& step) {
    const int64_t rows = step.num_rows;
    residual.sized(rows * model.hidden);
    qkv.sized(rows * (model.num_heads + 2 * model.num_kv_heads) * model.head_dim);
    attended.sized(rows * model.num_heads * model.head_dim);
    gated.sized(rows * model.intermediate);
    reserve_activations(step.num_rows);
    scratch.sized(team.num_threads() * scratch_stride());
    AttentionPlanner(model, step, team.num_threads()).plan(attention_work);
    each_row(step.num_rows, [&](int row) { embed(step.token_ids[row], residual.get() + int64_t(row) * model.hidden); });
  }

  void reserve_activations(int num_rows) {
    const HrLayer& layer = model.layers[0];
    const int widest = std::max({layer.qkv.k_pad, layer.attn_out.k_pad, layer.down.k_pad, model.head.k_pad});
    activations.sized(activation_bytes(widest, num_rows));
  }

  int64_t scratch_stride() const { return (attention_scratch_bytes(model.head_dim) + 127) / 64 * 64; }

  template <class Body>
  void each_row(int num_rows, Body&& body) {
    const int together = num_rows <= FEW_ROWS ? FEW_ROWS : ROWS_TOGETHER;
    team.each((num_rows + together - 1) / together, [&](int chunk, int) noexcept {
      const int end = std::min(num_rows, (chunk + 1) * together);
      for (int row = chunk * together; row < end; row++) body(row);
    });
  }

  void embed(int32_t token, float* row) const {
    const int64_t begin = int64_t(token) * model.hidden;
    for (int i = 0; i < model.hidden; i++)
      row[i] = model.embedding_is_bf16 ? from_bf16(static_cast<const uint16_t*>(model.embedding)[begin + i])
                                       : static_cast<const float*>(model.embedding)[begin + i];
  }

  // Shares out a product by panels, and by blocks of rows where there are few panels for the threads.
  template <class Out>
  void product(const HrLinear& w, int num_rows, Out&& out) {
    const Activations a(w, activations.get());
    const int panels = w.n_pad / PANEL, wanted = team.num_threads() * CHUNKS_PER_THREAD;
    const int together = std::max(1, panels / wanted);
    const int panel_chunks = (panels + together - 1) / together;
    const int row_blocks =
        team.num_threads() == 1 ? 1 : std::clamp(wanted / panel_chunks, 1, std::max(1, num_rows / MIN_ROW_BLOCK));
    team.each(panel_chunks * row_blocks, [&](int chunk, int) noexcept {
      const int panel = chunk / row_blocks * together, block = chunk % row_blocks;
      multiply(w, a, num_rows * block / row_blocks, num_rows * (block + 1) / row_blocks, panel,
               std::min(panels, panel + together), out);
    });
  }

  void run(const HrStep& step, const HrLayer& layer, uint8_t* cache) {
    const int rows = step.num_rows, intermediate = model.intermediate;
    const Attention attention{model, step, attention_work, cache, qkv.get(), attended.get()};
    prepare_normed(layer.qkv, rows, layer.attn_norm);
    tick(HR_OTHER);
    product(layer.qkv, rows, [&](int row, int panel, f32x16 first, f32x16 second) {
      if (const float* bias = layer.qkv.bias) {
        first += load(bias + panel * PANEL);
        second += load(bias + panel * PANEL + LANES);
      }
      float* to = qkv.get() + int64_t(row) * layer.qkv.n + panel * PANEL;
      store_outputs(to, layer.qkv.n - panel * PANEL, first, second);
    });
    tick(HR_PRODUCTS);
    each_row(rows, [&](int row) { write_rows(attention, layer.qk_norm, row, row + 1); });
    std::atomic<int> next_item{0};
    team.each(std::min<int>(team.num_threads(), int(attention_work.items.size())), [&](int, int thread) noexcept {
      attend_items(attention, scratch.get() + thread * scratch_stride(),
                   [&] { return next_item.fetch_add(1, std::memory_order_relaxed); });
    });
    tick(HR_ATTENTION);
    each_row(rows, [&](int row) {
      prepare_row(layer.attn_out, Activations(layer.attn_out, activations.get()), row,
                  attended.get() + int64_t(row) * layer.attn_out.k);
    });
    tick(HR_OTHER);
    add_product(layer.attn_out, rows);
    prepare_normed(layer.gate_up, rows, layer.ffn_norm);
    tick(HR_OTHER);
    product(layer.gate_up, rows, [&](int row, int panel, f32x16 gate, f32x16 up) {
      const f32x16 both = silu_mul(gate, up);
      float* to = gated.get() + int64_t(row) * intermediate + panel * LANES;
      store_outputs(to, std::min(intermediate - panel * LANES, LANES), both, both);
    });
    tick(HR_PRODUCTS);
    each_row(rows, [&](int row) {
      prepare_row(layer.down, Activations(layer.down, activations.get()), row, gated.get() + int64_t(row) * intermediate);
    });
    tick(HR_OTHER);
    add_product(layer.down, rows);
  }

  void prepare_normed(const HrLinear& w, int num_rows, const float* norm) {
    each_row(num_rows, [&](int row) {
      prepare_normed_row(w, Activations(w, activations.get()), row, residual.get() + int64_t(row) * model.hidden, norm,
                         model.rms_norm_eps);
    });
  }

  void add_product(const HrLinear& w, int num_rows) {
    product(w, num_rows, [&](int row, int panel, f32x16 first, f32x16 second) {
      float* to = residual.get() + int64_t(row) * model.hidden + panel * PANEL;
      const int count = model.hidden - panel * PANEL;
      store_outputs(to, count, load(to, count) + first, load(to + LANES, count - LANES) + second);
    });
    tick(HR_PRODUCTS);
  }

  void finish(const HrStep& step) {
    each_row(step.num_outputs, [&](int output) {
      rms_norm_row(residual.get() + int64_t(step.output_rows[output]) * model.hidden, model.final_norm,
                   model.rms_norm_eps, model.hidden, step.hidden + int64_t(output) * model.hidden);
    });
    tick(HR_OTHER);
  }

  void prepare_hidden(const float* hidden, int num_rows) {
    reserve_activations(num_rows);
    each_row(num_rows, [&](int row) {
      prepare_row(model.head, Activations(model.head, activations.get()), row, hidden + int64_t(row) * model.hidden);
    });
  }

  void logits(const float* hidden, int num_rows, float* out) {
    prepare_hidden(hidden, num_rows);
    product(model.head, num_rows, [&](int row, int panel, f32x16 first, f32x16 second) {
      float* to = out + int64_t(row) * model.vocab + panel * PANEL;
      store_outputs(to, model.vocab - panel * PANEL, first, second);
    });
    tick(HR_HEAD);
  }

  // The panel of each token is computed whole, and one of its outputs kept.
  void logits_of(const float* hidden, int num_rows, const int32_t* token_ids, int num_tokens, float* out) {
    prepare_hidden(hidden, num_rows);
    const Activations a(model.head, activations.get());
    team.each(num_tokens, [&](int index, int) noexcept {
      const int panel = token_ids[index] / PANEL, lane = token_ids[index] % PANEL;
      multiply(model.head, a, 0, num_rows, panel, panel + 1, [&](int row, int, f32x16 first, f32x16 second) {
        out[int64_t(row) * num_tokens + index] = lane < LANES ? first[lane] : second[lane - LANES];
      });
    });
    tick(HR_HEAD);
  }
};

namespace {

// Runs `call` with the caller pinned; what it throws becomes text in `error` and the result 1.
template <class Call>
int32_t guarded(char* error, int32_t error_size, Call&& call) {
  try {
    call();
    return 0;
  } catch (const std::exception& thrown) {
    std::snprintf(error, size_t(error_size), "%s", thrown.what());
    return 1;
  }
}

}  // namespace

extern "C" {

HrDecoder* hr_open(const HrModel* model, int32_t num_threads, const int32_t* cpus, int32_t num_cpus, char* error,
                   int32_t error_size) {
  HrDecoder* decoder = nullptr;
  guarded(error, error_size, [&] {
    decoder = new HrDecoder(*model, num_threads, std::vector<int>(cpus, cpus + num_cpus));
  });
  return decoder;
}

void hr_close(HrDecoder* decoder) { delete decoder; }

int32_t hr_run(HrDecoder* decoder, const HrStep* step, int32_t layer_begin, int32_t layer_end, char* error,
               int32_t error_size) {
  return guarded(error, error_size, [&] {
    const Pinned here = decoder->team.pin_caller();
    decoder->last = std::chrono::steady_clock::now();
    if (layer_begin == 0) decoder->begin(*step);
    for (int layer = layer_begin; layer < layer_end; layer++)
      decoder->run(*step, decoder->model.layers[layer], step->cache + layer * step->layer_bytes);
    if (layer_end == decoder->model.num_layers) decoder->finish(*step);
  });
}

int32_t hr_logits(HrDecoder* decoder, const float* hidden, int32_t num_rows, const int32_t* token_ids,
                  int32_t num_tokens, float* logits, char* error, int32_t error_size) {
  return guarded(error, error_size, [&] {
    const Pinned here = decoder->team.pin_caller();
    decoder->last = std::chrono::steady_clock::now();
    if (token_ids)
      decoder->logits_of(hidden, num_rows, token_ids, num_tokens, logits);
    else
      decoder->logits(hidden, num_rows, logits);
  });
}

void hr_seconds(const HrDecoder* decoder, double* seconds) {
  std::memcpy(seconds, decoder->seconds, sizeof decoder->seconds);
}

}  // extern "C"
