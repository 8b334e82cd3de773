// The items of work that one step's attention consists of, the same in every layer: planned once per step.
//
// The query heads that share a kv head are packed with the positions of a span: packed row i of a span and kv head is
// position i / group, head i % group of the group. An item is a range of packed rows, which meet each tile of keys
// together. Many rows read keys and values once, so an item is split further only where the last of the threads would
// end sooner for it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "kv.h"
#include "step.h"

namespace hr {

constexpr int KEY_BLOCK = 128;  // keys at absolute positions that a row takes in one step of its softmax
constexpr int QUERY_TILE = 48;  // packed rows of an item, at most

struct AttentionItem {
  int32_t span, kv_head;
  int32_t begin, end;  // packed rows
};

struct AttentionWork {
  std::vector<int32_t> slots;        // [num_rows], where a row's key and value go
  std::vector<AttentionItem> items;  // in the order in which threads should take them
};

// The first key that a token sees.
HR_INLINE int first_key(const HrModel& model, int position) {
  return model.sliding_window > 0 ? std::max(0, position - model.sliding_window + 1) : 0;
}

// How long an item takes, in units of one row and key block. To bring a block from memory costs as much as `fetch` rows
// (128 keys of 64 dimensions in bfloat16: 32 KB at 17 GB/s a thread, against 0.23 us a row).
HR_INLINE int64_t item_cost(const HrModel& model, const HrStep& step, const AttentionItem& item) {
  constexpr int64_t fetch = 8;
  const int group = model.num_heads / model.num_kv_heads;
  const HrSpan& span = step.spans[item.span];
  const int first = first_key(model, span.position + item.begin / group);
  const int last = span.position + (item.end - 1) / group;
  return (last / KEY_BLOCK - first / KEY_BLOCK + 1) * (fetch + item.end - item.begin);
}

class AttentionPlanner {
 public:
  AttentionPlanner(const HrModel& model, const HrStep& step, int num_threads)
      : model_(model), step_(step), num_threads_(num_threads) {}

  void plan(AttentionWork& work) {
    work.slots.resize(size_t(step_.num_rows));
    for (int s = 0; s < step_.num_spans; s++) find_slots(step_.spans[s], work.slots);
    items_.clear();
    for (int s = 0; s < step_.num_spans; s++)
      for (int kv_head = 0; kv_head < model_.num_kv_heads; kv_head++) cut(s, kv_head);
    std::stable_sort(items_.begin(), items_.end(), longer);
    if (items_.size() < size_t(4 * num_threads_)) balance();
    work.items.clear();
    for (const Costed& costed : items_) work.items.push_back(costed.item);
  }

 private:
  struct Costed {
    AttentionItem item;
    int64_t cost;
  };
  static bool longer(const Costed& a, const Costed& b) { return a.cost > b.cost; }

  void find_slots(const HrSpan& span, std::vector<int32_t>& slots) const {
    const int32_t* table = step_.tables + span.table;
    for (int i = 0; i < span.num_rows; i++) {
      const int position = span.position + i;
      slots[size_t(span.row + i)] = table[position / step_.block_size] * step_.block_size + position % step_.block_size;
    }
  }

  void cut(int span, int kv_head) {
    const int num_packed = step_.spans[span].num_rows * (model_.num_heads / model_.num_kv_heads);
    for (int begin = 0; begin < num_packed; begin += QUERY_TILE)
      add({span, kv_head, begin, std::min(begin + QUERY_TILE, num_packed)});
  }

  void add(const AttentionItem& item) { items_.push_back({item, item_cost(model_, step_, item)}); }

  // When the last thread ends, if each takes the next item as soon as it is free.
  int64_t makespan() {
    const auto later = std::greater<int64_t>();
    busy_until_.assign(size_t(num_threads_), 0);
    for (const Costed& costed : items_) {  // the heap's front is the thread that is free first
      std::pop_heap(busy_until_.begin(), busy_until_.end(), later);
      busy_until_.back() += costed.cost;
      std::push_heap(busy_until_.begin(), busy_until_.end(), later);
    }
    return *std::max_element(busy_until_.begin(), busy_until_.end());
  }

  // Halves the longest item again and again, and keeps the plan that ends first.
  // Source of the order: Graham, "Bounds on Multiprocessing Timing Anomalies", 1969 (longest processing time first).
  void balance() {
    int64_t best = makespan();
    auto best_items = items_;
    while (items_.size() < size_t(4 * num_threads_)) {
      const AttentionItem item = items_.front().item;
      const int middle = (item.begin + item.end + 1) / 2;
      if (middle == item.end) break;
      items_.erase(items_.begin());
      add({item.span, item.kv_head, item.begin, middle});
      add({item.span, item.kv_head, middle, item.end});
      std::stable_sort(items_.begin(), items_.end(), longer);
      const int64_t now = makespan();
      if (now >= best) continue;
      best = now;
      best_items = items_;
    }
    items_ = best_items;
  }

  const HrModel& model_;
  const HrStep& step_;
  const int num_threads_;
  std::vector<Costed> items_;
  std::vector<int64_t> busy_until_;
};

}  // namespace hr
