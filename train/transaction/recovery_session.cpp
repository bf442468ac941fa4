#include "train/transaction/recovery_session.h"

#include <algorithm>
#include <functional>

#include "runtime/base/canary.h"
#include "runtime/base/check.h"

namespace troupe::train {

void RecoverySession::check(Next expected) const {
  TROUPE_CHECK(next_ == expected, "action {} of a recovery is told done in place of {}",
               static_cast<int>(expected), static_cast<int>(next_));
}

Status RecoverySession::join(std::uint64_t generation) {
  if (transaction_.generation() >= generation) {
    return error(Code::kAborted,
                 "generation {} is past: this rank's memory has been in generation {}", generation,
                 transaction_.generation());
  }
  transaction_.begin_generation(generation);
  if (TROUPE_CANARY("decides-alone") && position().phase == CommitPhase::kPrepared)
    transaction_.discard();
  return {};
}

void RecoverySession::met(const Memories& memories, std::span<const int> to_keep) {
  check(Next::kMeet);
  decision_ = decide_recovery(memories);
  const std::vector<bool>& stands = decision_.kept_stands;
  for (std::size_t rank = 0; rank < to_keep.size(); ++rank) {
    const bool has = !stands.empty() && stands[rank] && memories.kept[rank].owner == to_keep[rank];
    renews_.push_back(to_keep[rank] >= 0 && !has);
  }
  if (std::ranges::none_of(renews_, std::identity())) renews_.clear();
  const bool copies = copies_from() >= 0;
  behind_ = !copies && is_behind(decision_, position());
  if (copies) transaction_.unload();
  if (kept_ && (stands.empty() || !stands[static_cast<std::size_t>(rank_)])) {
    kept_->unload();
    kept_ = nullptr;
  }
  kept_behind_ = kept_ && is_behind(decision_, kept_->position());
  using Kind = RecoveryDecision::Kind;
  switch (decision_.kind) {
    case Kind::kLoad:
      transaction_.unload();
      next_ = Next::kLoad;
      return;
    case Kind::kDiscard:
      return stand();
    case Kind::kFinish:
      next_ = Next::kShareRecord;
      return;
  }
}

const CommitRecord& RecoverySession::record() const {
  TROUPE_CHECK(rank_ == decision_.record_rank, "rank {} does not have the decided step's record",
               rank_);
  return decided_record(decision_, transaction_);
}

void RecoverySession::shared(const CommitRecord& record) {
  check(Next::kShareRecord);
  if (behind_) transaction_.commit(record);
  if (kept_behind_) kept_->commit(record);
  next_ = Next::kUpdateKept;
  if (!kept_behind_) after_kept();
}

void RecoverySession::kept_updated() {
  check(Next::kUpdateKept);
  kept_->finish();
  after_kept();
}

void RecoverySession::after_kept() {
  if (!behind_) return stand();
  next_ = Next::kUpdate;
  if (TROUPE_CANARY("leaves-updates-behind")) updated();
}

void RecoverySession::updated() {
  check(Next::kUpdate);
  transaction_.finish();
  stand();
}

void RecoverySession::copied(const CommitRecord& record) {
  check(Next::kCopy);
  loaded_ = record;
  if (copies_from() < 0) return complete();
  next_ = Next::kForgetUpdates;
}

void RecoverySession::loaded(const CommitRecord& record) {
  check(Next::kLoad);
  loaded_ = record;
  next_ = Next::kForgetUpdates;
  if (TROUPE_CANARY("remembers-updates")) updates_forgotten();
}

void RecoverySession::updates_forgotten() {
  check(Next::kForgetUpdates);
  transaction_.load(loaded_);
  complete();
}

// The memory is that of a finished step, or empty for a while yet.
void RecoverySession::stand() {
  for (StepTransaction* state : {&transaction_, kept_}) {
    if (state && state->position().phase == CommitPhase::kPrepared) state->discard();
  }
  if (decision_.copies_from.empty()) return complete();
  next_ = Next::kCopy;
}

// All ranks have the state of the same step.
void RecoverySession::complete() {
  const bool from_own_memory =
      decision_.kind != RecoveryDecision::Kind::kLoad && decision_.copies_from.empty();
  next_ = !renews_.empty()                                           ? Next::kRenew
          : from_own_memory && TROUPE_CANARY("publishes-steps-only") ? Next::kDone
                                                                     : Next::kPublish;
}

void RecoverySession::renewed(StepTransaction* kept) {
  check(Next::kRenew);
  if (kept) kept->load(transaction_.record());
  renews_.clear();
  complete();
}

void RecoverySession::published() {
  check(Next::kPublish);
  next_ = Next::kDone;
}

}  // namespace troupe::train
