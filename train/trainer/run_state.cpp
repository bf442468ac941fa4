#include "train/trainer/run_state.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/suggest.h"
#include "train/report/run_event.h"
#include "train/trainer/saved_stop.h"

namespace troupe::train {

namespace {

TrainerPlaces first_places(const RunSettings& settings) {
  if (settings.ranks_per_machine == 0) return {settings.world_size, settings.spares};
  return {trainers_of(settings.first_machines, settings.ranks_per_machine), settings.world_size};
}

}  // namespace

RunState::RunState(const RunSettings& settings)
    : settings_(settings), places_(first_places(settings)) {
  known_.ranks.resize(static_cast<std::size_t>(places_.world_size()));
}

RunState RunState::adopt(const RunSettings& settings, RunMemory memory, TimePoint now) {
  RunState state(settings);
  state.places_ = TrainerPlaces(static_cast<int>(memory.ranks.size()), memory.trainers);
  if (memory.recovery) state.recovery_.emplace(*memory.recovery);
  state.known_ = std::move(memory);
  // Nobody was asked while there was no controller: waits begin anew.
  for (Rank& rank : state.known_.ranks) {
    if (rank.absent_since) rank.absent_since = now;
    if (rank.stuck_since) rank.stuck_since = now;
  }
  if (state.known_.lost_at) state.known_.lost_at = now;
  if (state.known_.killed_at) state.known_.killed_at = now;
  if (state.known_.save_asked) {
    state.known_.save_asked = now;
    state.known_.save_by = now + settings.save_timeout;
  }
  for (auto& held : state.known_.held) held.until = now;
  return state;
}

RunState RunState::adopt_found(const RunSettings& settings, std::span<const TrainerFound> found,
                               std::uint64_t generations_before, TimePoint now,
                               std::int64_t steps_before, std::optional<Duration> silent_for,
                               std::span<const World> worlds) {
  RunState state = adopt(settings,
                         found_memory(first_places(settings), found, generations_before, now,
                                      steps_before, silent_for, worlds),
                         now);
  state.known_.found = true;
  if (state.known_.former.empty()) return state;
  // No step stands in this world yet.
  for (const int machine : state.machines()) {
    if (!state.in_former(machine))
      state.known_.newcomers.push_back({machine, state.known_.generation});
  }
  return state;
}

const RunMemory& RunState::memory() const {
  known_.trainers = places_.trainers();
  known_.recovery.reset();
  if (recovery_) known_.recovery = recovery_->data();
  return known_;
}

std::vector<RunCommand> RunState::apply(const RunInput& event, TimePoint now) {
  commands_.clear();
  if (!ended()) visit([&](const auto& e) { on(e, now); }, event);
  return std::move(commands_);
}

std::vector<RunCommand> RunState::commands_again() const {
  std::vector<RunCommand> commands;
  if (ended()) {
    commands.push_back(EndRun{*known_.ended});
  } else if (known_.running) {
    commands.push_back(plan());
    if (known_.save_by && known_.purpose == GenerationPurpose::kTrain)
      commands.push_back(SaveAndStop{});
    if (known_.pausing) commands.push_back(PauseAfterStep{known_.generation});
  } else if (known_.generation > 0) {
    commands.push_back(AbortGeneration{
        known_.generation, error(Code::kAborted, "generation {} was lost", known_.generation)});
  }
  return commands;
}

RunState::Rank* RunState::rank_of(int rank) {
  if (rank < 0 || rank >= places_.world_size()) return nullptr;
  return &known_.ranks[static_cast<std::size_t>(rank)];
}

RunState::Rank* RunState::running_rank(int rank, std::uint64_t generation) {
  Rank* found = rank_of(rank);
  const bool in_it =
      found && found->phase == RankPhase::kRunning && found->generation == generation;
  return in_it ? found : nullptr;
}

RecoveryTimeline& RunState::recovery(TimePoint now) {
  if (!recovery_) recovery_.emplace(now, known_.last_step);
  return *recovery_;
}

void RunState::on(const TrainersPlaced&, TimePoint now) {
  for (Rank& rank : known_.ranks) {
    if (rank.phase == RankPhase::kAbsent && !rank.absent_since) rank.absent_since = now;
  }
}

void RunState::on(const SparesPlaced& event, TimePoint) { places_.add_spares(event.count); }

void RunState::on(const TrainerAlive& event, TimePoint now) {
  const auto* place = places_.find(event.trainer);
  if (!place) return;
  // A process that came before its predecessor's death was reported: that death is told later, with
  // an older incarnation, and must still count. Treat it as told now.
  if (place->alive && place->rank >= 0 && event.incarnation > place->incarnation &&
      rank_of(place->rank)->phase == RankPhase::kRunning) {
    rank_replaced(place->rank, place->node, now);
    if (ended()) return;
  }
  const bool new_machine = elastic() && !was_on(machine_of(event.trainer), event.node);
  const bool moved = !place->node.empty() && place->node != event.node;
  if (!places_.came_alive(event.trainer, event.incarnation, event.node, event.gpu)) return;
  if (new_machine) machine_came(machine_of(event.trainer));
  if (place->rank >= 0) {
    const int rank = place->rank;
    if (moved) rank_of(rank)->moved_in = known_.generation;
    return rank_present(rank, fmt::format("rank {} has a new process", rank), events::kRespawn,
                        now);
  }
  if (elastic()) {
    if (known_.running) return pause_for_world(now);
    return begin_when_ready(now);
  }
  if (const auto rank = places_.rank_for_spare(event.trainer)) {
    rank_present(*rank, fmt::format("rank {} goes on with a spare", *rank), events::kSpare, now);
  }
}

void RunState::on(const TrainerUnfit& event, TimePoint now) {
  const auto* place = places_.find(event.trainer);
  if (!place) return;
  if (place->rank < 0) return places_.unfit(event.trainer, event.incarnation);
  // Of others their generation tells.
  if (on_new_node(place->rank)) cannot_serve(place->rank, event.cause, now);
}

bool RunState::on_new_node(int rank) const {
  return elastic() ? is_new(machine_of(places_.trainer_of(rank)))
                   : known_.ranks[static_cast<std::size_t>(rank)].moved_in.has_value();
}

void RunState::cannot_serve(int number, const Status& cause, TimePoint now) {
  const int trainer = places_.trainer_of(number);
  const TrainerPlaces::Trainer& place = *places_.find(trainer);
  if (!place.fit()) return;  // it was told, or its process has ended
  places_.unfit(trainer, place.incarnation);
  Rank& rank = *rank_of(number);
  rank.phase = RankPhase::kAbsent;
  rank.died_before = false;
  rank.absent_since = now;
  const std::string who = elastic() ? fmt::format("machine {}", machine_of(trainer))
                                    : fmt::format("rank {} on node {}", number, place.node);
  rank.has_place = false;
  rank.waits_for =
      fmt::format("{} cannot take part: {}; mend that and start its machine's command anew", who,
                  cause.to_string());
  record({.event = events::kNotice,
          .generation = known_.generation,
          .rank = number,
          .node = place.node,
          .step = known_.last_step,
          .text = rank.waits_for,
          .cause = rank.waits_for},
         now);
  if (known_.running) give_up_generation(error(Code::kAborted, "{}", rank.waits_for), now);
}

void RunState::rank_present(int number, const std::string& how, const char* event, TimePoint now) {
  Rank& rank = *rank_of(number);
  rank.phase = RankPhase::kReady;
  rank.absent_since.reset();
  rank.waits_for.clear();
  rank.has_place = true;
  rank.stuck_since.reset();
  if (rank.died_before) {
    record({.event = event,
            .generation = known_.generation,
            .rank = number,
            .node = places_.with_rank(number).node,
            .step = known_.last_step,
            .text = how},
           now);
  }
  const bool all = std::none_of(known_.ranks.begin(), known_.ranks.end(),
                                [](const Rank& r) { return r.phase == RankPhase::kAbsent; });
  if (all && recovery_) recovery_->respawned(now);
  begin_when_ready(now);
}

void RunState::rank_replaced(int number, const std::string& node, TimePoint now) {
  const char* cause = "its process was replaced";
  rank_of(number)->died_before = true;
  record({.event = events::kDeath,
          .generation = known_.generation,
          .rank = number,
          .node = node,
          .step = known_.last_step,
          .text = fmt::format("rank {} died: {}", number, cause),
          .cause = cause},
         now);
  recovery(now).add_fault(number, cause);
  lose_generation(error(Code::kActorDied, "rank {} was replaced", number), {.rank = number}, now);
}

void RunState::on(const TrainerDied& event, TimePoint now) {
  const auto* place = places_.find(event.trainer);
  if (!place || !places_.died(event.trainer, event.incarnation, event.node)) return;
  if (place->rank < 0) return spare_died(event, now);
  const int number = place->rank;
  Rank& rank = *rank_of(number);
  const bool died_again = rank.phase == RankPhase::kAbsent && rank.died_before;
  rank.phase = RankPhase::kAbsent;
  rank.died_before = true;
  rank.absent_since = now;
  const bool was_stuck = rank.stuck_since.has_value();
  rank.stuck_since.reset();
  const std::string cause = was_stuck ? rank.stuck_how + ", and killed" : short_cause(event.cause);
  RunMemory::HeldEvent death{
      .event = {.event = events::kDeath,
                .generation = known_.generation,
                .rank = number,
                .node = event.node,
                .step = known_.last_step,
                .text = fmt::format("rank {} died: {}", number, event.cause.to_string()),
                .cause = cause,
                .at = now},
      .trainer = event.trainer,
      .incarnation = event.incarnation,
      .until = now + settings_.post_mortem_timeout};
  known_.held.push_back(std::move(death));
  release_held(now, settings_.post_mortem_timeout == Duration::zero());
  // That it was stuck was the fault; its death is the cure.
  if (!was_stuck || !recovery_) recovery(now).add_fault(number, cause);
  Status status = event.cause;
  lose_generation(status.with("rank", number), {.rank = number, .again = died_again}, now);
  if (ended()) return;
  if (elastic()) {
    // What the machine held is gone, as if another one had come.
    if (event.cause.context("keeper")) machine_came(machine_of(event.trainer));
    return begin_when_ready(now);
  }
  if (const auto spare = places_.replace(number)) {
    rank_present(number, fmt::format("rank {} goes on with a spare", number), events::kSpare, now);
  }
}

void RunState::spare_died(const TrainerDied& event, TimePoint now) {
  if (elastic()) return;  // its machine is none of the world's
  record({.event = events::kDeath,
          .generation = known_.generation,
          .node = event.node,
          .step = known_.last_step,
          .text = fmt::format("a spare died, another one comes: {}", event.cause.to_string()),
          .cause = "a spare: " + short_cause(event.cause)},
         now);
}

void RunState::on(const PostMortem& event, TimePoint now) {
  for (auto& held : known_.held) {
    if (held.trainer != event.trainer || held.incarnation != event.incarnation) continue;
    held.trainer = -1;
    held.event.doing = event.doing;
    if (!event.doing.empty()) held.event.text += "; it was in " + event.doing;
    if (event.last_sign) {
      const Duration silence = std::max(Duration::zero(), held.event.at - *event.last_sign);
      held.event.detected_after_ms = std::chrono::duration<double, std::milli>(silence).count();
      if (recovery_) recovery_->silent_before(silence);
    }
  }
  release_held(now, false);
}

void RunState::on(const TrainerGone& event, TimePoint now) {
  const auto* place = places_.find(event.trainer);
  if (!place) return;
  Status cause = event.cause;
  if (place->rank >= 0) return end(cause.with("rank", place->rank));
  record({.event = events::kDeath,
          .generation = known_.generation,
          .step = known_.last_step,
          .text = fmt::format("a spare is gone for good: {}", cause.to_string()),
          .cause = "a spare: " + short_cause(cause)},
         now);
}

void RunState::on(const TrainerFormed& event, TimePoint now) {
  if (known_.running && event.generation == known_.generation && recovery_) {
    recovery_->formed(event.rank, now);
  }
}

void RunState::on(const TrainerLoaded& event, TimePoint now) {
  if (!known_.running || event.generation != known_.generation || !rank_of(event.rank)) return;
  // What is loaded was finished, by a run before or by a generation that could not tell it any
  // more.
  const bool steps_lost = event.step < known_.last_step && !is_memory(event.how);
  known_.last_step = std::max(known_.last_step, event.step);
  if (!known_.loaded) {
    known_.loaded = true;
    // Steps behind a checkpoint are told again.
    if (!is_memory(event.how)) {
      known_.told_step = std::min(known_.told_step, event.step);
    }
  }
  // A world that changed by intent, and what one that left had held was lost with another one.
  if (!recovery_ && steps_lost) recovery(now).add_fault(-1, event.reason);
  if (!recovery_ && known_.failures == 0) return;  // the first load of a run is no reload
  const bool all_before = !recovery_ || recovery_->all_loaded(places_.world_size());
  if (recovery_) recovery_->loaded(event, now);
  if (!is_memory(event.how)) {
    record({.event = events::kReload,
            .generation = known_.generation,
            .rank = event.rank,
            .step = event.step,
            .text = fmt::format("rank {} loaded step {}{}{}", event.rank, event.step,
                                event.reason.empty() ? "" : ": ", event.reason),
            .cause = event.reason},
           now);
  }
  if (!all_before && recovery_->all_loaded(places_.world_size())) record_resume(event.step, now);
}

void RunState::record_resume(std::int64_t step, TimePoint now) {
  const std::string how = recovery_->how_resumed();
  record({.event = events::kResume,
          .generation = known_.generation,
          .step = step,
          .text = fmt::format("training goes on after step {} {}", step, how),
          .cause = how},
         now);
}

bool RunState::repeats(const StepFinished& event) const {
  return !known_.running || event.generation != known_.generation || event.step <= known_.told_step;
}

void RunState::on(const StepFinished& event, TimePoint now) {
  if (repeats(event)) return;
  step_stands(event, now);
  // It may not have heard of it before this step ended.
  if (known_.pausing) commands_.push_back(PauseAfterStep{known_.generation});
  if (!known_.leaving.empty()) pause_for_world(now);
}

void RunState::step_stands(const StepFinished& event, TimePoint now) {
  known_.last_step = known_.told_step = event.step;
  stood_in_this_world();
  // Steps done again are no progress: a step that always kills would be tried for ever.
  if (event.step > known_.farthest_step) {
    known_.farthest_step = event.step;
    known_.fruitless_failures = 0;
  }
  known_.unmet_attempts = 0;
  // What was finished before and told only now is no step further.
  if (!recovery_ || event.step <= recovery_->resumed().value_or(0)) return;
  // A step needs every rank: who has not told that it loaded has done so, its word is on the way.
  if (!recovery_->all_loaded(places_.world_size())) {
    record_resume(recovery_->resumed().value_or(event.step - 1), now);
  }
  record_recovery(event.step, now);
}

// Its machines hold what they computed then, and drop what they held of worlds before.
void RunState::stood_in_this_world() {
  known_.stepped = true;
  // Whoever came since then, with the word of the step on its way, was not in it.
  for (Rank& rank : known_.ranks) {
    if (rank.moved_in < known_.generation) rank.moved_in.reset();
  }
  known_.found = false;
  known_.former.clear();
  newcomers_are_members();
}

void RunState::record_recovery(std::int64_t step, TimePoint now) {
  if (!recovery_) return;
  RecordEvent event = recovery_->recovered(step, now);
  event.generation = known_.generation;
  record(std::move(event), now);
  recovery_.reset();
}

void RunState::record(RecordEvent event, TimePoint now) {
  event.at = now;
  if (known_.held.empty()) {
    commands_.push_back(std::move(event));
  } else {
    known_.held.push_back({.event = std::move(event)});
  }
}

void RunState::release_held(TimePoint now, bool all) {
  while (!known_.held.empty()) {
    auto& first = known_.held.front();
    if (!all && first.trainer >= 0 && now < first.until) return;
    commands_.push_back(std::move(first.event));
    known_.held.pop_front();
  }
}

void RunState::on(const TrainerStopped& event, TimePoint now) {
  Rank* rank = running_rank(event.rank, event.generation);
  if (!rank) return;
  if (event.reached == Reached::kStep) stood_in_this_world();
  // The step may be committed by ranks that died: what newcomers hold may be all that there is of
  // it.
  if (event.reached == Reached::kPrepared) newcomers_are_members();
  rank->phase = RankPhase::kReady;
  rank->stuck_since.reset();
  if (known_.running && !recovery_) recovery(now).add_fault(event.rank, short_cause(event.cause));
  lose_generation(event.cause, {.is_cause = false, .told_by = event.rank}, now);
  if (!ended()) begin_when_ready(now);
}

void RunState::on(const TrainerFinished& event, TimePoint now) {
  Rank* rank = running_rank(event.rank, event.generation);
  if (!rank || !leave_in_order(*rank, now)) return;
  // A death at the very end leaves no step to do again.
  record_recovery(known_.last_step, now);
  end({});
}

void RunState::on(const TrainerSaved& event, TimePoint now) {
  Rank* rank = running_rank(event.rank, event.generation);
  if (!rank) return;
  if (event.rank == 0) {
    known_.last_step = std::max(known_.last_step, event.step);
    known_.saved_step = event.step;
    // The others need not leave any more, or are not in it.
    if (!known_.running || known_.purpose == GenerationPurpose::kSaveAlone)
      return end(saved_stop(event.step));
  }
  if (leave_in_order(*rank, now)) end(saved_stop(event.step));
}

bool RunState::leave_in_order(Rank& rank, TimePoint now) {
  if (!known_.running) {
    // Another rank was lost before all had finished: this one takes part in the next generation.
    rank.phase = RankPhase::kReady;
    begin_when_ready(now);
    return false;
  }
  rank.phase = RankPhase::kFinished;
  return std::all_of(known_.ranks.begin(), known_.ranks.end(),
                     [](const Rank& r) { return r.phase == RankPhase::kFinished; });
}

void RunState::on(const TrainerFailed& event, TimePoint now) {
  // Ranks are others in another world, and whoever was found unfit leaves its generation late.
  if (elastic() && event.generation != known_.generation) return;
  if (rank_of(event.rank) && on_new_node(event.rank))
    return cannot_serve(event.rank, event.cause, now);
  if (elastic() && event.cause.code() == Code::kOutOfMemory && rank_of(event.rank) &&
      !known_.ending)
    return without_memory(event.rank, event.cause, now);
  Status cause = event.cause;
  if (known_.purpose == GenerationPurpose::kSaveAlone)
    return end(error(Code::kCancelled, "{}rank 0 cannot save alone: {}",
                     known_.ending ? "" : "the run was told to stop, and ", cause.message()));
  end(cause.with("rank", event.rank));
}

// A larger share of the state, beside what it held in the world before, was too much for a machine.
// Where enough others are there one of them has a copy of that; else the run ends with what its
// ranks hold.
void RunState::without_memory(int number, const Status& cause, TimePoint now) {
  const int machine = machine_of(places_.trainer_of(number));
  const auto others = std::ranges::count_if(machines(), [&](int other) {
    return other != machine && machine_alive(other) && !leaves(other);
  });
  if (others >= settings_.machines_min) return cannot_serve(number, cause, now);
  rank_of(number)->phase = RankPhase::kReady;
  Status why = cause;
  why.with("rank", number);
  if (known_.running) give_up_generation(why, now);
  end_having_saved(std::move(why), now);
}

void RunState::on(const TrainerSaving& event, TimePoint now) {
  if (!known_.save_by || !running_rank(event.rank, event.generation)) return;
  known_.saving = true;
  known_.save_by = now + settings_.save_timeout;
}

void RunState::on(const SaveMoves&, TimePoint now) {
  if (known_.saving) known_.save_by = now + settings_.save_timeout;
}

void RunState::on(const TrainerWaiting& event, TimePoint now) {
  const auto* place = places_.find(event.trainer);
  Rank* rank = place ? rank_of(place->rank) : nullptr;
  if (!rank || rank->waits_for == event.why) return;
  rank->waits_for = event.why;
  rank->has_place = event.has_place;
  absent_told_.reset();  // it is said again, with the reason
  if (elastic()) begin_when_ready(now);
  // The whole run stands in the line for its first places. The driver says so of its actors.
  if (known_.generation == 0 && place->rank == 0 && !rank->absent_since) {
    record({.event = events::kWaiting, .cause = event.why}, now);
  }
}

void RunState::on(const TrainerStuck& event, TimePoint now) {
  Rank* rank = running_rank(event.rank, event.generation);
  if (!rank || rank->stuck_since) return;
  rank->stuck_since = now;
  rank->stuck_how = event.stopped ? "stopped" : "stuck";
  const auto silent_ms = std::chrono::duration<double, std::milli>(event.silent_for).count();
  std::string reason =
      fmt::format("{} for {:.1f} s", event.stopped ? "nothing of it runs" : "it does not move",
                  silent_ms / 1000);
  if (!event.doing.empty()) reason += ", in " + event.doing;
  if (!event.waited_for_by.empty()) {
    reason +=
        fmt::format("; rank{} {} wait{} for it", event.waited_for_by.size() == 1 ? "" : "s",
                    join_numbers(event.waited_for_by), event.waited_for_by.size() == 1 ? "s" : "");
  }
  record({.event = events::kHang,
          .generation = known_.generation,
          .rank = event.rank,
          .node = places_.with_rank(event.rank).node,
          .step = known_.last_step,
          .text = fmt::format("rank {} is {}: {}", event.rank, rank->stuck_how, reason),
          .cause = rank->stuck_how,
          .doing = event.doing,
          .waited_for_by = event.waited_for_by,
          .detected_after_ms = silent_ms},
         now);
  RecoveryTimeline& timeline = recovery(now);
  timeline.add_fault(event.rank, rank->stuck_how);
  timeline.silent_before(event.silent_for);
  commands_.push_back(KillTrainer{event.rank, reason});
  lose_generation(error(Code::kDeadlineExceeded, "rank {}: {}", event.rank, reason),
                  {.rank = event.rank}, now);
}

void RunState::on(const GenerationStalled& event, TimePoint now) {
  if (!known_.running || event.generation != known_.generation) return;
  record({.event = events::kHang,
          .generation = known_.generation,
          .step = known_.last_step,
          .text = "no rank moves: " + event.text,
          .cause = event.text},
         now);
  recovery(now).add_fault(-1, "no rank moved: " + event.text);
  lose_generation(error(Code::kDeadlineExceeded, "no rank moves: {}", event.text), {}, now);
}

void RunState::on(const TrainerSlow& event, TimePoint now) {
  record({.event = events::kStraggler,
          .generation = known_.generation,
          .rank = event.rank,
          .node = rank_of(event.rank) ? places_.with_rank(event.rank).node : "",
          .step = event.step,
          .text = event.text,
          .cause = event.text},
         now);
}

void RunState::on(const TimePassed&, TimePoint now) {
  release_held(now, false);
  begin_when_ready(now);
  pause_for_world(now);
  if (!ended()) end_for_absent_rank(now);
  if (!ended()) end_late_leaving(now);
  if (!ended()) kill_stuck_again(now);
  if (!ended()) tell_absent_ranks(now);
  if (!ended()) hurry_save(now);
}

// A step may take long, a rank may hang or be lost with its machine: what is saved then is the last
// finished step, which all ranks that have left the lost generation still hold.
void RunState::hurry_save(TimePoint now) {
  if (!known_.save_by) return;
  if (now >= *known_.save_by) {
    return end(error(Code::kCancelled, "{}could not save in time (troupe.stop_timeout_s): {}",
                     known_.ending ? "it " : "the run was told to stop, and ",
                     known_.saving ? "nothing of the checkpoint was written any more"
                                   : "its ranks did not come to it"));
  }
  const Duration asked_for = now - *known_.save_asked;
  if (known_.running) {
    if (known_.purpose != GenerationPurpose::kTrain) return;
    // A rank may have stopped between the last step and the save, which the others have begun.
    const Duration silent =
        known_.saving ? now - (*known_.save_by - settings_.save_timeout) : asked_for;
    if (silent < settings_.step_patience()) return;
    if (known_.farthest_step == 0)
      return end(
          error(Code::kCancelled, "the run was told to stop before its first step was done"));
    return give_up_generation(
        error(Code::kCancelled, "the run is to stop: the {} under way is given up",
              known_.saving ? "save" : "step"),
        now);
  }
  if (!running_ranks().empty() || known_.ranks.front().phase != RankPhase::kReady) return;
  // A process that was just killed has a successor in a moment, unless there is no place for it.
  // Where others may hold what is lost, the world is settled without it first.
  const bool no_place =
      !elastic() && std::any_of(known_.ranks.begin(), known_.ranks.end(), [](const Rank& r) {
        return r.phase == RankPhase::kAbsent && !r.has_place;
      });
  if (no_place || asked_for >= 2 * settings_.step_patience()) begin(GenerationPurpose::kSaveAlone);
}

void RunState::tell_absent_ranks(TimePoint now) {
  std::vector<int> absent;
  TimePoint since = now;
  std::string why;
  for (std::size_t i = 0; i < known_.ranks.size(); ++i) {
    const Rank& rank = known_.ranks[i];
    if (!rank.absent_since) continue;
    absent.push_back(static_cast<int>(i));
    since = std::min(since, *rank.absent_since);
    if (why.empty()) why = rank.waits_for;
  }
  // A process is started again within a second where its machine is there.
  if (absent.empty() || now - since < std::chrono::seconds(1)) return absent_told_.reset();
  if (absent_told_ && now - *absent_told_ < settings_.waiting_told_every) return;
  absent_told_ = now;
  const auto seconds = [](Duration time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time).count();
  };
  record({.event = events::kWaiting,
          .generation = known_.generation,
          .rank = absent.front(),
          .step = known_.last_step,
          .text =
              fmt::format("waiting for rank{} {}, for {} s of {} (troupe.join_timeout_s){}{}",
                          absent.size() == 1 ? "" : "s", join_numbers(absent), seconds(now - since),
                          seconds(settings_.respawn_timeout), why.empty() ? "" : ": ", why),
          .cause = why},
         now);
}

void RunState::end_for_absent_rank(TimePoint now) {
  if (known_.ending) return;  // the checkpoint on which it ends has a deadline of its own
  for (std::size_t i = 0; i < known_.ranks.size(); ++i) {
    const Rank& rank = known_.ranks[i];
    if (!rank.absent_since || now - *rank.absent_since < settings_.respawn_timeout) continue;
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(settings_.respawn_timeout).count();
    const char* what = rank.died_before ? "died and could not be started again for"
                                        : "was placed and could not be started for";
    return end_having_saved(
        error(Code::kUnavailable, "rank {} {} {} s (troupe.join_timeout_s){}{}", i, what, seconds,
              rank.waits_for.empty() ? "" : ": ", rank.waits_for),
        now);
  }
}

void RunState::end_late_leaving(TimePoint now) {
  if (known_.running || !known_.lost_at) return;
  if (known_.verdict && now - *known_.lost_at >= settings_.last_word_timeout)
    return end_having_saved(Status(*known_.verdict), now);
  const auto late = running_ranks();
  if (late.empty()) return;
  // Before the run's end there is no time to wait for a disk.
  const Duration patience = known_.save_by ? settings_.step_patience() : settings_.leave_timeout;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(patience).count();
  if (!known_.killed_at) {
    if (now - *known_.lost_at < patience) return;
    known_.killed_at = now;
    for (const int rank : late) {
      commands_.push_back(KillTrainer{
          rank, fmt::format("it did not leave generation {} for {} s after that was lost",
                            known_.generation, seconds)});
    }
  } else if (now - *known_.killed_at >= settings_.respawn_timeout) {
    end(error(Code::kDeadlineExceeded,
              "rank{} {} did not leave generation {} for {} s after that was lost, and did not end "
              "when killed: look at the node",
              late.size() == 1 ? "" : "s", join_numbers(late), known_.generation, seconds));
  }
}

void RunState::kill_stuck_again(TimePoint now) {
  for (std::size_t i = 0; i < known_.ranks.size(); ++i) {
    Rank& rank = known_.ranks[i];
    if (!rank.stuck_since || now - *rank.stuck_since < settings_.kill_again_after) continue;
    rank.stuck_since = now;
    commands_.push_back(
        KillTrainer{static_cast<int>(i), "it is " + rank.stuck_how + " and lives on"});
  }
}

std::vector<int> RunState::running_ranks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < places_.world_size(); ++rank) {
    if (known_.ranks[static_cast<std::size_t>(rank)].phase == RankPhase::kRunning)
      ranks.push_back(rank);
  }
  return ranks;
}

void RunState::on(const SaveRequested&, TimePoint now) {
  if (known_.save_by) return;
  if (known_.generation == 0)
    return end(error(Code::kCancelled, "the run was told to stop before its first step"));
  known_.save_asked = now;
  known_.save_by = now + settings_.save_timeout;
  if (known_.running) commands_.push_back(SaveAndStop{});
  hurry_save(now);
}

void RunState::on(const StopRequested& event, TimePoint) { end(event.reason); }

void RunState::on(const TrainerPaused& event, TimePoint now) {
  Rank* rank = running_rank(event.rank, event.generation);
  if (!rank) return;
  rank->phase = RankPhase::kReady;
  // What rank 0 tells of the step is heard before this.
  if (known_.running && event.rank == 0) {
    known_.last_step = std::max(known_.last_step, event.step);
    known_.running = false;
    known_.lost_at = now;
  }
  begin_when_ready(now);
}

void RunState::lose_generation(const Status& cause, const Loss& loss, TimePoint now) {
  // What was lost had nothing left to do.
  if (known_.saved_step) return end(saved_stop(*known_.saved_step));
  const bool first_sign = known_.running;
  if (first_sign) give_up_generation(cause, now);
  if (known_.verdict && loss.is_cause) return end_having_saved(limit_reached(cause), now);
  if (loss.is_cause) known_.unmet_attempts = 0;
  if (!counts(cause, loss, first_sign)) return;
  note_unmet(cause, loss);
  ++known_.failures;
  ++known_.fruitless_failures;
  Status verdict = limit_reached(cause);
  if (verdict.ok()) return;
  if (loss.is_cause) return end_having_saved(std::move(verdict), now);
  known_.verdict = std::move(verdict);
}

void RunState::give_up_generation(const Status& why, TimePoint now) {
  known_.running = false;
  known_.lost_at = now;
  known_.saving = false;
  // A rank that had finished leaves with the others: the next generation needs all of them.
  for (Rank& rank : known_.ranks) {
    if (rank.phase == RankPhase::kFinished) rank.phase = RankPhase::kReady;
  }
  commands_.push_back(AbortGeneration{known_.generation, why});
}

// Deaths of several ranks in one generation are one failure; a process that dies again before its
// generation could begin is another. That a machine which has just come crashes, or that others do
// not reach it, is none of the run's: it goes on without that machine after a few attempts.
bool RunState::counts(const Status& cause, const Loss& loss, bool first_sign) {
  using LostBy = RunMemory::LostBy;
  const auto spared = newcomers_to_spare();
  const int machine = elastic() && loss.rank >= 0 ? machine_of(places_.trainer_of(loss.rank)) : -1;
  if (std::ranges::find(spared, machine) != spared.end()) {
    known_.newcomers_failed = short_cause(cause);
    RunMemory::Newcomer& blamed = newcomer(machine);
    const LostBy before = std::exchange(known_.lost_by, LostBy::kOneNewcomer);
    if (first_sign || before == LostBy::kNewcomers) {
      count_attempts(-1);  // those that came with it are not to blame
      ++blamed.attempts;
    }
    if (loss.again) ++blamed.attempts;
    return false;
  }
  if (first_sign && !loss.is_cause && !spared.empty()) {
    known_.lost_by = LostBy::kNewcomers;
    known_.newcomers_failed = short_cause(cause);
    return false;
  }
  // Peers may have told before whose failure it was.
  const bool is_news = first_sign || (loss.is_cause && known_.lost_by == LostBy::kNewcomers);
  if (!is_news) return loss.again;
  known_.lost_by = LostBy::kRun;
  count_attempts(-1);
  return true;
}

Status RunState::limit_reached(const Status& cause) const {
  if (settings_.restarts_max && known_.failures > *settings_.restarts_max) {
    return Status(cause).prefixed(
        fmt::format("the run may be restarted {} times (troupe.max_restarts, or MAX_RESTARTS) and "
                    "failed once more",
                    *settings_.restarts_max));
  }
  if (known_.fruitless_failures >= settings_.fruitless_failures_max) {
    return Status(cause).prefixed(
        fmt::format("{} failures in a row without a new step between them; the last one",
                    known_.fruitless_failures));
  }
  return {};
}

void RunState::begin_when_ready(TimePoint now) {
  if (known_.running || ended()) return;
  if (known_.verdict) {
    if (running_ranks().empty()) end_having_saved(Status(*known_.verdict), now);
    return;
  }
  if (elastic() && !settle_world(now)) return;
  const bool ready = std::all_of(known_.ranks.begin(), known_.ranks.end(),
                                 [](const Rank& r) { return r.phase == RankPhase::kReady; });
  if (!ready) return;
  begin(known_.save_by ? GenerationPurpose::kSave : GenerationPurpose::kTrain);
}

void RunState::begin(GenerationPurpose purpose) {
  ++known_.generation;
  count_attempts(1);
  known_.stepped = false;
  known_.purpose = purpose;
  known_.running = true;
  known_.pausing = false;
  known_.lost_at.reset();
  known_.killed_at.reset();
  known_.loaded = false;
  if (recovery_) recovery_->begun();
  const bool alone = purpose == GenerationPurpose::kSaveAlone;
  for (Rank& rank : known_.ranks) {
    if (alone && &rank != &known_.ranks.front()) continue;
    rank.phase = RankPhase::kRunning;
    rank.generation = known_.generation;
  }
  commands_.push_back(plan());
}

BeginGeneration RunState::plan() const {
  BeginGeneration plan{known_.generation, places_.by_rank(), known_.purpose};
  if (elastic()) {
    plan.world = world();
    plan.former = known_.former;
    plan.tries_newcomers = !newcomers_to_spare().empty();
  }
  if (known_.purpose == GenerationPurpose::kSaveAlone) plan.trainers.resize(1);
  return plan;
}

void RunState::end(Status status) {
  if (ended()) return;
  if (known_.ending) {
    status = known_.ending->prefixed(
        known_.saved_step ? fmt::format("the run saved step {} and ended", *known_.saved_step)
                          : fmt::format("the run ended without a checkpoint of step {} ({})",
                                        known_.last_step, status.message()));
  } else if (known_.saved_step) {
    status = saved_stop(*known_.saved_step);
  }
  if (known_.running) {
    known_.running = false;
    if (!status.ok()) commands_.push_back(AbortGeneration{known_.generation, status});
  }
  release_held({}, true);
  known_.ended = status;
  commands_.push_back(EndRun{std::move(status)});
}

void RunState::end_having_saved(Status status, TimePoint now) {
  const bool saves = known_.running || known_.purpose != GenerationPurpose::kTrain;
  if (known_.farthest_step == 0 || (known_.save_by && saves)) return end(std::move(status));
  known_.verdict.reset();
  // It was asked to stop before: that goes on.
  if (known_.save_by) return;
  known_.ending = std::move(status);
  known_.save_asked = now;
  known_.save_by = now + settings_.save_timeout;
}

}  // namespace troupe::train

namespace troupe {
template class Variant<train::RunInputs>;
template class Variant<train::RunCommands>;
}  // namespace troupe
