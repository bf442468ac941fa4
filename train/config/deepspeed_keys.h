#pragma once
// The keys of a DeepSpeed configuration and what happens to each.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

// Everything that is unknown, mistyped or refused in a configuration whose "auto" values are still
// there; the first of it. Keys that begin with '_' are comments.
Status check_deepspeed_keys(const json::Object& config);

}  // namespace troupe::train
