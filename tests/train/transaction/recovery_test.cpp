#include "train/transaction/recovery.h"

#include <doctest/doctest.h>

#include <vector>

using namespace troupe::train;
using Kind = RecoveryDecision::Kind;

namespace {

RankPosition at(std::int64_t step, CommitPhase phase) {
  return {.loaded = 1, .phase = phase, .step = step};
}
constexpr auto kComputing = CommitPhase::kComputing;
constexpr auto kPrepared = CommitPhase::kPrepared;
constexpr auto kCommitted = CommitPhase::kCommitted;

// Rank r keeps the state of the rank before it.
std::vector<KeptPosition> kept_at(const std::vector<RankPosition>& positions) {
  std::vector<KeptPosition> kept;
  const auto ranks = static_cast<int>(positions.size());
  for (int rank = 0; rank < ranks; ++rank)
    kept.push_back({(rank + ranks - 1) % ranks, positions[static_cast<std::size_t>(rank)]});
  return kept;
}

}  // namespace

TEST_CASE("nothing decided: the step is computed again") {
  const std::vector<RankPosition> positions = {at(7, kComputing), at(7, kPrepared),
                                               at(7, kComputing)};
  const auto decision = decide_recovery({positions});
  CHECK(decision.kind == Kind::kDiscard);
  CHECK(decision.step == 7);
  CHECK_FALSE(is_behind(decision, positions[1]));
}

TEST_CASE("one committed: those that had prepared finish") {
  const std::vector<RankPosition> positions = {at(7, kPrepared), at(7, kCommitted),
                                               at(7, kPrepared)};
  const auto decision = decide_recovery({positions});
  CHECK(decision.kind == Kind::kFinish);
  CHECK(decision.step == 7);
  CHECK(decision.record_rank == 1);
  for (const auto& position : positions) CHECK(is_behind(decision, position));
}

TEST_CASE("one is a step further, in any phase before the next decision") {
  for (const CommitPhase phase : {kComputing, kPrepared}) {
    const std::vector<RankPosition> positions = {at(7, kPrepared), at(7, kCommitted), at(8, phase)};
    const auto decision = decide_recovery({positions});
    CHECK(decision.kind == Kind::kFinish);
    CHECK(decision.step == 7);
    CHECK(is_behind(decision, positions[0]));
    CHECK_FALSE(is_behind(decision, positions[2]));
  }
}

TEST_CASE("memory that is empty, or makes no sense, is loaded anew") {
  const std::vector<RankPosition> empty = {at(7, kPrepared), {}, at(7, kCommitted)};
  CHECK(decide_recovery({empty}).kind == Kind::kLoad);
  CHECK(decide_recovery({empty}).empty_rank == 1);
  CHECK(decide_recovery({empty}).broken.empty());

  const std::vector<std::vector<RankPosition>> broken = {
      {at(7, kComputing), at(9, kComputing)},
      {at(7, kComputing), at(7, kCommitted)},
      {at(7, kComputing), at(8, kComputing)},
      {at(7, kPrepared), at(8, kCommitted)},
  };
  for (const auto& positions : broken) {
    const auto decision = decide_recovery({positions});
    CHECK(decision.kind == Kind::kLoad);
    CHECK(decision.empty_rank == -1);
    CHECK_FALSE(decision.broken.empty());
  }
  CHECK(decide_recovery({broken[1]}).broken ==
        "rank 0 is computing step 8, but rank 1 is committed step 8");
}

TEST_CASE("of a state that another rank holds, one is enough: the other's is copied") {
  const std::vector<int> replicas = {0, 1, 0, 1};
  const std::vector<RankPosition> positions = {
      at(7, kComputing), at(7, kPrepared), {}, at(7, kComputing)};
  const auto decision = decide_recovery({positions, replicas});
  CHECK(decision.kind == Kind::kDiscard);
  CHECK(decision.step == 7);
  CHECK(decision.copies_from == std::vector{-1, -1, 0, -1});

  // Both that hold a state: all load.
  const std::vector<RankPosition> both = {{}, at(7, kPrepared), {}, at(7, kComputing)};
  CHECK(decide_recovery({both, replicas}).kind == Kind::kLoad);
  CHECK(decide_recovery({both, replicas}).empty_rank == 0);
  CHECK(decide_recovery({both, replicas}).copies_from.empty());
}

TEST_CASE("who is lost may have committed what all that are left had prepared: it is finished") {
  const std::vector<int> replicas = {0, 0, 0};
  std::vector<RankPosition> positions = {at(7, kPrepared), {}, at(7, kPrepared)};
  auto decision = decide_recovery({positions, replicas});
  CHECK(decision.kind == Kind::kFinish);
  CHECK(decision.step == 7);
  CHECK(decision.record_rank == 0);
  CHECK(decision.copies_from == std::vector{-1, 0, -1});
  // With everybody there nobody has committed it.
  positions[1] = at(7, kPrepared);
  CHECK(decide_recovery({positions, replicas}).kind == Kind::kDiscard);
  // One that had not prepared: nobody can have committed.
  positions = {at(7, kPrepared), {}, at(7, kComputing)};
  CHECK(decide_recovery({positions, replicas}).kind == Kind::kDiscard);
}

TEST_CASE("memory older than the run, of a machine that was taken for lost, is not gone on from") {
  const std::vector<int> replicas = {0, 0, 0};
  for (const RankPosition& stale : {at(2, kComputing), at(6, kComputing), at(2, kCommitted)}) {
    const auto decision =
        decide_recovery({std::vector{at(7, kComputing), at(7, kPrepared), stale}, replicas});
    CHECK(decision.kind == Kind::kDiscard);
    CHECK(decision.step == 7);
    CHECK(decision.copies_from == std::vector{-1, -1, 0});
  }
  // One step behind and prepared: it missed the end of a step, and nothing else.
  const auto behind = decide_recovery(
      {std::vector{at(7, kComputing), at(7, kComputing), at(6, kPrepared)}, replicas});
  CHECK(behind.kind == Kind::kFinish);
  CHECK(behind.copies_from.empty());
  // Somebody has committed step 8: who is not even at it is older.
  const auto decided = decide_recovery(
      {std::vector{at(7, kCommitted), at(7, kPrepared), at(6, kPrepared)}, replicas});
  CHECK(decided.kind == Kind::kFinish);
  CHECK(decided.step == 7);
  CHECK(decided.copies_from == std::vector{-1, -1, 0});
}

TEST_CASE("a state that is lost with its machine is taken from whoever kept a copy") {
  const std::vector<RankPosition> positions = {at(7, kPrepared), {}, at(7, kComputing)};
  // What rank 1 kept of rank 0's is lost with it.
  auto kept = kept_at({at(7, kComputing), {}, at(7, kPrepared)});
  auto decision = decide_recovery({positions, {}, kept});
  CHECK(decision.kind == Kind::kDiscard);
  CHECK(decision.step == 7);
  CHECK(decision.copies_from == std::vector{-1, 2, -1});
  CHECK(decision.copies_kept == std::vector{false, true, false});
  CHECK(decision.kept_stands == std::vector{true, false, true});
  // Both a state and its copy: nothing is left of it.
  kept[2] = {};
  decision = decide_recovery({positions, {}, kept});
  CHECK(decision.kind == Kind::kLoad);
  CHECK(decision.empty_rank == 1);
  CHECK(decision.kept_stands.empty());
}

TEST_CASE("a copy whose gradient is there stands for its owner: the step may have been committed") {
  const std::vector<RankPosition> positions = {at(7, kPrepared), {}, at(7, kPrepared)};
  auto decision =
      decide_recovery({positions, {}, kept_at({at(7, kPrepared), {}, at(7, kPrepared)})});
  CHECK(decision.kind == Kind::kFinish);
  CHECK(decision.record_rank == 0);
  CHECK(decision.copies_from == std::vector{-1, 2, -1});
  // It had not come: whoever keeps the copy had not given its word either.
  decision = decide_recovery({std::vector<RankPosition>{at(7, kPrepared), {}, at(7, kComputing)},
                              {},
                              kept_at({at(7, kPrepared), {}, at(7, kPrepared)})});
  CHECK(decision.kind == Kind::kDiscard);
  // Updated before its keeper's own state was: the keeper has the record.
  decision = decide_recovery({std::vector<RankPosition>{at(7, kPrepared), {}, at(7, kCommitted)},
                              {},
                              kept_at({at(7, kPrepared), {}, at(8, kComputing)})});
  CHECK(decision.kind == Kind::kFinish);
  CHECK(decision.record_rank == 2);
  CHECK_FALSE(is_behind(decision, at(8, kComputing)));
}

TEST_CASE("a copy that has missed steps is none") {
  const std::vector<RankPosition> positions = {at(7, kComputing), at(7, kPrepared)};
  const auto decision =
      decide_recovery({positions, {}, kept_at({at(4, kPrepared), at(7, kComputing)})});
  CHECK(decision.kind == Kind::kDiscard);
  CHECK(decision.step == 7);
  CHECK(decision.kept_stands == std::vector{false, true});
  CHECK(decision.copies_from.empty());
  CHECK(decide_recovery(
            {std::vector<RankPosition>{{}, at(7, kPrepared)}, {}, kept_at({{}, at(4, kComputing)})})
            .kind == Kind::kLoad);
}
