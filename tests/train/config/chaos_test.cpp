#include "train/config/chaos.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

TEST_CASE("faults are parsed with their defaults") {
  const auto faults = parse_chaos("kill@step=40,rank=1; kill@step=7,phase=optimizer,generation=2;");
  REQUIRE(faults.ok());
  REQUIRE(faults->size() == 2);
  CHECK((*faults)[0] == ChaosFault{.step = 40, .rank = 1});
  CHECK((*faults)[1] == ChaosFault{.step = 7, .phase = ChaosPhase::kOptimizer, .generation = 2});
  CHECK(parse_chaos("")->empty());
  CHECK(parse_chaos(" ; ")->empty());
}

TEST_CASE("the text of faults parses to the same faults") {
  const auto faults = parse_chaos("kill@step=40,rank=1,phase=checkpoint;kill@step=1");
  REQUIRE(faults.ok());
  const auto again = parse_chaos(chaos_text(*faults));
  REQUIRE(again.ok());
  CHECK(*again == *faults);
}

TEST_CASE("a wrong piece is named") {
  const auto message = [](const char* text) {
    const auto faults = parse_chaos(text);
    REQUIRE_FALSE(faults.ok());
    return faults.status().message();
  };
  CHECK(message("kill@step=x") == "'kill@step=x': step: 'x' is no whole number");
  CHECK(message("kill@step=0").find("below the least value") != std::string::npos);
  CHECK(message("kill").find("a step is missing") != std::string::npos);
  CHECK(message("kill@rank=1").find("a step is missing") != std::string::npos);
  CHECK(message("kill@step=1;boom@step=2").find("the fault 'boom'") != std::string::npos);
  CHECK(message("kill@stp=1").find("did you mean 'step'?") != std::string::npos);
  CHECK(message("kill@step=1,phase=forwrd").find("did you mean 'forward'?") != std::string::npos);
  CHECK(message("kill@step=1,step=2").find("stands twice") != std::string::npos);
  CHECK(message("kill@step").find("key=value") != std::string::npos);
  CHECK(message("kill@step=99999999999999999999").find("no whole number") != std::string::npos);
}

TEST_CASE("a fault strikes at its point only") {
  const ChaosFault fault{.step = 4, .rank = 1, .phase = ChaosPhase::kBackward};
  CHECK(strikes(fault, 4, 1, ChaosPhase::kBackward, 1));
  CHECK(strikes(fault, 4, 1, ChaosPhase::kBackward, 2));
  ChaosFault second = fault;
  second.generation = 2;
  CHECK_FALSE(strikes(second, 4, 1, ChaosPhase::kBackward, 1));
  CHECK(strikes(second, 4, 1, ChaosPhase::kBackward, 2));
  CHECK_FALSE(strikes(fault, 4, 0, ChaosPhase::kBackward, 0));
  CHECK_FALSE(strikes(fault, 5, 1, ChaosPhase::kBackward, 0));
  CHECK_FALSE(strikes(fault, 4, 1, ChaosPhase::kForward, 0));
}

}  // namespace
}  // namespace troupe::train
