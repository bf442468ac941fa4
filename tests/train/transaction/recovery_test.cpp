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

}  // namespace

TEST_CASE("nothing decided: the step is computed again") {
  const std::vector<RankPosition> positions = {at(7, kComputing), at(7, kPrepared),
                                               at(7, kComputing)};
  const auto decision = decide_recovery(positions);
  CHECK(decision.kind == Kind::kDiscard);
  CHECK(decision.step == 7);
  CHECK_FALSE(is_behind(decision, positions[1]));
}

TEST_CASE("one committed: those that had prepared finish") {
  const std::vector<RankPosition> positions = {at(7, kPrepared), at(7, kCommitted),
                                               at(7, kPrepared)};
  const auto decision = decide_recovery(positions);
  CHECK(decision.kind == Kind::kFinish);
  CHECK(decision.step == 7);
  CHECK(decision.record_rank == 1);
  for (const auto& position : positions) CHECK(is_behind(decision, position));
}

TEST_CASE("one is a step further, in any phase before the next decision") {
  for (const CommitPhase phase : {kComputing, kPrepared}) {
    const std::vector<RankPosition> positions = {at(7, kPrepared), at(7, kCommitted), at(8, phase)};
    const auto decision = decide_recovery(positions);
    CHECK(decision.kind == Kind::kFinish);
    CHECK(decision.step == 7);
    CHECK(is_behind(decision, positions[0]));
    CHECK_FALSE(is_behind(decision, positions[2]));
  }
}

TEST_CASE("memory that is empty, or makes no sense, is loaded anew") {
  const std::vector<RankPosition> empty = {at(7, kPrepared), {}, at(7, kCommitted)};
  CHECK(decide_recovery(empty).kind == Kind::kLoad);
  CHECK(decide_recovery(empty).empty_rank == 1);
  CHECK(decide_recovery(empty).broken.empty());

  const std::vector<std::vector<RankPosition>> broken = {
      {at(7, kComputing), at(9, kComputing)},
      {at(7, kComputing), at(7, kCommitted)},
      {at(7, kComputing), at(8, kComputing)},
      {at(7, kPrepared), at(8, kCommitted)},
  };
  for (const auto& positions : broken) {
    const auto decision = decide_recovery(positions);
    CHECK(decision.kind == Kind::kLoad);
    CHECK(decision.empty_rank == -1);
    CHECK_FALSE(decision.broken.empty());
  }
  CHECK(decide_recovery(broken[1]).broken ==
        "rank 0 is computing step 8, but rank 1 is committed step 8");
}
