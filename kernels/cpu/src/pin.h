// Binding threads to CPUs (Linux).
#pragma once

#include <cerrno>
#include <string>
#include <system_error>
#include <thread>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace hr {

[[noreturn]] inline void cannot_pin(int cpu, int error) {
  throw std::system_error(error, std::generic_category(), "a thread cannot be pinned to CPU " + std::to_string(cpu));
}

#if defined(__linux__)

// Binds `thread` to `cpu`. Throws std::system_error: a CPU that does not exist or is not this process's to use.
inline void pin(pthread_t thread, int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) cannot_pin(cpu, EINVAL);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  if (const int error = pthread_setaffinity_np(thread, sizeof set, &set)) cannot_pin(cpu, error);
}

// While it lives, the thread that made it runs on `cpu` alone; then again where it was allowed to before.
class Pinned {
 public:
  Pinned() = default;  // nothing is pinned
  explicit Pinned(int cpu) {
    if (const int error = pthread_getaffinity_np(pthread_self(), sizeof before_, &before_)) cannot_pin(cpu, error);
    pin(pthread_self(), cpu);
    pinned_ = true;
  }
  ~Pinned() {
    if (pinned_) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  bool pinned_ = false;
  cpu_set_t before_;
};

#else

inline void pin(std::thread::native_handle_type, int cpu) { cannot_pin(cpu, ENOTSUP); }

class Pinned {
 public:
  Pinned() = default;
  explicit Pinned(int cpu) { cannot_pin(cpu, ENOTSUP); }
};

#endif

}  // namespace hr
