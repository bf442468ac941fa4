#include "scheduler_simulation.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "cluster.h"
#include "one_seed.h"
#include "scheduler/policy/resources.h"
#include "scheduler_faults.h"
#include "scheduler_oracle.h"
#include "sim_driver.h"
#include "sim_worker.h"

namespace troupe::simulation {
namespace {

using scheduler::kCpu;
using scheduler::kGpu;
using std::chrono::milliseconds;
using std::chrono::seconds;

// After the last fault is mended: how long all may take to be where it should be. What a new head
// gives nodes and owners to come back, the longest back-off, and a dead node's lease are in it.
constexpr auto kSettlesWithin = seconds(60);
// Then the drivers end: besides, nodes keep what an actor saved for a while.
constexpr auto kClearsWithin = seconds(90);
constexpr auto kLooksEvery = milliseconds(500);
constexpr std::uint64_t kScheduleEventsMax = 50'000'000;
constexpr int kActorsPerDriver = 400;

// One seed: a cluster of some size, what is asked of it, what goes wrong.
class Scenario {
 public:
  Scenario(World& world, const SchedulerOptions& options, SchedulerResult& result);
  void run();

 private:
  ClusterOptions cluster_options();
  std::unique_ptr<Process> make_process(Process::Place place);
  void boot_nodes();
  void work(SimDriver& driver);
  void ask_for_actors(SimDriver& driver);
  void ask_for_group(SimDriver& driver);
  wire::ActorSpec spec(const SimDriver& driver);
  wire::RestartPolicy restart_policy();
  void step_for(Duration time);
  void wait_until(std::string (SchedulerOracle::*missing)() const, Duration most);

  World& world_;
  SchedulerResult& result_;
  const SchedulerMistake mistake_;
  const int nodes_;
  const int actors_;
  const Duration work_time_;
  const Duration join_time_;
  SchedulerOracle oracle_;
  std::vector<std::unique_ptr<SimDriver>> drivers_;
  Cluster cluster_;
  SchedulerFaults faults_;
  int asked_ = 0;
  int groups_asked_ = 0;
  const int groups_wanted_;
  const int faults_wanted_;
  const int kills_wanted_;
};

int sized(int wanted, World& world, int least, std::uint64_t more) {
  const int random = least + static_cast<int>(world.random.below(more));
  return wanted > 0 ? wanted : random;
}

Scenario::Scenario(World& world, const SchedulerOptions& options, SchedulerResult& result)
    : world_(world),
      result_(result),
      mistake_(options.mistake),
      nodes_(sized(options.nodes, world, 3, 6)),
      actors_(sized(options.actors, world, 15, 40)),
      work_time_(seconds(8) + milliseconds(20) * nodes_),
      join_time_(milliseconds(100) + milliseconds(3) * nodes_),
      oracle_(world),
      cluster_(world, cluster_options(),
               [this](Process::Place place) { return make_process(std::move(place)); }),
      faults_(cluster_, result,
              [this] { return drivers_[world_.random.below(drivers_.size())].get(); }),
      groups_wanted_(options.groups >= 0 ? options.groups : 2 + actors_ / 20),
      faults_wanted_(options.faults >= 0 ? options.faults : 8 + nodes_ / 4),
      kills_wanted_(options.kills) {}

ClusterOptions Scenario::cluster_options() {
  ClusterOptions options;
  options.nodes = nodes_;
  options.boots_all = false;
  options.node_total = [](int node) -> wire::Resources {
    wire::Resources total = {{std::string(kCpu), (4 + 4 * (node % 4)) * wire::kResourceUnit}};
    if (node % 3 == 0) total[std::string(kGpu)] = 2 * wire::kResourceUnit;
    return total;
  };
  options.daemon_away_most = seconds(5);
  options.silent_crashes = true;
  options.repeats_one_in = 50;
  switch (mistake_) {
    case SchedulerMistake::kNone:
      break;
    case SchedulerMistake::kForgetsFencing:
      options.fence_grace = std::chrono::hours(1);
      break;
    case SchedulerMistake::kImpatientHead:
      options.head.fence_delay = options.head.disconnect_grace = Duration::zero();
      break;
    case SchedulerMistake::kEndsTooEarly:
      options.tells_ends_early = true;
      break;
    case SchedulerMistake::kSendsBeforeJournal:
      options.sends_before_journal = true;
      break;
    case SchedulerMistake::kJournalsOneByOne:
      options.journals_one_by_one = true;
      break;
    case SchedulerMistake::kLosesMessages:
      options.loses_one_in = 200;
      break;
    case SchedulerMistake::kLeaksDescriptors:
      options.leaks_descriptors = true;
      break;
    case SchedulerMistake::kForgetsRecords:
      options.forgets_records = true;
      break;
    case SchedulerMistake::kStartsTwice:
      options.starts_twice = true;
      break;
    case SchedulerMistake::kLosesReleases:
      options.loses_releases = true;
      break;
    case SchedulerMistake::kLosesExits:
      options.loses_exits = true;
      break;
    case SchedulerMistake::kForgetsLeases:
      options.forgets_leases = true;
      break;
    case SchedulerMistake::kAnswersTwice:
      options.answers_twice = true;
      break;
    case SchedulerMistake::kFencesAll:
      options.fences_all = true;
      break;
    case SchedulerMistake::kKeepsStale:
      options.keeps_stale = true;
      break;
  }
  options.on_decisions = [this](const std::vector<scheduler::Delta>& deltas) {
    oracle_.decided(*cluster_.head(), deltas);
  };
  options.on_head_start = [this] {
    if (cluster_.heads() > 1) oracle_.head_started(*cluster_.head());
  };
  return options;
}

std::unique_ptr<Process> Scenario::make_process(Process::Place place) {
  if (place.spec.type == "Missing") return nullptr;
  ++result_.processes;
  return std::make_unique<Worker>(cluster_, std::move(place));
}

// --- what is asked of the cluster ----------------------------------------------------------------

wire::RestartPolicy Scenario::restart_policy() {
  wire::RestartPolicy policy;
  policy.max_restarts = static_cast<std::int32_t>(world_.random.below(5)) - 1;
  policy.window_ms = world_.chance(3) ? 0 : 20'000;
  policy.backoff_max_ms = world_.chance(2) ? 100 : 2000;
  return policy;
}

wire::ActorSpec Scenario::spec(const SimDriver& driver) {
  wire::ActorSpec spec;
  spec.actor_id = ActorId::make(world_.random);
  const std::uint64_t kind = world_.random.below(40);
  spec.type = kind == 0 ? "Broken" : kind == 1 ? "Missing" : "Worker";
  if (world_.chance(5)) spec.name = spec.actor_id.brief();
  // Quarters of a processor: sums are exact.
  const auto quarters = static_cast<std::int64_t>(world_.random.below(world_.chance(6) ? 13 : 5));
  if (quarters > 0) spec.resources[std::string(kCpu)] = quarters * wire::kResourceUnit / 4;
  if (world_.chance(10)) spec.resources[std::string(kGpu)] = wire::kResourceUnit / 2;
  spec.restart = restart_policy();
  if (spec.type != "Worker") {
    // In vain for a while, not for ever.
    spec.restart.max_restarts = static_cast<std::int32_t>(world_.random.below(4));
    spec.restart.window_ms = 0;
  }
  spec.detached = world_.chance(4);
  spec.on_head_loss = world_.chance(2) ? wire::OnHeadLoss::kFence : wire::OnHeadLoss::kKeep;
  if (world_.chance(5)) spec.priority = static_cast<std::int32_t>(world_.random.below(3)) - 1;
  const auto& groups = driver.usable_groups();
  if (!groups.empty() && world_.chance(3)) {
    const wire::PlacementGroupSpec& group = groups[world_.random.below(groups.size())];
    spec.placement_group = group.group_id;
    if (world_.chance(2)) {
      spec.bundle_index = static_cast<std::int32_t>(world_.random.below(group.bundles.size()));
    }
    // What fits a bundle.
    spec.resources = {{std::string(kCpu), wire::kResourceUnit / 4}};
    return spec;
  }
  if (world_.chance(20)) {
    spec.node_affinity =
        cluster_.node_id(static_cast<int>(world_.random.below(static_cast<std::uint64_t>(nodes_))));
    if (spec.node_affinity->empty()) spec.node_affinity.reset();
  }
  return spec;
}

void Scenario::ask_for_group(SimDriver& driver) {
  wire::PlacementGroupSpec group;
  group.group_id = GroupId::make(world_.random);
  group.strategy = static_cast<wire::PlacementStrategy>(world_.random.below(4));
  group.bundles.resize(1 + world_.random.below(4));
  for (wire::BundleSpec& bundle : group.bundles) {
    const auto halves = 1 + static_cast<std::int64_t>(world_.random.below(5));
    bundle.resources[std::string(kCpu)] = halves * wire::kResourceUnit / 2;
  }
  if (world_.chance(4)) group.bundles.front().resources[std::string(kGpu)] = wire::kResourceUnit;
  group.detached = world_.chance(4);
  if (world_.chance(5)) group.priority = static_cast<std::int32_t>(world_.random.below(3)) - 1;
  ++groups_asked_;
  driver.create_group(std::move(group));
}

void Scenario::ask_for_actors(SimDriver& driver) {
  const bool gang = world_.chance(4);
  const std::uint64_t most = gang ? 6 : 1 + static_cast<std::uint64_t>(actors_) / 50;
  const std::uint64_t count = (gang ? 2 : 1) + world_.random.below(most);
  std::vector<wire::ActorSpec> specs;
  for (std::uint64_t i = 0; i < count; ++i) specs.push_back(spec(driver));
  asked_ += static_cast<int>(count);
  if (gang) {
    ++result_.gangs;
    std::vector<ActorId> ids;
    for (const wire::ActorSpec& member : specs) ids.push_back(member.actor_id);
    oracle_.asked_for_gang(ids);
  }
  driver.create(std::move(specs), gang, world_.chance(12));
}

// Something now, and again a little later, until its time is over.
void Scenario::work(SimDriver& driver) {
  if (driver.ended() || world_.timeline.now() - TimePoint(std::chrono::hours(1)) > work_time_) {
    return;
  }
  const auto& mine = driver.actors();
  const auto any = [&] { return mine[world_.random.below(mine.size())]; };
  const std::uint64_t dice = world_.random.below(100);
  if (asked_ < actors_ && (dice < 40 || mine.empty())) {
    ask_for_actors(driver);
  } else if (groups_asked_ < groups_wanted_ && dice < 60) {
    const int most = groups_wanted_ - groups_asked_;
    for (int i = 0; i < std::min(most, 1 + groups_wanted_ / 50); ++i) ask_for_group(driver);
  } else if (!driver.usable_groups().empty() && dice < 64) {
    const auto& groups = driver.usable_groups();
    driver.remove_group(groups[world_.random.below(groups.size())].group_id);
  } else if (mine.empty() || dice < 66) {
    driver.list();
  } else if (dice < 74) {
    driver.kill(any(), world_.chance(2), world_.chance(2) ? 0 : 200);
  } else if (dice < 75) {
    driver.end_job();
  } else if (dice < 80) {
    driver.watch_again(any());
  } else {
    for (int i = 0; i < 3 + actors_ / 100; ++i) driver.call(any());
  }
  // As often as it takes to have asked for all actors by the middle.
  const double actions =
      8.0 + 4.0 * actors_ / static_cast<double>(drivers_.size()) / (2.0 + actors_ / 100.0);
  const double pause_ms = std::chrono::duration<double, std::milli>(work_time_).count() / actions;
  world_.timeline.after(world_.between(0, 2 * pause_ms), [this, &driver] { work(driver); });
}

// --- the course of it ----------------------------------------------------------------------------

void Scenario::boot_nodes() {
  const double join_ms = std::chrono::duration<double, std::milli>(join_time_).count();
  for (int node = 0; node < nodes_; ++node) {
    world_.timeline.after(world_.between(0, join_ms), [this, node] {
      ++result_.nodes_joined;
      cluster_.boot_node(node);
    });
  }
}

void Scenario::step_for(Duration time) {
  const TimePoint until = world_.timeline.now() + time;
  bool over = false;
  world_.timeline.after(time, [&over] { over = true; });
  while (!over && world_.timeline.step()) {
    require(world_.timeline.events() < kScheduleEventsMax, "it does not end: {} events",
            kScheduleEventsMax);
  }
  require(world_.timeline.now() >= until, "nothing is to come");
}

void Scenario::wait_until(std::string (SchedulerOracle::*missing)() const, Duration most) {
  const TimePoint until = world_.timeline.now() + most;
  std::string why = "nobody has looked";
  while (!why.empty()) {
    require(world_.timeline.now() < until, "{} s after the last fault {}; {}",
            std::chrono::duration_cast<seconds>(most).count(), why, cluster_.describe());
    step_for(kLooksEvery);
    why = cluster_.head_up() ? (oracle_.*missing)() : "there is no head";
  }
}

void Scenario::run() {
  oracle_.watch(cluster_, drivers_);
  const int count = 2 + actors_ / kActorsPerDriver;
  for (int i = 0; i < count; ++i) {
    drivers_.push_back(std::make_unique<SimDriver>(cluster_, result_, i));
  }
  drivers_.front()->watch_nodes();
  boot_nodes();
  for (const auto& driver : drivers_) {
    world_.timeline.after(world_.between(0, 200), [this, &driver = *driver] { work(driver); });
  }
  // Half of the nodes die for good.
  world_.timeline.after(join_time_, [this] {
    const int nodes_lost = faults_wanted_ == 0 ? 0 : nodes_ / 2;
    faults_.begin({faults_wanted_, kills_wanted_, nodes_lost, work_time_});
  });
  step_for(work_time_ + join_time_);
  while (!faults_.over()) step_for(kLooksEvery);
  world_.note("nothing fails any more");
  wait_until(&SchedulerOracle::unsettled, kSettlesWithin);
  world_.note("all is where it should be; the drivers end");
  // Somebody comes and ends what would stay.
  drivers_.push_back(std::make_unique<SimDriver>(cluster_, result_, count));
  for (const auto& [id, actor] : cluster_.head()->actors()) {
    if (actor.spec.detached && !actor.dead()) drivers_.back()->kill(id, false, 0);
  }
  for (const auto& [id, group] : cluster_.head()->groups()) {
    if (group.spec.detached && !group.removed()) drivers_.back()->remove_group(id);
  }
  step_for(seconds(2));
  result_.overlaps = cluster_.overlaps();
  for (const auto& driver : drivers_) driver->end();
  wait_until(&SchedulerOracle::uncleared, kClearsWithin);
}

}  // namespace

std::string_view mistake_name(SchedulerMistake mistake) {
  switch (mistake) {
    case SchedulerMistake::kNone:
      return "none";
    case SchedulerMistake::kForgetsFencing:
      return "forgets-fencing";
    case SchedulerMistake::kImpatientHead:
      return "impatient-head";
    case SchedulerMistake::kEndsTooEarly:
      return "ends-too-early";
    case SchedulerMistake::kSendsBeforeJournal:
      return "sends-before-journal";
    case SchedulerMistake::kJournalsOneByOne:
      return "journals-one-by-one";
    case SchedulerMistake::kLosesMessages:
      return "loses-messages";
    case SchedulerMistake::kLeaksDescriptors:
      return "leaks-descriptors";
    case SchedulerMistake::kForgetsRecords:
      return "forgets-records";
    case SchedulerMistake::kStartsTwice:
      return "starts-twice";
    case SchedulerMistake::kLosesReleases:
      return "loses-releases";
    case SchedulerMistake::kLosesExits:
      return "loses-exits";
    case SchedulerMistake::kForgetsLeases:
      return "forgets-leases";
    case SchedulerMistake::kAnswersTwice:
      return "answers-twice";
    case SchedulerMistake::kFencesAll:
      return "fences-all";
    case SchedulerMistake::kKeepsStale:
      return "keeps-stale";
  }
  return "unknown";
}

SchedulerResult& SchedulerResult::operator+=(const SchedulerResult& other) {
  events += other.events;
  virtual_ms += other.virtual_ms;
  nodes_joined += other.nodes_joined;
  nodes_lost += other.nodes_lost;
  actors += other.actors;
  gangs += other.gangs;
  groups += other.groups;
  processes += other.processes;
  kills += other.kills;
  crash_kills += other.crash_kills;
  requests += other.requests;
  requests_repeated += other.requests_repeated;
  calls_answered += other.calls_answered;
  calls_failed += other.calls_failed;
  head_crashes += other.head_crashes;
  torn_appends += other.torn_appends;
  daemon_kills += other.daemon_kills;
  cuts += other.cuts;
  freezes += other.freezes;
  head_stalls += other.head_stalls;
  overlaps += other.overlaps;
  owners_gone += other.owners_gone;
  return *this;
}

SchedulerResult simulate_scheduler(const SchedulerOptions& options) {
  return run_seed<SchedulerResult>(
      options, options.canary,
      [&](World& world, SchedulerResult& result) { Scenario(world, options, result).run(); });
}

}  // namespace troupe::simulation
