// Pools of actors: who gets a call, and how many members there are.

#include "troupe/actor_pool.h"

#include <doctest/doctest.h>

#include <atomic>
#include <fstream>
#include <set>
#include <thread>

#include "tests/actors/groups/group_actors.h"
#include "tests/support/test_data.h"
#include "troupe/chaos.h"
#include "troupe/cluster.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

struct PoolCluster {
  Cluster cluster =
      Cluster::start_embedded({.num_cpus = 3,
                               .on_output = [](const std::string&, std::string_view) {},
                               .program = bin_dir() + "/test_actors_groups_host"})
          .value();
  TemporaryDirectory folder;
  ActorPool<Member> pool(const PoolOptions& options) {
    return ActorPool<Member>::create(cluster, options, 7).value();
  }
};

// The numbers from 0, and how many of them were read.
struct CountedInputs {
  struct Iterator {
    int value;
    int* read;
    int operator*() const { return ++*read, value; }
    Iterator& operator++() { return ++value, *this; }
    bool operator==(const Iterator& other) const { return value == other.value; }
  };
  int count;
  int* read;
  Iterator begin() const { return {0, read}; }
  Iterator end() const { return {count, read}; }
};

void touch(const std::string& file) { std::ofstream(file) << "x"; }

// Waits until the pool is as `enough` wants it.
template <typename Enough>
bool becomes(const ActorPool<Member>& pool, Enough enough) {
  const Deadline patience = Deadline::after(20s);
  while (!enough(pool.status())) {
    if (patience.passed()) return false;
    std::this_thread::sleep_for(1ms);
  }
  return true;
}
std::size_t running(const PoolStatus& status) {
  std::size_t count = 0;
  for (const auto& member : status.members) count += member.state == ActorState::kAlive;
  return count;
}

TEST_CASE_FIXTURE(PoolCluster, "calls go to who is free; members come when calls wait, and go") {
  const auto pool = this->pool({.member = {.name = "p"},
                                .members_min = 1,
                                .members_max = 3,
                                .grow_after = 1ms,
                                .shrink_after = 50ms});
  CHECK(pool.call<&Member::number>().get().value() == 7);
  CHECK(pool.status().members.size() == 1);
  const std::string gate = folder.file("gate");
  std::vector<Future<std::int64_t>> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(pool.call<&Member::wait_for>(gate));
  CHECK(becomes(pool, [](const PoolStatus& s) { return s.calls_under_way == 3; }));
  CHECK(pool.status().calls_waiting == 1);
  touch(gate);
  std::set<std::int64_t> pids;
  for (auto& call : calls) pids.insert(call.get().value());
  CHECK(pids.size() == 3);
  CHECK(becomes(pool, [](const PoolStatus& s) { return s.members.size() == 1; }));
  CHECK(pool.call<&Member::number>().get().value() == 7);
  CHECK(pool.status().trouble.ok());
}

TEST_CASE_FIXTURE(PoolCluster, "a member that dies: its call ends, or goes to another one") {
  const auto pool = this->pool({.members_min = 2, .members_max = 2});
  const Code lost = pool.call<&Member::crash>().get().code();
  CHECK((lost == Code::kActorDied || lost == Code::kUnavailable));
  // It is replaced, and nothing else is lost.
  CHECK(becomes(pool, [](const PoolStatus& s) { return running(s) == 2; }));
  const auto again = pool.with({.retry = true});
  CHECK(again.call<&Member::crash_once>(folder.file("once")).get().ok());
  // One that kills whoever has it does not go on for ever.
  const Status poison = again.call<&Member::crash>().get();
  CHECK((poison.code() == Code::kActorDied || poison.code() == Code::kUnavailable));
  CHECK(pool.with({.timeout = 30s}).call<&Member::number>().get().value() == 7);
  CHECK(pool.call<&Member::fail_if>(7).get().status().code() == Code::kActorError);
}

TEST_CASE_FIXTURE(PoolCluster, "members that restart give their calls to others") {
  const auto pool =
      this->pool({.member = {.max_restarts = -1}, .members_min = 2, .members_max = 2});
  CHECK(pool.with({.retry = true}).call<&Member::crash_once>(folder.file("once")).get().ok());
  CHECK(becomes(pool, [](const PoolStatus& s) { return running(s) == 2; }));
}

TEST_CASE_FIXTURE(PoolCluster,
                  "members are killed at random: every call that may run twice ends well") {
  const auto pool = this->pool({.member = {.num_cpus = 0, .max_restarts = -1},
                                .members_min = 3,
                                .members_max = 3,
                                .calls_per_member = 2,
                                .tries_max = 20});
  REQUIRE(becomes(pool, [](const PoolStatus& s) { return running(s) == 3; }));
  RandomKiller killer(cluster, pool.members(), {.seed = 7, .strikes_max = 6, .pause = 5ms});
  std::atomic<bool> over{false};
  std::thread waiter([&] {
    CHECK(killer.finish(Deadline::after(30s)).value().strikes.size() == 6);
    over = true;
  });
  std::vector<std::tuple<std::string, int>> pairs;
  for (int i = 0; i < 300; ++i) pairs.emplace_back("x", i);
  std::size_t failures = 0;
  do {
    auto map = pool.with({.retry = true}).map<&Member::greet>(pairs);
    int index = 0;
    while (auto item = map.next().get().value()) {
      failures += item->result.ok() && *item->result == "x" + std::to_string(index + 7) ? 0 : 1;
      ++index;
    }
    CHECK(index == 300);
  } while (!over);
  waiter.join();
  CHECK(failures == 0);
}

TEST_CASE_FIXTURE(PoolCluster, "what waits is bounded: refused, or its caller waits") {
  const std::string gate = folder.file("gate");
  const auto strict = this->pool({.waiting_max = 1});
  REQUIRE(strict.call<&Member::number>().get().value() == 7);
  auto busy = strict.call<&Member::wait_for>(gate);
  auto waits = strict.call<&Member::wait_for>(gate);
  REQUIRE(becomes(strict, [](const PoolStatus& s) { return s.calls_under_way == 1; }));
  const Status refused = strict.call<&Member::number>().get().status();
  CHECK(refused.code() == Code::kOverloaded);
  CHECK(refused.message().find("1 calls wait") != std::string::npos);
  const auto patient = this->pool({.waiting_max = 0, .waits_for_room = true});
  REQUIRE(patient.call<&Member::number>().get().value() == 7);
  auto blocks = patient.call<&Member::wait_for>(gate);
  const Status late = patient.with({.timeout = 30ms}).call<&Member::number>().get().status();
  CHECK(late.code() == Code::kDeadlineExceeded);
  CHECK(late.message().find("room") != std::string::npos);
  std::thread waiter([&] { CHECK(patient.call<&Member::number>().get().value() == 7); });
  waits.cancel();
  CHECK(waits.get().status().code() == Code::kCancelled);
  CHECK(strict.status().calls_waiting == 0);
  touch(gate);
  waiter.join();
  CHECK(busy.get().ok());
  CHECK(blocks.get().ok());
}

TEST_CASE_FIXTURE(PoolCluster, "members that cannot be placed are told, and so are calls") {
  const auto never = this->pool({.member = {.num_cpus = 100}});
  const Status refused = never.with({.timeout = 300ms}).call<&Member::number>().get().status();
  CHECK(refused.code() == Code::kDeadlineExceeded);
  CHECK_MESSAGE(refused.message().find("needs CPU 100") != std::string::npos, refused.to_string());
  CHECK(never.status().trouble.code() == Code::kResourceExhausted);
  // Room that others have: the pool goes on with the members that it has.
  const auto some = this->pool({.member = {.num_cpus = 2}, .members_min = 2, .members_max = 2});
  CHECK(some.call<&Member::number>().get().value() == 7);
  CHECK(becomes(some, [](const PoolStatus& s) {
    return s.members.size() == 2 && s.members[1].why.find("needs CPU 2") != std::string::npos;
  }));
  const auto full = this->pool({.member = {.num_cpus = 2}});
  const Status waits = full.with({.timeout = 300ms}).call<&Member::number>().get().status();
  CHECK(waits.code() == Code::kDeadlineExceeded);
  CHECK_MESSAGE(waits.message().find("needs CPU 2") != std::string::npos, waits.to_string());
  // Once others leave they come.
  CHECK(some.stop().ok());
  CHECK(full.call<&Member::number>().get().value() == 7);
}

TEST_CASE_FIXTURE(PoolCluster, "stop() drains; a pool that goes ends its members") {
  const std::string gate = folder.file("gate");
  auto first = this->pool({.members_max = 1});
  const auto hurried = first.with({.timeout = 2ms});
  auto runs = first.call<&Member::wait_for>(gate);
  auto waits = first.call<&Member::number>();
  REQUIRE(becomes(first, [](const PoolStatus& s) { return s.calls_under_way == 1; }));
  std::thread stopping([&] { CHECK(first.stop().ok()); });
  const Deadline patience = Deadline::after(20s);
  while (hurried.call<&Member::number>().get().status().code() != Code::kFailedPrecondition) {
    REQUIRE(!patience.passed());
  }
  touch(gate);
  stopping.join();
  CHECK(runs.get().ok());
  CHECK(waits.get().value() == 7);
  CHECK(first.status().members.empty());

  auto second = this->pool({.members_max = 1});
  const auto handle = [&] {
    REQUIRE(becomes(second, [](const PoolStatus& s) { return running(s) == 1; }));
    return second.members().at(0);
  }();
  auto last = second.call<&Member::add>(5);
  second = {};
  CHECK(last.get().value() == 5);  // what a member has it finishes
  while (handle.call<&Member::number>().get().status().code() != Code::kActorDied) {
    REQUIRE(!patience.passed());
  }
}

TEST_CASE_FIXTURE(PoolCluster, "a map has a window, and gives results in order or as they come") {
  const auto pool = this->pool({.members_min = 2, .members_max = 2});
  std::vector<int> inputs(50);
  for (int i = 0; i < 50; ++i) inputs[static_cast<std::size_t>(i)] = i;
  std::vector<std::string> expected;
  std::vector<std::tuple<std::string, int>> pairs;
  for (const int i : inputs) {
    pairs.emplace_back("x", i);
    expected.push_back("x" + std::to_string(i + 7));
  }
  CHECK(pool.map<&Member::greet>(pairs).all().value() == expected);
  std::multiset<std::string> seen;
  auto any = pool.map<&Member::greet>(std::move(pairs), {.window = 5, .in_order = false});
  while (auto item = any.next().get().value()) {
    CHECK(item->result.value() == expected[item->index]);
    seen.insert(item->result.value());
  }
  CHECK(seen.size() == 50);
  // Results that nobody takes hold the inputs back.
  int read = 0;
  auto failing = pool.map<&Member::fail_if>(CountedInputs{50, &read}, {.window = 3});
  CHECK(failing.next().get().value()->index == 0);
  CHECK(read == 3);
  const auto failed = failing.all();
  CHECK(failed.status().code() == Code::kActorError);
  CHECK(failed.status().context("input") == "7");
  CHECK(
      pool.map<&Member::greet>(std::vector<std::tuple<std::string, int>>()).all().value().empty());
}

TEST_CASE_FIXTURE(PoolCluster, "a pool inside an actor: ordinary methods, coroutines, deadlines") {
  const auto foreman = cluster.spawn<Foreman>({.num_cpus = 0}).value();
  REQUIRE(foreman.call<&Foreman::hire>(5).get().ok());
  CHECK(foreman.call<&Foreman::ask>().get().value() == 5);
  std::vector<std::tuple<std::string, int>> greetings;
  std::string expected;
  for (int i = 0; i < 20; ++i) {
    greetings.emplace_back("n", i);
    expected += "n" + std::to_string(i + 5) + " ";
  }
  CHECK(foreman.call<&Foreman::greet_all>(greetings).get().value() == expected);
  // Its call in the pool ends with the call that makes it.
  const std::string gate = folder.file("gate");
  auto ended = foreman.call<&Foreman::ask_to_wait>(gate);
  CHECK(ended.get(20ms).status().code() == Code::kDeadlineExceeded);
  ended.cancel();
  const Deadline patience = Deadline::after(20s);
  while (foreman.call<&Foreman::calls>().get().value() != 0) REQUIRE(!patience.passed());
  const Status late =
      foreman.with({.timeout = 50ms}).call<&Foreman::ask_to_wait>(gate).get().status();
  CHECK(late.code() == Code::kDeadlineExceeded);
  touch(gate);
}

TEST_CASE_FIXTURE(PoolCluster, "a pool outlives its cluster object: its calls end") {
  const auto pool = this->pool({});
  auto runs = pool.call<&Member::wait_for>(folder.file("gate"));
  auto waits = pool.call<&Member::number>();
  REQUIRE(becomes(pool, [](const PoolStatus& s) { return s.calls_under_way == 1; }));
  {
    const Cluster gone = std::move(cluster);
    cluster = Cluster::start_embedded({.num_cpus = 1}).value();
  }
  CHECK(runs.get().status().code() == Code::kCancelled);
  CHECK(waits.get().status().code() == Code::kCancelled);
  CHECK(pool.call<&Member::number>().get().status().code() == Code::kCancelled);
  CHECK(pool.map<&Member::add>(std::vector<int>{1}).all().status().code() == Code::kCancelled);
  CHECK(pool.stop().code() == Code::kCancelled);
  CHECK(pool.members().empty());
}

TEST_CASE_FIXTURE(PoolCluster, "options that make no sense; a pool that is none") {
  const auto code = [&](const PoolOptions& options) {
    return ActorPool<Member>::create(cluster, options, 7).status().code();
  };
  CHECK(code({.members_max = 0}) == Code::kInvalidArgument);
  CHECK(code({.members_min = 3, .members_max = 2}) == Code::kInvalidArgument);
  CHECK(code({.calls_per_member = 0}) == Code::kInvalidArgument);
  CHECK(code({.tries_max = 0}) == Code::kInvalidArgument);
  CHECK(code({.member = {.num_cpus = -1}}) == Code::kInvalidArgument);
  CHECK(code({.member = {.isolation = Isolation::kShared}}) == Code::kUnsupported);
  const ActorPool<Member> none;
  CHECK(none.call<&Member::number>().get().status().code() == Code::kFailedPrecondition);
  CHECK(none.map<&Member::add>(std::vector<int>{1}).all().status().code() ==
        Code::kFailedPrecondition);
  CHECK(none.stop().code() == Code::kFailedPrecondition);
  cluster.close();
  CHECK(code({}) == Code::kFailedPrecondition);
}

}  // namespace
}  // namespace troupe::tests
