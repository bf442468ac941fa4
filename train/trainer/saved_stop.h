#pragma once
// How a generation ends whose run was asked to save and to stop: as a Status that all who pass it
// on can tell from other ends.

#include <cstdint>
#include <optional>

#include "runtime/base/status.h"

namespace troupe::train {

// kCancelled "stopped at step N after saving".
Status saved_stop(std::int64_t step);
// N, where `status` is one of saved_stop(), whatever it went through.
std::optional<std::int64_t> saved_step_of(const Status& status);

// The end of a generation that was left after a step, for another world: kAborted "paused after
// step N". Nothing was lost.
Status paused_after(std::int64_t step);
std::optional<std::int64_t> paused_step_of(const Status& status);

}  // namespace troupe::train
