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

// What the ranks that hold the newest steps agree on. A rank that is not in keeping with them has
// missed a step that cannot have been taken without its state: another process had it meanwhile.
class Front {
 public:
  explicit Front(const Memories& memories) {
    const auto see = [&](const auto& what) {
      for (const RankPosition& at : memories.positions) what(at);
      for (const KeptPosition& kept : memories.kept) what(kept.position);
    };
    see([&](const RankPosition& at) {
      if (at.loaded) step_ = std::max(step_, at.step);
    });
    see([&](const RankPosition& at) {
      decided_ = decided_ || (at.loaded && at.step == step_ && at.phase == CommitPhase::kCommitted);
    });
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

// Who goes on from what: the first part of a decision.
void choose_sources(const Memories& memories, RecoveryDecision& decision) {
  const std::size_t ranks = memories.positions.size();
  const Front front(memories);
  decision.copies_from.assign(ranks, -1);
  decision.copies_kept.assign(ranks, false);
  for (std::size_t rank = 0; rank < memories.kept.size(); ++rank)
    decision.kept_stands.push_back(memories.kept[rank].owner >= 0 &&
                                   front.holds(memories.kept[rank].position));
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (front.holds(memories.positions[rank])) continue;
    int& source = decision.copies_from[rank];
    for (std::size_t other = 0; other < memories.states.size() && source < 0; ++other) {
      if (memories.states[other] == memories.states[rank] && front.holds(memories.positions[other]))
        source = static_cast<int>(other);
    }
    for (std::size_t other = 0; other < memories.kept.size() && source < 0; ++other) {
      if (!decision.kept_stands[other] || memories.kept[other].owner != static_cast<int>(rank))
        continue;
      source = static_cast<int>(other);
      decision.copies_kept[rank] = true;
    }
  }
}

// A state that the run goes on from.
struct Standing {
  RankPosition position;
  int rank = -1;      // in whose memory it lies
  bool kept = false;  // it is another rank's
};

std::string describe(const Standing& state) {
  return fmt::format("{}rank {} is {} step {}", state.kept ? "what is kept by " : "", state.rank,
                     commit_phase_name(state.position.phase), state.position.step + 1);
}

RecoveryDecision decide_from(const Memories& memories) {
  RecoveryDecision decision;
  choose_sources(memories, decision);
  std::vector<Standing> standing;
  bool some_lost = false, some_own = false;
  for (std::size_t rank = 0; rank < memories.positions.size(); ++rank) {
    const int number = static_cast<int>(rank);
    if (rank < decision.kept_stands.size() && decision.kept_stands[rank])
      standing.push_back({memories.kept[rank].position, number, true});
    if (decision.copies_from[rank] >= 0) {
      some_lost = true;
      continue;
    }
    standing.push_back({memories.positions[rank], number, false});
    some_own = memories.positions[rank].loaded != 0;
    if (some_own) continue;
    decision = {};
    decision.empty_rank = number;
    return decision;
  }
  if (!some_own) return broken_off("no rank has its own memory");
  const auto by_step = [](const Standing& a, const Standing& b) {
    return a.position.step < b.position.step;
  };
  const auto [last, first] = std::minmax_element(standing.begin(), standing.end(), by_step);
  const std::int64_t behind = last->position.step;
  if (first->position.step > behind + 1) {
    return broken_off(fmt::format("the ranks are more than one step apart: {} and {}",
                                  describe(*last), describe(*first)));
  }
  decision.step = behind;
  decision.kind = RecoveryDecision::Kind::kDiscard;
  bool all_prepared = some_lost && !TROUPE_CANARY("discards-what-the-lost-committed");
  for (const Standing& state : standing)
    all_prepared = all_prepared && state.position.phase == CommitPhase::kPrepared;
  for (const Standing& state : standing) {
    const RankPosition& at = state.position;
    // A rank that keeps another's state has the record of the step with its own.
    if (state.kept) continue;
    if (!all_prepared && at.step == behind && at.phase != CommitPhase::kCommitted) continue;
    decision.kind = RecoveryDecision::Kind::kFinish;
    decision.record_rank = state.rank;
    break;
  }
  const std::int64_t next =
      decision.kind == RecoveryDecision::Kind::kDiscard ? behind + 1 : behind + 2;
  for (const Standing& state : standing) {
    if (!state.kept && state.position.begun == next) decision.recomputes = next;
  }
  if (!some_lost) {
    decision.copies_from.clear();
    decision.copies_kept.clear();
  }
  if (decision.kind == RecoveryDecision::Kind::kDiscard) return decision;
  // Whoever decided had everybody's word: the others had prepared, and nobody decides the step
  // after without those that are behind.
  for (const Standing& state : standing) {
    const RankPosition& at = state.position;
    const bool unprepared = at.step == behind && at.phase == CommitPhase::kComputing;
    const bool too_far = at.step > behind && at.phase == CommitPhase::kCommitted;
    if (!unprepared && !too_far) continue;
    const auto decided = std::ranges::find_if(standing, [&](const Standing& other) {
      return !other.kept && other.rank == decision.record_rank;
    });
    return broken_off(fmt::format("{}, but {}", describe(state), describe(*decided)));
  }
  return decision;
}

}  // namespace

RecoveryDecision decide_recovery(const Memories& memories) {
  const std::size_t ranks = memories.positions.size();
  TROUPE_CHECK(ranks > 0 && (memories.states.empty() || memories.states.size() == ranks) &&
               (memories.kept.empty() || memories.kept.size() == ranks));
  return decide_from(memories);
}

bool is_behind(const RecoveryDecision& decision, const RankPosition& position) {
  return decision.kind == RecoveryDecision::Kind::kFinish && position.step == decision.step;
}

const CommitRecord& decided_record(const RecoveryDecision& decision,
                                   const StepTransaction& transaction) {
  const bool ahead = transaction.position().step > decision.step;
  return ahead ? transaction.record() : transaction.prepared();
}

}  // namespace troupe::train
