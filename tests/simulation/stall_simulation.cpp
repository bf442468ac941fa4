#include "stall_simulation.h"

#include <algorithm>
#include <map>

#include "cluster.h"
#include "scheduler/policy/resources.h"
#include "sim_worker.h"

namespace troupe::simulation {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Stalls {
 public:
  Stalls(World& world, const StallOptions& options, StallResult& result)
      : world_(world),
        options_(options),
        result_(result),
        cluster_(world, cluster_options(), [this](Process::Place place) {
          return std::make_unique<Worker>(cluster_, std::move(place));
        }) {}
  void run();

 private:
  ClusterOptions cluster_options();
  void stall(int node);
  void heard(const wire::EventRecord& event);
  void step_until(TimePoint time);

  World& world_;
  const StallOptions& options_;
  StallResult& result_;
  bool for_good_ = false;
  std::map<NodeId, TimePoint> frozen_;
  int dead_ = 0;
  Cluster cluster_;
};

ClusterOptions Stalls::cluster_options() {
  ClusterOptions options;
  options.nodes = options_.nodes;
  options.node_total = [](int) -> wire::Resources {
    return {{std::string(scheduler::kCpu), wire::kResourceUnit}};
  };
  options.on_decisions = [this](const std::vector<scheduler::Delta>& deltas) {
    for (const scheduler::Delta& delta : deltas) {
      if (const auto* logged = get_if<scheduler::EventLogged>(&delta)) heard(logged->event);
    }
  };
  return options;
}

void Stalls::heard(const wire::EventRecord& event) {
  const bool suspected = event.kind == "node_suspected";
  const bool died = event.kind == "node_died";
  if (!suspected && !died) return;
  if (!for_good_) {
    ++(suspected ? result_.false_suspicions : result_.false_deaths);
    return;
  }
  const auto after =
      std::chrono::ceil<milliseconds>(world_.timeline.now() - frozen_.at(event.node_id)).count();
  auto& slowest = suspected ? result_.suspected_after_ms : result_.dead_after_ms;
  slowest = std::max<std::int64_t>(slowest, after);
  if (died) ++dead_;
}

void Stalls::stall(int node) {
  if (for_good_) return;
  ++result_.stalls;
  cluster_.freeze(node);
  world_.timeline.after(milliseconds(options_.stall_ms), [this, node] {
    cluster_.thaw(node);
    world_.timeline.after(world_.between(100, 3000), [this, node] { stall(node); });
  });
}

void Stalls::step_until(TimePoint time) {
  while (world_.timeline.now() < time && world_.timeline.step()) {
  }
}

void Stalls::run() {
  for (int node = 0; node < options_.nodes; ++node) {
    world_.timeline.after(world_.between(1000, 4000), [this, node] { stall(node); });
  }
  step_until(world_.timeline.now() + std::chrono::minutes(options_.minutes));
  for_good_ = true;
  step_until(world_.timeline.now() + seconds(5));
  for (int node = 0; node < options_.nodes; ++node) {
    world_.timeline.after(world_.between(0, 5000), [this, node] {
      frozen_[cluster_.node_id(node)] = world_.timeline.now();
      cluster_.freeze(node);
    });
  }
  step_until(world_.timeline.now() + seconds(15));
  result_.undetected = options_.nodes - dead_;
}

}  // namespace

StallResult simulate_stalls(const StallOptions& options) {
  World world(options.seed);
  StallResult result;
  try {
    Stalls(world, options, result).run();
  } catch (const Violation& violation) {
    result.violation = violation.what();
  }
  return result;
}

}  // namespace troupe::simulation
