// Who decides where tasks run: what the simulation of tasks (tests/simulation) does not look at.

#include "actors/tasks/lease_queue.h"

#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "runtime/base/random.h"

namespace troupe::detail {
namespace {

using namespace std::chrono_literals;

struct Queue {
  LeaseQueue queue{LeaseLimits{}};
  TimePoint now{1h};
  SeededRandom random{1};

  LeaseQueue::TaskPtr submit(NodeId prefers = {}) {
    auto task = std::make_shared<QueuedTask>();
    task->retries = 1;
    task->prefers = prefers;
    task->ends_by = now + 1h;
    queue.submit(task);
    return task;
  }
  LeaseQueue::Todo plan() { return queue.plan(now); }
  // Workers for all that is asked.
  std::vector<std::uint64_t> start(const std::vector<NodeId>& nodes) {
    std::vector<std::uint64_t> leases;
    for (const auto& [lease, near] : plan().asks) leases.push_back(lease);
    REQUIRE(leases.size() == nodes.size());
    for (std::size_t i = 0; i < leases.size(); ++i) queue.runs(leases[i], nodes[i], now);
    return leases;
  }
};

TEST_CASE_FIXTURE(Queue,
                  "a task goes to the node of its objects, and elsewhere where that is full") {
  const NodeId a = NodeId::make(random);
  const NodeId b = NodeId::make(random);
  for (const NodeId& node : {b, b}) (void)submit(node);
  const auto todo = plan();
  REQUIRE(todo.asks.size() == 2);
  CHECK(todo.asks[0].second == b);
  queue.runs(todo.asks[0].first, a, now);
  queue.runs(todo.asks[1].first, b, now);
  const auto sends = plan().sends;
  REQUIRE(sends.size() == 2);
  CHECK(sends[0]->lease == todo.asks[1].first);
  CHECK(sends[1]->lease == todo.asks[0].first);
}

TEST_CASE_FIXTURE(Queue, "short tasks lie at a worker several at a time, long ones one by one") {
  for (int i = 0; i < 2; ++i) (void)submit();
  const auto leases = start({NodeId(), NodeId()});
  auto sends = plan().sends;
  REQUIRE(sends.size() == 2);
  for (int i = 0; i < 200; ++i) (void)submit();
  now += 20us;
  REQUIRE(queue.answered(*sends[0], leases[0], now));
  const std::size_t many = plan().sends.size();
  CHECK(many > 10);
  now += 10ms;
  REQUIRE(queue.answered(*sends[1], leases[1], now));
  CHECK(plan().sends.size() == 1);
}

TEST_CASE_FIXTURE(Queue,
                  "more workers are asked for while there is room, and one where there is none") {
  for (int i = 0; i < 100; ++i) (void)submit();
  auto asks = plan().asks;
  REQUIRE(asks.size() == 2);
  for (const auto& [lease, near] : asks) queue.runs(lease, NodeId(), now);
  asks = plan().asks;
  CHECK(asks.size() == 8);
  for (const auto& [lease, near] : asks) queue.has_no_room(lease);
  const auto todo = plan();
  CHECK(todo.asks.empty());
  CHECK(todo.ends.size() == 7);
}

TEST_CASE_FIXTURE(Queue, "one task behind a long one is reason enough for another worker") {
  auto task = submit();
  const auto leases = start({NodeId()});
  for (int i = 0; i < 50; ++i) {
    if (i > 0) task = submit();
    REQUIRE(plan().sends.size() == 1);
    now += 20us;
    REQUIRE(queue.answered(*task, leases[0], now));
  }
  (void)submit();
  REQUIRE(plan().sends.size() == 1);
  const auto behind = submit();
  (void)plan();
  now += 5ms;
  (void)queue.given_back(*behind, leases[0], now);
  bool asked = false;
  for (int i = 0; i < 100 && !asked && queue.next(); ++i) {
    now = *queue.next();
    asked = !plan().asks.empty();
  }
  CHECK(asked);
}

TEST_CASE_FIXTURE(Queue, "a task that was never in the queue is not taken out of it") {
  QueuedTask task;
  queue.drop(task);
  CHECK(queue.waiting() == 0);
  CHECK(plan().empty());
}

TEST_CASE_FIXTURE(Queue, "where workers do not start, what waits ends with the reason") {
  auto task = submit();
  for (int i = 0; i < 3; ++i) {
    const auto asks = plan().asks;
    REQUIRE(asks.size() == 1);
    queue.lost(asks[0].first, Status(Code::kActorDied, "a library is missing"), false, now);
    now += 1s;
  }
  const auto todo = plan();
  REQUIRE(todo.ended.size() == 1);
  CHECK(todo.ended[0].first == task);
  CHECK(todo.ended[0].second.message() == "a library is missing");
}

TEST_CASE_FIXTURE(Queue,
                  "what was asked for together fails together, and its tasks go on waiting") {
  for (int i = 0; i < 100; ++i) (void)submit();
  const auto first = plan().asks;
  for (const auto& [lease, near] : first) queue.runs(lease, NodeId(), now);
  auto all = plan().asks;
  REQUIRE(all.size() >= 4);
  all.insert(all.end(), first.begin(), first.end());
  for (const auto& [lease, near] : all) {
    queue.lost(lease, Status(Code::kActorDied, "its disk is full"), false, now);
  }
  CHECK(plan().ended.empty());
}

TEST_CASE_FIXTURE(Queue, "while a worker runs none that does not start ends what waits") {
  (void)submit();
  const auto leases = start({NodeId()});
  (void)plan();
  (void)submit();
  for (int i = 0; i < 5; ++i) {
    const auto todo = plan();
    CHECK(todo.ended.empty());
    REQUIRE(todo.asks.size() == 1);
    queue.lost(todo.asks[0].first, Status(Code::kActorDied, "a library is missing"), false, now);
    now += 10s;
  }
  CHECK(queue.waiting() == 1);
}

TEST_CASE_FIXTURE(Queue, "nodes that are lost end no task that waits") {
  (void)submit();
  for (int i = 0; i < 5; ++i) {
    const auto todo = plan();
    CHECK(todo.ended.empty());
    REQUIRE(todo.asks.size() == 1);
    queue.lost(todo.asks[0].first, Status(Code::kUnavailable, "it was lost: its node died"), false,
               now);
    now += 10s;
  }
  CHECK(queue.waiting() == 1);
}

}  // namespace
}  // namespace troupe::detail
