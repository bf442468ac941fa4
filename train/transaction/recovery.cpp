#include "train/transaction/recovery.h"

#include <algorithm>

#include "runtime/base/canary.h"
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

// What the ranks that hold the newest steps agree on. A rank that is not in keeping with them has
// missed a step that cannot have been taken without its state: another process had it meanwhile.
class Front {
 public:
  explicit Front(std::span<const RankPosition> positions) {
    for (const RankPosition& at : positions) {
      if (at.loaded) step_ = std::max(step_, at.step);
    }
    for (const RankPosition& at : positions)
      decided_ = decided_ || (at.loaded && at.step == step_ && at.phase == CommitPhase::kCommitted);
  }

  bool holds(const RankPosition& at) const {
    if (!at.loaded) return false;
    const bool prepared = at.phase != CommitPhase::kComputing;
    if (at.step == step_) return prepared || !decided_;
    return at.step == step_ - 1 && prepared && !decided_;
  }

 private:
  std::int64_t step_ = 0;
  bool decided_ = false;  // somebody has committed step_ + 1
};

// Whose state each rank takes; −1: its own.
std::vector<int> sources_of(std::span<const RankPosition> positions,
                            std::span<const int> replicas) {
  std::vector<int> sources(positions.size(), -1);
  if (replicas.empty()) return sources;
  const Front front(positions);
  for (std::size_t rank = 0; rank < positions.size(); ++rank) {
    if (front.holds(positions[rank])) continue;
    for (std::size_t other = 0; other < positions.size() && sources[rank] < 0; ++other) {
      if (replicas[other] == replicas[rank] && front.holds(positions[other]))
        sources[rank] = static_cast<int>(other);
    }
  }
  return sources;
}

// Of those that go on from their own memory.
RecoveryDecision decide_from(std::span<const RankPosition> positions,
                             std::span<const int> sources) {
  RecoveryDecision decision;
  std::vector<std::size_t> own;
  for (std::size_t rank = 0; rank < positions.size(); ++rank) {
    if (sources[rank] >= 0) continue;
    own.push_back(rank);
    if (positions[rank].loaded) continue;
    decision.empty_rank = static_cast<int>(rank);
    return decision;
  }
  const auto by_step = [&](std::size_t a, std::size_t b) {
    return positions[a].step < positions[b].step;
  };
  const auto [last, first] = std::minmax_element(own.begin(), own.end(), by_step);
  const std::int64_t behind = positions[*last].step;
  if (positions[*first].step > behind + 1) {
    return broken_off(fmt::format("the ranks are more than one step apart: {} and {}",
                                  describe(*last, positions[*last]),
                                  describe(*first, positions[*first])));
  }
  decision.step = behind;
  decision.kind = RecoveryDecision::Kind::kDiscard;
  const bool some_lost = own.size() < positions.size();
  bool all_prepared = some_lost && !TROUPE_CANARY("discards-what-the-lost-committed");
  for (const std::size_t rank : own)
    all_prepared = all_prepared && positions[rank].phase == CommitPhase::kPrepared;
  for (const std::size_t rank : own) {
    const RankPosition& at = positions[rank];
    if (!all_prepared && at.step == behind && at.phase != CommitPhase::kCommitted) continue;
    decision.kind = RecoveryDecision::Kind::kFinish;
    decision.record_rank = static_cast<int>(rank);
    break;
  }
  const std::int64_t next =
      decision.kind == RecoveryDecision::Kind::kDiscard ? behind + 1 : behind + 2;
  for (const std::size_t rank : own) {
    if (positions[rank].begun == next) decision.recomputes = next;
  }
  if (some_lost) decision.copies_from.assign(sources.begin(), sources.end());
  if (decision.kind == RecoveryDecision::Kind::kDiscard) return decision;
  // Whoever decided had everybody's word: the others had prepared, and nobody decides the step
  // after without those that are behind.
  for (const std::size_t rank : own) {
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

}  // namespace

RecoveryDecision decide_recovery(std::span<const RankPosition> positions,
                                 std::span<const int> replicas) {
  TROUPE_CHECK(!positions.empty() && (replicas.empty() || replicas.size() == positions.size()));
  return decide_from(positions, sources_of(positions, replicas));
}

bool is_behind(const RecoveryDecision& decision, const RankPosition& position) {
  return decision.kind == RecoveryDecision::Kind::kFinish && position.step == decision.step;
}

}  // namespace troupe::train
