#include "calls_simulation.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "call_actor.h"
#include "calls_oracle.h"
#include "cluster.h"
#include "one_seed.h"
#include "scheduler/policy/resources.h"
#include "scheduler_faults.h"
#include "sim_caller.h"
#include "sim_head_client.h"

namespace troupe::simulation {
namespace {

using scheduler::kCpu;
using std::chrono::milliseconds;
using std::chrono::seconds;

// How long calls are made while things fail, and how long every call may take.
constexpr Duration kWorkTime = seconds(12);
constexpr double kTimeoutLeastMs = 200;
constexpr double kTimeoutMostMs = 9000;
// After the last fault: until every actor that lives answers every driver.
constexpr Duration kAnswersWithin = seconds(60);
constexpr Duration kLookInterval = milliseconds(500);
constexpr std::uint64_t kEventsMax = 80'000'000;

// A driver's program.
class CallDriver final : public FaultyClient {
 public:
  CallDriver(Cluster& cluster, CallsOracle& oracle, CallsResult& result, int number)
      : cluster_(cluster),
        world_(cluster.world()),
        oracle_(oracle),
        result_(result),
        name_(fmt::format("driver-{}", number)),
        hello_(hello()),
        head_(cluster, kOutside, hello_, {}, after()),
        caller_(cluster, head_, {.self = {}, .name = name_}, after()) {
    caller_.set_observer(oracle_.observer());
  }

  const wire::ClientHello& identity() const { return hello_; }
  SimHeadClient& head() { return head_; }
  SimCaller& caller() { return caller_; }
  bool ended() const override { return ended_; }
  void break_connection() override { head_.break_connection(); }
  void end() override {
    if (std::exchange(ended_, true)) return;
    world_.note("{} ends", name_);
    caller_.die(world_.chance(2));
    head_.break_connection();
    head_.close();
    for (const std::uint64_t call : std::exchange(open_, {})) oracle_.given_up(call);
  }

  // A call of some kind to an actor; `others` are those that it may pass it on to.
  void call(ActorId actor, const std::vector<ActorId>& others) {
    const std::uint64_t dice = world_.random.below(100);
    const SimMethod method = dice < 25                      ? kCount
                             : dice < 45 && !others.empty() ? kRelay
                             : dice < 60                    ? kLook
                                                            : kAdd;
    const bool retry = method != kCount && world_.chance(2);
    Duration timeout = world_.between(kTimeoutLeastMs, kTimeoutMostMs);
    if (world_.chance(20)) timeout = world_.between(0, 3);
    SimArguments arguments;
    arguments.onward = method == kCount ? 1 + world_.random.below(40) : 0;
    if (method == kRelay) arguments.target = others[world_.random.below(others.size())];
    const auto sequence = make(actor, method, arguments, retry, timeout, {});
    if (sequence == 0 || !world_.chance(15)) return;
    // Given up after a while.
    const std::uint64_t number = last_made_;
    after()(world_.between(0, 20), [this, actor, sequence, number] {
      if (open_.erase(number) == 0) return;
      ++result_.cancelled;
      oracle_.given_up(number);
      caller_.cancel(actor, sequence);
    });
  }

  // Until the actor answers, or is dead: what it was told last.
  void settle(ActorId actor) {
    settled_.try_emplace(actor, false);
    make(actor, kAdd, {}, true, seconds(8), [this, actor](const troupe::Result<SimResult>& result) {
      world_.note("{}: {} says {}", name_, actor.brief(),
                  result.ok() ? "yes" : result.status().to_string());
      const bool over = result.ok() || result.status().code() == Code::kActorDied;
      if (over) {
        settled_[actor] = true;
      } else {
        settle(actor);
      }
    });
  }
  bool settled() const {
    return std::all_of(settled_.begin(), settled_.end(), [](const auto& s) { return s.second; });
  }
  std::string waits_for() const {
    if (!open_.empty()) return fmt::format("{} calls of {} are open", open_.size(), name_);
    return head_.waits_for(seconds(5));
  }

 private:
  wire::ClientHello hello() {
    wire::ClientHello hello;
    hello.client_id = ClientId::make(world_.random);
    hello.job_id = JobId::make(world_.random);
    hello.name = name_;
    hello.kind = "driver";
    return hello;
  }
  SimHeadClient::After after() {
    return [this](Duration delay, std::function<void()> what) {
      world_.timeline.after(delay, [this, what = std::move(what)] {
        if (!ended_) what();
      });
    };
  }

  std::uint64_t make(ActorId actor, SimMethod method, SimArguments arguments, bool retry,
                     Duration timeout, SimCaller::OnEnd then) {
    const TimePoint deadline = world_.timeline.now() + timeout;
    const std::uint64_t number = oracle_.made(
        {.caller = name_, .target = actor, .method = method, .retry = retry, .deadline = deadline});
    last_made_ = number;
    open_.insert(number);
    arguments.call = number;
    // What a stream may send in all grows as it is read.
    const auto allowed = std::make_shared<std::uint64_t>(1 + world_.random.below(8));
    const auto sequence = std::make_shared<std::uint64_t>(0);
    *sequence = caller_.call(
        {.target = actor,
         .method = method,
         .arguments = arguments,
         .deadline = deadline,
         .retry = retry,
         .on_end =
             [this, number, then = std::move(then)](const troupe::Result<SimResult>& result) {
               if (open_.erase(number) == 0) return;
               oracle_.ended(number, result);
               if (then) then(result);
             },
         .on_item =
             [this, number, actor, allowed, sequence](std::uint64_t index) {
               oracle_.item(number, index, *allowed);
               if (index + 1 < *allowed) return;
               *allowed += 1 + world_.random.below(8);
               caller_.allow_items(actor, *sequence, *allowed);
             },
         .items = method == kCount ? *allowed : 0});
    return *sequence;
  }

  Cluster& cluster_;
  World& world_;
  CallsOracle& oracle_;
  CallsResult& result_;
  const std::string name_;
  const wire::ClientHello hello_;
  SimHeadClient head_;
  SimCaller caller_;
  bool ended_ = false;
  std::set<std::uint64_t> open_;
  std::uint64_t last_made_ = 0;
  std::map<ActorId, bool> settled_;
};

// One seed.
class CallsScenario {
 public:
  CallsScenario(World& world, const CallsOptions& options, CallsResult& result);
  // Connections that are on their way end, which is told in time to come.
  ~CallsScenario() { world_.timeline.clear(); }
  void run();

 private:
  ClusterOptions cluster_options() const;
  wire::ActorSpec spec(const CallDriver& owner);
  void create_actors();
  void work(CallDriver& driver);
  void strike_link();
  void drain_node();
  CallDriver& any_driver() { return *drivers_[world_.random.below(drivers_.size())]; }
  std::shared_ptr<CallWire> any_wire();
  void step_for(Duration time);
  std::string unsettled() const;

  World& world_;
  const CallsOptions options_;
  CallsResult& result_;
  const int nodes_;
  const int actors_count_;
  CallsOracle oracle_;
  std::vector<std::unique_ptr<CallDriver>> drivers_;
  Cluster cluster_;
  SchedulerFaults faults_;
  std::vector<ActorId> actors_;
  TimePoint work_ends_{};
};

int by_seed(int wanted, World& world, int least, std::uint64_t more) {
  const int random = least + static_cast<int>(world.random.below(more));
  return wanted > 0 ? wanted : random;
}

CallsScenario::CallsScenario(World& world, const CallsOptions& options, CallsResult& result)
    : world_(world),
      options_(options),
      result_(result),
      nodes_(by_seed(options.nodes, world, 3, 5)),
      actors_count_(by_seed(options.actors, world, 6, 14)),
      oracle_(world, result),
      cluster_(world, cluster_options(),
               [this](Process::Place place) {
                 return std::make_unique<CallActor>(cluster_, std::move(place), oracle_,
                                                    options_.faults != 0);
               }),
      faults_(cluster_, result.cluster, [this]() -> FaultyClient* { return &any_driver(); }) {}

ClusterOptions CallsScenario::cluster_options() const {
  ClusterOptions options;
  options.nodes = nodes_;
  options.node_total = [](int) -> wire::Resources {
    return {{std::string(kCpu), 16 * wire::kResourceUnit}};
  };
  options.daemon_away_most = seconds(2);
  options.silent_crashes = true;
  return options;
}

// Half of them run each call once, and save; those are ended where two of them could run.
wire::ActorSpec CallsScenario::spec(const CallDriver& owner) {
  wire::ActorSpec spec;
  spec.actor_id = ActorId::make(world_.random);
  spec.type = "Sim";
  spec.owner = owner.identity().client_id;
  spec.job_id = owner.identity().job_id;
  spec.resources = {{std::string(kCpu), wire::kResourceUnit / 2}};
  spec.restart.max_restarts = world_.chance(8) ? 1 : -1;
  spec.restart.backoff_max_ms = 100;
  spec.detached = true;
  const bool once = world_.chance(2);
  spec.on_head_loss = once ? wire::OnHeadLoss::kFence : wire::OnHeadLoss::kKeep;
  if (once) oracle_.expect_once(spec.actor_id);
  return spec;
}

void CallsScenario::create_actors() {
  wire::CreateActors message;
  for (int i = 0; i < actors_count_; ++i) {
    message.specs.push_back(spec(*drivers_.front()));
    actors_.push_back(message.specs.back().actor_id);
  }
  drivers_.front()->head().ask(std::move(message), [](const auto& answer) {
    require(answer.ok(), "the actors are refused: {}", answer.status().to_string());
  });
}

// Bursts of calls, until their time is over.
void CallsScenario::work(CallDriver& driver) {
  if (driver.ended() || world_.timeline.now() >= work_ends_) return;
  const std::size_t index = world_.random.below(actors_.size());
  // Calls go on in one direction only, so that nobody waits for itself.
  const std::vector<ActorId> others(actors_.begin() + static_cast<std::ptrdiff_t>(index) + 1,
                                    actors_.end());
  const std::uint64_t burst = world_.chance(10) ? 20 : 1 + world_.random.below(4);
  for (std::uint64_t i = 0; i < burst; ++i) driver.call(actors_[index], others);
  world_.timeline.after(world_.between(0, 60), [this, &driver] { work(driver); });
}

std::shared_ptr<CallWire> CallsScenario::any_wire() {
  const auto processes = cluster_.living("Sim");
  if (processes.empty() || world_.chance(2)) {
    CallDriver& driver = any_driver();
    return driver.ended() ? nullptr : driver.caller().any_wire();
  }
  auto* process = processes[world_.random.below(processes.size())];
  return dynamic_cast<CallActor&>(*process).any_wire();
}

void CallsScenario::strike_link() {
  const std::shared_ptr<CallWire> wire = any_wire();
  if (!wire || wire->over()) return;
  if (world_.chance(3)) {
    ++result_.links_slowed;
    wire->slow(20 + static_cast<double>(world_.random.below(400)));
    world_.timeline.after(world_.between(10, 3000), [wire] { wire->slow(1); });
  } else {
    ++result_.links_cut;
    wire->cut();
  }
}

void CallsScenario::drain_node() {
  const int node = static_cast<int>(world_.random.below(static_cast<std::uint64_t>(nodes_)));
  CallDriver& driver = any_driver();
  if (driver.ended() || !cluster_.node_well(node)) return;
  ++result_.drains;
  world_.note("node {} is drained", node);
  driver.head().ask(wire::DrainNode{0, cluster_.node_id(node), 500, "it is to leave"}, {});
  // A new one comes in its place.
  world_.timeline.after(seconds(3), [this, node] {
    if (!cluster_.node_up(node)) return;
    cluster_.crash_node(node);
    world_.timeline.after(milliseconds(200), [this, node] { cluster_.boot_node(node); });
  });
}

void CallsScenario::step_for(Duration time) {
  bool over = false;
  world_.timeline.after(time, [&over] { over = true; });
  while (!over && world_.timeline.step()) {
    require(world_.timeline.events() < kEventsMax, "it does not end: {} events", kEventsMax);
  }
  const std::string late = oracle_.overdue();
  require(late.empty(), "{}", late);
}

std::string CallsScenario::unsettled() const {
  for (const auto& driver : drivers_) {
    if (driver->ended()) continue;
    if (!driver->settled()) return driver->waits_for() + ", and nobody answers it";
    if (const std::string why = driver->waits_for(); !why.empty()) return why;
  }
  return {};
}

void CallsScenario::run() {
  oracle_.watch(cluster_);
  const int drivers = by_seed(options_.drivers, world_, 2, 2);
  for (int i = 0; i < drivers; ++i) {
    drivers_.push_back(std::make_unique<CallDriver>(cluster_, oracle_, result_, i));
  }
  work_ends_ = world_.timeline.now() + kWorkTime;
  create_actors();
  for (const auto& driver : drivers_) {
    world_.timeline.after(world_.between(0, 50), [this, &driver = *driver] { work(driver); });
  }
  const int faults = options_.faults >= 0 ? options_.faults : 5 + nodes_ / 4;
  const int link_faults = options_.link_faults >= 0 ? options_.link_faults : 12 + nodes_;
  faults_.begin({.faults = faults, .time = kWorkTime});
  const double work_ms = std::chrono::duration<double, std::milli>(kWorkTime).count();
  for (int i = 0; i < link_faults; ++i) {
    world_.timeline.after(world_.between(0, work_ms), [this] { strike_link(); });
  }
  if (options_.faults != 0 && world_.chance(2)) {
    world_.timeline.after(world_.between(0, work_ms), [this] { drain_node(); });
  }
  step_for(kWorkTime);
  while (!faults_.over()) step_for(kLookInterval);
  step_for(seconds(4));  // what was drained last is replaced
  world_.note("nothing fails any more");
  for (const auto& driver : drivers_) {
    if (driver->ended()) continue;
    for (const ActorId actor : actors_) driver->settle(actor);
  }
  const TimePoint until = world_.timeline.now() + kAnswersWithin;
  for (std::string why = "nobody has looked"; !why.empty();) {
    require(world_.timeline.now() < until, "{} s after the last fault {}; {}",
            std::chrono::duration_cast<seconds>(kAnswersWithin).count(), why, cluster_.describe());
    step_for(kLookInterval);
    why = unsettled();
  }
}

}  // namespace

CallsResult& CallsResult::operator+=(const CallsResult& other) {
  events += other.events;
  virtual_ms += other.virtual_ms;
  calls += other.calls;
  runs += other.runs;
  answered += other.answered;
  failed += other.failed;
  cut_off += other.cut_off;
  cancelled += other.cancelled;
  items += other.items;
  losses += other.losses;
  told_of_losses += other.told_of_losses;
  links_cut += other.links_cut;
  links_slowed += other.links_slowed;
  drains += other.drains;
  cluster += other.cluster;
  return *this;
}

CallsResult simulate_calls(const CallsOptions& options) {
  return run_seed<CallsResult>(options, options.canary, [&](World& world, CallsResult& result) {
    CallsScenario(world, options, result).run();
  });
}

}  // namespace troupe::simulation
