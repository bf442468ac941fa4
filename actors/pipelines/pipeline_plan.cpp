#include "actors/pipelines/pipeline_plan.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "actors/pipelines/pipeline_memory.h"

namespace troupe::detail {
namespace {

// The names of stages that wait for each other, in the direction in which items would go; empty:
// there are none.
std::string cycle_in(const PipelinePlan& plan) {
  std::vector<bool> done(plan.stages.size(), false);
  const auto open_input = [&](std::uint32_t stage) -> std::uint32_t {
    for (const std::uint32_t channel : plan.stages[stage].inputs) {
      if (channel > 0 && !done[channel - 1]) return channel;
    }
    return 0;
  };
  for (bool changed = true; std::exchange(changed, false);) {
    for (std::uint32_t i = 0; i < plan.stages.size(); ++i) {
      if (done[i] || open_input(i) != 0) continue;
      done[i] = changed = true;
    }
  }
  const auto left = std::find(done.begin(), done.end(), false);
  if (left == done.end()) return {};
  // Each of those that are left waits for another one of them: going back ends in a cycle.
  std::vector<std::uint32_t> path{static_cast<std::uint32_t>(left - done.begin())};
  for (;;) {
    const std::uint32_t before = open_input(path.back()) - 1;
    const auto seen = std::find(path.begin(), path.end(), before);
    if (seen == path.end()) {
      path.push_back(before);
      continue;
    }
    std::string names = plan.stages[before].name;
    path.erase(path.begin(), seen);
    for (auto it = path.rbegin(); it != path.rend(); ++it) names += " → " + plan.stages[*it].name;
    return names;
  }
}

Status check_stage(const PipelinePlan& plan, const PlannedStage& stage) {
  if (stage.name.empty()) return error(Code::kInvalidArgument, "a stage without a name");
  if (stage.actors < 1 || stage.actors > kActorsOfStageMax) {
    return error(Code::kInvalidArgument, "stage '{}' has {} actors; from 1 to {} it may have",
                 stage.name, stage.actors, kActorsOfStageMax);
  }
  if (stage.inputs.empty()) {
    return error(Code::kInvalidArgument,
                 "stage '{}' takes nothing: a stage comes after another one, "
                 "or after what is pushed",
                 stage.name);
  }
  for (const std::uint32_t channel : stage.inputs) {
    if (channel < plan.channels()) continue;
    return error(Code::kInvalidArgument, "stage '{}' takes what no stage of this pipeline gives",
                 stage.name);
  }
  return {};
}

}  // namespace

Status PipelinePlan::check() const {
  if (in_flight < 1 || in_flight > kInFlightMax || item_bytes_max < kItemBytesLeast ||
      item_bytes_max > kItemBytesMost) {
    return error(
        Code::kInvalidArgument,
        "PipelineOptions: in_flight ({}) is from 1 to {}, item_bytes_max ({}) from {} to {}",
        in_flight, kInFlightMax, item_bytes_max, kItemBytesLeast, kItemBytesMost);
  }
  if (stages.empty() || stages.size() > kStagesMax) {
    return error(Code::kInvalidArgument, "a pipeline of {} stages; it has from 1 to {}",
                 stages.size(), kStagesMax);
  }
  std::set<std::string> names;
  for (const PlannedStage& stage : stages) {
    TROUPE_RETURN_IF_ERROR(check_stage(*this, stage));
    if (!names.insert(stage.name).second) {
      return error(Code::kInvalidArgument, "two stages are called '{}'", stage.name);
    }
  }
  if (output == 0 || output >= channels()) {
    return error(Code::kInvalidArgument, "a pipeline without a stage whose results it gives");
  }
  if (const std::string cycle = cycle_in(*this); !cycle.empty()) {
    return error(Code::kInvalidArgument,
                 "stages that wait for each other: {}. An item goes through each stage once",
                 cycle);
  }
  for (std::uint32_t channel = 1; channel < channels(); ++channel) {
    if (channel == output || !takers(channel).empty()) continue;
    return error(Code::kInvalidArgument,
                 "nobody takes what stage '{}' gives: another stage does, or it is the last one",
                 stages[channel - 1].name);
  }
  if (PipelineMemory::bytes(*this) > kPipelineBytesMax) {
    return error(Code::kInvalidArgument,
                 "{} channels of {} items of {} bytes: give the pipeline fewer in_flight, or a "
                 "smaller item_bytes_max, and large items as objects (ObjectRef)",
                 channels(), in_flight, item_bytes_max);
  }
  return {};
}

std::vector<std::uint32_t> PipelinePlan::takers(std::uint32_t channel) const {
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < stages.size(); ++i) {
    const auto& inputs = stages[i].inputs;
    if (std::find(inputs.begin(), inputs.end(), channel) != inputs.end()) found.push_back(i);
  }
  return found;
}

}  // namespace troupe::detail
