// The C ABI of the whole-step kernel: plain structs over data pointers. kernels/cpu/step.py mirrors them in ctypes.
//
// A model is described once; a step names its rows. Rows are grouped in spans: consecutive tokens of one sequence, one
// row for decode, several for a prefill chunk or for verification. All pointers stay the caller's and must outlive use.
#pragma once

#include <cstdint>

extern "C" {

enum HrWeights : int32_t { HR_F32 = 0, HR_BF16 = 1, HR_INT8 = 2, HR_INT4 = 3 };
enum HrKv : int32_t { HR_KV_BF16 = 0, HR_KV_INT8 = 1 };

// y[m][n] = sum_k a[m][k] * w[n][k] + bias[n]. n_pad is a multiple of 32, k_pad of 64; what pads is zero.
// Packed by `hr_pack`; see linear.h for the layout of `codes` of each kind.
struct HrLinear {
  const void* codes;
  const uint16_t* scales;    // float16 [n_pad / 32][k_pad / group][32]; null for HR_F32, HR_BF16
  const uint16_t* minimums;  // the same shape, HR_INT4 only
  const float* bias;         // [n_pad] or null
  int32_t weights;           // HrWeights
  int32_t n, k, n_pad, k_pad;
  int32_t group;  // 32 or 64 inputs share a scale
};

struct HrLayer {
  HrLinear qkv;       // outputs: query heads, key heads, value heads, each head_dim wide
  HrLinear attn_out;  // inputs: query heads
  HrLinear gate_up;   // outputs by blocks of 16, gate and up in turn: a panel of 32 is 16 of each
  HrLinear down;
  const float* attn_norm;  // [hidden]
  const float* ffn_norm;   // [hidden]
  const float* qk_norm;    // [num_heads + num_kv_heads][head_dim] or null
};

struct HrModel {
  int32_t num_layers, hidden, intermediate, num_heads, num_kv_heads, head_dim, vocab;
  int32_t sliding_window;  // tokens that a token sees, itself included; 0: all
  int32_t kv;              // HrKv
  int32_t embedding_is_bf16;
  float rms_norm_eps;
  const HrLayer* layers;
  HrLinear head;
  const float* final_norm;  // [hidden]
  const void* embedding;    // [vocab][hidden], bfloat16 or float
};

// Consecutive tokens of one sequence: rows [row, row + num_rows) of the step, positions from `position` on.
struct HrSpan {
  int32_t row, num_rows;
  int32_t position;
  int32_t table;  // index in `tables` of its first block; block_size tokens each
};

struct HrStep {
  int32_t num_rows, num_spans, num_outputs, block_size;
  const int32_t* token_ids;    // [num_rows]
  const HrSpan* spans;         // [num_spans], by row
  const int32_t* tables;       // the spans' block tables, one after another
  const float* cos;            // [num_rows][head_dim / 2], of each row's position
  const float* sin;
  const int32_t* output_rows;  // [num_outputs], rising
  float* hidden;               // [num_outputs][hidden], normed: written by the call that runs the last layer
  uint8_t* cache;              // layer after layer, each num_blocks * block_size slots; see kv.h
  int64_t layer_bytes;         // of one layer in `cache`
};

enum HrPart : int32_t { HR_PRODUCTS = 0, HR_ATTENTION = 1, HR_HEAD = 2, HR_OTHER = 3, HR_NUM_PARTS = 4 };

struct HrDecoder;

// A decoder with threads of its own, which sleep between calls; one call at a time. `cpus`: one for each thread, or none
// (num_cpus = 0). The model's description is copied, what it points to is not. Null: `error` says why.
HrDecoder* hr_open(const HrModel* model, int32_t num_threads, const int32_t* cpus, int32_t num_cpus, char* error,
                   int32_t error_size);
void hr_close(HrDecoder* decoder);

// Runs layers [layer_begin, layer_end) of a step: all of them, in order, by one call or by several. 0, or 1 and `error`.
int32_t hr_run(HrDecoder* decoder, const HrStep* step, int32_t layer_begin, int32_t layer_end, char* error,
               int32_t error_size);

// logits [num_rows][vocab] of normed hidden states [num_rows][hidden]; with `token_ids` [num_rows][num_tokens] of these.
int32_t hr_logits(HrDecoder* decoder, const float* hidden, int32_t num_rows, const int32_t* token_ids,
                  int32_t num_tokens, float* logits, char* error, int32_t error_size);

// The largest logit of each row and its token (of equal ones the first), without the others being written anywhere. A row
// in which one is not finite has NaN as its largest.
int32_t hr_best(HrDecoder* decoder, const float* hidden, int32_t num_rows, int32_t* tokens, float* logits, char* error,
                int32_t error_size);

// Seconds of all calls so far by part, [HR_NUM_PARTS].
void hr_seconds(const HrDecoder* decoder, double* seconds);

}  // extern "C"
