#include "sim_controller.h"

#include <algorithm>

namespace troupe::simulation {

using namespace train;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr auto kBundleTimeout = seconds(20);
constexpr auto kFindTimeout = seconds(3);

}  // namespace

Controller::Controller(Cluster& cluster, Run& run, Place place)
    : Process(cluster, std::move(place)),
      run_(run),
      state_(settings()),
      head_(cluster, this->place().node,
            wire::ClientHello{
                .client_id = {this->place().spec.actor_id.high, this->place().spec.actor_id.low},
                .job_id = this->place().spec.job_id,
                .name = label(),
                .kind = "actor"},
            {},
            [this](Duration delay, std::function<void()> what) { later(delay, std::move(what)); }) {
}

RunSettings Controller::settings() const {
  RunSettings settings;
  settings.world_size = run_.ranks;
  settings.fruitless_failures_max = 1'000'000;
  settings.respawn_timeout = std::chrono::minutes(5);
  return settings;
}

// --- the actor -----------------------------------------------------------------------------------

void Controller::start(MemoryPtr saved) {
  later(world_.between(1, 20), [this, saved] {
    become_ready();
    later(seconds(1), [this] { tick(); });
    const auto memory = std::dynamic_pointer_cast<SavedController>(saved);
    if (memory && !memory->trainers.empty()) {
      world_.note("{} goes on where the one before was", label());
      state_ = RunState::adopt(settings(), memory->run, world_.timeline.now());
      for (const auto& known : memory->trainers) {
        const int number = static_cast<int>(trainers_.size());
        trainers_.add();
        trainers_.restore(number, known.served, known.died, known.node);
      }
      carry_out(state_.commands_again());
      watch();
    } else if (place().incarnation > 1) {
      find_run();
    } else {
      for (std::size_t i = 0; i < run_.trainers.size(); ++i) trainers_.add();
      feed(TrainersPlaced{});
      remember();
      watch();
    }
  });
}

void Controller::on_death() { head_.close(); }

void Controller::watch() {
  for (std::size_t i = 0; i < run_.trainers.size(); ++i) {
    head_.watch(
        run_.trainers[i], "",
        [this, number = static_cast<int>(i)](const troupe::Result<wire::ActorInfo>& info, bool) {
          if (info.ok()) actor_changed(number, *info);
        });
  }
}

void Controller::actor_changed(int number, const wire::ActorInfo& info) {
  if (state_.ended() || trainers_.size() == 0) return;
  const auto change = trainers_.changed(number, info, world_.timeline.now());
  if (change.died != 0) feed(TrainerDied{number, change.died, change.node, info.death});
  if (change.gone) return feed(TrainerGone{number, info.death});
  if (change.wants_data) give_bundle(number);
}

void Controller::give_bundle(int number) {
  trainers_.serving(number);
  const std::uint64_t incarnation = trainers_[number].alive;
  const auto answer = [this, number, incarnation] {
    later(world_.delay(), [this, number, incarnation] { gave_bundle(number, incarnation, true); });
  };
  cluster_.call(*this, run_.trainers[static_cast<std::size_t>(number)],
                {.what =
                     [answer](Process& process) {
                       dynamic_cast<Trainer&>(process).take_bundle();
                       answer();
                     },
                 .timeout = kBundleTimeout,
                 .failed = {}});
  // Also a process that lives and does not answer.
  later(kBundleTimeout, [this, number, incarnation] {
    if (trainers_[number].served < incarnation) gave_bundle(number, incarnation, false);
  });
}

void Controller::gave_bundle(int number, std::uint64_t incarnation, bool given) {
  if (!trainers_.served(number, incarnation, given, world_.timeline.now())) return;
  if (!given) return feed(TrainerWaiting{number, "it did not get the run's data"});
  feed(TrainerAlive{number, incarnation, trainers_[number].node});
}

void Controller::kill_and_restart(int number, const std::string& why) {
  world_.note("the controller kills trainer {}: {}", number, why);
  wire::KillActor kill;
  kill.actor_id = run_.trainers[static_cast<std::size_t>(number)];
  kill.allow_restart = true;
  kill.reason = why;
  head_.ask(std::move(kill), {});
}

void Controller::tick() {
  later(seconds(1), [this] { tick(); });
  if (!state_.ended()) {
    for (const int number : trainers_.to_end(world_.timeline.now()))
      kill_and_restart(number, "it did not take the run's data");
  }
  if (!trainers_.size() == 0) feed(TimePassed{});
}

void Controller::stuck(std::uint64_t pid, Duration silent_for) {
  if (trainers_.size() == 0) return;
  for (int rank = 0; rank < run_.ranks; ++rank) {
    const int number = state_.trainer_of(rank);
    Process* process = cluster_.ready_process(run_.trainers[static_cast<std::size_t>(number)]);
    if (process == nullptr || process->place().pid != pid) continue;
    return feed(TrainerStuck{rank, state_.generation(), true, silent_for, "", {}});
  }
}

// --- one controller after another ----------------------------------------------------------------

void Controller::remember() {
  auto memory = std::make_shared<SavedController>();
  memory->run = state_.memory();
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    const auto& trainer = trainers_[static_cast<int>(i)];
    memory->trainers.push_back({trainer.served, trainer.died, trainer.node});
  }
  cluster_.tell_node(*this, wire::HostSavedState{place().incarnation}, memory);
}

void Controller::find_run() {
  world_.note("{} looks for its run", label());
  const auto found = std::make_shared<Found>();
  found->status.resize(run_.trainers.size());
  const auto use = [this, found] {
    if (!std::exchange(found->used, true)) found_run(*found);
  };
  for (std::size_t i = 0; i < run_.trainers.size(); ++i) {
    cluster_.call(*this, run_.trainers[i],
                  {.what =
                       [this, found, i, use](Process& process) {
                         const auto& trainer = dynamic_cast<Trainer&>(process);
                         if (!trainer.has_bundle()) return;
                         const TrainerFound status = trainer.status(static_cast<int>(i));
                         later(world_.delay(), [found, i, status, use] {
                           found->status[i] = status;
                           if (++found->answers == found->status.size()) use();
                         });
                       },
                   .timeout = kFindTimeout,
                   .failed = {}});
  }
  later(kFindTimeout, use);
}

void Controller::found_run(const Found& found) {
  std::vector<TrainerFound> living;
  for (const auto& status : found.status) {
    if (status) living.push_back(*status);
  }
  state_ = RunState::adopt_found(settings(), living, run_.told_generation, world_.timeline.now());
  while (trainers_.size() < run_.trainers.size()) trainers_.add();
  for (const TrainerFound& one : living) trainers_.found(one.trainer, one.incarnation, one.node);
  remember();
  carry_out(state_.commands_again());
  watch();
  for (std::size_t i = 0; i < trainers_.size(); ++i) {
    if (!found.status[i]) kill_and_restart(static_cast<int>(i), "it does not answer");
  }
  for (const RunInput& message : std::exchange(unheard_, {})) feed(message);
}

// --- events and commands -------------------------------------------------------------------------

void Controller::report(const RunInput& message) {
  if (trainers_.size() == 0) {
    // The run is being looked for; what a trainer tells meanwhile may be newer than what it said.
    unheard_.push_back(message);
  } else {
    feed(message);
  }
  remember();
}

void Controller::feed(const RunInput& input) {
  if (run_.ended) return;
  const auto commands = state_.apply(input, world_.timeline.now());
  if (commands.empty()) return;
  remember();
  carry_out(commands);
}

void Controller::carry_out(const std::vector<RunCommand>& commands) {
  for (const RunCommand& command : commands) {
    visit([this](const auto& c) { carry_out(c); }, command);
  }
}

void Controller::carry_out(const BeginGeneration& command) {
  world_.note("the controller begins generation {}", command.generation);
  Plan plan{command.generation, {}};
  for (const int trainer : command.trainers) {
    plan.ranks.push_back(run_.trainers[static_cast<std::size_t>(trainer)]);
  }
  for (const ActorId& id : plan.ranks) {
    cluster_.call(
        *this, id,
        {.what = [plan](Process& process) { dynamic_cast<Trainer&>(process).begin(plan); },
         .timeout = seconds(30),
         .failed = {}});
  }
}

void Controller::carry_out(const AbortGeneration& command) {
  world_.note("the controller aborts generation {}: {}", command.generation,
              command.reason.message());
  for (const ActorId& id : run_.trainers) {
    cluster_.call(
        *this, id,
        {.what = [generation = command.generation](
                     Process& process) { dynamic_cast<Trainer&>(process).abort(generation); },
         .timeout = seconds(10),
         .failed = {}});
  }
}

void Controller::carry_out(const KillTrainer& command) {
  kill_and_restart(state_.trainer_of(command.rank), command.reason);
}

void Controller::carry_out(const SaveAndStop&) {}

void Controller::carry_out(const RecordEvent& command) {
  run_.told_generation = std::max(run_.told_generation, command.generation);
  world_.note("event {} (generation {}): {}", command.event, command.generation, command.text);
}

void Controller::carry_out(const EndRun& command) {
  world_.note("the run ends: {}", command.status.to_string());
  run_.ended = true;
  run_.end = command.status;
}

std::string Controller::describe() const {
  std::string text = fmt::format("the controller has {} generation {}",
                                 state_.running() ? "begun" : "lost", state_.generation());
  const RunMemory& memory = state_.memory();
  const auto expected =
      state_.running() ? RunMemory::RankPhase::kRunning : RunMemory::RankPhase::kReady;
  int others = 0;
  for (std::size_t i = 0; i < memory.ranks.size(); ++i) {
    if (memory.ranks[i].phase == expected || ++others > 4) continue;
    text += fmt::format("; rank {} is in phase {}", i, static_cast<int>(memory.ranks[i].phase));
  }
  if (others > 4) text += fmt::format("; and {} ranks more", others - 4);
  return text;
}

}  // namespace troupe::simulation
