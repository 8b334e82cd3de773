// A team of threads of our own, led by the thread that calls it: it runs plain sequential code, and shares out a loop's
// chunks where there is something to share. No OpenMP: a second runtime beside torch's would spin against it.
//
//   Team team(2, {});                     // once
//   const Pinned here = team.pin_caller();  // for as long as it lives; does nothing unless CPUs were named
//   team.each(num_chunks, [&](int chunk, int thread) noexcept { ... });  // each chunk once; all done when it returns
//   team.each(num_others, [&](int chunk, int thread) noexcept { ... });  // sees all that the first wrote
//
// There is no barrier at which all threads must meet: a loop is over when its chunks are done. A worker that still wakes
// up, or that has lost its core to another process, holds nobody up unless it has a chunk in hand. Beside busy
// processes (8 runnable threads on 2 cores) a step of 180 loops of 40 us took 25 ms; with a barrier after each, 33 ms.
#pragma once

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "epoch.h"
#include "pin.h"

namespace hr {

class Team {
 public:
  // Starts num_threads - 1 workers. `cpus`: empty, or one CPU for each thread, the caller's first.
  // Throws std::invalid_argument, or std::system_error for a thread that cannot be started or pinned.
  Team(int num_threads, std::vector<int> cpus) : num_threads_(num_threads), cpus_(std::move(cpus)) {
    if (num_threads < 1) throw std::invalid_argument("a team needs a thread, got " + std::to_string(num_threads));
    if (!cpus_.empty() && cpus_.size() != static_cast<size_t>(num_threads))
      throw std::invalid_argument("pinning names one CPU for each of " + std::to_string(num_threads) +
                                  " threads, got " + std::to_string(cpus_.size()));
    try {
      pin_caller();  // let go at once; it only shows now, not at the first step, that it can be done
      for (int thread = 1; thread < num_threads; ++thread) start(thread);
    } catch (...) {
      stop();
      throw;
    }
  }

  ~Team() { stop(); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int num_threads() const { return num_threads_; }

  // Keeps the calling thread on its CPU while the result lives. Throws std::system_error.
  Pinned pin_caller() const { return cpus_.empty() ? Pinned() : Pinned(cpus_[0]); }

  // Calls body(chunk, thread) once for every chunk from 0 to num_chunks - 1, on whichever threads come first, and
  // returns when all are done. `thread`: 0 for the caller, up to num_threads - 1; two calls at a time never share it.
  // Chunks start in rising order. `body` must be noexcept, and calls no `each`; one `each` at a time.
  template <class Body>
  void each(int num_chunks, Body&& body) {
    static_assert(std::is_nothrow_invocable_v<Body&, int, int>, "the body of a team's loop must be noexcept");
    if (num_threads_ == 1 || num_chunks <= 1) {
      for (int chunk = 0; chunk < num_chunks; ++chunk) body(chunk, 0);
      return;
    }
    loop_.call = [](void* of, int chunk, int thread) {
      (*static_cast<std::remove_reference_t<Body>*>(of))(chunk, thread);
    };
    loop_.body = const_cast<void*>(static_cast<const void*>(std::addressof(body)));
    share_out(static_cast<uint32_t>(num_chunks));
  }

 private:
  // The loop under way. `ticket` is the number of chunks (high half) and the next one (low half) in one word: whoever
  // claims knows both of the same loop, so a late worker takes no chunk of a loop that is over. `call` and `body` are
  // written only while no chunk is out, and read only by who has claimed one.
  struct alignas(CACHE_LINE) Loop {
    std::atomic<uint64_t> ticket{0};
    void (*call)(void* body, int chunk, int thread) = nullptr;
    void* body = nullptr;
  };

  void share_out(uint32_t num_chunks) {
    loop_.ticket.store((uint64_t{num_chunks} << 32) + 1, std::memory_order_release);  // chunk 0 is the caller's
    started_.advance(1);
    loop_.call(loop_.body, 0, 0);
    take_chunks(0, 1);
    chunks_to_finish_ += num_chunks;
    for (uint32_t done; (done = finished_.now()) != chunks_to_finish_;) finished_.wait(done);
  }

  // Does chunks until none is left, then says how many, those before (`num_done`) included.
  void take_chunks(int thread, uint32_t num_done) {
    for (;; ++num_done) {
      const uint64_t ticket = loop_.ticket.fetch_add(1, std::memory_order_acquire);
      const auto chunk = static_cast<uint32_t>(ticket);
      if (chunk >= ticket >> 32) break;
      loop_.call(loop_.body, static_cast<int>(chunk), thread);
    }
    if (num_done != 0) finished_.advance(num_done);
  }

  void start(int thread) {
    workers_.emplace_back([this, thread] { serve(thread); });
    if (!cpus_.empty()) pin(workers_.back().native_handle(), cpus_[static_cast<size_t>(thread)]);
  }

  // A worker's life. The epoch is read before the chunks are looked for: a loop that starts later moves it.
  void serve(int thread) {
    for (;;) {
      const uint32_t seen = started_.now();
      if (stopping_.load(std::memory_order_relaxed)) return;
      take_chunks(thread, 0);
      started_.wait(seen);
    }
  }

  void stop() {
    stopping_.store(true, std::memory_order_relaxed);
    started_.advance(1);
    for (std::thread& worker : workers_) worker.join();
  }

  const int num_threads_;
  const std::vector<int> cpus_;
  std::vector<std::thread> workers_;
  std::atomic<bool> stopping_{false};
  uint32_t chunks_to_finish_ = 0;  // of all loops so far; the caller's own
  Epoch started_;                  // moves with every loop
  Loop loop_;
  Epoch finished_;  // chunks of all loops so far
};

}  // namespace hr
