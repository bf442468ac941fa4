#include "train/transaction/recovery.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/status.h"

namespace troupe::train {
namespace {

RecoveryDecision broken_off(std::string why) {
  RecoveryDecision decision;
  decision.broken = std::move(why);
  return decision;
}

std::string describe(std::size_t rank, const RankPosition& position) {
  return fmt::format("rank {} is {} step {}", rank, commit_phase_name(position.phase),
                     position.step + 1);
}

}  // namespace

RecoveryDecision decide_recovery(std::span<const RankPosition> positions) {
  TROUPE_CHECK(!positions.empty());
  RecoveryDecision decision;
  for (std::size_t rank = 0; rank < positions.size(); ++rank) {
    if (positions[rank].loaded) continue;
    decision.empty_rank = static_cast<int>(rank);
    return decision;
  }
  const auto by_step = [](const RankPosition& a, const RankPosition& b) { return a.step < b.step; };
  const auto [last, first] = std::minmax_element(positions.begin(), positions.end(), by_step);
  const std::int64_t behind = last->step;
  if (first->step > behind + 1) {
    return broken_off(
        fmt::format("the ranks are more than one step apart: {} and {}",
                    describe(static_cast<std::size_t>(last - positions.begin()), *last),
                    describe(static_cast<std::size_t>(first - positions.begin()), *first)));
  }
  decision.step = behind;
  decision.kind = RecoveryDecision::Kind::kDiscard;
  for (std::size_t rank = 0; rank < positions.size(); ++rank) {
    const RankPosition& at = positions[rank];
    if (at.step == behind && at.phase != CommitPhase::kCommitted) continue;
    decision.kind = RecoveryDecision::Kind::kFinish;
    decision.record_rank = static_cast<int>(rank);
    break;
  }
  const std::int64_t next =
      decision.kind == RecoveryDecision::Kind::kDiscard ? behind + 1 : behind + 2;
  for (const RankPosition& at : positions) {
    if (at.begun == next) decision.recomputes = next;
  }
  if (decision.kind == RecoveryDecision::Kind::kDiscard) return decision;
  // Whoever decided had everybody's word: the others had prepared, and nobody decides the step
  // after without those that are behind.
  for (std::size_t rank = 0; rank < positions.size(); ++rank) {
    const RankPosition& at = positions[rank];
    const bool unprepared = at.step == behind && at.phase == CommitPhase::kComputing;
    const bool too_far = at.step > behind && at.phase == CommitPhase::kCommitted;
    if (!unprepared && !too_far) continue;
    const auto decided = static_cast<std::size_t>(decision.record_rank);
    return broken_off(
        fmt::format("{}, but {}", describe(rank, at), describe(decided, positions[decided])));
  }
  return decision;
}

bool is_behind(const RecoveryDecision& decision, const RankPosition& position) {
  return decision.kind == RecoveryDecision::Kind::kFinish && position.step == decision.step;
}

}  // namespace troupe::train
