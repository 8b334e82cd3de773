// The planner's items: every packed row once, longest first, and balanced over the threads.
#include "attention_work.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "check.h"

using hr::AttentionItem;

struct Planned {
  HrModel model{};
  HrStep step{};
  std::vector<HrSpan> spans;
  std::vector<int32_t> tables;
  hr::AttentionWork work;

  Planned(int num_heads, int num_kv_heads, int window, int block_size, const std::vector<std::pair<int, int>>& chunks,
          int num_threads) {
    model.num_heads = num_heads;
    model.num_kv_heads = num_kv_heads;
    model.sliding_window = window;
    for (auto [position, num_rows] : chunks) {
      spans.push_back({step.num_rows, num_rows, position, int32_t(tables.size())});
      step.num_rows += num_rows;
      for (int at = 0; at < position + num_rows; at += block_size) tables.push_back(1000 - int32_t(tables.size()));
    }
    step.block_size = block_size;
    step.num_spans = int(spans.size());
    step.spans = spans.data();
    step.tables = tables.data();
    hr::AttentionPlanner(model, step, num_threads).plan(work);
  }

  void check_cover() const {
    const int group = model.num_heads / model.num_kv_heads;
    std::map<std::pair<int, int>, std::vector<int>> seen;
    for (const AttentionItem& item : work.items) {
      CHECK(item.begin < item.end && item.end - item.begin <= hr::QUERY_TILE);
      auto& counts = seen[{item.span, item.kv_head}];
      counts.resize(size_t(spans[size_t(item.span)].num_rows * group));
      for (int i = item.begin; i < item.end; i++) counts[size_t(i)]++;
    }
    CHECK(seen.size() == spans.size() * size_t(model.num_kv_heads));
    for (const auto& [of, counts] : seen)
      for (int count : counts) CHECK(count == 1);
  }

  void check_order() const {
    for (size_t i = 1; i < work.items.size(); i++)
      CHECK(hr::item_cost(model, step, work.items[i - 1]) >= hr::item_cost(model, step, work.items[i]));
  }

  void check_slots() const {
    for (const HrSpan& span : spans)
      for (int i = 0; i < span.num_rows; i++) {
        const int position = span.position + i;
        const int block = tables[size_t(span.table + position / step.block_size)];
        CHECK(work.slots[size_t(span.row + i)] == block * step.block_size + position % step.block_size);
      }
  }

  // When the last of the threads ends, in units of cost, and how much work there is in all.
  std::pair<int64_t, int64_t> ends(int num_threads) const {
    std::vector<int64_t> busy(size_t(num_threads), 0);
    for (const AttentionItem& item : work.items)
      *std::min_element(busy.begin(), busy.end()) += hr::item_cost(model, step, item);
    return {*std::max_element(busy.begin(), busy.end()), std::accumulate(busy.begin(), busy.end(), int64_t(0))};
  }
};

static void any_step_is_covered() {
  std::mt19937 random(5);
  const auto below = [&](unsigned n) { return int(random() % n); };
  for (int trial = 0; trial < 300; trial++) {
    const int num_kv_heads = 1 + below(4), group = 1 + below(8), block_size = 16 * (1 + below(4));
    std::vector<std::pair<int, int>> chunks;
    for (int spans = 1 + below(9); spans > 0; spans--) chunks.push_back({below(300), below(3) ? 1 : 1 + below(130)});
    const Planned planned(num_kv_heads * group, num_kv_heads, below(2) * 70, block_size, chunks, 1 + below(64));
    planned.check_cover();
    planned.check_order();
    planned.check_slots();
  }
}

// One sequence of three kv heads on two threads: neither has more than the larger part of an even split by query heads.
static void one_sequence_is_shared_evenly() {
  const Planned two(9, 3, 0, 16, {{255, 1}}, 2);
  CHECK(two.work.items.size() == 4 && two.ends(2).first * 100 <= two.ends(2).second * 55);
  const Planned many(9, 3, 0, 16, {{255, 1}}, 64);
  CHECK(many.work.items.size() == 9);
}

static void enough_sequences_are_not_split() {
  const std::vector<std::pair<int, int>> chunks(32, {255, 1});
  const Planned planned(9, 3, 0, 16, chunks, 2);
  CHECK(planned.work.items.size() == 96 && planned.ends(2).first * 2 == planned.ends(2).second);
}

int main() {
  any_step_is_covered();
  one_sequence_is_shared_evenly();
  enough_sequences_are_not_split();
}
