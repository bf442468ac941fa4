#include "simulation.h"

#include <algorithm>

#include "cluster.h"
#include "faults.h"
#include "one_seed.h"
#include "run.h"
#include "runtime/base/check.h"
#include "scheduler/policy/resources.h"
#include "sim_controller.h"
#include "sim_trainer.h"

namespace troupe::simulation {
namespace {

using std::chrono::seconds;

// After the last fault is mended: how long the run may take to its end. Detecting a dead node, its
// fence and a trainer's back-offs are in it; a rank that waits for ever is not.
constexpr auto kProgressWithin = seconds(60);
constexpr std::uint64_t kEventsMax = 5'000'000;

// By which a machine is known to its run.
constexpr const char* kMachineLabel = "machine";

wire::ActorSpec spec_of(World& world, const char* type, std::string name, JobId job,
                        std::int64_t cpus) {
  wire::ActorSpec spec;
  spec.actor_id = ActorId::make(world.random);
  spec.type = type;
  spec.name = std::move(name);
  spec.resources = {{std::string(scheduler::kCpu), cpus * wire::kResourceUnit}};
  spec.restart.max_restarts = -1;
  spec.restart.backoff_initial_ms = 0;
  spec.restart.backoff_max_ms = 50;
  spec.job_id = job;
  spec.detached = true;
  return spec;
}

// Asks the head for the run's actors until it has them.
class Driver {
 public:
  Driver(Cluster& cluster, Run& run)
      : world_(cluster.world()),
        head_(cluster, 0, {.client_id = {1, 1}, .name = "driver", .kind = "driver"}, {},
              [this](Duration delay, std::function<void()> what) {
                world_.timeline.after(delay, std::move(what));
              }) {
    const JobId job = JobId::make(world_.random);
    controller_.specs = {spec_of(world_, "Controller", "controller", job, 0)};
    const auto on_machine = [&](wire::ActorSpec& spec, int machine) {
      if (!run.options.elastic) return;
      spec.label_selector = {
          {.key = kMachineLabel, .negated = false, .values = {std::to_string(machine)}}};
      spec.awaits_nodes = true;
    };
    on_machine(controller_.specs.front(), 0);
    trainers_.gang = true;
    trainers_.no_wait = run.options.elastic;
    ranks_per_node_ = run.options.ranks_per_node;
    for (int trainer = 0; trainer < run.ranks; ++trainer) {
      const int machine = trainer / run.options.ranks_per_node;
      wire::ActorSpec spec = spec_of(world_, "Trainer", fmt::format("trainer-{}", trainer), job, 1);
      on_machine(spec, machine);
      run.trainers.push_back(spec.actor_id);
      if (machine >= run.first_machines && trainer % run.options.ranks_per_node == 0)
        later_.push_back({.specs = {}, .gang = true});
      (machine < run.first_machines ? trainers_ : later_.back()).specs.push_back(std::move(spec));
    }
    run.controller = controller_.specs.front().actor_id;
  }

  // Trainers first; refused until enough nodes are there. Where machines come and go one that was
  // lost before holds nobody up (TrainerFleet::place_machines()): each waits for its own.
  void ask() {
    head_.ask(trainers_, [this](const troupe::Result<wire::ControlMessage>& answer) {
      const bool together = scheduler::answer_status(answer).ok();
      if (!together && !(trainers_.no_wait && ++refusals_ == kTriesTogether)) {
        return world_.timeline.after(std::chrono::milliseconds(200), [this] { ask(); });
      }
      if (!together) place_one_by_one();
      for (const wire::CreateActors& machine : later_) head_.ask(machine, {});
      head_.ask(controller_, {});
    });
  }

 private:
  static constexpr int kTriesTogether = 5;

  void place_one_by_one() {
    for (std::size_t i = 0; i < trainers_.specs.size(); ++i) {
      if (i % static_cast<std::size_t>(ranks_per_node_) == 0)
        later_.push_back({.specs = {}, .gang = true});
      later_.back().specs.push_back(trainers_.specs[i]);
    }
  }

  World& world_;
  SimHeadClient head_;
  wire::CreateActors controller_;
  wire::CreateActors trainers_;
  std::vector<wire::CreateActors> later_;  // of each machine that comes later
  int ranks_per_node_ = 1;
  int refusals_ = 0;
};

std::string what_waits(Cluster& cluster, Run& run) {
  std::string text = cluster.describe();
  if (auto* controller = dynamic_cast<Controller*>(cluster.ready_process(run.controller))) {
    text += "; " + controller->describe();
  } else {
    text += "; no controller is ready";
  }
  std::map<std::string, int> doing;
  for (Process* process : cluster.living("Trainer")) {
    ++doing[dynamic_cast<Trainer*>(process)->doing()];
  }
  for (const auto& [what, count] : doing) text += fmt::format("; {} trainers: {}", count, what);
  return text;
}

ClusterOptions cluster_of(const Options& options) {
  ClusterOptions cluster;
  cluster.nodes = options.nodes;
  // In some there is no room for the ranks of another node: each node keeps its number of them.
  const int room = options.seed % 4 == 3 ? 0 : 2;
  cluster.node_total = [cpus = options.ranks_per_node + room](int) -> wire::Resources {
    return {{std::string(scheduler::kCpu), cpus * wire::kResourceUnit}};
  };
  if (options.elastic) {
    cluster.boots_all = false;
    cluster.silent_crashes = true;
    cluster.node_labels = [](int node) -> std::map<std::string, std::string> {
      return {{kMachineLabel, std::to_string(node)}};
    };
  }
  cluster.tells_ends_early = options.mistake == Mistake::kMemoryTooEarly;
  return cluster;
}

void run_to_end(World& world, const Options& options, Result& result) {
  const int ranks = options.nodes * options.ranks_per_node;
  auto sampler = train::Sampler::make(
      {.sample_count = ranks * 6, .world_size = ranks, .per_device_batch_size = 1});
  TROUPE_CHECK(sampler.ok());
  Run run(world, options, result, *sampler);
  Cluster* made = nullptr;
  Cluster cluster(world, cluster_of(options),
                  [&](Process::Place place) -> std::unique_ptr<Process> {
                    if (place.spec.type == "Controller")
                      return std::make_unique<Controller>(*made, run, place);
                    return std::make_unique<Trainer>(*made, run, place);
                  });
  made = &cluster;
  if (options.elastic) {
    for (int node = 0; node < run.first_machines; ++node) cluster.boot_node(node);
  }
  Driver driver(cluster, run);
  driver.ask();
  Faults faults(cluster, run);
  world.timeline.after(world.between(0, 600), [&] { faults.begin(); });
  TimePoint quiet_since = world.timeline.now();
  while (!run.ended) {
    const bool more = world.timeline.step();
    if (!faults.over() || !cluster.whole()) quiet_since = world.timeline.now();
    if (more && world.timeline.now() - quiet_since < kProgressWithin &&
        world.timeline.events() < kEventsMax) {
      continue;
    }
    throw Violation("the run does not go on after the last fault: " + what_waits(cluster, run));
  }
  require(run.end.ok(), "the run failed: {}", run.end.to_string());
  require(run.newest_step() == options.steps, "the run ended after step {}", run.newest_step());
  run.check_samples();
}

}  // namespace

std::string_view mistake_name(Mistake mistake) {
  switch (mistake) {
    case Mistake::kNone:
      return "none";
    case Mistake::kMemoryTooEarly:
      return "memory-too-early";
    case Mistake::kRedoWithoutUndo:
      return "redo-without-undo";
    case Mistake::kGoesWhenHeard:
      return "goes-when-heard";
    case Mistake::kNamesAfterNumber:
      return "names-after-number";
    case Mistake::kDropsWhenTaken:
      return "drops-when-taken";
  }
  return "unknown";
}

Result& Result::operator+=(const Result& other) {
  events += other.events;
  virtual_ms += other.virtual_ms;
  generations += other.generations;
  kills += other.kills;
  loads += other.loads;
  copies += other.copies;
  takeovers += other.takeovers;
  finishes += other.finishes;
  discards += other.discards;
  head_crashes += other.head_crashes;
  head_stalls += other.head_stalls;
  controller_kills += other.controller_kills;
  daemon_kills += other.daemon_kills;
  node_losses += other.node_losses;
  joins += other.joins;
  leaves += other.leaves;
  resizes += other.resizes;
  hand_overs += other.hand_overs;
  return *this;
}

Result simulate(const Options& options) {
  return run_seed<Result>(options, options.canary, [&](World& world, Result& result) {
    run_to_end(world, options, result);
  });
}

}  // namespace troupe::simulation
