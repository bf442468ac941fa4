#include "train/chaos/scenario.h"

#include <doctest/doctest.h>

#include <cmath>

#include "train/chaos/schedule.h"

namespace troupe::train {
namespace {

Result<Scenario> scenario(const char* text, const char* more = "") {
  return scenario_from_json(*json::parse(text, "scenario"), *parse_faults(more));
}
std::string refusal(const char* text) { return scenario(text).status().message(); }

TEST_CASE("faults as text and as objects, a seed, what --chaos adds") {
  const auto read = scenario(
      R"({"seed": 7, "faults": ["kill@step=4,rank=1;stop@at=2", {"fault": "nan", "step": 3}]})",
      "kill@every=5");
  REQUIRE_MESSAGE(read.ok(), read.status().to_string());
  CHECK(read->seed == 7);
  CHECK_FALSE(read->loopback);
  CHECK(faults_text(read->faults) ==
        "kill@step=4,rank=1,phase=forward,point=stage;stop@at=2;nan@step=3,rank=0;kill@every=5");
}

TEST_CASE("the cluster is what the faults need, or what is asked for") {
  CHECK(scenario(R"({"faults": ["kill_head@at=1"]})")->loopback);
  CHECK(scenario(R"({"faults": ["cut@at=1,node=1"]})")->loopback);
  CHECK(scenario(R"({"faults": ["kill@at=1"], "cluster": "loopback"})")->loopback);
  CHECK(scenario(R"({"faults": ["kill@at=1"], "nodes": 3})")->nodes == 3);
  CHECK_FALSE(scenario(R"({"faults": ["kill_controller@at=1"]})")->loopback);
  CHECK(refusal(R"({"faults": ["cut@at=1"], "cluster": "embedded"})").find("no such part") !=
        std::string::npos);
  CHECK(refusal(R"({"faults": ["cut@at=1,node=2"]})").find("there are 2 nodes") !=
        std::string::npos);
}

TEST_CASE("what is wrong is named") {
  CHECK(refusal("[]").find("mapping") != std::string::npos);
  CHECK(refusal("{}").find("strikes nothing") != std::string::npos);
  CHECK(refusal(R"({"fault": []})").find("did you mean 'faults'?") != std::string::npos);
  CHECK(refusal(R"({"faults": ["kill@step=1", "kill@stp=1"]})").starts_with("faults[1]: "));
  CHECK(refusal(R"({"faults": "kill@step=1"})").find("a list is wanted") != std::string::npos);
  CHECK(refusal(R"({"seed": -1, "faults": []})").find("seed: a whole number") != std::string::npos);
  CHECK(refusal(R"({"cluster": "big", "faults": []})").find("neither embedded nor") !=
        std::string::npos);
}

TEST_CASE("at, every and step become due when they should, as often as they should") {
  const auto faults = *parse_faults("kill@at=2;stop@every=3;kill_controller@step=5;kill@step=1");
  StrikeSchedule schedule(faults, 1);
  using Due = std::vector<std::size_t>;
  CHECK(schedule.due(1.9, 1) == Due{});
  CHECK(schedule.due(2.0, 1) == Due{0});
  CHECK(schedule.due(3.1, 4) == Due{1});
  CHECK(schedule.due(3.2, 5) == Due{2});
  CHECK(schedule.due(5.9, 6) == Due{});
  // Two are missed and count as one.
  CHECK(schedule.due(9.5, 6) == Due{1});
  CHECK(schedule.due(11.9, 6) == Due{});
  CHECK(schedule.due(12.0, 6) == Due{1});
  CHECK_FALSE(schedule.exhausted());
  StrikeSchedule once(*parse_faults("kill@every=1,times=2;kill@step=1"), 1);
  CHECK(once.due(1, 1) == Due{0});
  CHECK(once.due(2, 1) == Due{0});
  CHECK(once.due(3, 1) == Due{});
  CHECK(once.exhausted());
}

TEST_CASE("a random rate: the same moments for a seed, as many as the rate says") {
  const auto moments = [](std::uint64_t seed) {
    StrikeSchedule schedule(*parse_faults("kill@rate=60"), seed);
    std::vector<int> at;
    for (int tick = 0; tick < 600'000; ++tick) {
      if (!schedule.due(tick * 0.001, 1).empty()) at.push_back(tick);
    }
    return at;
  };
  const auto first = moments(1);
  CHECK(first == moments(1));
  CHECK(first != moments(2));
  // 600 are expected; the standard deviation is about 24.
  CHECK(std::abs(static_cast<int>(first.size()) - 600) < 120);
}

}  // namespace
}  // namespace troupe::train
