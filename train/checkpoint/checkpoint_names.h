#pragma once
// The names of directories in an output directory, and of files in a checkpoint. Private to this
// folder.

#include <string>
#include <string_view>

#include <fmt/format.h>

namespace troupe::train {

inline constexpr std::string_view kCheckpointPrefix = "checkpoint-";
// Being written, or left by a writer that died.
inline constexpr std::string_view kWritingPrefix = "tmp-checkpoint-";
// Being removed.
inline constexpr std::string_view kRemovingPrefix = "tmp-removed-";
// Good, and about to be replaced by another one of its step.
inline constexpr std::string_view kReplacedPrefix = "replaced-checkpoint-";

// Weights of the sharded layout, optimizer state of both, by rank.
inline constexpr std::string_view kShardPrefix = "shard-";
inline constexpr std::string_view kOptimizerPrefix = "optimizer";

// shard-00001-model-00001-of-00002.safetensors: the form that torch's distributed checkpoints have.
inline std::string weight_shard_name(std::size_t index, std::size_t count) {
  return fmt::format("{}{:05}-model-{:05}-of-{:05}.safetensors", kShardPrefix, index + 1, index + 1,
                     count);
}
inline std::string optimizer_shard_name(std::size_t index, std::size_t count) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", kOptimizerPrefix, index + 1, count);
}

inline std::string checkpoint_name(long long step) { return fmt::format("checkpoint-{}", step); }

}  // namespace troupe::train
