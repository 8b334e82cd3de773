// Paged attention against plain double loops, and that a row's bits do not depend on how the work was cut.
#include "attention_case.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

static bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// What rounding the query and the probabilities to bfloat16, or to 16 bits, may cost.
static double tolerance(const Shape& shape) { return shape.kv == HR_KV_INT8 ? 6e-5 : 3e-3; }

static void equals_the_plain_loops(const Shape& shape, int num_tokens) {
  Engine engine(shape, {num_tokens}, unsigned(num_tokens));
  const std::vector<float> got = engine.in_chunks(0, num_tokens);
  const double error = relative_error(got, plain_attention(shape, engine.sequences[0]));
  if (!(error < tolerance(shape)))
    std::fprintf(stderr, "kv heads %d, group %d, head_dim %d, block %d, window %d, %d tokens: error %g\n",
                 shape.num_kv_heads, shape.group, shape.head_dim, shape.block_size, shape.window, num_tokens, error);
  CHECK(error < tolerance(shape));
}

static void does_not_depend_on_the_cut(const Shape& shape, int num_tokens) {
  Engine whole(shape, {num_tokens}, 7), other(shape, {num_tokens}, 7);
  const std::vector<float> expected = whole.in_chunks(0, num_tokens);
  for (int chunk : {1, 3, 16, 33}) CHECK(same_bits(expected, other.in_chunks(0, chunk)));
}

// The same sequence among others, decoding and prefilling in one step, split for many threads and taken backwards.
static void does_not_depend_on_the_batch(const Shape& shape) {
  const int length = 90;
  Engine alone(shape, {length, 40, 130}, 9), batch(shape, {length, 40, 130}, 9);
  const std::vector<float> expected = alone.in_chunks(0, length);
  batch.step({{1, 0, 20}, {0, 0, 70}, {2, 0, 100}}, 2);
  batch.step({{2, 100, 1}, {0, 70, 1}, {1, 20, 20}}, 64, true);
  batch.step({{0, 71, 5}, {2, 101, 29}}, 64);
  batch.step({{0, 76, 14}}, 3, true);
  CHECK(same_bits(expected, batch.out[0]));
}

// A rejected draft's slots are written again; the numbers of a neighbour that went wrong never leave its own rows.
static void rewritten_and_foreign_slots_leave_no_trace(const Shape& shape) {
  const int length = 40;
  Engine clean(shape, {length, 30}, 11), other(shape, {length, 30}, 11);
  const std::vector<float> expected = clean.in_chunks(0, length);
  for (float& x : other.sequences[1].qkv) x = NAN;
  other.step({{0, 0, 33}, {1, 0, 30}});
  const std::vector<float> right = other.sequences[0].qkv;
  for (size_t i = size_t(33 * shape.row_width()); i < right.size(); i++) other.sequences[0].qkv[i] = NAN;
  other.step({{0, 33, 7}});
  other.sequences[0].qkv = right;
  other.step({{0, 33, 1}, {1, 29, 1}});
  other.step({{0, 34, 6}});
  CHECK(same_bits(expected, other.out[0]));
  for (float x : other.out[1]) CHECK(std::isnan(x));
}

int main(int, char** arguments) {
  const int kv = std::atoi(arguments[1]);
  for (int head_dim = 16; head_dim <= 256; head_dim += 16)
    for (int group : {1, 3}) equals_the_plain_loops({2, group, head_dim, 16, 0, kv}, 70);
  for (int group = 1; group <= 8; group++) equals_the_plain_loops({1, group, 32, 32, 0, kv}, 53);
  for (int num_tokens : {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 257})
    for (int window : {0, 1, 17, 64, 100}) equals_the_plain_loops({1, 2, 32, 16, window, kv}, num_tokens);
  equals_the_plain_loops({3, 3, 64, 128, 0, kv}, 300);
  equals_the_plain_loops({1, 50, 16, 16, 0, kv}, 9);
  for (int window : {0, 1, 5, 16, 70}) does_not_depend_on_the_cut({2, 3, 48, 16, window, kv}, 150);
  for (int window : {0, 200}) does_not_depend_on_the_cut({1, 2, 16, 32, window, kv}, 420);
  does_not_depend_on_the_cut({1, 8, 256, 48, 0, kv}, 70);
  for (int window : {0, 30}) {
    does_not_depend_on_the_batch({2, 4, 64, 32, window, kv});
    rewritten_and_foreign_slots_leave_no_trace({2, 3, 32, 16, window, kv});
  }
}
