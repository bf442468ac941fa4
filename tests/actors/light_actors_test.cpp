// Light actors against a small node: calls, ends, crashes.

#include "troupe/light_actors.h"

#include <doctest/doctest.h>
#include <signal.h>

#include <atomic>
#include <random>
#include <set>
#include <thread>

#include "tests/actors/fake_node.h"
#include "tests/actors/light_test_actors.h"
#include "tests/support/test_data.h"
#include "troupe/spawn.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

const ActorOptions kLight{.isolation = Isolation::kShared};

ActorOptions light(ActorOptions options) {
  options.isolation = Isolation::kShared;
  return options;
}

struct LightFixture {
  std::shared_ptr<FakeNode> node = FakeNode::start(bin_dir() + "/test_actors_light_host");
  std::shared_ptr<detail::ActorClient> client = node->make_client();
  ~LightFixture() {
    client->close();
    node->stop();
  }
  template <typename T, typename... A>
  LightActors<T> many(std::size_t count, const ActorOptions& options, A... arguments) {
    return detail::spawn_many<T>(client, count, options, arguments...).value();
  }
  // A state of the watch's that came, or the code of what came instead.
  template <typename T>
  struct Watched {
    std::shared_ptr<Promise<std::string>> promise = std::make_shared<Promise<std::string>>();
    Future<std::string> died = promise->future();
    ActorWatch watch;
    explicit Watched(LightFixture& fixture, const ActorHandle<T>& handle)
        : watch(detail::watch(fixture.client, handle,
                              [promise = promise, id = handle.id()](const wire::ActorInfo& info) {
                                if (info.actor_id != id) promise->set(std::string("another one"));
                                if (info.state == wire::ActorState::kDead) {
                                  promise->set(std::string(info.death.message()));
                                }
                              })) {}
  };
};

Code code_of(const ActorHandle<Cell>& cell) {
  return cell.call<&Cell::get>().get(20s).status().code();
}
int value_of(const ActorHandle<Cell>& cell) {
  return cell.with({.timeout = 20s, .retry = true}).call<&Cell::get>().get(20s).value();
}

TEST_CASE_FIXTURE(LightFixture, "a thousand actors live in one process, each its own") {
  const auto cells = many<Cell>(1000, kLight, 5);
  REQUIRE(cells.size() == 1000);
  std::vector<Future<int>> sums;
  for (int i = 0; i < 1000; ++i) {
    sums.push_back(cells[static_cast<std::size_t>(i)].call<&Cell::add>(i));
  }
  for (int i = 0; i < 1000; ++i) {
    CHECK(sums[static_cast<std::size_t>(i)].get(20s).value() == 5 + i);
  }
  CHECK(node->started() == 1);
  std::set<ActorId> ids;
  for (const auto cell : cells) ids.insert(cell.id());
  CHECK(ids.size() == 1000);
  CHECK_FALSE(ids.contains(cells.hosts().at(0)));
  CHECK(cells[17].call<&Cell::index>().get(20s).value() == 17);
  CHECK(cells[17].call<&Cell::id>().get(20s).value() == cells[17].id());
  CHECK(cells[17].call<&Cell::self>().get(20s).value() == cells[17]);
  CHECK(cells[17].call<&Cell::generation>().get(20s).value() == 1);
}

TEST_CASE_FIXTURE(LightFixture, "constructor arguments of each one's own, over several hosts") {
  const auto cells =
      detail::spawn_each<Cell>(client, 25, light({.light_per_host = 10}), [](std::size_t i) {
        return static_cast<int>(i);
      }).value();
  CHECK(cells.hosts().size() == 3);
  std::set<std::int64_t> pids;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    CHECK(value_of(cells[i]) == static_cast<int>(i));
    CHECK(cells[i].call<&Cell::index>().get(20s).value() == i);
    pids.insert(cells[i].call<&Cell::pid>().get(20s).value());
  }
  CHECK(pids.size() == 3);
  CHECK(node->started() == 3);
}

TEST_CASE_FIXTURE(LightFixture, "calls of one caller run in order, both ways") {
  const auto recorders = many<Recorder>(3, kLight);
  std::mt19937 random(7);
  std::vector<Future<bool>> calls;
  int numbers[3] = {};
  for (int i = 0; i < 1500; ++i) {
    const std::size_t one = random() % 3;
    const int number = ++numbers[one];
    const std::size_t size = random() % 40 == 0 ? 100'000 + random() % 100'000 : random() % 100;
    calls.push_back(recorders[one].call<&Recorder::next>(
        number, wire::Bytes(size, static_cast<std::byte>(number))));
    // Let the ring come into being.
    if (i < 100) REQUIRE(recorders[0].call<&Recorder::count>().get(20s).ok());
  }
  int wrong = 0;
  for (auto& call : calls) wrong += call.get(20s).value() ? 0 : 1;
  CHECK(wrong == 0);
  CHECK(detail::Access::channel(recorders[0])->has_ring());
}

TEST_CASE_FIXTURE(LightFixture,
                  "threads call different ones at once, and none is run twice at once") {
  const auto cells = many<Cell>(4, kLight, 0);
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 400; ++i) {
        failed += cells[(t + i) % 4].call<&Cell::add>(1).get(20s).ok() ? 0 : 1;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(failed == 0);
  for (const auto cell : cells) CHECK(value_of(cell) == 400);
}

// peer: ExceptionTest.Method, ExceptionTest.Constructor
TEST_CASE_FIXTURE(LightFixture, "what one throws hurts no other, and errors say which it was") {
  const auto cells =
      detail::spawn_each<Cell>(client, 3, light({.name = "cells"}), [](std::size_t i) {
        return std::tuple{i == 1 ? -1 : static_cast<int>(i)};
      }).value();
  const Status never = cells[1].call<&Cell::get>().get(20s).status();
  CHECK(never.code() == Code::kActorDied);
  CHECK(never.message().find("a negative start") != std::string::npos);
  CHECK(never.context("actor") == "cells");
  CHECK(never.context("light") == "1");
  const Status thrown = cells[2].call<&Cell::fail>("on purpose").get(20s);
  CHECK(thrown.code() == Code::kActorError);
  CHECK(thrown.message().find("on purpose") != std::string::npos);
  CHECK(thrown.context("light") == "2");
  CHECK(value_of(cells[0]) == 0);
  CHECK(value_of(cells[2]) == 2);
  // Neither is what it posts to its own thread.
  CHECK(cells[2].call<&Cell::throw_later>().get(20s).ok());
  CHECK(code_of(cells[2]) == Code::kActorDied);
  CHECK(value_of(cells[0]) == 0);
}

// peer: FullTest.KillForGood
TEST_CASE_FIXTURE(LightFixture, "one is killed alone, for good, also over a crash of its host") {
  const auto cells = many<Cell>(3, light({.max_restarts = 2}), 5);
  Watched<Cell> killed(*this, cells[1]), other(*this, cells[2]);
  REQUIRE(cells[1].call<&Cell::add>(1).get(20s).value() == 6);
  REQUIRE(detail::kill(client, cells[1], {.reason = "had enough"}).ok());
  const Status late = cells[1].call<&Cell::get>().get(20s).status();
  CHECK(late.code() == Code::kActorDied);
  CHECK(late.message().find("had enough") != std::string::npos);
  CHECK(killed.died.get(20s).value() == "had enough");
  CHECK(detail::kill(client, cells[1], {}).ok());  // dead already
  CHECK(value_of(cells[0]) == 5);
  node->kill_process(cells.hosts().at(0), SIGKILL);
  CHECK(value_of(cells[0]) == 5);
  CHECK(cells[0].call<&Cell::generation>().get(20s).value() == 2);
  CHECK(code_of(cells[1]) == Code::kActorDied);
  CHECK_FALSE(other.died.ready());
  CHECK(detail::kill(client, cells[0], {.allow_restart = true}).code() == Code::kUnsupported);
  // A watch of one that has ended says so at once.
  CHECK(Watched<Cell>(*this, cells[1]).died.get(20s).value() == "had enough");
  // Killing the host kills all.
  REQUIRE(detail::kill(client, cells, {}).ok());
  CHECK(other.died.get(20s).ok());
  CHECK(code_of(cells[0]) == Code::kActorDied);
}

TEST_CASE_FIXTURE(LightFixture, "they end by themselves; the last one's end is the host's") {
  const auto cells = many<Cell>(3, kLight, 5);
  REQUIRE(detail::kill(client, cells[1], {}).ok());
  auto before = cells[2].call<&Cell::leave>();
  auto after = cells[2].call<&Cell::get>();
  CHECK(before.get(20s).ok());
  CHECK(after.get(20s).status().code() == Code::kActorDied);
  CHECK(value_of(cells[0]) == 5);
  Watched<Cell> last(*this, cells[0]);
  REQUIRE(detail::kill(client, cells[0], {}).ok());
  CHECK(last.died.get(20s).ok());
  const Deadline patience = Deadline::after(20s);
  while (node->info(cells.hosts().at(0)).state != wire::ActorState::kDead && !patience.passed()) {
    std::this_thread::yield();
  }
  CHECK(node->info(cells.hosts().at(0)).state == wire::ActorState::kDead);
}

// peer: FullTest.ProcessExit
TEST_CASE_FIXTURE(LightFixture, "a crash restarts the actors of its host and no others") {
  const auto cells = many<Cell>(20, light({.max_restarts = 1, .light_per_host = 10}), 5);
  const auto here = cells[3], there = cells[13];
  const auto pid = there.call<&Cell::pid>().get(20s).value();
  REQUIRE(here.call<&Cell::add>(1).get(20s).value() == 6);
  REQUIRE(there.call<&Cell::add>(1).get(20s).value() == 6);
  const Status crashed = here.call<&Cell::crash>().get(20s);
  CHECK(crashed.code() == Code::kUnavailable);
  CHECK(value_of(here) == 5);  // it has no save()
  CHECK(here.call<&Cell::generation>().get(20s).value() == 2);
  CHECK(value_of(there) == 6);
  CHECK(there.call<&Cell::pid>().get(20s).value() == pid);
  CHECK(node->started() == 3);
  // Once more is once too often, for that host.
  CHECK(cells[4].call<&Cell::crash>().get(20s).code() == Code::kActorDied);
  CHECK(code_of(here) == Code::kActorDied);
  CHECK(value_of(there) == 6);
}

TEST_CASE_FIXTURE(LightFixture, "kill -9: each one's state comes back as it was saved") {
  const auto counters = many<Counter>(50, light({.max_restarts = 9}), 100);
  for (int round = 1; round <= 3; ++round) {
    std::vector<Future<int>> sums;
    for (std::size_t i = 0; i < 50; ++i) {
      sums.push_back(counters[i].call<&Counter::add>(static_cast<int>(i)));
    }
    for (auto& sum : sums) REQUIRE(sum.get(20s).ok());
    REQUIRE(counters[1].call<&Counter::fail>("after a change").get(20s).status().code() ==
            Code::kActorError);
    node->kill_process(counters.hosts().at(0), SIGKILL);
    for (std::size_t i = 0; i < 50; ++i) {
      const auto value =
          counters[i].with({.timeout = 20s, .retry = true}).call<&Counter::get>().get(20s);
      REQUIRE_MESSAGE(value.ok(), value.status().to_string());
      CHECK(*value == 100 + round * (static_cast<int>(i) + (i == 1 ? 1 : 0)));
    }
  }
  const auto thrifty = many<Thrifty>(2, light({.max_restarts = 9}));
  for (int i = 0; i < 5; ++i) REQUIRE(thrifty[0].call<&Thrifty::add>(1).get(20s).ok());
  REQUIRE(thrifty[1].call<&Thrifty::add>(1).get(20s).ok());
  REQUIRE(thrifty[1].call<&Thrifty::keep>().get(20s).ok());
  node->kill_process(thrifty.hosts().at(0), SIGKILL);
  const auto value = [&](std::size_t i) {
    return thrifty[i].with({.timeout = 20s, .retry = true}).call<&Thrifty::get>().get(20s).value();
  };
  CHECK(value(0) == 3);  // after every third call
  CHECK(value(1) == 1);  // when it said so
}

TEST_CASE_FIXTURE(LightFixture, "kill -9 at random moments: every call ends, none counts twice") {
  const auto counters = many<Counter>(20, light({.max_restarts = 100, .restart_window = 0ms}), 0);
  std::mt19937 random(5);
  std::vector<int> certain(20), unknown(20);
  for (int round = 0; round < 6; ++round) {
    REQUIRE(counters[0].with({.retry = true}).call<&Counter::get>().get(20s).ok());
    std::vector<Future<int>> calls;
    const std::size_t count = 50 + random() % 400;
    const std::size_t kill_after = random() % count;
    for (std::size_t i = 0; i < count; ++i) {
      calls.push_back(counters[i % 20].call<&Counter::add>(1));
      if (i == kill_after) node->kill_process(counters.hosts().at(0), SIGKILL);
    }
    for (std::size_t i = 0; i < count; ++i) {
      const auto result = calls[i].get(20s);
      const Code code = result.status().code();
      REQUIRE((result.ok() || code == Code::kUnavailable));
      ++(result.ok() ? certain : unknown)[i % 20];
    }
    for (std::size_t i = 0; i < 20; ++i) {
      const int value = counters[i].with({.retry = true}).call<&Counter::get>().get(20s).value();
      CHECK(value >= certain[i]);
      CHECK(value <= certain[i] + unknown[i]);
    }
  }
}

TEST_CASE_FIXTURE(LightFixture, "spawned one by one they share hosts that have room") {
  const ActorOptions options = light({.max_restarts = 5, .light_per_host = 3});
  std::vector<ActorHandle<Cell>> cells;
  for (int i = 0; i < 5; ++i) {
    cells.push_back(detail::spawn<Cell>(client, options, i == 1 ? -1 : i).value());
  }
  CHECK(cells[0].host_id() == cells[2].host_id());
  CHECK(cells[0].host_id() != cells[3].host_id());
  CHECK(cells[3].host_id() == cells[4].host_id());
  CHECK(value_of(cells[0]) == 0);
  CHECK(code_of(cells[1]) == Code::kActorDied);
  CHECK(value_of(cells[4]) == 4);
  CHECK(node->started() == 2);
  // Other options, other hosts; another class, too.
  const auto other =
      detail::spawn<Cell>(client, light({.max_restarts = 6, .light_per_host = 3}), 0).value();
  CHECK(other.host_id() != cells[4].host_id());
  const auto counter = detail::spawn<Counter>(client, options, 0).value();
  CHECK(counter.host_id() != cells[4].host_id());
  // A crash brings back what came one by one.
  REQUIRE(detail::kill(client, cells[2], {}).ok());
  node->kill_process(cells[0].host_id(), SIGKILL);
  CHECK(value_of(cells[0]) == 0);
  CHECK(code_of(cells[1]) == Code::kActorDied);
  CHECK(code_of(cells[2]) == Code::kActorDied);
  CHECK(cells[0].call<&Cell::generation>().get(20s).value() == 2);
  // A host that has died for good takes no more.
  node->kill(cells[3].host_id(), false, 0, "", [](const Status&) {});
  const Deadline patience = Deadline::after(20s);
  while (code_of(cells[4]) != Code::kActorDied && !patience.passed()) std::this_thread::yield();
  CHECK(value_of(detail::spawn<Cell>(client, options, 7).value()) == 7);
}

TEST_CASE_FIXTURE(LightFixture, "a call that comes before its light actor is made waits for it") {
  const auto first = detail::spawn<Cell>(client, kLight, 1).value();
  REQUIRE(value_of(first) == 1);
  // Somebody else has the next one's handle already.
  const auto elsewhere = node->make_client();
  const auto next = detail::Access::make<ActorHandle<Cell>>(
      elsewhere, elsewhere->channel(first.host_id(), detail::kLightInterface<Cell>), 1);
  std::vector<Future<int>> early;
  for (int i = 1; i <= 10; ++i) early.push_back(next.call<&Cell::add>(1));
  const auto known =
      detail::Access::make<ActorHandle<Cell>>(elsewhere, detail::Access::channel(next), 0);
  REQUIRE(known.call<&Cell::get>().get(20s).ok());  // those before it have arrived
  CHECK_FALSE(early[0].ready());
  const auto second = detail::spawn<Cell>(client, kLight, 100).value();
  CHECK(second.id() == next.id());
  for (int i = 1; i <= 10; ++i) {
    CHECK(early[static_cast<std::size_t>(i - 1)].get(20s).value() == 100 + i);
  }
  elsewhere->close();
}

TEST_CASE_FIXTURE(LightFixture, "what light actors cannot is refused by name") {
  const auto status_of = [&](const ActorOptions& options, std::size_t count = 3) {
    return detail::spawn_many<Cell>(client, count, options, 0).status();
  };
  CHECK(status_of({}).message().find("Isolation::kShared") != std::string::npos);
  CHECK(status_of(kLight, 0).code() == Code::kInvalidArgument);
  CHECK(status_of(light({.light_per_host = 0})).message().find("light_per_host") !=
        std::string::npos);
  CHECK(status_of(light({.name = "n", .light_per_host = 2})).message().find("2 hosts") !=
        std::string::npos);
  CHECK(detail::spawn<Cell>(client, light({.name = "n"}), 0).status().code() ==
        Code::kInvalidArgument);
  std::vector<GangMember<Cell>> gang;
  gang.emplace_back(kLight, 0);
  CHECK(detail::spawn_gang<Cell>(client, std::move(gang), false).status().code() ==
        Code::kInvalidArgument);
  const auto cell = detail::spawn<Cell>(client, kLight, 0).value();
  const Status sockets = cell.call<&Cell::listen>().get(20s);
  CHECK(sockets.code() == Code::kActorError);
  CHECK(sockets.message().find("Isolation::kProcess") != std::string::npos);
  // A handle of the other kind does not bind.
  const auto wrong = detail::handle_to<Cell>(client, cell.host_id());
  CHECK(wrong.call<&Cell::get>().get(20s).status().code() == Code::kInvalidArgument);
  // Nor does a number that no host has.
  const auto beyond =
      detail::Access::make<ActorHandle<Cell>>(client, detail::Access::channel(cell), 1'000'000);
  CHECK(beyond.call<&Cell::get>().get(20s).status().code() == Code::kProtocol);
}

}  // namespace
}  // namespace troupe::tests
