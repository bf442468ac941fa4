// Which pipelines are refused, and in which words.

#include "actors/pipelines/pipeline_plan.h"

#include <doctest/doctest.h>

#include "actors/pipelines/pipeline_memory.h"

namespace troupe::detail {
namespace {

PipelinePlan plan_of(std::vector<PlannedStage> stages, std::uint32_t output) {
  return {.in_flight = 4, .item_bytes_max = 4096, .stages = std::move(stages), .output = output};
}
std::string refusal(const PipelinePlan& plan) {
  const Status status = plan.check();
  CHECK(status.code() == Code::kInvalidArgument);
  return status.message();
}
bool says(const std::string& text, const char* part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

TEST_CASE("a chain, and branches that come together, are pipelines") {
  CHECK(plan_of({{"a", 1, {0}}, {"b", 3, {1}}, {"c", 1, {2}}}, 3).check().ok());
  const PipelinePlan diamond =
      plan_of({{"a", 1, {0}}, {"b", 1, {1}}, {"c", 2, {1}}, {"d", 1, {2, 3}}}, 4);
  CHECK(diamond.check().ok());
  CHECK(diamond.takers(1) == std::vector<std::uint32_t>{1, 2});
  CHECK(diamond.takers(0) == std::vector<std::uint32_t>{0});
}

TEST_CASE("stages that wait for each other are refused by name, in the direction of the items") {
  const auto cycle = plan_of({{"a", 1, {0}}, {"b", 1, {1, 4}}, {"c", 1, {2}}, {"d", 1, {3}}}, 4);
  CHECK(says(refusal(cycle), "b → c → d → b"));
  CHECK(says(refusal(plan_of({{"own", 1, {1}}}, 1)), "own → own"));
  // One that only comes after a cycle is not in it.
  const auto after = plan_of({{"late", 1, {2}}, {"x", 1, {3}}, {"y", 1, {2}}}, 1);
  const std::string words = refusal(after);
  CHECK(says(words, "→"));
  CHECK(!says(words, "late"));
}

TEST_CASE("what makes no sense is refused by name") {
  CHECK(says(refusal(plan_of({{"a", 1, {0}}, {"a", 1, {1}}}, 2)), "two stages are called 'a'"));
  CHECK(says(refusal(plan_of({{"a", 1, {0}}, {"b", 1, {0}}}, 2)), "stage 'a' gives"));
  CHECK(says(refusal(plan_of({{"a", 1, {}}}, 1)), "stage 'a' takes nothing"));
  CHECK(says(refusal(plan_of({{"a", 1, {5}}}, 1)), "stage 'a'"));
  CHECK(says(refusal(plan_of({{"a", 0, {0}}}, 1)), "stage 'a' has 0 actors"));
  CHECK(says(refusal(plan_of({{"", 1, {0}}}, 1)), "without a name"));
  CHECK(says(refusal(plan_of({{"a", 1, {0}}}, 0)), "whose results"));
  CHECK(says(refusal(plan_of({}, 1)), "0 stages"));
  PipelinePlan plan = plan_of({{"a", 1, {0}}}, 1);
  plan.in_flight = 0;
  CHECK(says(refusal(plan), "in_flight (0)"));
  plan.in_flight = kInFlightMax;
  plan.item_bytes_max = kItemBytesMost;
  CHECK(says(refusal(plan), "ObjectRef"));
}

}  // namespace
}  // namespace troupe::detail
