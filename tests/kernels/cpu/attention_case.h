// A model's shape and sequences of random queries, keys and values, run through kv.h and attention.h in any chunks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "attention.h"
#include "check.h"

struct Shape {
  int num_kv_heads, group, head_dim, block_size, window, kv;

  HrModel model() const {
    HrModel m{};
    m.num_heads = num_kv_heads * group;
    m.num_kv_heads = num_kv_heads;
    m.head_dim = head_dim;
    m.sliding_window = window;
    m.kv = kv;
    m.rms_norm_eps = 1e-6f;
    return m;
  }
  int row_width() const { return (group + 2) * num_kv_heads * head_dim; }
  int out_width() const { return group * num_kv_heads * head_dim; }
};

inline std::vector<float> random_floats(size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& x : values) x = normal(random);
  return values;
}

// Rows of one sequence: queries, keys and values [num_tokens][row_width] and the angles of their positions.
struct Sequence {
  std::vector<float> qkv, cos, sin;
  std::vector<int32_t> table;

  Sequence(const Shape& shape, int num_tokens, std::mt19937& random)
      : qkv(random_floats(size_t(num_tokens * shape.row_width()), random)) {
    for (int t = 0; t < num_tokens; t++)
      for (int d = 0; d < shape.head_dim / 2; d++) {
        const float angle = float(t) * std::pow(1e4f, -2.f * float(d) / float(shape.head_dim));
        cos.push_back(std::cos(angle));
        sin.push_back(std::sin(angle));
      }
  }
};

// Some sequences over one cache, whose slots hold NaNs before they are written.
struct Engine {
  const Shape shape;
  const HrModel model;
  std::vector<uint8_t> cache;
  std::vector<Sequence> sequences;
  std::vector<std::vector<float>> out;  // by sequence, [num_tokens][out_width]

  Engine(const Shape& of, const std::vector<int>& lengths, unsigned seed) : shape(of), model(of.model()) {
    std::mt19937 random(seed);
    int num_blocks = 3;  // some stay unused
    for (int length : lengths) num_blocks += (length + shape.block_size - 1) / shape.block_size;
    std::vector<int32_t> blocks(size_t(num_blocks), 0);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), random);
    for (int length : lengths) {
      sequences.emplace_back(shape, length, random);
      for (int at = 0; at < length; at += shape.block_size) {
        sequences.back().table.push_back(blocks.back());
        blocks.pop_back();
      }
      out.emplace_back(size_t(length * shape.out_width()));
    }
    const int64_t tile_bytes = hr_kv_tile_bytes(shape.kv, shape.num_kv_heads, shape.head_dim);
    cache.assign(size_t(tile_bytes * num_blocks * shape.block_size / hr::TILE), 0xff);
  }

  struct Chunk {
    int sequence, position, num_tokens;
  };

  // One step over the chunks, items in the planned order or in the opposite one.
  void step(const std::vector<Chunk>& chunks, int num_threads = 1, bool backwards = false) {
    std::vector<float> qkv, cos, sin;
    std::vector<int32_t> tables;
    std::vector<HrSpan> spans;
    for (const Chunk& chunk : chunks) {
      const Sequence& sequence = sequences[size_t(chunk.sequence)];
      const int row = int(qkv.size()) / shape.row_width();
      spans.push_back({row, chunk.num_tokens, chunk.position, int32_t(tables.size())});
      tables.insert(tables.end(), sequence.table.begin(), sequence.table.end());
      append(qkv, sequence.qkv, chunk, shape.row_width());
      append(cos, sequence.cos, chunk, shape.head_dim / 2);
      append(sin, sequence.sin, chunk, shape.head_dim / 2);
    }
    HrStep step{};
    step.num_rows = int(qkv.size()) / shape.row_width();
    step.num_spans = int(spans.size());
    step.block_size = shape.block_size;
    step.spans = spans.data();
    step.tables = tables.data();
    step.cos = cos.data();
    step.sin = sin.data();
    hr::AttentionWork work;
    hr::AttentionPlanner(model, step, num_threads).plan(work);
    std::vector<float> rows(size_t(step.num_rows * shape.out_width()), NAN);
    const hr::Attention attention{model, step, work, cache.data(), qkv.data(), rows.data()};
    hr::write_rows(attention, nullptr, 0, step.num_rows);
    std::vector<char> scratch(size_t(hr::attention_scratch_bytes(shape.head_dim)));
    const int num_items = int(work.items.size());
    int claimed = 0;
    hr::attend_items(attention, scratch.data(), [&] {
      const int item = claimed++;
      return backwards && item < num_items ? num_items - 1 - item : item;
    });
    const float* next = rows.data();
    for (const Chunk& chunk : chunks) {
      const size_t count = size_t(chunk.num_tokens * shape.out_width());
      std::copy(next, next + count, out[size_t(chunk.sequence)].begin() + chunk.position * shape.out_width());
      next += count;
    }
  }

  // Sequence `of` alone, `chunk` tokens a step; the result.
  std::vector<float> in_chunks(int of, int chunk) {
    const int num_tokens = int(sequences[size_t(of)].qkv.size()) / shape.row_width();
    for (int at = 0; at < num_tokens; at += chunk) step({{of, at, std::min(chunk, num_tokens - at)}});
    return out[size_t(of)];
  }

 private:
  static void append(std::vector<float>& to, const std::vector<float>& from, const Chunk& chunk, int width) {
    const auto begin = from.begin() + int64_t(chunk.position) * width;
    to.insert(to.end(), begin, begin + int64_t(chunk.num_tokens) * width);
  }
};

// A head as the cache holds it, so that what is left of an error is the products' own.
inline void store_and_read(const Shape& shape, float* head) {
  float amax = 0;
  for (int d = 0; d < shape.head_dim; d++) amax = std::max(amax, std::fabs(head[d]));
  for (int d = 0; d < shape.head_dim; d++)
    head[d] = shape.kv == HR_KV_INT8 ? std::nearbyintf(head[d] * (127.f / amax)) * (amax / 127.f)
                                     : hr::from_bf16(hr::to_bf16(head[d]));
}

// All heads of a sequence, [num_tokens][row_width]: queries and keys rotated, keys and values as they are stored.
inline std::vector<float> final_heads(const Shape& shape, const Sequence& sequence) {
  std::vector<float> heads = sequence.qkv;
  const int half = shape.head_dim / 2, num_queries = shape.num_kv_heads * shape.group;
  const int per_token = num_queries + 2 * shape.num_kv_heads, num_turned = num_queries + shape.num_kv_heads;
  for (int i = 0; i < int(heads.size()) / shape.head_dim; i++) {
    float* x = &heads[size_t(i * shape.head_dim)];
    const size_t angle = size_t(i / per_token * half);
    for (int d = 0; i % per_token < num_turned && d < half; d++) {
      const float first = x[d], second = x[d + half];
      const float cos = sequence.cos[angle + size_t(d)], sin = sequence.sin[angle + size_t(d)];
      x[d] = first * cos - second * sin;
      x[d + half] = second * cos + first * sin;
    }
    if (i % per_token >= num_queries) store_and_read(shape, x);
  }
  return heads;
}

// Attention in plain double loops: [num_tokens][out_width].
inline std::vector<double> plain_attention(const Shape& shape, const Sequence& sequence) {
  const std::vector<float> heads = final_heads(shape, sequence);
  const int num_heads = shape.num_kv_heads * shape.group, num_tokens = int(heads.size()) / shape.row_width();
  const auto at = [&](int token, int head) {
    return &heads[size_t(token * shape.row_width() + head * shape.head_dim)];
  };
  std::vector<double> out(size_t(num_tokens * shape.out_width())), p(size_t(num_tokens), 0);
  for (int token = 0; token < num_tokens; token++)
    for (int head = 0; head < num_heads; head++) {
      const int key_head = num_heads + head / shape.group, value_head = key_head + shape.num_kv_heads;
      const int first = shape.window ? std::max(0, token - shape.window + 1) : 0;
      const float* query = at(token, head);
      double most = -INFINITY, sum = 0;
      for (int key = first; key <= token; key++) {
        const double score = std::inner_product(query, query + shape.head_dim, at(key, key_head), 0.0);
        p[size_t(key)] = score / std::sqrt(double(shape.head_dim));
        most = std::max(most, p[size_t(key)]);
      }
      for (int key = first; key <= token; key++) sum += p[size_t(key)] = std::exp(p[size_t(key)] - most);
      double* to = &out[size_t(token * shape.out_width() + head * shape.head_dim)];
      for (int key = first; key <= token; key++)
        for (int d = 0; d < shape.head_dim; d++) to[d] += p[size_t(key)] / sum * at(key, value_head)[d];
    }
  return out;
}

// Root mean square of the difference, relative to that of `expected`.
inline double relative_error(const std::vector<float>& got, const std::vector<double>& expected) {
  double difference = 0, size = 0;
  CHECK(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); i++) {
    difference += (got[i] - expected[i]) * (got[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(difference / size);
}
