// Who watches a communicator sees every operation begin and end, and bytes move in between.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <stdexcept>
#include <string>

#include "tests/runtime/collective/ranks.h"
#include "troupe/detail/mutex.h"

namespace troupe::collective {
namespace {

using tests::run_threads;

struct Watcher final : OperationObserver {
  void begins(Operation operation, std::string_view group, std::uint64_t sequence,
              std::uint64_t bytes) override {
    if (throws) throw std::runtime_error("injected");
    told.push_back(
        fmt::format("begins {} '{}' {} {}", operation_name(operation), group, sequence, bytes));
    under_way.fetch_add(1);
  }
  void ends(Operation operation, std::string_view group, std::uint64_t sequence, bool ok) override {
    told.push_back(fmt::format("{} {} '{}' {}", ok ? "ends" : "fails", operation_name(operation),
                               group, sequence));
    under_way.fetch_sub(1);
  }
  void moved(std::uint64_t bytes) override {
    moved_bytes.fetch_add(bytes);
    moves.fetch_add(1);
  }
  bool throws = false;
  std::vector<std::string> told;
  std::atomic<int> under_way{0};
  std::atomic<std::uint64_t> moved_bytes{0}, moves{0};
};

std::uint64_t wire_bytes(const Communicator& c) {
  std::uint64_t bytes = 0;
  for (const OperationCounters& counter : c.counters())
    bytes += counter.wire_bytes_sent + counter.wire_bytes_received;
  return bytes;
}

TEST_CASE("an observer is told of every operation, of subgroups too, and of all bytes") {
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 1}}) {
    run_threads(nodes, [](Communicator& c) {
      Watcher watcher;
      const std::vector<int> all{2, 1, 0};
      const auto group = c.subgroup(all, "turned").value();
      CHECK(c.barrier().ok());  // before anybody watches
      const std::uint64_t before = wire_bytes(c);
      c.observe(&watcher);
      // Several times of what is moved between two notices, whoever waits for whom.
      std::vector<float> data(2'000'000);
      const std::vector<std::size_t> counts{1, 2, 3};
      std::vector<std::int64_t> shards(6);
      CHECK(c.all_reduce(std::span(data)).ok());
      CHECK(group->broadcast(std::span(data).first(10), 1).ok());
      const auto mine = counts[static_cast<std::size_t>(c.rank())];
      CHECK(
          c.all_gather(std::span<const std::int64_t>(shards).first(mine), std::span(shards), counts)
              .ok());
      CHECK(group->barrier().ok());
      CHECK(watcher.moved_bytes.load() == wire_bytes(c) - before + wire_bytes(*group));
      // (While the large one was under way, too, unless all of it was there at once.)
      CHECK(watcher.moves.load() >= 4);
      c.observe(nullptr);
      CHECK(c.barrier().ok());
      CHECK(watcher.told ==
            std::vector<std::string>{"begins all_reduce '' 2 8000000", "ends all_reduce '' 2",
                                     "begins broadcast 'turned' 1 40", "ends broadcast 'turned' 1",
                                     "begins all_gather '' 3 48", "ends all_gather '' 3",
                                     "begins barrier 'turned' 2 0", "ends barrier 'turned' 2"});
    });
  }
}

TEST_CASE("a rank that waits is in its operation, and no bytes move until the others come") {
  Watcher waiting;
  std::atomic<bool> came{false};
  run_threads({0, 0}, [&](Communicator& c) {
    if (c.rank() == 0) {
      c.observe(&waiting);
      CHECK(c.barrier().ok());
      CHECK(came.load());
      return;
    }
    const auto deadline = Deadline::after(std::chrono::seconds(10));
    // Its header is out, and told of before it sleeps.
    while (waiting.moved_bytes.load() == 0 && !deadline.passed()) std::this_thread::yield();
    CHECK(waiting.under_way.load() == 1);
    const std::uint64_t moved = waiting.moved_bytes.load();
    CHECK(moved == 64);
    came.store(true);
    CHECK(c.barrier().ok());
  });
  CHECK(waiting.moved_bytes.load() == 128);
  CHECK(waiting.under_way.load() == 0);
}

TEST_CASE("an operation that fails ends for the observer, and so do those after it") {
  run_threads({0, 0}, [](Communicator& c) {
    Watcher watcher;
    c.observe(&watcher);
    if (c.rank() == 1) {
      c.abort(error(Code::kCancelled, "enough"));
    } else {
      CHECK_FALSE(c.barrier().ok());
    }
    CHECK_FALSE(c.barrier().ok());
    CHECK(watcher.told.back() == (c.rank() == 0 ? "fails barrier '' 2" : "fails barrier '' 1"));
    CHECK(watcher.under_way.load() == 0);
    CHECK(watcher.told.size() % 2 == 0);
  });
}

TEST_CASE("an operation whose observer throws has not begun") {
  run_threads({0, 0}, [](Communicator& c) {
    Watcher watcher;
    c.observe(&watcher);
    watcher.throws = true;
    CHECK_THROWS_AS((void)c.barrier(), std::runtime_error);
    watcher.throws = false;
    CHECK(c.barrier().ok());
    CHECK(watcher.told == std::vector<std::string>{"begins barrier '' 1 0", "ends barrier '' 1"});
  });
}

}  // namespace
}  // namespace troupe::collective
