// Actors that go from one node to another, with their saved state and their callers; and what is
// said where the state is lost with its node.

#include <doctest/doctest.h>

#include <atomic>
#include <future>
#include <thread>

#include "actors/session/state_loss.h"
#include "scheduler/head/head_daemon.h"
#include "scheduler/node/node_daemon.h"
#include "tests/actors/driver_client.h"
#include "tests/actors/lives_actors.h"
#include "tests/support/test_data.h"
#include "troupe/light_actors.h"
#include "troupe/spawn.h"

namespace troupe::tests::moving_test {
namespace {

using namespace std::chrono_literals;

// A head and two nodes.
struct TwoNodes {
  const net::Token token{32, std::byte{0x5a}};
  SystemRandom random;
  scheduler::MemoryJournal journal;
  net::LoopThread cluster{"cluster"};
  std::unique_ptr<scheduler::HeadDaemon> head;  // this and the next: the cluster's loop
  std::unique_ptr<scheduler::NodeDaemon> nodes[2];
  NodeId ids[2];
  net::LoopThread thread{"driver"};
  DriverClient driver;

  TwoNodes() {
    on_cluster([this] {
      scheduler::HeadOptions options;
      options.token = token;
      options.config.heartbeats = false;
      options.config.disconnect_grace = 20ms;
      options.config.keeper_hold = options.config.node_attempt_timeout = 10ms;
      head = scheduler::HeadDaemon::start(cluster.loop(), std::move(options), journal, random,
                                          Logger::discard(), [](const std::string&) {})
                 .value();
    });
    for (int i = 0; i < 2; ++i) start_node(i);
    driver = connect(ids[0]);
  }
  ~TwoNodes() {
    driver.client->close();
    on_cluster([this] {
      for (auto& node : nodes) node.reset();
      head.reset();
    });
  }
  void start_node(int i) {
    auto joined = std::make_shared<std::promise<void>>();
    on_cluster([&] {
      scheduler::NodeOptions options;
      options.name = i == 0 ? "one" : "two";
      options.head = head->address();
      options.token = token;
      options.resources = {{"CPU", 4 * wire::kResourceUnit}};
      options.log_sink = [](LogLevel, std::string_view) {};
      options.on_registered = [joined](const std::string&) { joined->set_value(); };
      nodes[i] = scheduler::NodeDaemon::start(cluster.loop(), std::move(options)).value();
      ids[i] = nodes[i]->info().node_id;
    });
    REQUIRE(joined->get_future().wait_for(20s) == std::future_status::ready);
  }
  DriverClient connect(NodeId at) {
    net::Address address;
    on_cluster([&] { address = head->address(); });
    return connect_driver(address, token, at, thread, "test_actors_lives_host");
  }
  void on_cluster(std::function<void()> work) {
    std::promise<void> done;
    cluster.loop().post([&] {
      work();
      done.set_value();
    });
    done.get_future().get();
  }
  // With its processes and all that it keeps.
  void lose_node(int i) {
    on_cluster([&] { nodes[i].reset(); });
  }
  void drain(int i, std::int64_t grace_ms = 20'000) {
    REQUIRE(driver.head->drain(ids[i], grace_ms, "a new disk", false, Deadline::after(20s)).ok());
  }
  wire::ActorInfo info(ActorId id) {
    for (const auto& actor : driver.head->actors(true, Deadline::after(20s)).value()) {
      if (actor.actor_id == id) return actor;
    }
    FAIL("no such actor");
    return {};
  }
  wire::ActorInfo wait(ActorId id, std::function<bool(const wire::ActorInfo&)> wanted) {
    auto promise = std::make_shared<std::promise<wire::ActorInfo>>();
    auto found = std::make_shared<std::atomic<bool>>(false);
    auto future = promise->get_future();
    const auto watch = detail::watch_actor(driver.client, id, [=](const ActorInfo& info) {
      if (wanted(info) && !found->exchange(true)) promise->set_value(info);
    });
    REQUIRE(future.wait_for(20s) == std::future_status::ready);
    return future.get();
  }
  wire::ActorInfo wait_until_on(ActorId id, int node) {
    return wait(id, [at = ids[node]](const auto& info) {
      return info.node_id == at && info.state == wire::ActorState::kAlive;
    });
  }
  ActorOptions first_on_one(ActorOptions options = {}) const {
    options.node_affinity = ids[0];
    options.node_affinity_soft = true;
    options.num_cpus = 0;
    if (options.max_restarts == 0) options.max_restarts = 3;
    return options;
  }
};

// Another caller's handle of the same actor.
template <typename T>
ActorHandle<T> same(const DriverClient& other, const ActorHandle<T>& handle) {
  return detail::handle_to<T>(other.client, handle.id());
}

// --- draining ------------------------------------------------------------------------------------

// Calls one after the other until it is told to end; how many, and the first failure.
template <typename T>
struct Caller {
  std::atomic<bool> stop{false};
  int calls = 0;
  Status failure;
  std::thread thread;

  Caller(ActorHandle<T> actor, bool retry)
      : thread([this, handle = actor.with({.timeout = 20s, .retry = retry})] {
          while (!stop && failure.ok()) {
            const auto result = handle.template call<&T::add>(1).get(20s);
            if (result.ok()) {
              ++calls;
            } else {
              failure = result.status();
            }
          }
        }) {}
  int end() {
    stop = true;
    thread.join();
    CHECK_MESSAGE(failure.ok(), failure.to_string());
    return calls;
  }
};

template <typename T>
void check_drain(TwoNodes& cluster) {
  const auto counter = detail::spawn<T>(cluster.driver.client, cluster.first_on_one()).value();
  for (int i = 0; i < 100; ++i) REQUIRE(counter.template call<&T::add>(1).get(20s).ok());
  const DriverClient distant = cluster.connect({});
  {
    Caller near(counter, true);
    Caller far(same(distant, counter), true);
    Caller once(same(distant, counter), false);
    cluster.drain(0);
    cluster.wait_until_on(counter.id(), 1);
    int expected = 100 + near.end() + far.end() + once.end();
    expected += 1;
    REQUIRE(counter.template call<&T::add>(1).get(20s).value() == expected);
  }
  CHECK(cluster.info(counter.id()).state_lost_generation == 0);
  distant.client->close();
}

TEST_CASE_FIXTURE(TwoNodes, "drained to another node: no call fails, and every one counts once") {
  SUBCASE("an ordinary class") { check_drain<Tally>(*this); }
  SUBCASE("one that runs each call exactly once") { check_drain<ExactTally>(*this); }
}

TEST_CASE_FIXTURE(TwoNodes,
                  "what a drained actor does not come to in its time runs on the next node") {
  const auto tally = detail::spawn<Tally>(driver.client, first_on_one()).value();
  REQUIRE(tally.call<&Tally::add>(1).get(20s).ok());
  std::vector<Future<int>> calls;
  for (int i = 0; i < 40; ++i) calls.push_back(tally.call<&Tally::add_slowly>(1, 20));
  drain(0, 200);
  int failed = 0;
  for (auto& call : calls) {
    const auto result = call.get(20s);
    if (result.ok()) continue;
    ++failed;  // the one that was cut short may have run
    CHECK_MESSAGE(result.status().code() == Code::kUnavailable, result.status().to_string());
  }
  CHECK(failed <= 1);
  const int count = tally.call<&Tally::count>().get(20s).value();
  CHECK(count >= 41 - failed);
  CHECK(count <= 41);
  CHECK(tally.call<&Tally::node>().get(20s).value() == ids[1].to_string());
}

TEST_CASE_FIXTURE(TwoNodes, "a node that leaves gives on what was saved on it") {
  const auto tally = detail::spawn<Tally>(driver.client, first_on_one()).value();
  REQUIRE(tally.call<&Tally::add>(7).get(20s).ok());
  on_cluster([this] { nodes[0]->leave("enough"); });
  wait_until_on(tally.id(), 1);
  CHECK(tally.with({.retry = true}).call<&Tally::count>().get(20s).value() == 7);
  // … and back, from where it is now.
  start_node(0);
  drain(1);
  wait_until_on(tally.id(), 0);
  CHECK(tally.with({.retry = true}).call<&Tally::count>().get(20s).value() == 7);
}

TEST_CASE_FIXTURE(TwoNodes, "light actors move with what they saved, and with who has ended") {
  ActorOptions options = first_on_one();
  options.isolation = Isolation::kShared;
  const auto many = detail::spawn_many<Rebuilder>(driver.client, 10, options).value();
  const auto one = detail::spawn<Rebuilder>(driver.client, options).value();
  for (std::size_t i = 0; i < 10; ++i) {
    REQUIRE(many[i].call<&Rebuilder::add>(static_cast<int>(i)).get(20s).ok());
  }
  REQUIRE(one.call<&Rebuilder::add>(5).get(20s).ok());
  REQUIRE(detail::kill(driver.client, many[3], {}).ok());
  drain(0);
  wait_until_on(many.hosts().at(0), 1);
  wait_until_on(one.host_id(), 1);
  for (std::size_t i = 0; i < 10; ++i) {
    const auto count = many[i].call<&Rebuilder::count>().get(20s);
    if (i == 3) {
      CHECK(count.status().code() == Code::kActorDied);
    } else {
      CHECK(count.value() == static_cast<int>(i));
    }
  }
  CHECK(one.call<&Rebuilder::count>().get(20s).value() == 5);
}

// --- a lost state --------------------------------------------------------------------------------

TEST_CASE_FIXTURE(TwoNodes,
                  "an actor that cannot go on without its state is dead, and says how it could") {
  const auto tally = detail::spawn<Tally>(driver.client, first_on_one()).value();
  REQUIRE(tally.call<&Tally::add>(7).get(20s).ok());
  const auto surely = tally.with({.timeout = 20s, .retry = true});
  lose_node(0);
  const Status status = surely.call<&Tally::count>().get(20s).status();
  CHECK(status.code() == Code::kActorDied);
  for (const char* part : {"is lost with node one", "load_lost", "start_empty_on_state_loss"}) {
    CHECK_MESSAGE(status.message().find(part) != std::string::npos, status.message());
  }
  const auto events = driver.head->events(0, 1000, Deadline::after(20s)).value();
  CHECK(std::any_of(events.begin(), events.end(),
                    [](const auto& event) { return event.kind == "state_lost"; }));
}

// The notice of a lost state. Where the first call left before the caller knew of the loss, it may
// have run on the lost node and is sent again; the next one is told then (actor_channel.cpp).
template <typename Call>
Status notice_of(Call call) {
  const Status first = call(0);
  return first.ok() ? call(1) : first;
}

TEST_CASE_FIXTURE(
    TwoNodes, "an actor that goes on without its state: each caller that knew it is told once") {
  const auto rebuilder = detail::spawn<Rebuilder>(driver.client, first_on_one()).value();
  ActorOptions anew = first_on_one();
  anew.start_empty_on_state_loss = true;
  const auto tally = detail::spawn<Tally>(driver.client, anew).value();
  const auto untouched = detail::spawn<Rebuilder>(driver.client, first_on_one()).value();
  const DriverClient other = connect({});
  const DriverClient stranger = connect({});
  REQUIRE(rebuilder.call<&Rebuilder::add>(7).get(20s).ok());
  REQUIRE(same(other, rebuilder).call<&Rebuilder::add>(7).get(20s).ok());
  REQUIRE(tally.call<&Tally::add>(7).get(20s).ok());
  REQUIRE(untouched.call<&Rebuilder::count>().get(20s).ok());
  lose_node(0);
  const CallOptions retry{.timeout = 20s, .retry = true};
  SUBCASE("by a call that is sent again, or not") {
    for (const auto& handle : {rebuilder.with(retry), same(other, rebuilder).with(retry)}) {
      const Status told =
          notice_of([&](int n) { return handle.call<&Rebuilder::add>(n).get(20s).status(); });
      CHECK_MESSAGE(told.code() == Code::kDataLoss, told.to_string());
      CHECK(told.message().find(ids[0].brief()) != std::string::npos);
    }
    CHECK(same(stranger, rebuilder).call<&Rebuilder::count>().get(20s).value() == 1000);
    CHECK(rebuilder.call<&Rebuilder::add>(1).get(20s).value() == 1001);
    CHECK(same(other, rebuilder).call<&Rebuilder::add>(1).get(20s).value() == 1002);
    CHECK(rebuilder.call<&Rebuilder::why_lost>().get(20s).value().find("node one") !=
          std::string::npos);
    const Status told =
        notice_of([&](int n) { return tally.with(retry).call<&Tally::add>(n).get(20s).status(); });
    CHECK(told.code() == Code::kDataLoss);
    CHECK(tally.call<&Tally::add>(1).get(20s).value() == 1);
    // It had saved nothing.
    CHECK(untouched.with(retry).call<&Rebuilder::count>().get(20s).value() == 0);
    // What it saves now is as good as ever.
    start_node(0);
    drain(1);
    wait_until_on(rebuilder.id(), 0);
    CHECK(rebuilder.with(retry).call<&Rebuilder::count>().get(20s).value() == 1002);
  }
  SUBCASE("not by calls that do not depend on it") {
    const auto careless =
        rebuilder.with({.timeout = 20s, .retry = true, .despite_state_loss = true});
    CHECK(careless.call<&Rebuilder::count>().get(20s).value() == 1000);
    CHECK(rebuilder.call<&Rebuilder::count>().get(20s).status().code() == Code::kDataLoss);
    CHECK(rebuilder.call<&Rebuilder::count>().get(20s).value() == 1000);
  }
  other.client->close();
  stranger.client->close();
}

TEST_CASE_FIXTURE(TwoNodes,
                  "light actors that go on without their states: one call of each is told") {
  ActorOptions options = first_on_one();
  options.isolation = Isolation::kShared;
  const auto many = detail::spawn_many<Rebuilder>(driver.client, 5, options).value();
  for (std::size_t i = 0; i < 4; ++i) REQUIRE(many[i].call<&Rebuilder::add>(1).get(20s).ok());
  lose_node(0);
  wait_until_on(many.hosts().at(0), 1);
  const CallOptions retry{.timeout = 20s, .retry = true};
  for (std::size_t i = 0; i < 4; ++i) {
    const Status told = notice_of(
        [&](int) { return many[i].with(retry).call<&Rebuilder::count>().get(20s).status(); });
    CHECK(told.code() == Code::kDataLoss);
    CHECK(many[i].with(retry).call<&Rebuilder::count>().get(20s).value() == 1000);
  }
  CHECK(many[4].with(retry).call<&Rebuilder::count>().get(20s).value() == 1000);
}

TEST_CASE("whom a loss concerns") {
  const auto& interface = detail::kActorInterface<Tally>;
  detail::StateLoss loss(interface);
  wire::ActorInfo info;
  info.state_lost_generation = 3;
  const auto tell = [&] { return loss.tell(0, {}).code(); };
  SUBCASE("one that was bound before") {
    loss.bound(1, {});
    CHECK(tell() == Code::kOk);
    loss.bound(4, info);
    CHECK(tell() == Code::kDataLoss);
    CHECK(tell() == Code::kOk);
    loss.bound(4, info);
    CHECK(tell() == Code::kOk);
    info.state_lost_generation = 6;
    loss.bound(6, info);
    CHECK(tell() == Code::kDataLoss);
  }
  SUBCASE("one that was never bound, or after it") {
    loss.bound(3, info);
    CHECK(tell() == Code::kOk);
    loss.bound(4, info);
    CHECK(tell() == Code::kOk);
  }
  SUBCASE("one that comes back to the process before") {
    loss.bound(2, {});
    loss.bound(2, info);
    CHECK(tell() == Code::kOk);
    loss.bound(3, info);
    CHECK(tell() == Code::kDataLoss);
  }
}

}  // namespace
}  // namespace troupe::tests::moving_test
