#include "scheduler/node/node_state.h"

#include <doctest/doctest.h>

#include "runtime/base/limits.h"
#include "runtime/base/random.h"
#include "tests/scheduler/node/node_driver.h"

namespace troupe::scheduler::tests {
namespace {

using namespace std::chrono_literals;

TEST_CASE("an exit is reported when the whole group is gone") {
  NodeDriver d;
  d.join();
  const HostId host = d.run(1);
  d.leader_ends(host);
  CHECK(d.did<node_command::KillGroup>());
  CHECK(!d.did<node_command::ReportExit>());
  d.group_goes(host);
  REQUIRE(d.did<node_command::ReportExit>());
  CHECK(d.did<node_command::ReportExit>()->exited.exit.signal == 9);
  CHECK(d.state.log_of(ActorId{1, 1}) == host);
}

TEST_CASE("which nodes there are is asked of the head, where there is one") {
  NodeDriver d;
  d.apply(node_event::NodesAsked{});
  CHECK_FALSE(d.said<wire::ListNodes>());
  d.join();
  d.apply(node_event::NodesAsked{});
  CHECK(d.said<wire::ListNodes>());
  wire::NodeList list;
  list.nodes.resize(2);
  d.apply(node_event::FromHead{list});
  REQUIRE(d.did<node_command::TellNodes>());
  CHECK(d.did<node_command::TellNodes>()->nodes == list.nodes);
}

TEST_CASE("grace, then SIGKILL; without grace at once") {
  NodeDriver d;
  d.join();
  const HostId host = d.run(1);
  d.apply(node_event::FromHead{wire::StopActor{ActorId{1, 1}, 1, 100, "x"}});
  REQUIRE(d.told<wire::HostStop>());
  CHECK(d.told<wire::HostStop>()->grace_ms == 100);
  CHECK(!d.did<node_command::KillGroup>());
  d.advance(99ms);
  CHECK(!d.did<node_command::KillGroup>());
  d.advance(1ms);
  CHECK(d.did<node_command::KillGroup>());
  d.end(host);
  d.run(2);
  d.apply(node_event::FromHead{wire::StopActor{ActorId{1, 2}, 1, 0, "x"}});
  CHECK(d.did<node_command::KillGroup>());
  d.apply(node_event::FromHead{wire::StopActor{ActorId{1, 9}, 4, 0, "x"}});
  REQUIRE(d.said<wire::ActorExited>());
  CHECK(d.said<wire::ActorExited>()->generation == 4);
}

TEST_CASE("a newer generation waits for the end of the one before") {
  NodeDriver d;
  d.join();
  const HostId host = d.run(1);
  d.apply(node_event::FromHead{d.start_message(1, 2)});
  CHECK(d.did<node_command::KillGroup>());
  CHECK(!d.did<node_command::SpawnHost>());
  d.end(host);
  REQUIRE(d.did<node_command::SpawnHost>());
  CHECK(d.did<node_command::SpawnHost>()->generation == 2);
}

TEST_CASE("a registration says who holds what, and carries no arguments of constructors") {
  NodeDriver d;
  d.join();
  for (std::uint64_t n = 1; n <= 10; ++n) {
    wire::StartActor start = d.start_message(n, 1);
    start.spec.constructor_arguments.resize(100'000);
    start.spec.environment["NOISE"] = std::string(1000, 'x');
    start.spec.resources["CPU"] = 5;
    d.apply(node_event::FromHead{std::move(start)});
    d.spawned();
  }
  d.apply(node_event::HeadDown{Status(Code::kUnavailable, "away")});
  d.advance(1s);
  d.apply(node_event::HeadUp{});
  REQUIRE(d.said<wire::RegisterNode>());
  const wire::RegisterNode& said = *d.said<wire::RegisterNode>();
  REQUIRE(said.running.size() == 10);
  for (const wire::RunningActor& running : said.running) {
    CHECK(running.spec.resources.at("CPU") == 5);
  }
  CHECK(wire::encode(said).size() < 10'000);
}

TEST_CASE("a process that does not read ends with the reason; one that starts has minutes") {
  NodeDriver d;
  d.join();
  wire::StartActor start = d.start_message(1, 1);
  start.spec.image.path = "/home/x/slow";
  d.apply(node_event::FromHead{start});
  const HostId host = d.spawned();
  d.apply(node_event::Unread{host, 900'000});
  d.advance(4min);
  d.apply(node_event::Unread{host, 900'100});  // a connection more: it has read nothing
  CHECK_FALSE(d.did<node_command::KillGroup>());
  SUBCASE("it never begins to read") {
    d.advance(1min);
    CHECK(d.did<node_command::KillGroup>());
    d.end(host);
    REQUIRE(d.did<node_command::ReportExit>());
    const std::string why = d.did<node_command::ReportExit>()->exited.cause.message();
    CHECK_MESSAGE(why.find("/home/x/slow read nothing for 300000 ms of the 900100 bytes") !=
                      std::string::npos,
                  why);
    CHECK(why.find("main()") != std::string::npos);
  }
  SUBCASE("it reads, and has its time again") {
    d.apply(node_event::Unread{host, 500'000, true});
    d.advance(4min);
    d.apply(node_event::Unread{host, 0, true});
    d.apply(node_event::FromHost{host, wire::HostReady{}});
    d.advance(1h);
    CHECK_FALSE(d.did<node_command::KillGroup>());
    d.apply(node_event::Unread{host, 10});
    d.advance(9s);
    CHECK_FALSE(d.did<node_command::KillGroup>());
    d.advance(1s);
    CHECK(d.did<node_command::KillGroup>());
    d.end(host);
    const std::string why = d.did<node_command::ReportExit>()->exited.cause.message();
    CHECK_MESSAGE(why.find("read nothing for 10000 ms of the 10 bytes") != std::string::npos, why);
  }
}

TEST_CASE("saved state goes to the next process, and ends with the actor") {
  NodeDriver d;
  d.join();
  const HostId host = d.run(1);
  d.apply(node_event::FromHost{host, wire::HostSavedState{1}, d.fd()});
  d.apply(node_event::FromHost{host, wire::HostSavedState{1}, d.fd()});
  CHECK(d.open == std::set<FdHandle>{2});
  d.end(host);
  d.apply(node_event::FromHead{d.start_message(1, 2)});
  const HostId again = d.spawned();
  CHECK(d.told<wire::HostStart>()->has_saved_state);
  d.end(again);
  CHECK(d.open.size() == 1);
  d.is_over(ActorId{1, 1}, 2);
  CHECK(d.open.empty());
}

TEST_CASE("connections wait for the next process: so many, so long") {
  NodeDriver d;
  d.join();
  const HostId host = d.run(1);
  const ActorId id{1, 1};
  d.end(host);
  for (std::size_t i = 0; i < d.config.hand_overs_max + 5; ++i) {
    d.apply(node_event::ConnectionArrived{id, d.fd(), {}});
  }
  CHECK(d.open.size() == d.config.hand_overs_max);
  CHECK(d.state.check_actor(id).code() == Code::kOverloaded);
  d.advance(d.config.hand_over_timeout);
  CHECK(d.open.empty());
  d.apply(node_event::ConnectionArrived{id, d.fd(), {}});
  d.apply(node_event::FromHead{d.start_message(1, 2)});
  d.spawned();
  CHECK(d.told<wire::HostConnection>());
  CHECK(d.open.empty());
  d.apply(node_event::ConnectionArrived{ActorId{1, 77}, d.fd(), {}});
  CHECK(d.open.empty());
}

TEST_CASE("a stranger's connection waits as long as a handshake may take") {
  NodeDriver d;
  d.join();
  const HostId host = d.run(1);
  d.end(host);
  d.apply(node_event::ConnectionArrived{ActorId{1, 1}, d.fd(), {.untouched = true}});
  d.apply(node_event::ConnectionArrived{ActorId{1, 1}, d.fd(), {}});
  CHECK(d.open.size() == 2);
  d.advance(limits::kHandshakeTimeout);
  CHECK(d.open.size() == 1);
}

TEST_CASE("the lease counts from the heartbeat that was answered") {
  NodeDriver d;
  d.join(500, 3000);
  const HostId host = d.run_fenced(1);
  d.advance(500ms);
  REQUIRE(d.said<wire::Heartbeat>());
  const auto first = *d.said<wire::Heartbeat>();
  for (int i = 0; i < 4; ++i) d.advance(500ms);  // 2.5 s
  d.apply(node_event::FromHead{first});          // answered late: the lease ends at 0.5 + 3.5 s
  d.advance(900ms);                              // 3.4 s
  CHECK(d.state.registered());
  d.advance(100ms);  // 3.5 s: the head counts as lost
  CHECK(d.did<node_command::DropHead>());
  CHECK(!d.state.registered());
  d.advance(499ms);
  CHECK(d.being_killed.empty());
  d.advance(1ms);
  CHECK(d.being_killed.contains(host));
  d.end(host);
  CHECK(d.did<node_command::ReportExit>()->exited.cause.code() == Code::kAborted);
}

TEST_CASE("while the head is silent actors run on, but for those that must not run twice") {
  NodeDriver d;
  d.join(500, 3000);
  const HostId kept = d.run(1);
  const HostId fenced = d.run_fenced(2);
  // Asked for before the silence: its process begins when the one before is gone.
  d.apply(node_event::FromHead{d.start_message(3, 1)});
  const HostId slow = d.spawned();
  d.apply(node_event::FromHead{d.start_message(3, 2)});
  REQUIRE(d.state.lease_end());
  CHECK(*d.state.lease_end() == d.clock.now() + 3500ms);
  d.advance(3500ms);
  CHECK(d.being_killed == std::set<HostId>{fenced, slow});
  d.end(slow);
  CHECK(d.did<node_command::SpawnHost>());
  d.spawned();
  d.end(fenced);
  CHECK_FALSE(d.state.lease_end());  // nobody is left whom its end concerns
  for (int i = 0; i < 120; ++i) {
    if (d.did<node_command::ConnectHead>()) {
      d.apply(node_event::HeadDown{error(Code::kUnavailable, "no answer")});
    }
    d.advance(1s);
    CHECK(d.being_killed.empty());
  }
  // The head is there again: what ran is known to it, and runs on.
  d.apply(node_event::HeadUp{});
  REQUIRE(d.said<wire::RegisterNode>());
  CHECK(d.said<wire::RegisterNode>()->running.size() == 2);
  CHECK(d.said<wire::RegisterNode>()->running[0].spec.actor_id == ActorId{1, 1});
  d.apply(node_event::FromHead{wire::RegisterNodeReply{}});
  CHECK(d.running.contains(kept));
  CHECK(d.being_killed.empty());
}

TEST_CASE("a node that finds no head for long ends itself and every actor") {
  NodeDriver d;
  d.join(500, 3000);
  const HostId host = d.run(1);
  d.apply(node_event::HeadDown{error(Code::kUnavailable, "gone")});
  d.advance(d.config.orphan_timeout - 1ms);
  CHECK(d.being_killed.empty());
  d.advance(1ms);
  CHECK(d.being_killed.contains(host));
  d.end(host);
  REQUIRE(d.did<node_command::EndNode>());
}

TEST_CASE("so does one whose head is connected to and never answers; nothing is due meanwhile") {
  NodeDriver d;
  d.join(500, 3000);
  const HostId host = d.run(1);
  d.apply(node_event::HeadDown{error(Code::kUnavailable, "gone")});
  d.advance(d.config.orphan_timeout - 1s);
  d.apply(node_event::HeadUp{});
  d.advance(2s);  // (The driver checks that no time that has passed is waited for.)
  CHECK(d.being_killed.contains(host));
  d.advance(5s);
  d.end(host);
  REQUIRE(d.did<node_command::EndNode>());
}

TEST_CASE("however many end together, those that may come back keep what they saved") {
  NodeDriver d;
  d.join();
  const std::uint64_t count = d.config.ended_actors_max + 50;
  std::vector<HostId> hosts;
  for (std::uint64_t n = 1; n <= count; ++n) {
    hosts.push_back(d.run(n));
    d.apply(node_event::FromHost{hosts.back(), wire::HostSavedState{1}, d.fd()});
  }
  for (const HostId host : hosts) d.end(host);
  SUBCASE("under the same daemon") {}
  SUBCASE("under the next one") {
    d.restart();
    d.join();
  }
  CHECK(d.open.size() == count);
  for (std::uint64_t n = 1; n <= count; ++n) {
    d.apply(node_event::FromHead{d.start_message(n, 2)});
    d.spawned();
    REQUIRE(d.told<wire::HostStart>());
    CHECK(d.told<wire::HostStart>()->has_saved_state);
  }
}

TEST_CASE("of actors that are over the last ones' output can be read, and nothing else is left") {
  NodeDriver d;
  d.join();
  const std::uint64_t count = d.config.ended_actors_max + 50;
  for (std::uint64_t n = 1; n <= count; ++n) {
    wire::StartActor start = d.start_message(n, 1);
    start.spec.restart.max_restarts = n % 2 == 0 ? 1 : 0;
    const HostId host = d.run(start);
    d.apply(node_event::FromHost{host, wire::HostSavedState{1}, d.fd()});
    d.end(host);
  }
  CHECK(d.open.size() == count / 2);
  for (std::uint64_t n = 2; n <= count; n += 2) d.is_over(ActorId{1, n}, 1);
  CHECK(d.open.empty());
  CHECK(d.kept.size() == 1);  // the node itself
  std::uint64_t readable = 0;
  for (std::uint64_t n = 1; n <= count; ++n) readable += d.state.log_of(ActorId{1, n}) ? 1 : 0;
  CHECK(readable == d.config.ended_actors_max);
}

TEST_CASE("coming back, the node says what runs and stops what is not wanted") {
  NodeDriver d;
  d.join();
  d.run(1);
  const HostId unwanted = d.run(2);
  d.apply(node_event::HeadDown{error(Code::kUnavailable, "gone")});
  d.advance(1s);
  CHECK(d.did<node_command::ConnectHead>());
  d.apply(node_event::HeadUp{});
  REQUIRE(d.said<wire::RegisterNode>());
  CHECK(d.said<wire::RegisterNode>()->running.size() == 2);
  wire::RegisterNodeReply reply;
  reply.stop = {{ActorId{1, 2}, 1}, {ActorId{1, 1}, 7}};
  d.apply(node_event::FromHead{reply});
  CHECK(d.being_killed == std::set<HostId>{unwanted});
}

TEST_CASE("joining: retries, a deadline, final refusals") {
  NodeDriver d;
  d.apply(node_event::Tick{});
  CHECK(d.did<node_command::ConnectHead>());
  for (int i = 0; i < 100 && !d.did<node_command::EndNode>(); ++i) {
    d.apply(node_event::HeadDown{error(Code::kUnavailable, "refused")});
    if (!d.did<node_command::EndNode>()) d.advance(1s);
  }
  REQUIRE(d.did<node_command::EndNode>());
  CHECK(d.did<node_command::EndNode>()->status.code() == Code::kDeadlineExceeded);

  NodeDriver wrong;
  wrong.apply(node_event::HeadDown{error(Code::kUnauthenticated, "wrong token")});
  REQUIRE(wrong.did<node_command::EndNode>());
  CHECK(wrong.did<node_command::EndNode>()->status.code() == Code::kUnauthenticated);
}

TEST_CASE("shutting down: grace for all, farewell, end") {
  NodeDriver d;
  d.join();
  const HostId one = d.run(1);
  const HostId two = d.run(2);
  d.apply(node_event::ShutDown{"x"});
  CHECK(d.told<wire::HostStop>());
  d.end(one);
  CHECK(!d.did<node_command::EndNode>());
  d.advance(d.config.shutdown_grace);
  CHECK(d.being_killed == std::set<HostId>{two});
  d.end(two);
  CHECK(d.said<wire::NodeUpdate>()->node.state == wire::NodeState::kDead);
  REQUIRE(d.did<node_command::EndNode>());
  CHECK(d.did<node_command::EndNode>()->status.ok());
}

void random_step(NodeDriver& d, SeededRandom& random,
                 std::map<std::uint64_t, std::uint64_t>& last) {
  const auto any = [&](const std::set<HostId>& set) {
    auto it = set.begin();
    std::advance(it, static_cast<std::ptrdiff_t>(random.below(set.size())));
    return *it;
  };
  const std::uint64_t n = 1 + random.below(4);
  switch (random.below(17)) {
    case 0:
    case 1:
      d.apply(node_event::FromHead{d.start_message(n, ++last[n])});
      break;
    case 2:
      d.apply(node_event::FromHead{wire::StopActor{
          ActorId{1, n}, last[n], static_cast<std::int64_t>(random.below(2000)), "x"}});
      break;
    case 3:
      if (!d.spawning.empty()) d.spawned();
      break;
    case 4:
      if (!d.spawning.empty()) {
        const HostId host = any(d.spawning);
        d.spawning.erase(host);
        d.apply(node_event::SpawnFailed{host, error(Code::kNotFound, "x")});
      }
      break;
    case 5:
      if (!d.running.empty()) d.leader_ends(any(d.running));
      break;
    case 6:
      if (!d.ended.empty()) d.group_goes(any(d.ended));
      break;
    case 7:
      if (!d.running.empty()) {
        d.apply(node_event::FromHost{any(d.running), wire::HostSavedState{1}, d.fd()});
      }
      break;
    case 8:
      if (!d.running.empty()) {
        d.apply(node_event::FromHost{any(d.running),
                                     wire::HostKeepSegment{std::to_string(n), false}, d.fd()});
      }
      break;
    case 9:
      if (!d.running.empty()) d.apply(node_event::FromHost{any(d.running), wire::HostReady{}});
      break;
    case 14:
    case 15:
      if (!d.running.empty()) {
        const wire::HostAttachSegment request{random.below(3), std::to_string(n),
                                              static_cast<std::int64_t>(random.below(5000))};
        d.apply(node_event::FromHost{any(d.running), request});
      }
      break;
    case 10:
      d.apply(node_event::ConnectionArrived{ActorId{1, n}, d.fd(), {}});
      break;
    case 11:
      d.advance(std::chrono::milliseconds(random.below(3000)));
      break;
    case 12:
      if (!d.running.empty()) {
        d.apply(node_event::ChannelEnded{any(d.running), error(Code::kProtocol, "x")});
      }
      break;
    case 16:
      if (!d.running.empty()) {
        d.apply(node_event::Unread{any(d.running), random.below(3) * 1000, random.below(2) == 0});
      }
      break;
    case 13:
      if (random.below(3) == 0) {
        d.apply(node_event::HeadDown{error(Code::kUnavailable, "x")});
        d.apply(node_event::HeadUp{});
      }
      d.apply(node_event::FromHead{wire::RegisterNodeReply{}});
      break;
  }
}

TEST_CASE("random schedules break no invariant and leak no descriptor") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    NodeDriver d;
    SeededRandom random(seed);
    std::map<std::uint64_t, std::uint64_t> last;
    d.join();
    const bool daemons_die = seed % 2 == 1;
    for (int step = 0; step < 300; ++step) {
      random_step(d, random, last);
      if (!daemons_die || random.below(20) != 0) continue;
      d.restart();
      d.join();
    }
    bool ended_once = false;
    d.apply(node_event::ShutDown{"x"});
    for (int i = 0; i < 1000 && !ended_once; ++i) {
      ended_once = d.did<node_command::EndNode>() != nullptr;
      if (ended_once) break;
      if (!d.spawning.empty()) {
        d.spawned();
      } else if (!d.being_killed.empty()) {
        const HostId host = *d.being_killed.begin();
        if (d.running.contains(host)) {
          d.leader_ends(host);
        } else {
          d.group_goes(host);
        }
      } else {
        d.advance(1s);
      }
    }
    CHECK(ended_once);
    CHECK(d.open.empty());
    CHECK(d.state.process_count() == 0);
  }
}

}  // namespace
}  // namespace troupe::scheduler::tests
