#include "scheduler_figures.h"

#include <time.h>

#include <algorithm>
#include <functional>

#include "runtime/base/check.h"
#include "runtime/base/random.h"
#include "runtime/wire/control_messages.h"
#include "scheduler/control/head_state.h"
#include "scheduler/policy/resources.h"
#include "stall_simulation.h"

namespace troupe::simulation {
namespace {

using namespace scheduler;
using std::chrono::milliseconds;

constexpr int kNodes = 1000;
constexpr int kPlacements = 5000;
constexpr int kRounds = 5;
constexpr int kStallSeeds = 20;
constexpr PeerId kClient = 1'000'000;

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// A head that a thousand nodes have joined, of eight sizes, and a driver.
struct Joined {
  HeadState head;
  Moment now{TimePoint(std::chrono::hours(1)), 1'000'000'000};
  SeededRandom random{7};
  std::vector<NodeId> ids;

  Joined() {
    for (int i = 0; i < kNodes; ++i) {
      wire::RegisterNode message;
      ids.push_back(NodeId::make(random));
      message.node.node_id = ids.back();
      message.node.name = fmt::format("node-{}", i);
      message.node.total = {{std::string(kCpu), (8 + 4 * (i % 8)) * wire::kResourceUnit}};
      say(static_cast<PeerId>(i + 1), std::move(message));
    }
    wire::ClientHello hello;
    hello.request_id = 1;
    hello.client_id = ClientId{1, 1};
    say(kClient, hello);
  }
  Outcome say(PeerId peer, wire::ControlMessage message) {
    return head.apply(MessageArrived{peer, std::move(message)}, now);
  }
};

// One request of one actor each: taken in, checked, placed, told to its node.
double placement_us() {
  std::vector<double> rounds;
  for (int round = 0; round < kRounds; ++round) {
    Joined joined;
    std::vector<wire::CreateActors> requests(kPlacements);
    for (auto& request : requests) {
      request.request_id = 2;
      request.specs.resize(1);
      request.specs[0].actor_id = ActorId::make(joined.random);
      request.specs[0].type = "Worker";
      request.specs[0].resources = {{std::string(kCpu), wire::kResourceUnit}};
    }
    const double began = cpu_seconds();
    for (auto& request : requests) joined.say(kClient, std::move(request));
    rounds.push_back((cpu_seconds() - began) / kPlacements * 1e6);
    for (const auto& [id, actor] : joined.head.actors()) TROUPE_CHECK(actor.has_process());
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

// Heartbeats of a thousand nodes, each in its own time, as bytes in and bytes out.
double idle_percent(int minutes) {
  Joined joined;
  const Duration interval = kTiming.heartbeat_interval;
  std::vector<std::pair<TimePoint, int>> beats;
  for (int i = 0; i < kNodes; ++i) {
    beats.emplace_back(joined.now.steady + interval * i / kNodes, i);
  }
  const TimePoint end = joined.now.steady + std::chrono::minutes(minutes);
  const double began = cpu_seconds();
  for (std::uint64_t sequence = 1; joined.now.steady < end; ++sequence) {
    for (auto& [at, number] : beats) {
      while (joined.head.next_deadline() && *joined.head.next_deadline() <= at) {
        joined.now.steady = *joined.head.next_deadline();
        joined.head.apply(Tick{}, joined.now);
      }
      joined.now.steady = at;
      at += interval;
      const auto bytes =
          wire::encode(wire::Heartbeat{joined.ids[static_cast<std::size_t>(number)], sequence});
      auto message = wire::decode_control(bytes);
      TROUPE_CHECK(message.ok());
      const Outcome outcome = joined.say(static_cast<PeerId>(number + 1), std::move(*message));
      for (const Command& command : outcome.commands) {
        TROUPE_CHECK(!wire::encode(get<SendMessage>(command).message).empty());
      }
      TROUPE_CHECK(outcome.deltas.empty());
    }
  }
  return (cpu_seconds() - began) / (60.0 * minutes) * 100;
}

}  // namespace

std::vector<Figure> measure_scheduler(int minutes) {
  std::vector<Figure> figures;
  figures.push_back({"placement_decision_1000_nodes", placement_us(), "us"});
  figures.push_back({"idle_head_1000_nodes", idle_percent(minutes), "%_of_a_core"});
  StallResult worst;
  StallOptions stalls;
  for (stalls.seed = 1; stalls.seed <= kStallSeeds; ++stalls.seed) {
    const StallResult result = simulate_stalls(stalls);
    TROUPE_CHECK(result.violation.empty() && result.undetected == 0);
    worst.stalls += result.stalls;
    worst.false_suspicions += result.false_suspicions;
    worst.false_deaths += result.false_deaths;
    worst.suspected_after_ms = std::max(worst.suspected_after_ms, result.suspected_after_ms);
    worst.dead_after_ms = std::max(worst.dead_after_ms, result.dead_after_ms);
  }
  const auto add = [&](const char* name, double value, const char* unit) {
    figures.push_back({name, value, unit});
  };
  add("stalls_of_200_ms", worst.stalls, "stalls");
  add("false_suspicions", worst.false_suspicions, "nodes");
  add("false_deaths", worst.false_deaths, "nodes");
  add("frozen_node_suspected_at_most", static_cast<double>(worst.suspected_after_ms), "ms");
  add("frozen_node_dead_at_most", static_cast<double>(worst.dead_after_ms), "ms");
  return figures;
}

}  // namespace troupe::simulation
