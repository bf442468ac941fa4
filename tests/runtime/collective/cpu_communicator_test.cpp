#include "runtime/collective/cpu_communicator.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "runtime/memory/segment.h"
#include "tests/runtime/collective/conformance.h"
#include "tests/runtime/collective/ranks.h"

namespace troupe::collective {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using tests::options_for;
using tests::run_threads;

tests::RunRanks on_nodes(std::function<int(int rank)> node_of) {
  return [node_of](int world_size, const std::function<void(Communicator&)>& body) {
    std::vector<int> nodes;
    for (int r = 0; r < world_size; ++r) nodes.push_back(node_of(r));
    run_threads(nodes, body);
  };
}

TEST_CASE("shared memory: all operations, bit for bit") {
  for (int world = 1; world <= 5; ++world)
    tests::check_conformance(on_nodes([](int) { return 0; }), world);
}
TEST_CASE("TCP: all operations, the same bits") {
  for (int world = 2; world <= 5; ++world)
    tests::check_conformance(on_nodes([](int rank) { return rank; }), world);
}
TEST_CASE("two nodes: all operations, the same bits") {
  for (int world = 3; world <= 5; ++world)
    tests::check_conformance(on_nodes([](int rank) { return rank / 2; }), world);
}

TEST_CASE("counted bytes are the formula's") {
  run_threads({0, 0, 0, 0}, [](Communicator& c) {
    std::vector<float> data(1 << 16, 1.0f);
    const std::uint64_t size = data.size() * sizeof(float);
    REQUIRE(c.all_reduce(std::span(data)).ok());
    const auto counter = c.counters()[static_cast<std::size_t>(Operation::kAllReduce)];
    CHECK(counter.calls == 1);
    CHECK(counter.algorithm_bytes_sent == 2 * 3 * size / 4);
    CHECK(counter.wire_bytes_sent == 2 * 3 * size / 4 + 3 * 64);
    CHECK(counter.wire_bytes_received == counter.wire_bytes_sent);
  });
}

TEST_CASE("a deadline that passes names who is missing, and ends the communicator") {
  for (const auto& nodes : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 2}}) {
    std::atomic<bool> release{false};
    run_threads(nodes, [&](Communicator& c) {
      std::vector<float> data(10'000, 1.0f);
      if (c.rank() == 2) {
        while (!release) std::this_thread::yield();
        return;
      }
      const Status status =
          c.all_reduce(std::span(data), ReduceOp::kSum, Deadline::after(milliseconds(50)));
      if (c.rank() == 0) {
        CHECK((status.code() == Code::kDeadlineExceeded || status.code() == Code::kAborted));
        if (status.code() == Code::kDeadlineExceeded)
          CHECK(status.message().find("2") != std::string::npos);
        CHECK(status.context("operation") == "all_reduce");
        CHECK(c.barrier().code() == Code::kAborted);
        release = true;
      }
    });
  }
}

TEST_CASE("an abort from another thread ends a wait at once, on all ranks") {
  for (const auto& nodes : {std::vector<int>{0, 0}, std::vector<int>{0, 1}}) {
    const TimePoint start = SystemClock().now();
    run_threads(nodes, [](Communicator& c) {
      std::vector<float> data(100'000, 1.0f);
      if (c.rank() == 1) {
        c.abort(Status(Code::kCancelled, "the test says so"));
        CHECK(c.barrier().code() == Code::kAborted);
        return;
      }
      CHECK(c.all_reduce(std::span(data)).code() == Code::kAborted);
    });
    run_threads({0, 0}, [](Communicator& c) {
      if (c.rank() == 1) {
        std::thread other([&] { c.abort(Status(Code::kCancelled, "the test says so")); });
        const Status status = c.barrier();
        other.join();
        if (!status.ok()) CHECK(status.code() == Code::kAborted);
      } else {
        while (c.barrier().ok()) {
        }
      }
    });
    CHECK(SystemClock().now() - start < seconds(5));
  }
}

TEST_CASE("ranks in different operations are told, not hung") {
  run_threads({0, 0}, [](Communicator& c) {
    std::vector<float> data(c.rank() == 0 ? 10 : 11);
    const Status status = c.all_reduce(std::span(data));
    CHECK((status.code() == Code::kProtocol || status.code() == Code::kAborted));
  });
}

TEST_CASE("another generation, name or rank is refused, both named") {
  for (int what = 0; what < 3; ++what) {
    auto links = make_local_links({0, what == 1 ? 1 : 0}).value();
    std::thread other([&] {
      CommunicatorOptions stale = options_for(1, 2);
      if (what == 0) stale.generation = 6;
      if (what == 1) stale.name = "other";
      if (what == 2) stale.world_size = 2, stale.rank = 0, links[1][0].rank = 1;
      CHECK_FALSE(make_cpu_communicator(stale, std::move(links[1])).ok());
    });
    const Status status = make_cpu_communicator(options_for(0, 2), std::move(links[0])).status();
    other.join();
    CHECK((status.code() == Code::kFailedPrecondition || status.code() == Code::kUnavailable));
    if (what == 0 && status.code() == Code::kFailedPrecondition)
      CHECK(status.message().find("generation 6") != std::string::npos);
  }
}

// A forked rank loops all-reduces until it is killed; the others must name it within a second.
void check_kill(const std::vector<int>& nodes) {
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
        std::vector<float> data(100'000, 1.0f);
        Status status;
        while ((status = (*c)->all_reduce(std::span(data))).ok()) rounds->fetch_add(1);
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

TEST_CASE("a killed rank is named by all others within a second") {
  check_kill({0, 0, 0});
  check_kill({0, 1, 2});
  check_kill({0, 0, 1, 1});
}

}  // namespace
}  // namespace troupe::collective
