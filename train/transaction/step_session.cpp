#include "train/transaction/step_session.h"

#include "runtime/base/canary.h"
#include "runtime/base/check.h"

namespace troupe::train {

StepSession::StepSession(StepTransaction& transaction, std::uint64_t generation,
                         StepTransaction* kept)
    : transaction_(transaction), kept_(kept), generation_(generation) {
  transaction_.begin_step();
}

void StepSession::check(Next expected) const {
  TROUPE_CHECK(next_ == expected, "action {} of a step is told done in place of {}",
               static_cast<int>(expected), static_cast<int>(next_));
}

void StepSession::computed(const CommitRecord& record) {
  check(Next::kCompute);
  TROUPE_CHECK(record.step == transaction_.record().step + 1);
  record_ = record;
  if (kept_ && !TROUPE_CANARY("prepares-before-its-buddy")) kept_->prepare(record_);
  transaction_.prepare(record_);
  next_ = Next::kVote;
  if (TROUPE_CANARY("commits-before-votes")) commit();
}

void StepSession::commit() {
  transaction_.commit(record_);
  if (kept_) kept_->commit(record_);
  next_ = kept_ ? Next::kUpdateKept : Next::kUpdate;
}

StepVote StepSession::vote() const { return {generation_, record_.step}; }

Status StepSession::voted(std::span<const StepVote> by_rank) {
  check(Next::kVote);
  const StepVote mine = vote();
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const StepVote& vote = by_rank[rank];
    if (vote.generation == mine.generation && vote.step == mine.step) continue;
    if (TROUPE_CANARY("commits-without-all")) continue;
    return error(Code::kProtocol,
                 "rank {} gave its word on step {} in generation {}, this rank is at step {} in "
                 "generation {}",
                 rank, vote.step, vote.generation, mine.step, mine.generation);
  }
  if (kept_ && TROUPE_CANARY("prepares-before-its-buddy")) kept_->prepare(record_);
  commit();
  return {};
}

void StepSession::kept_updated() {
  check(Next::kUpdateKept);
  kept_->finish();
  next_ = Next::kUpdate;
}

void StepSession::updated() {
  check(Next::kUpdate);
  transaction_.finish();
  next_ = record_.skips() || TROUPE_CANARY("publishes-no-steps") ? Next::kDone : Next::kPublish;
}

void StepSession::published() {
  check(Next::kPublish);
  next_ = Next::kDone;
}

}  // namespace troupe::train
