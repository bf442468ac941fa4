#include "train/chaos/injector.h"

#include <doctest/doctest.h>

#include <array>
#include <cmath>

#include "tests/train/chaos/recorded_effects.h"

namespace troupe::train {
namespace {

using tests::planned;
using tests::RecordedEffects;

Point stage_at(std::int64_t step, Stage stage) {
  return {.kind = PointKind::kStage, .step = step, .stage = stage};
}

struct Struck {
  ManualClock clock;
  RecordedEffects effects{clock};
  FaultInjector injector{effects, clock};
  explicit Struck(const char* faults, std::int64_t rank = 0, std::uint64_t generation = 1) {
    injector.begin_generation(rank, generation, planned(faults));
  }
  std::string after(const Point& point) {
    injector.reached(point);
    return effects.take();
  }
};

TEST_CASE("a fault strikes at its point only, and once") {
  Struck run("kill@step=4,rank=1,phase=backward", 1);
  CHECK(run.after(stage_at(5, Stage::kBackward)).empty());
  CHECK(run.after(stage_at(4, Stage::kForward)).empty());
  CHECK(run.after({.kind = PointKind::kUnit, .step = 4, .stage = Stage::kBackward}).empty());
  CHECK(run.after(stage_at(4, Stage::kBackward)) == "told 0, kill");
  CHECK(run.after(stage_at(4, Stage::kBackward)).empty());
  Struck other("kill@step=4,rank=1,phase=backward", 0);
  CHECK(other.after(stage_at(4, Stage::kBackward)).empty());
}

TEST_CASE("generation, hit and times") {
  Struck second("kill@step=4,generation=2", 0, 2);
  CHECK(second.after(stage_at(4, Stage::kForward)) == "told 0, kill");
  Struck first("kill@step=4,generation=2", 0, 1);
  CHECK(first.after(stage_at(4, Stage::kForward)).empty());

  Struck third("kill@point=collective,operation=all_reduce,hit=3,times=2");
  const Point reduce{.kind = PointKind::kCollective, .operation = "all_reduce"};
  const Point gather{.kind = PointKind::kCollective, .operation = "all_gather"};
  const Point end{.kind = PointKind::kCollectiveEnd, .operation = "all_reduce"};
  std::vector<std::string> seen;
  for (const Point& point : {reduce, gather, end, reduce, reduce, reduce, reduce}) {
    seen.push_back(third.after(point));
  }
  CHECK(seen == std::vector<std::string>{"", "", "", "", "told 0, kill", "told 0, kill", ""});
  // Another generation counts anew.
  third.injector.begin_generation(0, 2, planned("kill@operation=all_gather"));
  CHECK(third.after(gather) == "told 0, kill");
}

TEST_CASE("of faults at one point one strikes at a time, by its own number") {
  Struck run("kill@at=3;kill@step=1;exit@step=1,code=7");
  CHECK(run.after(stage_at(1, Stage::kForward)) == "told 1, kill");
  CHECK(run.after(stage_at(1, Stage::kForward)) == "told 2, exit 7");
}

TEST_CASE("what cannot be announced does not strike") {
  Struck run("kill@step=1");
  run.effects.refuse = true;
  CHECK(run.after(stage_at(1, Stage::kForward)) == "told 0");
}

TEST_CASE("stop, exception, NaN") {
  CHECK(Struck("stop@step=1").after(stage_at(1, Stage::kForward)) == "told 0, stop");
  CHECK(Struck("exception@step=1").after(stage_at(1, Stage::kForward)).find("raise") !=
        std::string::npos);
  Struck run("nan@step=2,unit=1");
  std::array<float, 3> gradient = {1, 2, 3};
  Point point{.kind = PointKind::kGradient, .step = 2, .stage = Stage::kBackward, .unit = 1};
  point.gradient = gradient;
  CHECK(run.after(point) == "told 0");
  CHECK(std::isnan(gradient[0]));
  CHECK(gradient[1] == 2);
}

TEST_CASE("a slow rank's time between points is stretched by the factor, for its steps") {
  Struck run("slow@step=2,factor=3,steps=2");
  CHECK(run.after(stage_at(2, Stage::kForward)) == "told 0");
  const auto pass = [&](std::int64_t step, PointKind kind) {
    run.clock.advance(std::chrono::milliseconds(10));
    return run.after({.kind = kind, .step = step, .stage = Stage::kBackward});
  };
  CHECK(pass(2, PointKind::kUnit) == "sleep 20 ms");
  CHECK(pass(2, PointKind::kUnit) == "sleep 20 ms");
  CHECK(pass(2, PointKind::kFile).empty());  // another thread's
  CHECK(pass(3, PointKind::kUnit) == "sleep 40 ms");
  CHECK(pass(4, PointKind::kUnit).empty());
  CHECK(pass(5, PointKind::kUnit).empty());
}

TEST_CASE("points are recorded as lines, by rank") {
  Struck run("record@file=/points", 3);
  CHECK(run.after(stage_at(2, Stage::kVote)) ==
        "/points.rank-3: {\"kind\":\"stage\",\"step\":2,\"stage\":\"vote\",\"unit\":-1,"
        "\"operation\":\"\",\"number\":0}");
}

}  // namespace
}  // namespace troupe::train
