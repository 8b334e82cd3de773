// Many loops on teams of `threads`: every chunk once, and each loop sees what the one before it wrote. Chunks yield, so
// that others get some too, however few the cores.
// Arguments: threads, rounds.
#include <atomic>
#include <thread>
#include <vector>

#include "check.h"
#include "team.h"

namespace {

size_t at(int index) { return static_cast<size_t>(index); }

// Plain memory, ordered by nothing but the ends of loops: read by the caller, and by other threads in the next loop.
void each_loop_sees_the_one_before(hr::Team& team, int rounds) {
  constexpr int num_chunks = 13;
  std::vector<int> left(num_chunks, 0), right(left);
  for (int round = 0; round < rounds; ++round) {
    team.each(num_chunks, [&](int chunk, int) noexcept { left[at(chunk)] = round * num_chunks + chunk; });
    team.each(num_chunks, [&](int chunk, int) noexcept { right[at(chunk)] = left[at(num_chunks - 1 - chunk)]; });
    for (int chunk = 0; chunk < num_chunks; ++chunk) CHECK(right[at(chunk)] == (round + 1) * num_chunks - 1 - chunk);
  }
}

// Loops of every length, none included, follow one another without a pause.
void each_chunk_is_done_once(hr::Team& team, int rounds) {
  constexpr int most = 97;
  std::vector<int> done(most, 0), wanted(most, 0);
  for (int round = 0; round < rounds; ++round) {
    const int num_chunks = round * 31 % most;
    team.each(num_chunks, [&](int chunk, int) noexcept {
      done[at(chunk)] += round;
      std::this_thread::yield();
    });
    for (int chunk = 0; chunk < num_chunks; ++chunk) wanted[at(chunk)] += round;
  }
  CHECK(done == wanted);
}

// All threads claim as fast as they can.
void many_chunks_are_done_once(hr::Team& team, int rounds) {
  std::vector<int> done(20'000, 0);
  for (int round = 0; round < rounds; ++round)
    team.each(static_cast<int>(done.size()), [&](int chunk, int) noexcept { ++done[at(chunk)]; });
  for (int count : done) CHECK(count == rounds);
}

// What belongs to a thread (its scratch memory) is never used by two at a time.
void a_thread_index_is_one_threads_own(hr::Team& team, int rounds) {
  std::vector<int> sums(at(team.num_threads()), 0);
  for (int round = 0; round < rounds; ++round) {
    team.each(64, [&](int chunk, int thread) noexcept {
      CHECK(0 <= thread && thread < team.num_threads());
      const int before = sums[at(thread)];
      std::this_thread::yield();
      sums[at(thread)] = before + chunk;
    });
  }
  int sum = 0;
  for (int part : sums) sum += part;
  CHECK(sum == rounds * (63 * 64 / 2));
}

// The caller has long done its own chunk when the worker is still at work.
void a_loop_ends_with_its_last_chunk(hr::Team& team, int rounds) {
  if (team.num_threads() == 1) return;
  for (int round = 0; round < rounds; ++round) {
    std::atomic<bool> has_begun{false}, caller_is_done{false};
    bool is_done = false;
    team.each(2, [&](int chunk, int) noexcept {
      if (chunk == 0) {
        while (!has_begun) std::this_thread::yield();
        caller_is_done = true;
      } else {
        has_begun = true;
        while (!caller_is_done) std::this_thread::yield();
        for (int i = 0; i < 100; ++i) std::this_thread::yield();
        is_done = true;
      }
    });
    CHECK(is_done);
  }
}

void teams_come_and_go(int threads, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    hr::Team unused(threads, {});
    hr::Team team(threads, {});
    each_chunk_is_done_once(team, 5);
  }
}

}  // namespace

int main(int, char** arguments) {
  const int threads = std::atoi(arguments[1]), rounds = std::atoi(arguments[2]);
  hr::Team team(threads, {});
  CHECK(team.num_threads() == threads);
  each_loop_sees_the_one_before(team, rounds);
  each_chunk_is_done_once(team, rounds);
  many_chunks_are_done_once(team, rounds / 10);
  a_thread_index_is_one_threads_own(team, rounds);
  a_loop_ends_with_its_last_chunk(team, rounds / 10);
  teams_come_and_go(threads, 20);
}
