#pragma once
// The names of directories in an output directory. Private to this folder.

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

inline std::string checkpoint_name(long long step) { return fmt::format("checkpoint-{}", step); }

}  // namespace troupe::train
