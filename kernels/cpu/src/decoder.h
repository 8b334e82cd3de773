// One decoder: what a step does, layer by layer, with a team of threads.
//
// The caller's thread runs plain sequential code and shares out loops (team.h): rows of a norm, panels of a product,
// items of attention. Of one row each loop is over in microseconds, so loops are few: seven to a layer.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cfloat>
#include <cstring>
#include <utility>
#include <vector>

#include "attention.h"
#include "buffer.h"
#include "linear.h"
#include "outputs.h"
#include "quantise.h"
#include "simd.h"
#include "step.h"
#include "team.h"

namespace hr {

// Few rows: each thread streams one stretch of the weights; to claim a chunk costs as much as to read 8 KB. Many rows:
// more chunks, so that a thread that loses its core leaves what is left to the others.
constexpr int ROWS_PER_CHUNK = 32, MAX_CHUNKS_PER_THREAD = 8;
constexpr int FEW_ROWS = 4;  // not worth another thread where a row takes a microsecond
constexpr int ROWS_TOGETHER = 8;
constexpr int MIN_ROW_BLOCK = 24;                       // rows that share the weights they load
constexpr int MIN_ROWS_ALONE = 24, MAX_ROWS_ALONE = 128;  // of a block that one thread takes from product to product

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
  std::vector<Best> bests;
  double seconds[HR_NUM_PARTS] = {};
  std::chrono::steady_clock::time_point last;

  // Rows begin .. end - 1 of a step: worked on by the whole team, loop by loop, or by one thread alone from loop to loop.
  struct Rows {
    int begin, end;
    bool is_shared;

    int count() const { return end - begin; }
  };

  // Charges the time since the last call to a part.
  void tick(HrPart part) {
    const auto now = std::chrono::steady_clock::now();
    seconds[part] += std::chrono::duration<double>(now - last).count();
    last = now;
  }

  // The same where the team works together; what threads do alone is not told apart, it is charged as products.
  void tick(HrPart part, const Rows& rows) {
    if (rows.is_shared) tick(part);
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
    each_row(all(step.num_rows), [&](int row) { embed(step.token_ids[row], residual.get() + int64_t(row) * model.hidden); });
  }

  void reserve_activations(int num_rows) {
    activations.sized(activation_bytes(widest(), num_rows));
  }

  // Inputs of the widest product.
  int widest() const {
    const HrLayer& layer = model.layers[0];
    return std::max({layer.qkv.k_pad, layer.attn_out.k_pad, layer.down.k_pad, model.head.k_pad});
  }

  int64_t scratch_stride() const { return (attention_scratch_bytes(model.head_dim) + 127) / 64 * 64; }

  template <class Body>
  void each_row(const Rows& rows, Body&& body) {
    const int together = !rows.is_shared ? rows.count() : rows.count() <= FEW_ROWS ? FEW_ROWS : ROWS_TOGETHER;
    team_each(rows, (rows.count() + together - 1) / together, [&](int chunk) {
      const int end = std::min(rows.end, rows.begin + (chunk + 1) * together);
      for (int row = rows.begin + chunk * together; row < end; row++) body(row);
    });
  }

  template <class Body>
  void team_each(const Rows& rows, int num_chunks, Body&& body) {
    if (rows.is_shared) return team.each(num_chunks, [&](int chunk, int) noexcept { body(chunk); });
    for (int chunk = 0; chunk < num_chunks; chunk++) body(chunk);
  }

  // Where rows prepared for `w` lie. Blocks of rows that are worked on alone are at different products at one time, so
  // each keeps to the memory of the widest one's rows.
  Activations prepared(const HrLinear& w, const Rows& rows) const {
    Activations a(w, activations.get());
    a.rows += rows.begin * (activation_bytes(widest(), 1) - a.stride);
    return a;
  }

  void embed(int32_t token, float* row) const {
    const int64_t begin = int64_t(token) * model.hidden;
    for (int i = 0; i < model.hidden; i++)
      row[i] = model.embedding_is_bf16 ? from_bf16(static_cast<const uint16_t*>(model.embedding)[begin + i])
                                       : static_cast<const float*>(model.embedding)[begin + i];
  }

  // Shares out a product by panels, and by blocks of rows where there are few panels for the threads.
  template <class Out>
  void product(const HrLinear& w, const Rows& rows, Out&& out) {
    const Activations a = prepared(w, rows);
    const int panels = w.n_pad / PANEL, count = rows.count();
    if (!rows.is_shared) return multiply(w, a, rows.begin, rows.end, 0, panels, out);
    const int wanted = team.num_threads() * std::clamp(count / ROWS_PER_CHUNK, 1, MAX_CHUNKS_PER_THREAD);
    const int together = (panels + wanted - 1) / wanted;
    const int panel_chunks = (panels + together - 1) / together;
    const int row_blocks =
        team.num_threads() == 1 ? 1 : std::clamp(wanted / panel_chunks, 1, std::max(1, count / MIN_ROW_BLOCK));
    team_each(rows, panel_chunks * row_blocks, [&](int chunk) {
      const int panel = chunk / row_blocks * together, block = chunk % row_blocks;
      multiply(w, a, rows.begin + count * block / row_blocks, rows.begin + count * (block + 1) / row_blocks, panel,
               std::min(panels, panel + together), out);
    });
  }

  // Few rows are shared loop by loop, so that the weights are read once. Many go in blocks, each of which stays in one
  // core's cache from product to product: a step of 414 rows took 205 ms loop by loop and 165 ms so (two Zen 4 cores, int8).
  template <class Body>
  void in_blocks(int num_rows, Body&& body) {
    const int num_threads = team.num_threads();
    if (num_threads == 1 || num_rows < num_threads * MIN_ROWS_ALONE) return body(all(num_rows));
    const int per_thread = (num_rows + num_threads * MAX_ROWS_ALONE - 1) / (num_threads * MAX_ROWS_ALONE);
    const int blocks = num_threads * per_thread;
    team.each(blocks, [&](int block, int) noexcept {
      body(Rows{num_rows * block / blocks, num_rows * (block + 1) / blocks, false});
    });
    tick(HR_PRODUCTS);
  }

  void run(const HrStep& step, int index) {
    const HrLayer& layer = model.layers[index];
    const Attention attention{model,     step, attention_work, step.cache + index * step.layer_bytes,
                              qkv.get(), attended.get()};
    in_blocks(step.num_rows, [&](const Rows& rows) { project(attention, layer, rows); });
    std::atomic<int> next_item{0};
    team.each(std::min<int>(team.num_threads(), int(attention_work.items.size())), [&](int, int thread) noexcept {
      attend_items(attention, scratch.get() + thread * scratch_stride(),
                   [&] { return next_item.fetch_add(1, std::memory_order_relaxed); });
    });
    tick(HR_ATTENTION);
    int num_rows = step.num_rows;
    if (index == model.num_layers - 1 && step.num_outputs < num_rows) num_rows = keep_outputs(step);
    if (num_rows == 0) return;
    in_blocks(num_rows, [&](const Rows& rows) { finish_layer(layer, rows); });
  }

  // Queries, keys and values of some rows: normed, multiplied, turned, the keys and values written to the cache.
  void project(const Attention& attention, const HrLayer& layer, const Rows& rows) {
    prepare_normed(layer.qkv, rows, layer.attn_norm);
    tick(HR_OTHER, rows);
    product(layer.qkv, rows, [&](int row, int panel, f32x16 first, f32x16 second) {
      if (const float* bias = layer.qkv.bias) {
        first += load(bias + panel * PANEL);
        second += load(bias + panel * PANEL + LANES);
      }
      float* to = qkv.get() + int64_t(row) * layer.qkv.n + panel * PANEL;
      store_outputs(to, layer.qkv.n - panel * PANEL, first, second);
      write_next(to + PANEL, PANEL);
    });
    tick(HR_PRODUCTS, rows);
    each_row(rows, [&](int row) { write_rows(attention, layer.qk_norm, row, row + 1); });
  }

  // After the last layer's attention only the rows that somebody wants go on: they move to the front.
  int keep_outputs(const HrStep& step) {
    const int heads = model.num_heads * model.head_dim;
    for (int output = 0; output < step.num_outputs; output++) {
      const int64_t row = step.output_rows[output];  // rises, so nothing is overwritten that is still to be moved
      std::memmove(residual.get() + int64_t(output) * model.hidden, residual.get() + row * model.hidden,
                   size_t(model.hidden) * sizeof(float));
      std::memmove(attended.get() + int64_t(output) * heads, attended.get() + row * heads, size_t(heads) * sizeof(float));
    }
    return step.num_outputs;
  }

  // The rest of a layer: the heads' outputs and the gated MLP, each added to the residual.
  void finish_layer(const HrLayer& layer, const Rows& rows) {
    prepare(layer.attn_out, rows, attended.get());
    tick(HR_OTHER, rows);
    add_product(layer.attn_out, rows);
    prepare_normed(layer.gate_up, rows, layer.ffn_norm);
    tick(HR_OTHER, rows);
    product(layer.gate_up, rows, [&](int row, int panel, f32x16 gate, f32x16 up) {
      const f32x16 both = silu_mul(gate, up);
      float* to = gated.get() + int64_t(row) * model.intermediate + panel * LANES;
      store_outputs(to, std::min(model.intermediate - panel * LANES, LANES), both, both);
      write_next(to + LANES, LANES);
    });
    tick(HR_PRODUCTS, rows);
    prepare(layer.down, rows, gated.get());
    tick(HR_OTHER, rows);
    add_product(layer.down, rows);
  }

  // Rows x [num_rows][w.k] made ready for a product.
  void prepare(const HrLinear& w, const Rows& rows, const float* x) {
    const Activations a = prepared(w, rows);
    each_row(rows, [&](int row) { prepare_row(w, a, row, x + int64_t(row) * w.k); });
  }

  void prepare_normed(const HrLinear& w, const Rows& rows, const float* norm) {
    const Activations a = prepared(w, rows);
    each_row(rows, [&](int row) {
      prepare_normed_row(w, a, row, residual.get() + int64_t(row) * model.hidden, norm, model.rms_norm_eps);
    });
  }

  void add_product(const HrLinear& w, const Rows& rows) {
    product(w, rows, [&](int row, int panel, f32x16 first, f32x16 second) {
      float* to = residual.get() + int64_t(row) * model.hidden + panel * PANEL;
      const int count = model.hidden - panel * PANEL;
      store_outputs(to, count, load(to, count) + first, load(to + LANES, count - LANES) + second);
      write_next(to + PANEL, PANEL);
    });
    tick(HR_PRODUCTS, rows);
  }

  // The final norm; the wanted rows are in front, in order.
  void finish(const HrStep& step) {
    each_row(all(step.num_outputs), [&](int output) {
      rms_norm_row(residual.get() + int64_t(output) * model.hidden, model.final_norm, model.rms_norm_eps, model.hidden,
                   step.hidden + int64_t(output) * model.hidden);
    });
    tick(HR_OTHER);
  }

  static Rows all(int num_rows) { return {0, num_rows, true}; }

  void prepare_hidden(const float* hidden, int num_rows) {
    reserve_activations(num_rows);
    prepare(model.head, all(num_rows), hidden);
  }

  void logits(const float* hidden, int num_rows, float* out) {
    prepare_hidden(hidden, num_rows);
    product(model.head, all(num_rows), [&](int row, int panel, f32x16 first, f32x16 second) {
      float* to = out + int64_t(row) * model.vocab + panel * PANEL;
      store_outputs(to, model.vocab - panel * PANEL, first, second);
      write_next(to + PANEL, PANEL);
    });
    tick(HR_HEAD);
  }

  // The first largest logit of each row and its token, over chunks of the vocabulary; NaN if one of them is not finite.
  void best(const float* hidden, int num_rows, int32_t* tokens, float* logits) {
    prepare_hidden(hidden, num_rows);
    const Activations a = prepared(model.head, all(num_rows));
    const int panels = model.head.n_pad / PANEL;
    const int wanted = team.num_threads(), together = (panels + wanted - 1) / wanted;
    const int chunks = (panels + together - 1) / together;
    bests.assign(size_t(chunks) * size_t(num_rows), Best());
    team.each(chunks, [&](int chunk, int) noexcept {
      Best* of_row = &bests[size_t(chunk) * size_t(num_rows)];
      multiply(model.head, a, 0, num_rows, chunk * together, std::min(panels, (chunk + 1) * together),
               [&](int row, int panel, f32x16 first, f32x16 second) {
                 const int count = model.vocab - panel * PANEL;
                 if (count < PANEL) {  // what pads the last panel is nobody's token
                   first = select(first_lanes(count), first, splat(-FLT_MAX));
                   second = select(first_lanes(count - LANES), second, splat(-FLT_MAX));
                 }
                 of_row[row].see(first, second, panel * PANEL);
               });
    });
    for (int row = 0; row < num_rows; row++) {
      Best best;
      for (int chunk = 0; chunk < chunks; chunk++) {  // in the tokens' order
        const Best& found = bests[size_t(chunk) * size_t(num_rows) + size_t(row)];
        best.is_finite = best.is_finite && found.is_finite;
        if (found.logit > best.logit) best = Best{found.logit, found.token, best.is_finite};
      }
      tokens[row] = best.token;
      logits[row] = best.is_finite ? best.logit : NAN;
    }
    tick(HR_HEAD);
  }

  // The panel of each token is computed whole, and one of its outputs kept.
  void logits_of(const float* hidden, int num_rows, const int32_t* token_ids, int num_tokens, float* out) {
    prepare_hidden(hidden, num_rows);
    const Activations a = prepared(model.head, all(num_rows));
    team.each(num_tokens, [&](int index, int) noexcept {
      const int panel = token_ids[index] / PANEL, lane = token_ids[index] % PANEL;
      multiply(model.head, a, 0, num_rows, panel, panel + 1, [&](int row, int, f32x16 first, f32x16 second) {
        out[int64_t(row) * num_tokens + index] = lane < LANES ? first[lane] : second[lane - LANES];
      });
    });
    tick(HR_HEAD);
  }
};
