#pragma once
// The keys of a DeepSpeed configuration and what happens to each.

#include "train/config/foreign_keys.h"

namespace troupe::train {

// Names and defaults: DeepSpeed's configuration reference and runtime/zero/config.py.
const ForeignKeys& deepspeed_keys();

}  // namespace troupe::train
