// How long the head takes to decide where something goes: `tools/bench placement`.
//
// Prints "name value unit" lines. Each figure is the median of rounds over a cluster of 1,000 nodes
// of two kinds (64 CPUs; 16 CPUs and 8 GPUs), half full, with labels. `policy.*` is the decision
// alone; `head.*` a whole request through the head's state machine, from its message to the
// messages and journal records that follow.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/random.h"
#include "scheduler/control/head_state.h"
#include "scheduler/policy/placement.h"

namespace {

using namespace troupe;             // NOLINT
using namespace troupe::scheduler;  // NOLINT

constexpr std::size_t kNodes = 1'000;
constexpr int kRounds = 401;
constexpr std::int64_t kUnit = wire::kResourceUnit;

NodeCapacity make_node(std::size_t number, Random& random) {
  NodeCapacity node;
  node.node_id = NodeId::make(random);
  node.name = "node-" + std::to_string(number);
  const bool gpus = number % 4 == 0;
  node.total = {{"CPU", (gpus ? 16 : 64) * kUnit}, {"memory", (256LL << 30) * kUnit}};
  if (gpus) node.total["GPU"] = 8 * kUnit;
  node.available = node.total;
  node.available["CPU"] -= static_cast<std::int64_t>(random.below(gpus ? 16 : 64)) * kUnit;
  node.labels = {{"zone", std::string(1, static_cast<char>('a' + number % 10))},
                 {"host", node.name}};
  return node;
}

std::vector<Bundle> bundles(std::size_t count, wire::Resources need) {
  Bundle bundle;
  bundle.need = std::move(need);
  return std::vector<Bundle>(count, bundle);
}

// Median time of `work`, with `before` run ahead of each round outside of the measurement.
void measure(
    const char* name, const std::function<void()>& work,
    const std::function<void()>& before = [] {}) {
  std::vector<double> microseconds;
  for (int round = 0; round < kRounds; ++round) {
    before();
    const auto began = std::chrono::steady_clock::now();
    work();
    microseconds.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - began)
            .count());
  }
  std::nth_element(microseconds.begin(), microseconds.begin() + kRounds / 2, microseconds.end());
  std::printf("%s %.2f us\n", name, microseconds[kRounds / 2]);
}

void measure_policy() {
  SeededRandom random(1);
  ClusterView view;
  for (std::size_t i = 0; i < kNodes; ++i) view.put(make_node(i, random));
  volatile bool placed = false;
  const auto decision = [&](std::vector<Bundle> wanted, wire::PlacementStrategy strategy) {
    return [&view, &placed, wanted = std::move(wanted), strategy] {
      placed = place({wanted, strategy}, view).has_value();
    };
  };
  using enum wire::PlacementStrategy;
  measure("policy.actor_cpu", decision(bundles(1, {{"CPU", kUnit}}), kPack));
  measure(
      "policy.actor_cpu_gpu_memory",
      decision(bundles(1, {{"CPU", kUnit}, {"GPU", kUnit / 2}, {"memory", kUnit << 30}}), kPack));
  measure("policy.actor_that_fits_nowhere", decision(bundles(1, {{"CPU", 65 * kUnit}}), kPack));
  auto labelled = bundles(1, {{"CPU", kUnit}});
  labelled[0].selector = {{"zone", false, {"b", "c"}}, {"host", true, {"node-1"}}};
  measure("policy.actor_with_labels", decision(labelled, kPack));
  measure("policy.group_of_8_pack", decision(bundles(8, {{"CPU", 16 * kUnit}}), kPack));
  measure("policy.group_of_8_spread", decision(bundles(8, {{"CPU", 4 * kUnit}}), kSpread));
  measure("policy.group_of_8_strict_pack", decision(bundles(8, {{"CPU", 4 * kUnit}}), kStrictPack));
  measure("policy.group_of_8_strict_spread",
          decision(bundles(8, {{"CPU", 4 * kUnit}}), kStrictSpread));
  SeededRandom changes(2);
  NodeCapacity node = make_node(1, changes);
  measure("policy.update_of_a_node", [&] { view.put(node); });
}

// A head with the nodes joined and a driver; its outcomes are dropped.
struct Head {
  HeadState state{[] {
    HeadConfig config;
    config.heartbeats = false;
    return config;
  }()};
  Moment now;
  SeededRandom random{3};
  PeerId driver = 1;
  std::uint64_t request = 1;

  Head() {
    wire::ClientHello hello;
    hello.client_id = ClientId::make(random);
    say(driver, hello);
    for (std::size_t i = 0; i < kNodes; ++i) {
      const NodeCapacity node = make_node(i, random);
      wire::RegisterNode message;
      message.node.node_id = node.node_id;
      message.node.name = node.name;
      message.node.total = node.total;
      message.node.labels = node.labels;
      say(2 + i, std::move(message));
    }
  }
  Outcome say(PeerId peer, wire::ControlMessage message) {
    return state.apply(MessageArrived{peer, std::move(message)}, now);
  }
  wire::CreateActors actor(std::int64_t cpus) {
    wire::CreateActors message;
    message.request_id = request++;
    wire::ActorSpec spec;
    spec.actor_id = ActorId::make(random);
    spec.type = "Worker";
    spec.resources = {{"CPU", cpus * kUnit}};
    message.specs.push_back(std::move(spec));
    return message;
  }
};

void measure_head() {
  Head head;
  wire::CreateActors next;
  measure(
      "head.create_actor", [&] { head.say(head.driver, std::move(next)); },
      [&] { next = head.actor(1); });
  // Everything is taken, and 10,000 wait.
  wire::CreateActors all;
  for (std::size_t i = 0; i < 60'000; ++i) all.specs.push_back(head.actor(1).specs.front());
  head.say(head.driver, std::move(all));
  std::size_t waiting = 0;
  for (const auto& [id, actor] : head.state.actors()) waiting += actor.queue_order != 0 ? 1 : 0;
  std::printf("head.waiting_actors %zu count\n", waiting);
  measure(
      "head.create_actor_that_waits", [&] { head.say(head.driver, std::move(next)); },
      [&] { next = head.actor(2); });
  wire::ActorExited exited;
  PeerId peer = 0;
  auto running = head.state.actors().begin();
  measure(
      "head.exit_and_next_of_the_line", [&] { head.say(peer, std::move(exited)); },
      [&] {
        while (!running->second.has_process()) ++running;
        exited = {};
        exited.actor_id = running->first;
        exited.generation = running->second.info.generation;
        peer = head.state.nodes().at(running->second.info.node_id).peer;
        ++running;
      });
}

}  // namespace

int main() {
  measure_policy();
  measure_head();
}
