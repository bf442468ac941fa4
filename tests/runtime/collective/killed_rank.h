#pragma once
// A rank that is killed in the midst of its operations, and what the others say of it.

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/collective/cpu_communicator.h"
#include "runtime/memory/segment.h"
#include "tests/runtime/collective/ranks.h"

namespace troupe::collective::tests {

// Forked ranks on these nodes each do what loop(communicator, rounds) does: operations until one
// fails, counted in `rounds`; the failure is returned. The last rank is killed; the others must
// name it within a second.
template <typename Loop>
void check_killed_rank(const std::vector<int>& nodes, Loop loop) {
  using std::chrono::seconds;
  const int world = static_cast<int>(nodes.size()), victim = world - 1;
  auto links = make_local_links(nodes).value();
  memory::Segment shared = memory::Segment::create("kill-test", 4096).value();
  auto* rounds = reinterpret_cast<std::atomic<int>*>(shared.data());
  // When each rank's call returned: taken there, since a sanitizer's exit takes its own time.
  auto* noticed = reinterpret_cast<TimePoint*>(shared.data() + 64);
  std::vector<pid_t> children;
  for (int r = 0; r < world; ++r) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto mine = std::move(links[static_cast<std::size_t>(r)]);
      links.clear();
      int result = 1;
      auto c = make_cpu_communicator(options_for(r, world), std::move(mine));
      if (c.ok()) {
        const Status status = loop(**c, *rounds);
        noticed[r] = SystemClock().now();
        result = status.context("lost_rank") == std::to_string(victim) ? 0 : 2;
        std::move(c).value().reset();
      }
      ::_exit(result);
    }
    children.push_back(child);
  }
  links.clear();
  const Deadline started = Deadline::after(seconds(10));
  while (rounds->load() < 20 && !started.passed()) std::this_thread::yield();
  CHECK(rounds->load() >= 20);
  const TimePoint killed = SystemClock().now();
  ::kill(children[static_cast<std::size_t>(victim)], SIGKILL);
  for (int r = 0; r < world; ++r) {
    int status = 0;
    ::waitpid(children[static_cast<std::size_t>(r)], &status, 0);
    if (r == victim) continue;
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(noticed[r] > killed);
    CHECK(noticed[r] - killed < seconds(1));
  }
}

}  // namespace troupe::collective::tests
