// Random schedules of machines that come, announce their end, are lost, and that others cannot
// reach: generations never overlap, no state is lost with fewer machines than hold it, and the run
// comes to its last step.

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <set>

#include "runtime/base/random.h"
#include "tests/train/trainer/run_state_helpers.h"
#include "train/trainer/run_state.h"

namespace troupe::train {
namespace {

using run_state_test::killed;

constexpr std::int64_t kStepsOfWorlds = 40;
constexpr std::int64_t kSaveSteps = 10;
constexpr std::size_t kStoryLines = 20;

class WorldWalk {
 public:
  explicit WorldWalk(std::uint64_t seed) : random_(seed) {
    ranks_ = 1 + static_cast<int>(random_.below(2));
    machines_.resize(2 + random_.below(3));
    least_ = 1 + static_cast<int>(random_.below(machines_.size()));
    trainers_.resize(machines_.size() * static_cast<std::size_t>(ranks_));
    settings_ = {
        .world_size = static_cast<int>(trainers_.size()),
        .fruitless_failures_max = 1000,
        // Machines are out of sight for longer than those that run the walk's other trainers.
        .respawn_timeout = std::chrono::hours(10),
        .ranks_per_machine = ranks_,
        .machines_min = least_};
    for (int machine = 0; machine < least_; ++machine) settings_.first_machines.push_back(machine);
    run_.emplace(settings_);
    feed(TrainersPlaced{});
    for (const int machine : settings_.first_machines) join(machine);
  }

  void run() {
    while (!ended_) {
      if (++events_ == 60'000) FAIL(where());
      now_ += std::chrono::milliseconds(1 + random_.below(40));
      event();
    }
    INFO(end_.to_string());
    CHECK(end_.ok());
    CHECK(step_ == kStepsOfWorlds);
    CHECK(run_->last_step() == kStepsOfWorlds);
  }
  int rollbacks() const { return rollbacks_; }
  int changes() const { return changes_; }
  int without() const { return without_; }

 private:
  struct Machine {
    int node = 0;  // counts those it has been on; 0: it has not come yet
    bool up = false;
    bool leaves = false;        // it asked, and asks again
    bool out_of_reach = false;  // of some other machine
  };
  struct Trainer {
    std::uint64_t incarnation = 0;
    bool alive = false;
    std::optional<BeginGeneration> plan;  // has come, and waits for its turn
    std::uint64_t heard = 0;              // the newest plan's generation
    World world;                          // of that
    std::vector<World> former;
    int rank = -1;
    std::uint64_t running = 0;  // the generation that it is in; 0: none
    std::uint64_t pause = 0;    // the generation that it is to leave after a step
    std::uint64_t aborted = 0;
  };
  using Place = std::pair<int, int>;  // a machine and its node

  std::string node_of(int machine) const {
    return fmt::format("m{}-{}", machine, machines_[static_cast<std::size_t>(machine)].node);
  }
  Machine& machine_of(int trainer) { return machines_[static_cast<std::size_t>(trainer / ranks_)]; }
  Trainer& trainer(int number) { return trainers_[static_cast<std::size_t>(number)]; }
  int number_of(const Trainer& t) const { return static_cast<int>(&t - trainers_.data()); }
  bool in_world(int machine) const {
    return std::ranges::any_of(run_->places().by_rank(),
                               [&](int number) { return number / ranks_ == machine; });
  }
  std::string where() const {
    std::string text =
        fmt::format("{}\ngeneration {} running {} step {} world", fmt::join(story_, "\n"),
                    run_->generation(), run_->running(), step_);
    for (const auto t : run_->world().trainers) text += fmt::format(" {}", t);
    for (std::size_t i = 0; i < machines_.size(); ++i) {
      const Machine& m = machines_[i];
      text += fmt::format("; m{} up {} leaves {} unreached {}", i, m.up, m.leaves, m.out_of_reach);
    }
    for (const int m : run_->memory().leaving) text += fmt::format(" leaving {}", m);
    for (const auto& n : run_->memory().newcomers)
      text += fmt::format("; new m{} attempts {} barred {}", n.machine, n.attempts, n.barred);
    for (const auto& places : holders_) {
      text += "; held by";
      for (const auto& [machine, node] : places) text += fmt::format(" m{}-{}", machine, node);
    }
    for (const auto& [machine, node] : lost_since_)
      text += fmt::format("; m{}-{} lost", machine, node);
    return text;
  }

  bool done_without(int machine) const {
    return std::ranges::any_of(run_->memory().newcomers, [&](const auto& newcomer) {
      return newcomer.machine == machine && newcomer.barred;
    });
  }

  void feed(const RunInput& input) {
    const auto commands = run_->apply(input, now_);
    if (run_->generation() > 0 && random_.below(60) == 0) return controller_dies(commands);
    carry_out(commands);
  }
  void controller_dies(const std::vector<RunCommand>& commands) {
    const auto done = static_cast<std::ptrdiff_t>(random_.below(commands.size() + 1));
    carry_out({commands.begin(), commands.begin() + done});
    if (ended_) return;
    run_ = RunState::adopt(settings_, RunMemory(run_->memory()), now_);
    carry_out(run_->commands_again());
    for (std::size_t i = 0; i < trainers_.size() && !ended_; ++i) {
      if (trainers_[i].alive) tell_alive(static_cast<int>(i));
    }
  }
  void tell_alive(int number) {
    carry_out(run_->apply(
        TrainerAlive{number, trainer(number).incarnation, node_of(number / ranks_)}, now_));
  }
  void carry_out(const std::vector<RunCommand>& commands) {
    for (const auto& command : commands) visit([this](const auto& c) { on(c); }, command);
  }
  void on(const BeginGeneration& begin) {
    REQUIRE(begin.purpose == GenerationPurpose::kTrain);
    REQUIRE(begin.trainers.size() >= static_cast<std::size_t>(least_ * ranks_));
    REQUIRE(begin.generation >= newest_.generation);
    if (begin.generation > newest_.generation) check_state(begin);
    newest_ = begin;
    for (const Trainer& t : trainers_) REQUIRE((t.running == 0 || t.running == begin.generation));
    for (const int number : begin.trainers) {
      Trainer& t = trainer(number);
      if (t.alive && t.heard < begin.generation) t.plan = begin;
    }
  }
  void on(const AbortGeneration& abort) {
    for (Trainer& t : trainers_) t.aborted = std::max(t.aborted, abort.generation);
  }
  void on(const PauseAfterStep& pause) {
    Trainer& t = trainer(run_->trainer_of(0));
    if (t.alive) t.pause = pause.generation;
  }
  void on(const RecordEvent& record) {
    story_.push_back(
        fmt::format("generation {}, step {}: {}", run_->generation(), step_, record.text));
    if (story_.size() > kStoryLines) story_.pop_front();
    if (record.event == "resize") ++changes_;
    if (record.event == "notice") ++without_;
  }
  void on(const KillTrainer&) { FAIL("every trainer leaves a lost generation when it is told to"); }
  void on(const SaveAndStop&) { FAIL("nobody asked for it"); }
  void on(const EndRun& end) {
    ended_ = true;
    end_ = end.status;
  }

  // Whoever takes part finds every rank's state: in its own memory, or in the copy that the machine
  // behind it keeps. Where it does not, all that had it were lost.
  void check_state(const BeginGeneration& begin) {
    if (holders_.empty()) return;
    const bool known =
        begin.world.number == stood_in_ ||
        std::ranges::find(begin.former, stood_in_, &World::number) != begin.former.end();
    REQUIRE(known);
    std::set<Place> there;
    for (const int number : begin.trainers)
      there.insert({number / ranks_, machine_of(number).node});
    for (const std::set<Place>& places : holders_) {
      if (std::ranges::any_of(places, [&](const Place& p) { return there.contains(p); })) continue;
      if (!std::ranges::all_of(places, [&](const Place& p) { return lost_since_.contains(p); }))
        FAIL(where());
      rolled_back_ = true;
    }
  }

  void join(int machine) {
    Machine& m = machines_[static_cast<std::size_t>(machine)];
    m = {.node = m.node + 1, .up = true};
    m.out_of_reach = faults_left_ > 0 && m.node + machine > 1 && random_.below(4) == 0;
    for (int i = 0; i < ranks_ && !ended_; ++i) start(machine * ranks_ + i);
  }
  void start(int number) {
    Trainer& t = trainer(number);
    t = {.incarnation = t.incarnation + 1, .alive = true};
    feed(TrainerAlive{number, t.incarnation, node_of(number / ranks_)});
  }
  void die(int number) {
    Trainer& t = trainer(number);
    if (!t.alive) return;
    t = {.incarnation = t.incarnation};
    feed(TrainerDied{number, t.incarnation, node_of(number / ranks_), killed()});
  }
  // As when its power goes; or where it may go, without a loss.
  void go(int machine, bool lost) {
    Machine& m = machines_[static_cast<std::size_t>(machine)];
    if (lost) lost_since_.insert({machine, m.node});
    m.up = m.leaves = m.out_of_reach = false;
    for (int i = 0; i < ranks_ && !ended_; ++i) die(machine * ranks_ + i);
    for (int i = 0; i < ranks_ && !ended_; ++i)
      feed(TrainerWaiting{machine * ranks_ + i, "no node"});
  }

  void event() {
    if (random_.below(8) == 0) return feed(TimePassed{});
    if (random_.below(12) == 0)
      return machine_event(static_cast<int>(random_.below(machines_.size())));
    Trainer& t = trainers_[static_cast<std::size_t>(random_.below(trainers_.size()))];
    const int number = number_of(t);
    if (!machine_of(number).up) return;
    if (!t.alive) return start(number);
    // One that has handed over keeps its processes: when another machine is lost at that moment,
    // its process and what that held would have to be waited for, and nobody knows whether they
    // come.
    const bool handed_over = machine_of(number).leaves && !in_world(number / ranks_);
    if (faults_left_ > 0 && !handed_over && random_.below(60) == 0) {
      --faults_left_;
      return die(number);
    }
    trainer_event(t);
  }
  void machine_event(int machine) {
    Machine& m = machines_[static_cast<std::size_t>(machine)];
    if (!m.up) return join(machine);
    if (m.out_of_reach && random_.below(10) == 0) m.out_of_reach = false;
    if (m.leaves) {
      // What leave_run() does.
      feed(MachineLeaves{machine});
      if (ended_) return;
      const auto& leaving = run_->memory().leaving;
      if (!run_->has_machine(machine)) return go(machine, false);
      if (std::ranges::find(leaving, machine) == leaving.end()) m.leaves = false;  // it is needed
      return;
    }
    if (done_without(machine)) {
      // As its owner was told, who starts it anew.
      if (!run_->has_machine(machine)) go(machine, false);
      return;
    }
    if (faults_left_ == 0 || random_.below(6) != 0) return;
    --faults_left_;
    if (random_.below(2) == 0) return go(machine, true);
    m.leaves = true;
  }
  void trainer_event(Trainer& t) {
    if (t.running == 0) {
      if (!t.plan) return;
      const BeginGeneration plan = *std::exchange(t.plan, std::nullopt);
      t.heard = t.running = plan.generation;
      t.rank =
          static_cast<int>(std::ranges::find(plan.trainers, number_of(t)) - plan.trainers.begin());
      return;
    }
    const std::uint64_t generation = t.running;
    if (t.aborted >= generation || unreachable(generation)) {
      t.running = 0;
      return feed(TrainerStopped{t.rank, generation, killed()});
    }
    if (paused_ == generation) {
      t.running = 0;
      return feed(TrainerPaused{t.rank, generation, step_});
    }
    if (generation != newest_.generation || !all_in_it()) return;
    if (loaded_.insert({generation, t.rank}).second) return load(t);
    if (step_ >= kStepsOfWorlds) {
      t.running = 0;
      return feed(TrainerFinished{t.rank, generation});
    }
    if (t.rank != 0 || !all_loaded()) return;
    ++step_;
    stood();
    // It is asked behind the step, before this is told.
    if (t.pause == generation) paused_ = generation;
    feed(StepFinished{generation, step_});
    if (!ended_ && random_.below(5) == 0) feed(StepFinished{generation, step_});
  }
  void load(const Trainer& t) {
    if (std::exchange(rolled_back_, false)) {
      ++rollbacks_;
      step_ = step_ / kSaveSteps * kSaveSteps;
      holders_.clear();
    }
    const bool checkpoint = holders_.empty() && stood_in_ >= 0;
    feed(TrainerLoaded{.rank = t.rank,
                       .generation = t.running,
                       .step = step_,
                       .how = checkpoint ? LoadedFrom::kCheckpoint : LoadedFrom::kMemory});
  }
  void stood() {
    stood_in_ = newest_.world.number;
    lost_since_.clear();
    holders_.clear();
    std::vector<Place> places;
    for (const int number : newest_.trainers) {
      const Place place{number / ranks_, machine_of(number).node};
      if (places.empty() || places.back() != place) places.push_back(place);
    }
    for (std::size_t i = 0; i < places.size(); ++i)
      holders_.push_back({places[i], places[(i + 1) % places.size()]});
  }
  bool unreachable(std::uint64_t generation) {
    if (generation != newest_.generation || newest_.trainers.size() == 1) return false;
    return !all_loaded() && std::ranges::any_of(newest_.trainers, [&](int number) {
      return machine_of(number).out_of_reach;
    });
  }
  bool all_in_it() {
    return std::ranges::all_of(
        newest_.trainers, [&](int number) { return trainer(number).heard == newest_.generation; });
  }
  bool all_loaded() const {
    for (std::size_t rank = 0; rank < newest_.trainers.size(); ++rank) {
      if (!loaded_.contains({newest_.generation, static_cast<int>(rank)})) return false;
    }
    return true;
  }

  SeededRandom random_;
  int ranks_ = 1;  // of a machine
  int least_ = 1;
  RunSettings settings_;
  std::optional<RunState> run_;
  std::vector<Machine> machines_;
  std::vector<Trainer> trainers_;
  TimePoint now_{std::chrono::seconds(1000)};
  BeginGeneration newest_;
  std::set<std::pair<std::uint64_t, int>> loaded_;
  std::uint64_t paused_ = 0;  // the generation that is left in order
  std::int64_t step_ = 0;
  int stood_in_ = -1;                     // the world that the last step stood in
  std::vector<std::set<Place>> holders_;  // of the states of each of its machines
  std::set<Place> lost_since_;
  bool rolled_back_ = false;
  int faults_left_ = 25;
  std::deque<std::string> story_;  // the last lines of events.jsonl
  int events_ = 0, rollbacks_ = 0, changes_ = 0, without_ = 0;
  bool ended_ = false;
  Status end_;
};

TEST_CASE("random worlds: no state is lost with one machine, and the run comes to its end") {
  int rollbacks = 0, changes = 0, without = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    WorldWalk walk(seed);
    walk.run();
    rollbacks += walk.rollbacks();
    changes += walk.changes();
    without += walk.without();
  }
  // The walks come to what they are for.
  CHECK(rollbacks > 10);
  CHECK(changes > 1000);
  CHECK(without > 50);
}

}  // namespace
}  // namespace troupe::train
