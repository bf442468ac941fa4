#include "train/trainer/generation_queue.h"

#include <algorithm>
#include <utility>

#include "runtime/base/canary.h"
#include "runtime/base/check.h"
#include "train/trainer/saved_stop.h"

namespace troupe::train {
namespace {

// Ends of a generation after which another one may succeed: a peer or the way to it was lost.
bool others_fault(const Status& status) {
  switch (status.code()) {
    case Code::kAborted:
    case Code::kUnavailable:
    case Code::kDeadlineExceeded:
    case Code::kProtocol:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::int32_t GenerationQueue::rank_in(const GenerationPlan& plan) const {
  const auto own = std::find(plan.ranks.begin(), plan.ranks.end(), self_);
  return own == plan.ranks.end() ? rank_ : static_cast<std::int32_t>(own - plan.ranks.begin());
}

bool GenerationQueue::begin(GenerationPlan plan) {
  if (plan.generation <= newest_) return false;
  newest_ = plan.generation;
  newest_rank_ = rank_in(plan);
  newest_world_ = plan.world;
  newest_former_ = plan.former;
  plans_.push_back(std::move(plan));
  return true;
}

GenerationQueue::Aborted GenerationQueue::abort(std::uint64_t generation, Status reason) {
  // The reason is returned as the failure of the generation in work, so it must not be ok.
  if (reason.ok()) reason = error(Code::kAborted, "generation {} was given up", generation);
  Aborted aborted;
  const bool left = newest_ == generation && running_ == 0 && plans_.empty();
  if (left) aborted.left_before = TrainerStopped{rank_, generation, reason, reached_};
  if (generation <= aborted_) return aborted;
  if (TROUPE_CANARY("forgets-aborts-of-waiting-plans") && running_ == 0) return aborted;
  aborted_ = generation;
  abort_reason_ = std::move(reason);
  if (const Status cancelled = this->cancelled(); !cancelled.ok()) aborted.leave = cancelled;
  return aborted;
}

GenerationPlan GenerationQueue::next() {
  TROUPE_CHECK(waiting() && running_ == 0);
  GenerationPlan plan = std::move(plans_.front());
  plans_.pop_front();
  running_ = plan.generation;
  rank_ = rank_in(plan);
  return plan;
}

Status GenerationQueue::cancelled() const {
  return running_ != 0 && running_ <= aborted_ ? abort_reason_ : Status();
}

GenerationQueue::Departure GenerationQueue::leave(Status ended, bool can_begin_again,
                                                  Reached reached) {
  using Peers = Departure::Peers;
  TROUPE_CHECK(running_ != 0);
  const bool is_cancelled = !cancelled().ok();
  const std::uint64_t generation = std::exchange(running_, 0);
  reached_ = reached;
  if (ended.ok()) return {.message = TrainerFinished{rank_, generation}};
  if (const auto step = saved_step_of(ended))
    return {.message = TrainerSaved{rank_, generation, *step}};
  if (const auto step = paused_step_of(ended); step && !is_cancelled)
    return {.message = TrainerPaused{rank_, generation, *step}};
  ended.with("rank", rank_);
  if (can_begin_again && (is_cancelled || others_fault(ended))) {
    return {.message = TrainerStopped{rank_, generation, ended, reached},
            .peers = Peers::kAbortAtOnce,
            .cause = ended};
  }
  return {.message = TrainerFailed{rank_, generation, ended},
          .peers = Peers::kAbortOnceTold,
          .cause = ended};
}

TrainerStatus GenerationQueue::status(TrainerStatus process) const {
  process.generation = newest_;
  process.rank = newest_rank_;
  process.world = newest_world_;
  process.former = newest_former_;
  process.in_generation = running_ != 0 || waiting();
  return process;
}

Reached reached_from(std::int64_t loaded_step, const RankPosition& position) {
  if (position.step > loaded_step) return Reached::kStep;
  return position.phase == CommitPhase::kComputing ? Reached::kNoStep : Reached::kPrepared;
}

std::vector<int> ranks_there(const World& former, const World& present) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < present.trainers.size(); ++rank) {
    const auto found = std::ranges::find(former.trainers, present.trainers[rank]);
    const bool there = found != former.trainers.end();
    ranks.push_back(there ? static_cast<int>(found - former.trainers.begin()) : -1);
    if (there && TROUPE_CANARY("takes-ranks-for-lasting") && rank < former.trainers.size())
      ranks.back() = static_cast<int>(rank);
  }
  return ranks;
}

}  // namespace troupe::train
