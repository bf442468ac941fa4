#include "train/transaction/hand_over_session.h"

#include <algorithm>
#include <utility>

#include "runtime/base/canary.h"
#include "runtime/base/check.h"

namespace troupe::train {

HandOverSession::HandOverSession(std::vector<int> ranks, std::vector<int> states, int self,
                                 StepTransaction* own, StepTransaction* kept)
    : states_(std::move(states)),
      members_(states_.size(), -1),
      rank_(ranks[static_cast<std::size_t>(self)]),
      own_(own),
      kept_(kept) {
  for (std::size_t member = 0; member < ranks.size(); ++member) {
    if (ranks[member] >= 0)
      members_[static_cast<std::size_t>(ranks[member])] = static_cast<int>(member);
  }
}

void HandOverSession::check(Next expected) const {
  TROUPE_CHECK(next_ == expected, "action {} of a hand-over is told done in place of {}",
               static_cast<int>(expected), static_cast<int>(next_));
}

KeptPosition HandOverSession::kept_position() const {
  return kept_ ? KeptPosition{own_->keeps(), kept_->position()} : KeptPosition();
}

void HandOverSession::met(std::span<const RankPosition> positions,
                          std::span<const KeptPosition> kept) {
  check(Next::kMeet);
  std::vector<RankPosition> positions_there(states_.size());
  std::vector<KeptPosition> kept_there(states_.size());
  for (std::size_t rank = 0; rank < states_.size(); ++rank) {
    if (members_[rank] < 0) continue;
    positions_there[rank] = positions[static_cast<std::size_t>(members_[rank])];
    kept_there[rank] = kept[static_cast<std::size_t>(members_[rank])];
  }
  decision_ =
      decide_recovery({.positions = positions_there, .states = states_, .kept = kept_there});
  next_ = Next::kDone;
  if (!found()) return;
  const bool stands = !decision_.kept_stands.empty() && rank_ >= 0 &&
                      decision_.kept_stands[static_cast<std::size_t>(rank_)];
  if (!stands) kept_ = nullptr;
  const bool finishes = decision_.kind == RecoveryDecision::Kind::kFinish;
  behind_ = own_ && usable(rank_) && is_behind(decision_, own_->position());
  kept_behind_ = kept_ && is_behind(decision_, kept_->position());
  if (!finishes || TROUPE_CANARY("hands-over-unfinished")) return stand();
  next_ = Next::kShareRecord;
}

std::int64_t HandOverSession::step() const {
  return decision_.step + (decision_.kind == RecoveryDecision::Kind::kFinish ? 1 : 0);
}

void HandOverSession::shared(const CommitRecord& record) {
  check(Next::kShareRecord);
  if (behind_) own_->commit(record);
  if (kept_behind_) kept_->commit(record);
  next_ = Next::kUpdateKept;
  if (!kept_behind_) after_kept();
}

void HandOverSession::kept_updated() {
  check(Next::kUpdateKept);
  kept_->finish();
  after_kept();
}

void HandOverSession::after_kept() {
  if (!behind_) return stand();
  next_ = Next::kUpdate;
}

void HandOverSession::updated() {
  check(Next::kUpdate);
  own_->finish();
  stand();
}

void HandOverSession::stand() {
  if (own_ && usable(rank_) && own_->position().phase == CommitPhase::kPrepared) own_->discard();
  if (kept_ && kept_->position().phase == CommitPhase::kPrepared) kept_->discard();
  next_ = Next::kTake;
}

std::vector<HandOverSession::Giver> HandOverSession::givers() const {
  std::vector<Giver> givers;
  std::vector<int> given;
  // A rank's own state before a copy of it.
  for (const bool kept : {false, true}) {
    for (int former = 0; former < std::ssize(states_); ++former) {
      const auto at = static_cast<std::size_t>(former);
      if (std::ranges::find(given, states_[at]) != given.end()) continue;
      Giver giver{.former_rank = former, .member = members_[at], .kept = kept};
      if (kept) {
        if (usable(former) || !decision_.copies_kept[at]) continue;
        giver.member = member_of(decision_.copies_from[at]);
      } else if (giver.member < 0 || !usable(former)) {
        continue;
      }
      given.push_back(states_[at]);
      givers.push_back(giver);
    }
  }
  return givers;
}

int HandOverSession::leader() const {
  return member_of(usable(0) ? 0 : decision_.copies_from.front());
}

void HandOverSession::taken() {
  check(Next::kTake);
  next_ = Next::kDone;
}

}  // namespace troupe::train
