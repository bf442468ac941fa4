#include "train/trainer/controller_session.h"

#include <algorithm>

#include "runtime/base/canary.h"
#include "train/report/run_event.h"

namespace troupe::train {
namespace {

// A keeper's processes end together.
constexpr auto kKeeperEventsApart = std::chrono::seconds(3);

}  // namespace

ControllerSession::ControllerSession(const RunSettings& settings, std::uint64_t incarnation)
    : settings_(settings), incarnation_(incarnation), state_(settings) {}

void ControllerSession::add_trainers(std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) processes_.add();
  served_later_.resize(processes_.size());
}

ControllerActions ControllerSession::take() { return std::exchange(actions_, {}); }

// --- one controller after another ----------------------------------------------------------------

void ControllerSession::tell_replaced(const std::string& cause, const std::string& text,
                                      TimePoint now) {
  actions_.push_back(RecordEvent{.event = events::kController,
                                 .generation = state_.generation(),
                                 .step = state_.last_step(),
                                 .text = text,
                                 .cause = cause,
                                 .at = now});
}

ControllerActions ControllerSession::restore(RunMemory run,
                                             const std::vector<TrainerProcesses::Saved>& trainers,
                                             TimePoint now) {
  state_ = RunState::adopt(settings_, std::move(run), now);
  add_trainers(trainers.size());
  for (std::size_t i = 0; i < trainers.size(); ++i)
    processes_.restore(static_cast<int>(i), trainers[i]);
  tell_replaced(fmt::format("process {} of the controller", incarnation_),
                "the run's controller was replaced", now);
  carry_out(state_.commands_again());
  if (!state_.ended() && !TROUPE_CANARY("watches-nobody-again"))
    actions_.push_back(WatchTrainers{});
  return take();
}

ControllerActions ControllerSession::found(const Found& run, TimePoint now) {
  finding_ = false;
  auto unheard = std::exchange(unheard_, {});
  // Where there are trainers, the driver has begun the run anew; where none are found, it has not
  // begun it yet.
  const bool adopts = processes_.size() == 0;
  if (adopts && run.trainers.empty()) return {};
  if (adopts) {
    const std::vector<TrainerFound> living = living_trainers(run.trainers);
    RunSettings all = settings_;
    all.spares = std::max(0, static_cast<int>(run.trainers.size()) - settings_.world_size);
    state_ = RunState::adopt_found(all, living, run.generations, now, run.steps, run.silent_for,
                                   run.worlds);
    add_trainers(run.trainers.size());
    for (const TrainerFound& one : living) {
      const TrainerStatus& status = *run.trainers[static_cast<std::size_t>(one.trainer)];
      processes_.found(one.trainer, status.incarnation, status.node_id, status.pid);
    }
    tell_replaced(
        fmt::format("process {} of the controller, which found no memory of the one before",
                    incarnation_),
        "the run's controller was replaced; its memory was lost", now);
    actions_.push_back(SaveMemory{});
    carry_out(state_.commands_again());
    actions_.push_back(WatchTrainers{});
    for (std::size_t i = 0; i < run.trainers.size(); ++i) {
      // A trainer that lives and does not answer could be in any generation.
      if (!run.trainers[i])
        actions_.push_back(RestartTrainer{static_cast<int>(i), "it does not answer"});
    }
  }
  // Reports that came meanwhile may be newer than a trainer's answer when it was asked.
  for (auto& [rank, message] : unheard) hear(rank, std::move(message), now);
  return take();
}

// --- what happens --------------------------------------------------------------------------------

void ControllerSession::carry_out(std::vector<RunCommand> commands) {
  for (RunCommand& command : commands) {
    if (const auto* kill = get_if<KillTrainer>(&command)) {
      actions_.push_back(RestartTrainer{state_.trainer_of(kill->rank), kill->reason});
      continue;
    }
    visit(
        [this](auto& one) {
          if constexpr (!std::is_same_v<std::decay_t<decltype(one)>, KillTrainer>)
            actions_.push_back(std::move(one));
        },
        command);
  }
}

void ControllerSession::feed(const RunInput& input, TimePoint now) {
  auto commands = state_.apply(input, now);
  if (!commands.empty()) {
    actions_.push_back(SaveMemory{});
    carry_out(std::move(commands));
  }
  if (state_.ended() || state_.recovering()) return;
  for (std::size_t i = 0; i < served_later_.size(); ++i) {
    if (!served_later_[i]) continue;
    served_later_[i] = false;
    give_data(static_cast<int>(i), now);
  }
}

ControllerActions ControllerSession::tell(const RunInput& input, TimePoint now) {
  feed(input, now);
  return take();
}

ControllerActions ControllerSession::report(std::int32_t rank, TrainerMessage message,
                                            TimePoint now) {
  // A spare reports one thing only: that it cannot serve.
  const bool of_spare = rank == -1 && std::holds_alternative<TrainerUnfit>(message);
  if ((rank < 0 && !of_spare) || rank >= settings_.world_size) return {};
  if (finding_) {
    unheard_.emplace_back(rank, std::move(message));
    return {};
  }
  hear(rank, std::move(message), now);
  return take();
}

void ControllerSession::hear(std::int32_t rank, TrainerMessage message, TimePoint now) {
  if (const auto* step = std::get_if<StepReport>(&message)) {
    const StepFinished finished{step->generation, step->step};
    // A report whose answer a controller could not give any more comes again.
    if (state_.repeats(finished)) return;
    actions_.push_back(TellUser{rank, std::move(message)});
    return feed(finished, now);
  }
  if (const auto* unfit = std::get_if<TrainerUnfit>(&message)) {
    const auto* place = state_.places().find(unfit->trainer);
    if (!place || place->unfit >= unfit->incarnation) return;
    // Of one that has a rank the state says what it means.
    if (place->rank < 0) actions_.push_back(TellUser{rank, *unfit});
    return feed(*unfit, now);
  }
  std::visit(
      [&](const auto& told) {
        if constexpr (std::is_constructible_v<RunInput, decltype(told)>) {
          feed(told, now);
        } else {
          actions_.push_back(TellUser{rank, message});
        }
      },
      message);
}

// --- the trainers' processes ---------------------------------------------------------------------

ControllerActions ControllerSession::changed(int trainer, const wire::ActorInfo& info,
                                             TimePoint now) {
  if (state_.ended()) return {};
  const auto number = static_cast<std::size_t>(trainer);
  // They are placed together: where one has left the cluster's line, all have.
  if (state_.generation() == 0 && info.state != wire::ActorState::kPending)
    feed(TrainersPlaced{}, now);
  const auto change = processes_.changed(trainer, info, now);
  if (change.died != 0) {
    served_later_[number] = false;
    const int rank = state_.places().find(trainer)->rank;
    if (change.was_alive) {
      if (change.cause.context("keeper")) keeper_lost(change.node, now);
      if (rank >= 0) actions_.push_back(LookBack{trainer, rank, change.died});
    }
    feed(TrainerDied{trainer, change.died, change.node, change.cause}, now);
    if (!change.was_alive) feed(PostMortem{trainer, change.died, {}, ""}, now);
  }
  if (change.gone) {
    feed(TrainerGone{trainer, info.death}, now);
    return take();
  }
  if (!info.pending_why.empty()) feed(TrainerWaiting{trainer, info.pending_why}, now);
  if (!change.wants_data) return take();
  // A new spare's preparations would take processor time from the step that all ranks wait for.
  served_later_[number] = state_.places().find(trainer)->rank < 0 && state_.recovering();
  if (!served_later_[number]) give_data(trainer, now);
  return take();
}

// Told of each process that ended with it.
void ControllerSession::keeper_lost(const std::string& node, TimePoint now) {
  auto& told = keepers_lost_[node];
  if (told && now - *told < kKeeperEventsApart) return;
  told = now;
  actions_.push_back(RecordEvent{
      .event = events::kKeeper,
      .generation = state_.generation(),
      .node = node,
      .step = state_.last_step(),
      .text = fmt::format("the keeper of node {} died, and with it its trainers and their memory",
                          node),
      .at = now});
}

void ControllerSession::give_data(int trainer, TimePoint now) {
  if (!has_data_) {
    processes_.cannot_serve(trainer, now);
    return feed(TrainerWaiting{trainer, "the controller waits for the run's data", true}, now);
  }
  processes_.serving(trainer);
  actions_.push_back(GiveData{trainer, processes_[trainer].alive});
}

ControllerActions ControllerSession::data_arrived(TimePoint now) {
  has_data_ = true;
  for (const int trainer : processes_.unserved()) give_data(trainer, now);
  return take();
}

ControllerActions ControllerSession::data_given(int trainer, std::uint64_t incarnation,
                                                const Status& given, const std::string& gpu,
                                                TimePoint now) {
  if (!processes_.served(trainer, incarnation, given.ok(), now)) return {};
  if (given.ok()) {
    feed(TrainerAlive{trainer, incarnation, processes_[trainer].node, gpu}, now);
  } else {
    // Most likely it died meanwhile, which the head will tell. A process that lives is ended: its
    // successor may take them, and the failure counts.
    feed(TrainerWaiting{trainer,
                        fmt::format("it did not get the run's data: {}", given.to_string()), true},
         now);
  }
  return take();
}

ControllerActions ControllerSession::time_passed(TimePoint now) {
  if (!state_.ended() && has_data_) {
    for (const int trainer : processes_.to_end(now)) {
      const auto& process = processes_[trainer];
      actions_.push_back(RestartTrainer{
          trainer, process.died >= process.alive
                       ? "its node had been taken for lost, and its rank waits for the next process"
                       : "it did not take the run's data"});
    }
  }
  feed(TimePassed{}, now);
  return take();
}

ControllerActions ControllerSession::machine_leaves(int machine, TimePoint now) {
  if (!changes_world() || leads(machine) || processes_.size() == 0) return {};
  return tell(MachineLeaves{machine}, now);
}

bool ControllerSession::may_leave(int machine) const {
  if (!changes_world() || leads(machine)) return false;
  // Without trainers it looks for its run: it is asked again.
  return processes_.size() == 0 || !has_machine(machine) || state_.announced(machine);
}

std::vector<TrainerFound> living_trainers(
    const std::vector<std::optional<TrainerStatus>>& trainers) {
  std::vector<TrainerFound> living;
  for (std::size_t i = 0; i < trainers.size(); ++i) {
    const auto& status = trainers[i];
    if (!status || !status->has_bundle) continue;
    living.push_back({.trainer = static_cast<int>(i),
                      .incarnation = status->incarnation,
                      .node = status->node_id.brief(),
                      .generation = status->generation,
                      .rank = status->rank,
                      .in_generation = status->in_generation,
                      .step = status->step,
                      .gpu = status->gpu,
                      .fit = status->fit,
                      .world = status->world,
                      .former = status->former});
  }
  return living;
}

}  // namespace troupe::train
