// The C ABI (step.h) over a decoder (decoder.h): what is thrown becomes text, and the caller is pinned while it computes.
#include "step.h"

#include <chrono>
#include <cstdio>
#include <exception>
#include <vector>

#include "decoder.h"
#include "pack.h"

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
    for (int layer = layer_begin; layer < layer_end; layer++) decoder->run(*step, layer);
    if (layer_end == decoder->model.num_layers) decoder->finish(*step);
  });
}

int32_t hr_logits(HrDecoder* decoder, const float* hidden, int32_t num_rows, const int32_t* token_ids,
                  int32_t num_tokens, float* logits, char* error, int32_t error_size) {
  return guarded(error, error_size, [&] {
    if (num_rows == 0) return;
    const Pinned here = decoder->team.pin_caller();
    decoder->last = std::chrono::steady_clock::now();
    if (token_ids)
      decoder->logits_of(hidden, num_rows, token_ids, num_tokens, logits);
    else
      decoder->logits(hidden, num_rows, logits);
  });
}

int32_t hr_best(HrDecoder* decoder, const float* hidden, int32_t num_rows, int32_t* tokens, float* logits, char* error,
                int32_t error_size) {
  return guarded(error, error_size, [&] {
    if (num_rows == 0) return;
    const Pinned here = decoder->team.pin_caller();
    decoder->last = std::chrono::steady_clock::now();
    decoder->best(hidden, num_rows, tokens, logits);
  });
}

void hr_seconds(const HrDecoder* decoder, double* seconds) {
  std::memcpy(seconds, decoder->seconds, sizeof decoder->seconds);
}

}  // extern "C"
