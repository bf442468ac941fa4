#include "train/trainer/run_state.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "train/trainer/saved_stop.h"

namespace troupe::train {

RunState::RunState(const RunSettings& settings)
    : settings_(settings), ranks_(static_cast<std::size_t>(settings.world_size)) {
  TROUPE_CHECK(settings.world_size >= 1);
}

std::vector<RunCommand> RunState::apply(const RunInput& event, TimePoint now) {
  commands_.clear();
  if (!ended_) std::visit([&](const auto& e) { on(e, now); }, event);
  return std::move(commands_);
}

RunState::Rank* RunState::rank_of(int rank) {
  if (rank < 0 || rank >= settings_.world_size) return nullptr;
  return &ranks_[static_cast<std::size_t>(rank)];
}

void RunState::on(const TrainersPlaced&, TimePoint now) {
  for (Rank& rank : ranks_) {
    if (rank.phase == RankPhase::kAbsent && !rank.absent_since) rank.absent_since = now;
  }
}

void RunState::on(const TrainerAlive& event, TimePoint now) {
  Rank* rank = rank_of(event.trainer);
  if (!rank || event.incarnation <= rank->incarnation) return;
  // A process that came before its predecessor's death was reported: that death is told later, with
  // an older incarnation, and must still count. Treat it as told now.
  if (rank->phase == RankPhase::kRunning) {
    lose_generation(error(Code::kActorDied, "rank {} was replaced", event.trainer), now, false,
                    true);
    if (ended_) return;
  }
  rank->incarnation = event.incarnation;
  rank->phase = RankPhase::kReady;
  rank->absent_since.reset();
  rank->waits_for.clear();
  if (rank->died_before) {
    commands_.push_back(
        RecordEvent{.event = "respawn",
                    .generation = generation_,
                    .rank = event.trainer,
                    .step = last_step_,
                    .text = fmt::format("rank {} has a new process", event.trainer)});
  }
  begin_when_ready();
}

void RunState::on(const TrainerDied& event, TimePoint now) {
  Rank* rank = rank_of(event.trainer);
  if (!rank || event.incarnation < rank->incarnation) return;
  const bool died_again = rank->phase == RankPhase::kAbsent && rank->died_before;
  rank->incarnation = event.incarnation;
  rank->phase = RankPhase::kAbsent;
  rank->died_before = true;
  rank->absent_since = now;
  commands_.push_back(
      RecordEvent{.event = "death",
                  .generation = generation_,
                  .rank = event.trainer,
                  .node = event.node,
                  .step = last_step_,
                  .text = fmt::format("rank {} died: {}", event.trainer, event.cause.to_string())});
  if (!failed_at_) {
    failed_at_ = now;
    step_at_failure_ = last_step_;
  }
  Status cause = event.cause;
  lose_generation(cause.with("rank", event.trainer), now, died_again, true);
}

void RunState::on(const PostMortem&, TimePoint) {}

void RunState::on(const TrainerFormed&, TimePoint) {}

void RunState::on(const TrainerGone& event, TimePoint) {
  Status cause = event.cause;
  end(cause.with("rank", event.trainer));
}

void RunState::on(const TrainerLoaded& event, TimePoint) {
  if (!running_ || event.generation != generation_) return;
  // What is loaded was finished, by a run before or by a generation that could not tell it any
  // more.
  last_step_ = std::max(last_step_, event.step);
  if (!failed_at_) return;  // the first load of a run is no reload
  commands_.push_back(
      RecordEvent{.event = "reload",
                  .generation = generation_,
                  .rank = event.rank,
                  .step = event.step,
                  .text = fmt::format("rank {} loaded step {}", event.rank, event.step)});
  if (!resumed_at_step_) {
    resumed_at_step_ = event.step;
    commands_.push_back(
        RecordEvent{.event = "resume",
                    .generation = generation_,
                    .step = event.step,
                    .text = fmt::format("training goes on after step {}", event.step)});
  }
}

void RunState::on(const StepFinished& event, TimePoint now) {
  if (!running_ || event.generation != generation_) return;
  last_step_ = event.step;
  // Steps done again are no progress: a step that always kills would be tried for ever.
  if (event.step > farthest_step_) {
    farthest_step_ = event.step;
    fruitless_failures_ = 0;
  }
  if (save_by_) save_by_ = now + settings_.save_timeout;
  record_recovery(event.step, now);
}

void RunState::record_recovery(std::int64_t step, TimePoint now) {
  if (!failed_at_) return;
  const auto taken = std::chrono::duration_cast<std::chrono::milliseconds>(now - *failed_at_);
  const std::int64_t resumed = resumed_at_step_.value_or(step - 1);
  const std::int64_t lost = std::max<std::int64_t>(0, step_at_failure_ - resumed);
  commands_.push_back(RecordEvent{
      .event = "recovered",
      .generation = generation_,
      .step = step,
      .text = fmt::format("step {} stands {} ms after the failure; {} finished steps were computed "
                          "again",
                          step, taken.count(), lost),
      .lost_steps = lost,
      .recovery_ms = taken.count()});
  failed_at_.reset();
}

void RunState::on(const TrainerStopped& event, TimePoint now) {
  Rank* rank = rank_of(event.rank);
  if (!rank || event.generation != generation_ || rank->phase != RankPhase::kRunning) return;
  rank->phase = RankPhase::kReady;
  if (running_ && !failed_at_) {
    failed_at_ = now;
    step_at_failure_ = last_step_;
  }
  lose_generation(event.cause, now, false, false);
  if (!ended_) begin_when_ready();
}

void RunState::on(const TrainerFinished& event, TimePoint now) {
  Rank* rank = rank_of(event.rank);
  if (!rank || event.generation != generation_ || rank->phase != RankPhase::kRunning) return;
  if (!leave_in_order(*rank)) return;
  // A death at the very end leaves no step to do again.
  record_recovery(last_step_, now);
  end({});
}

void RunState::on(const TrainerSaved& event, TimePoint) {
  Rank* rank = rank_of(event.rank);
  if (!rank || event.generation != generation_ || rank->phase != RankPhase::kRunning) return;
  if (event.rank == 0) {
    last_step_ = std::max(last_step_, event.step);
    saved_step_ = event.step;
    // The others need not leave any more.
    if (!running_) return end(saved_stop(event.step));
  }
  if (leave_in_order(*rank)) end(saved_stop(event.step));
}

bool RunState::leave_in_order(Rank& rank) {
  if (!running_) {
    // Another rank was lost before all had finished: this one takes part in the next generation.
    rank.phase = RankPhase::kReady;
    begin_when_ready();
    return false;
  }
  rank.phase = RankPhase::kFinished;
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& r) { return r.phase == RankPhase::kFinished; });
}

void RunState::on(const TrainerFailed& event, TimePoint) {
  Status cause = event.cause;
  end(cause.with("rank", event.rank));
}

void RunState::on(const TrainerWaiting& event, TimePoint) {
  if (Rank* rank = rank_of(event.rank)) rank->waits_for = event.why;
}

void RunState::on(const TimePassed&, TimePoint now) {
  end_for_absent_rank(now);
  if (!ended_) end_late_leaving(now);
  if (!ended_ && save_by_ && now >= *save_by_) {
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(settings_.save_timeout).count();
    end(error(Code::kCancelled,
              "the run was to save and to stop, and no step was finished for {} s (ddp_timeout)",
              seconds));
  }
}

void RunState::end_for_absent_rank(TimePoint now) {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& rank = ranks_[i];
    if (!rank.absent_since || now - *rank.absent_since < settings_.respawn_timeout) continue;
    const auto seconds =
        std::chrono::duration_cast<std::chrono::seconds>(settings_.respawn_timeout).count();
    const char* what = rank.died_before ? "died and could not be started again for"
                                        : "was placed and could not be started for";
    end(error(Code::kUnavailable, "rank {} {} {} s{}{}", i, what, seconds,
              rank.waits_for.empty() ? "" : ": ", rank.waits_for));
    return;
  }
}

void RunState::end_late_leaving(TimePoint now) {
  if (running_ || !lost_at_) return;
  if (verdict_ && now - *lost_at_ >= settings_.last_word_timeout) return end(Status(*verdict_));
  const auto late = running_ranks();
  if (late.empty()) return;
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(settings_.leave_timeout).count();
  if (!killed_at_) {
    if (now - *lost_at_ < settings_.leave_timeout) return;
    killed_at_ = now;
    for (const int rank : late) {
      commands_.push_back(KillTrainer{
          rank, fmt::format("it did not leave generation {} for {} s after that was lost",
                            generation_, seconds)});
    }
  } else if (now - *killed_at_ >= settings_.respawn_timeout) {
    end(error(Code::kDeadlineExceeded,
              "rank{} {} did not leave generation {} for {} s after that was lost, and did not end "
              "when killed: look at the node",
              late.size() == 1 ? "" : "s", fmt::join(late, ", "), generation_, seconds));
  }
}

std::vector<int> RunState::running_ranks() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < settings_.world_size; ++rank) {
    if (ranks_[static_cast<std::size_t>(rank)].phase == RankPhase::kRunning) ranks.push_back(rank);
  }
  return ranks;
}

void RunState::on(const SaveRequested&, TimePoint now) {
  if (save_by_) return;
  save_by_ = now + settings_.save_timeout;
  if (running_) commands_.push_back(SaveAndStop{});
}

void RunState::on(const StopRequested& event, TimePoint) { end(event.reason); }

void RunState::lose_generation(const Status& cause, TimePoint now, bool count_again,
                               bool is_cause) {
  // What was lost had nothing left to do.
  if (saved_step_) return end(saved_stop(*saved_step_));
  const bool first_sign = running_;
  if (running_) {
    running_ = false;
    lost_at_ = now;
    commands_.push_back(AbortGeneration{generation_, cause});
  }
  if (verdict_ && is_cause) return end(limit_reached(cause));
  // Deaths of several ranks in one generation are one failure; a process that dies again before its
  // generation could begin is another.
  if (!first_sign && !count_again) return;
  resumed_at_step_.reset();
  ++failures_;
  ++fruitless_failures_;
  // A rank that had finished leaves with the others: the next generation needs all of them.
  for (Rank& rank : ranks_) {
    if (rank.phase == RankPhase::kFinished) rank.phase = RankPhase::kReady;
  }
  Status verdict = limit_reached(cause);
  if (verdict.ok()) return;
  if (is_cause) return end(std::move(verdict));
  verdict_ = std::move(verdict);
}

Status RunState::limit_reached(const Status& cause) const {
  if (settings_.restarts_max && failures_ > *settings_.restarts_max) {
    return Status(cause).prefixed(
        fmt::format("the run may be restarted {} times (MAX_RESTARTS) and failed once more",
                    *settings_.restarts_max));
  }
  if (fruitless_failures_ >= settings_.fruitless_failures_max) {
    return Status(cause).prefixed(fmt::format(
        "{} failures in a row without a new step between them; the last one", fruitless_failures_));
  }
  return {};
}

void RunState::begin_when_ready() {
  if (running_ || ended_) return;
  if (verdict_) {
    if (running_ranks().empty()) end(Status(*verdict_));
    return;
  }
  const bool ready = std::all_of(ranks_.begin(), ranks_.end(),
                                 [](const Rank& r) { return r.phase == RankPhase::kReady; });
  if (!ready) return;
  ++generation_;
  running_ = true;
  lost_at_.reset();
  killed_at_.reset();
  resumed_at_step_.reset();
  for (Rank& rank : ranks_) rank.phase = RankPhase::kRunning;
  commands_.push_back(BeginGeneration{generation_});
  if (save_by_) commands_.push_back(SaveAndStop{});
}

void RunState::end(Status status) {
  if (ended_) return;
  if (saved_step_) status = saved_stop(*saved_step_);
  if (running_) {
    running_ = false;
    if (!status.ok()) commands_.push_back(AbortGeneration{generation_, status});
  }
  ended_ = true;
  commands_.push_back(EndRun{std::move(status)});
}

}  // namespace troupe::train
