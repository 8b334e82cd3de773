// What a team cannot be made of is refused with a sentence, and threads stay where they were told. Linux.
// Argument: a CPU that this process may use.
#include <sched.h>

#include <string>

#include "check.h"
#include "team.h"

namespace {

std::string refusal(int num_threads, std::vector<int> cpus) {
  try {
    hr::Team team(num_threads, std::move(cpus));
  } catch (const std::exception& error) {
    return error.what();
  }
  return "none";
}

int num_allowed_cpus() {
  cpu_set_t set;
  CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
  return CPU_COUNT(&set);
}

}  // namespace

int main(int, char** arguments) {
  const int cpu = std::atoi(arguments[1]), allowed = num_allowed_cpus();
  CHECK(refusal(0, {}) == "a team needs a thread, got 0");
  CHECK(refusal(-3, {}) == "a team needs a thread, got -3");
  CHECK(refusal(2, {cpu}) == "pinning names one CPU for each of 2 threads, got 1");
  for (int wrong : {-1, 1000, 1 << 20}) {
    const std::string start = "a thread cannot be pinned to CPU " + std::to_string(wrong);
    CHECK(refusal(1, {wrong}).rfind(start, 0) == 0);
    CHECK(refusal(3, {cpu, cpu, wrong}).rfind(start, 0) == 0);  // a worker runs already, and is ended
  }
  CHECK(num_allowed_cpus() == allowed);

  hr::Team team(3, {cpu, cpu, cpu});
  for (int round = 0; round < 20; ++round) {
    const hr::Pinned here = team.pin_caller();
    team.each(16, [&](int, int) noexcept {
      CHECK(sched_getcpu() == cpu);
      CHECK(num_allowed_cpus() == 1);
      sched_yield();
    });
  }
  CHECK(num_allowed_cpus() == allowed);  // the caller's, once `here` is gone
}
