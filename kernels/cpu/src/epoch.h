// A counter that threads wait on until it moves: they spin for about as long as a sleep and a wake-up cost, then sleep.
//
// Whoever loses its core to a neighbour keeps the others waiting for milliseconds; a waiting thread that spins through
// them holds a core that the late one could run on. One that sleeps gives it up, and an idle engine burns nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#if defined(__linux__)
#include <climits>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#include <mutex>
#endif

namespace hr {

constexpr int CACHE_LINE = 64;  // bytes; what two threads write stands on lines of their own

// Tells the core that this is a spin loop: it saves power and leaves the shared units to the other hyperthread.
inline void spin_pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

class alignas(CACHE_LINE) Epoch {
 public:
  // How long `wait` spins before it sleeps. By time, not by count: a pause takes from 10 to 140 cycles by processor.
  static constexpr std::chrono::microseconds SPIN{30};

  uint32_t now() const { return value_.load(std::memory_order_acquire); }

  // Moves the epoch on by `steps` and wakes who waits. All that this thread wrote before is seen by whom `wait` lets go.
  // Either this load sees the sleeper, or the sleeper's look at the value (in the kernel, or under the mutex) sees the
  // new one: both sides write one and then read the other, sequentially consistent.
  void advance(uint32_t steps) {
    value_.fetch_add(steps, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake_all();
  }

  // Returns once the epoch is another than `seen`.
  void wait(uint32_t seen) {
    if (spun_out(seen)) sleep(seen);
  }

 private:
  // Spins; false if the epoch moved meanwhile. The clock is read once in 32 pauses: a read takes some 20 ns.
  bool spun_out(uint32_t seen) const {
    std::chrono::steady_clock::time_point end{};
    for (;;) {
      for (int i = 0; i < 32; ++i) {
        if (now() != seen) return false;
        spin_pause();
      }
      const auto time = std::chrono::steady_clock::now();
      if (end == std::chrono::steady_clock::time_point{}) end = time + SPIN;
      if (time >= end) return true;
    }
  }

#if defined(__linux__)
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain 32-bit word");

  void sleep(uint32_t seen) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (value_.load(std::memory_order_seq_cst) == seen) futex(FUTEX_WAIT_PRIVATE, seen);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

  void wake_all() { futex(FUTEX_WAKE_PRIVATE, INT_MAX); }

  // Errors need no look: a wait that returns early (EAGAIN, EINTR) is asked again by the loop around it.
  void futex(int operation, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), operation, value, nullptr, nullptr, 0);
  }
#else
  void sleep(uint32_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    moved_.wait(lock, [&] { return value_.load(std::memory_order_seq_cst) != seen; });
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

  void wake_all() {
    { std::lock_guard<std::mutex> lock(mutex_); }  // a sleeper is either before its look or already asleep
    moved_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable moved_;
#endif

  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace hr
