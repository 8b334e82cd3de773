// Who waits for long sleeps: a worker between two loops, and the caller for a worker's chunk. Linux.
// Nothing here is timed by the clock: a thread's sleep is seen in /proc, what it burns on its own CPU clock.
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>

#include "check.h"
#include "team.h"

namespace {

struct Thread {
  long id = 0;
  clockid_t cpu_clock{};
};

Thread this_thread() {
  Thread thread;
  thread.id = syscall(SYS_gettid);
  CHECK(pthread_getcpuclockid(pthread_self(), &thread.cpu_clock) == 0);
  return thread;
}

bool is_asleep(const Thread& thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread.id) + "/stat");
  const std::string line((std::istreambuf_iterator<char>(file)), {});
  return line.at(line.rfind(')') + 2) == 'S';
}

long cpu_us(clockid_t clock) {
  timespec time{};
  CHECK(clock_gettime(clock, &time) == 0);
  return time.tv_sec * 1'000'000 + time.tv_nsec / 1000;
}

// Waits until `other` sleeps (a thread that never does hangs the test), then works for 20 ms: it must cost the other
// next to nothing.
void expect_no_burning(const Thread& other) {
  while (!is_asleep(other)) sched_yield();
  const long before = cpu_us(other.cpu_clock), end = cpu_us(CLOCK_THREAD_CPUTIME_ID) + 20'000;
  while (cpu_us(CLOCK_THREAD_CPUTIME_ID) < end) {
  }
  CHECK(cpu_us(other.cpu_clock) - before < 2'000);
}

// A loop of two chunks, in which caller and worker each have one. Chunk 0 waits for chunk 1, so the worker must come.
template <class Chunk>
void one_chunk_each(hr::Team& team, Chunk&& of_the_worker) {
  std::atomic<bool> has_begun{false};
  team.each(2, [&](int chunk, int thread) noexcept {
    CHECK(chunk == thread);
    if (chunk == 1) {
      has_begun = true;
      of_the_worker();
    }
    while (!has_begun) sched_yield();
  });
}

}  // namespace

int main() {
  hr::Team team(2, {});
  Thread caller = this_thread(), worker;
  for (int round = 0; round < 20; ++round) {
    one_chunk_each(team, [&] { worker = this_thread(); });
    expect_no_burning(worker);
    one_chunk_each(team, [&] { expect_no_burning(caller); });
  }
}
