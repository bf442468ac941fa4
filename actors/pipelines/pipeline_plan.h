#pragma once
// What a pipeline is made of: stages, the channels between them, and how much is under way.
//
// Every stage gives one output for each item. Channel 0 is what is pushed, channel 1 + i what stage
// i gives; whoever takes it reads it there. Item n of a stage with several actors is that of actor
// n modulo their number, so that order is kept without anybody's waiting for it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace troupe::detail {

inline constexpr std::uint32_t kInFlightMax = 1024;
inline constexpr std::uint64_t kItemBytesLeast = 4096;
inline constexpr std::uint64_t kItemBytesMost = std::uint64_t{1} << 30;
inline constexpr std::size_t kStagesMax = 64;
inline constexpr std::uint32_t kActorsOfStageMax = 256;
// Address space; memory only where items have been.
inline constexpr std::uint64_t kPipelineBytesMax = std::uint64_t{256} << 30;

struct PlannedStage {
  std::string name;
  std::uint32_t actors = 1;
  std::vector<std::uint32_t> inputs;  // channels: one argument of the method each, in order
};

struct PipelinePlan {
  std::uint32_t in_flight = 16;      // items between push() and their results
  std::uint64_t item_bytes_max = 0;  // of one output
  std::vector<PlannedStage> stages;
  std::uint32_t output = 0;  // the channel whose items are the pipeline's results

  // kInvalidArgument, with the names of the stages: a cycle, a name that two have, an output that
  // nobody takes, an input that there is not, limits.
  Status check() const;
  // The stages that take what is in the channel.
  std::vector<std::uint32_t> takers(std::uint32_t channel) const;
  std::size_t channels() const { return 1 + stages.size(); }
};

}  // namespace troupe::detail
