#include "train/transaction/recovery_session.h"

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

void RecoverySession::met(std::span<const RankPosition> by_rank, std::span<const int> replicas) {
  check(Next::kMeet);
  decision_ = decide_recovery(by_rank, replicas);
  const bool copies = copies_from() >= 0;
  behind_ = !copies && is_behind(decision_, position());
  if (copies) transaction_.unload();
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
  const bool ahead = position().step > decision_.step;
  return ahead ? transaction_.record() : transaction_.prepared();
}

void RecoverySession::shared(const CommitRecord& record) {
  check(Next::kShareRecord);
  if (!behind_) return stand();
  transaction_.commit(record);
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
  next_ = copies_from() >= 0 ? Next::kForgetUpdates : Next::kPublish;
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
  next_ = Next::kPublish;
}

// The memory is that of a finished step, or empty for a while yet.
void RecoverySession::stand() {
  if (position().phase == CommitPhase::kPrepared) transaction_.discard();
  next_ = !decision_.copies_from.empty()          ? Next::kCopy
          : TROUPE_CANARY("publishes-steps-only") ? Next::kDone
                                                  : Next::kPublish;
}

void RecoverySession::published() {
  check(Next::kPublish);
  next_ = Next::kDone;
}

}  // namespace troupe::train
