// Heartbeats: how unlikely a silence is, whom the head suspects, and when a lease is over.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "scheduler/control/head_state.h"
#include "scheduler/control/phi_accrual.h"

using namespace troupe;
using namespace troupe::scheduler;
using std::chrono::milliseconds;

namespace {

constexpr PeerId kBeatingPeer = 5;
const NodeId kBeatingNode{3, 3};

// A head, one node that beats as it is told, and a driver that watches nodes.
struct Beats {
  HeadConfig config;
  HeadState head;
  Moment now{TimePoint(std::chrono::hours(1)), 1'000'000};
  std::vector<std::string> events;
  std::vector<wire::NodeState> seen;  // by the driver
  int started = 0;

  explicit Beats(const HeadConfig& wanted = {}) : config(wanted), head(wanted) {
    wire::ClientHello hello;
    hello.request_id = 1;
    hello.client_id = ClientId{1, 1};
    say(1, hello);
    say(1, wire::WatchNodes{2});
    join();
  }
  void join() {
    wire::RegisterNode message;
    message.node.node_id = kBeatingNode;
    message.node.total = {{"CPU", 4 * wire::kResourceUnit}};
    say(kBeatingPeer, std::move(message));
  }
  void take(const Outcome& outcome) {
    for (const Delta& delta : outcome.deltas) {
      if (const auto* logged = get_if<EventLogged>(&delta)) {
        events.push_back(logged->event.kind);
      }
      if (const auto* known = get_if<NodeKnown>(&delta)) {
        CHECK(known->node.state != wire::NodeState::kSuspected);
      }
    }
    for (const Command& command : outcome.commands) {
      const auto* send = get_if<SendMessage>(&command);
      if (send == nullptr) continue;
      if (const auto* update = get_if<wire::NodeUpdate>(&send->message)) {
        seen.push_back(update->node.state);
      }
      if (holds_alternative<wire::StartActor>(send->message)) ++started;
    }
    const auto broken = head.broken_invariant();
    REQUIRE_MESSAGE(!broken, broken.value_or(""));
  }
  void say(PeerId peer, wire::ControlMessage message) {
    take(head.apply(MessageArrived{peer, std::move(message)}, now));
  }
  void create(ActorId id) {
    wire::CreateActors message;
    message.request_id = 3;
    message.specs.resize(1);
    message.specs[0].actor_id = id;
    message.specs[0].type = "Counter";
    message.specs[0].resources = {{"CPU", wire::kResourceUnit}};
    say(1, std::move(message));
  }
  // Time passes, with a tick whenever the head wants one.
  void pass(milliseconds time) {
    const TimePoint end = now.steady + time;
    while (true) {
      const auto due = head.next_deadline();
      if (!due || *due > end) break;
      now.steady = *due;
      take(head.apply(Tick{}, now));
    }
    now.steady = end;
  }
  void beat() { say(kBeatingPeer, wire::Heartbeat{kBeatingNode, 1}); }
  void beat(int count, milliseconds interval) {
    for (int i = 0; i < count; ++i) {
      pass(interval);
      beat();
    }
  }
  int count(const std::string& kind) const {
    return static_cast<int>(std::count(events.begin(), events.end(), kind));
  }
  wire::NodeState state() const { return head.nodes().at(kBeatingNode).info.state; }
};

}  // namespace

TEST_CASE("phi is the logarithm of the normal distribution's tail") {
  // Q(z), from tables: 1 % at 2.3263, 10^-6 at 4.7534, 10^-9 at 5.9978.
  CHECK(deviations_at(2) == doctest::Approx(2.3263).epsilon(1e-4));
  CHECK(deviations_at(6) == doctest::Approx(4.7534).epsilon(1e-4));
  CHECK(deviations_at(9) == doctest::Approx(5.9978).epsilon(1e-4));
  PhiAccrual beats(milliseconds(500));
  TimePoint now{};
  beats.begin(now);
  for (int i = 0; i < 200; ++i) {
    now += milliseconds(i % 2 == 0 ? 300 : 700);
    beats.heard(now);
  }
  CHECK(beats.mean() == milliseconds(500));
  CHECK(beats.deviation() == milliseconds(200));
  // Half of the intervals are longer than the mean.
  CHECK(beats.phi(now + milliseconds(500)) == doctest::Approx(std::log10(2)));
  CHECK(beats.phi(now + milliseconds(500) + milliseconds(465)) == doctest::Approx(2).epsilon(0.01));
  // It grows without end, also where the tail is too small for a double.
  CHECK(beats.phi(now + std::chrono::seconds(100)) > beats.phi(now + std::chrono::seconds(10)));
  CHECK(std::isfinite(beats.phi(now + std::chrono::hours(1))));
  for (const double phi : {0.5, 1.0, 3.0, 8.0, 12.0}) {
    CAPTURE(phi);
    CHECK(beats.phi(now + beats.silence(deviations_at(phi))) == doctest::Approx(phi).epsilon(1e-3));
  }
}

TEST_CASE("intervals of long ago are forgotten without a rest") {
  PhiAccrual beats(milliseconds(500));
  TimePoint now{};
  beats.begin(now);
  SeededRandom random(3);
  for (int i = 0; i < 10'000; ++i) {
    now += milliseconds(random.below(3000));
    beats.heard(now);
  }
  CHECK(beats.deviation() > milliseconds(500));
  for (std::size_t i = 0; i < PhiAccrual::kIntervalsMax; ++i) beats.heard(now += milliseconds(500));
  CHECK(beats.mean() == milliseconds(500));
  CHECK(beats.deviation() == PhiAccrual::kDeviationLeast);
  // A pause before heartbeats begin again is none of them.
  now += std::chrono::hours(1);
  beats.begin(now);
  beats.heard(now += milliseconds(500));
  CHECK(beats.mean() == milliseconds(500));
}

TEST_CASE("a node that is silent for longer than usual gets nothing new until it is heard") {
  Beats beats;
  beats.beat(20, milliseconds(500));
  beats.seen.clear();
  beats.pass(milliseconds(900));
  CHECK(beats.count("node_suspected") == 0);
  beats.pass(milliseconds(300));
  CHECK(beats.count("node_suspected") == 1);
  CHECK(beats.seen == std::vector{wire::NodeState::kSuspected});
  CHECK(beats.state() == wire::NodeState::kAlive);
  beats.create({7, 7});
  CHECK(beats.started == 0);
  CHECK(beats.head.actors().at({7, 7}).info.state == wire::ActorState::kPending);
  beats.seen.clear();
  beats.beat();
  CHECK(beats.count("node_heard") == 1);
  CHECK(beats.seen.front() == wire::NodeState::kAlive);
  CHECK(beats.started == 1);
  // Whatever it says, it is there.
  beats.pass(milliseconds(2'000));
  CHECK(beats.count("node_suspected") == 2);
  beats.say(kBeatingPeer, wire::ActorStarted{{7, 7}, 1, 42});
  CHECK(beats.count("node_heard") == 2);
  // Only a heartbeat renews the lease.
  beats.pass(milliseconds(600));
  CHECK(beats.state() == wire::NodeState::kDead);
}

TEST_CASE("a node whose heartbeats come as they like is suspected later; its lease is the same") {
  const auto silent_until = [](std::vector<int> intervals_ms, const char* event) {
    Beats beats;
    for (int i = 0; i < 120; ++i) {
      beats.beat(1, milliseconds(intervals_ms[static_cast<std::size_t>(i) % intervals_ms.size()]));
    }
    int waited_ms = 0;
    while (beats.count(event) == 0 && waited_ms < 10'000) {
      beats.pass(milliseconds(10));
      waited_ms += 10;
    }
    return waited_ms;
  };
  const int regular = silent_until({500}, "node_suspected");
  const int wild = silent_until({300, 700, 400, 800}, "node_suspected");
  // All with the 20 ms between a first look and the second.
  CHECK(regular == doctest::Approx(1080).epsilon(0.02));
  CHECK(wild > regular + 500);
  CHECK(silent_until({500}, "node_died") == 2520);
  CHECK(silent_until({300, 700, 400, 800}, "node_died") == 2520);
}

TEST_CASE("a head that stood still listens before it judges") {
  for (const int pause_ms : {900, 2'400, 4'000}) {
    CAPTURE(pause_ms);
    Beats beats;
    beats.beat(20, milliseconds(500));
    // Its timers come late, and first; what the node said waits.
    beats.now.steady += milliseconds(pause_ms);
    beats.take(beats.head.apply(Tick{}, beats.now));
    beats.beat();
    CHECK(beats.count("node_suspected") == 0);
    CHECK(beats.count("node_died") == 0);
    beats.pass(milliseconds(1'000));
    CHECK(beats.count("node_suspected") == 0);
    // It is excused once a silence.
    beats.pass(milliseconds(400));
    CHECK(beats.count("node_suspected") == 1);
    beats.pass(milliseconds(1'200));
    CHECK(beats.count("node_died") == 1);
  }
}

// As after SIGSTOP and SIGCONT: the timers come first, what others said meanwhile waits in sockets.
TEST_CASE("however long a head stood still, nobody counts as silent for it") {
  for (const bool regular : {true, false}) {
    for (int pause_ms = 100; pause_ms <= 4'000; pause_ms += 50) {
      for (int since_beat_ms = 0; since_beat_ms < 500; since_beat_ms += 55) {
        CAPTURE(regular);
        CAPTURE(pause_ms);
        CAPTURE(since_beat_ms);
        Beats beats;
        for (int i = 0; i < 24; ++i) {
          beats.beat(1, milliseconds(regular ? 500 : std::array{200, 900, 300, 1'000}[i % 4]));
        }
        REQUIRE(beats.count("node_suspected") == 0);
        beats.pass(milliseconds(since_beat_ms));
        beats.now.steady += milliseconds(pause_ms);
        if (beats.head.next_deadline().value() <= beats.now.steady) {
          beats.take(beats.head.apply(Tick{}, beats.now));
        }
        for (int at = 500; at <= since_beat_ms + pause_ms; at += 500) beats.beat();
        beats.beat(4, milliseconds(450));
        CHECK(beats.count("node_suspected") == 0);
        REQUIRE(beats.count("node_died") == 0);
      }
    }
  }
}

TEST_CASE("who comes back while the head stands still has come back in time") {
  for (const int pause_ms : {1'000, 1'100, 3'200, 10'000}) {
    CAPTURE(pause_ms);
    Beats beats;
    beats.create({7, 7});
    beats.say(kBeatingPeer, wire::ActorStarted{{7, 7}, 1, 42});
    beats.say(kBeatingPeer, wire::ActorReady{{7, 7}, 1});
    beats.take(beats.head.apply(PeerClosed{1}, beats.now));
    beats.now.steady += milliseconds(pause_ms);
    beats.take(beats.head.apply(Tick{}, beats.now));
    beats.beat();
    wire::ClientHello hello;
    hello.request_id = 1;
    hello.client_id = ClientId{1, 1};
    beats.say(2, hello);
    beats.beat(4, milliseconds(450));
    CHECK(beats.count("owner_gone") == 0);
    CHECK(beats.head.actors().at({7, 7}).info.state == wire::ActorState::kAlive);
  }
}

// Who is between two attempts when the head goes on is not heard at the second look.
TEST_CASE("who is away has as long to come back as if the head had not stood still") {
  for (const int pause_ms : {2'500, 3'900, 10'000}) {
    for (const int times : {1, 4}) {
      CAPTURE(pause_ms);
      CAPTURE(times);
      Beats beats;
      beats.create({7, 7});
      beats.say(kBeatingPeer, wire::ActorStarted{{7, 7}, 1, 42});
      beats.say(kBeatingPeer, wire::ActorReady{{7, 7}, 1});
      beats.take(beats.head.apply(PeerClosed{1}, beats.now));
      beats.take(beats.head.apply(PeerClosed{kBeatingPeer}, beats.now));
      for (int i = 0; i < times; ++i) {
        beats.pass(milliseconds(100));
        beats.now.steady += milliseconds(pause_ms);
        beats.take(beats.head.apply(Tick{}, beats.now));
      }
      beats.pass(milliseconds(900));
      CHECK(beats.count("owner_gone") == 0);
      beats.pass(milliseconds(200));
      CHECK(beats.count("owner_gone") == 1);
      beats.pass(milliseconds(2'800));
      CHECK(beats.count("node_died") == 0);
      beats.pass(milliseconds(200));
      CHECK(beats.count("node_died") == 1);
    }
  }
}

// A head that has started last and waits for all has nothing else to do, and no other timer.
TEST_CASE("a pause that ends right behind the time that nodes have is seen all the same") {
  Beats beats;
  beats.take(beats.head.apply(PeerClosed{kBeatingPeer}, beats.now));
  beats.pass(milliseconds(500));
  beats.now.steady += milliseconds(3'600);
  beats.take(beats.head.apply(Tick{}, beats.now));
  beats.pass(milliseconds(3'300));
  CHECK(beats.count("node_died") == 0);
  beats.pass(milliseconds(600));
  CHECK(beats.count("node_died") == 1);
}

TEST_CASE("an idle head has one timer a node") {
  Beats beats;
  for (int i = 0; i < 50; ++i) {
    beats.say(kBeatingPeer, wire::Heartbeat{kBeatingNode, 1});
    beats.join();
  }
  beats.beat(20, milliseconds(500));
  int ticks = 0;
  const TimePoint end = beats.now.steady + std::chrono::seconds(10);
  TimePoint beat_at = beats.now.steady + milliseconds(500);
  while (beats.now.steady < end) {
    const auto due = beats.head.next_deadline();
    REQUIRE(due);
    if (*due < beat_at) {
      beats.now.steady = *due;
      beats.take(beats.head.apply(Tick{}, beats.now));
      ++ticks;
    } else {
      beats.now.steady = beat_at;
      beats.beat();
      beat_at += milliseconds(500);
    }
  }
  CHECK(ticks <= 20);
}
