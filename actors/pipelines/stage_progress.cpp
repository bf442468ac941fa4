#include "actors/pipelines/stage_progress.h"

namespace troupe::detail {

StageProgress::StageProgress(const PipelinePlan& plan, PipelineMemory memory, std::uint32_t stage,
                             std::uint32_t actor, std::uint64_t first)
    : memory_(memory),
      inputs_(plan.stages[stage].inputs),
      output_(stage + 1),
      actors_(plan.stages[stage].actors),
      next_(first + (actor + actors_ - first % actors_) % actors_) {}

StageStep StageProgress::look() {
  while (memory_.given(output_, next_)) next_ += actors_;
  for (const std::uint32_t channel : inputs_) {
    if (!memory_.has(channel, next_)) return StageStep::kWait;
  }
  for (const std::uint32_t channel : inputs_) {
    if (memory_.read(channel, next_).failed) return StageStep::kPassOn;
  }
  return StageStep::kRun;
}

std::span<const std::byte> StageProgress::arguments(std::vector<std::byte>& joined) const {
  if (inputs_.size() == 1) return memory_.read(inputs_[0], next_).bytes;
  joined.clear();
  for (const std::uint32_t channel : inputs_) {
    const auto bytes = memory_.read(channel, next_).bytes;
    joined.insert(joined.end(), bytes.begin(), bytes.end());
  }
  return joined;
}

std::span<const std::byte> StageProgress::failure() const {
  for (const std::uint32_t channel : inputs_) {
    const PipelineMemory::Item item = memory_.read(channel, next_);
    if (item.failed) return item.bytes;
  }
  return {};
}

}  // namespace troupe::detail
