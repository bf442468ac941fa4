#pragma once
// What several sources say about one run: our keys, DeepSpeed's configuration, FSDP's keys,
// accelerate's file and variables. What they agree on becomes the configuration; where two differ,
// that is a problem which names both.

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "train/config/load.h"
#include "train/config/problems.h"

namespace troupe::train {

// `values` are the canonical values of the keys that were given. Fills sharding, precision,
// checkpointing, the launch, and the record of what became of every foreign key.
void resolve_sources(LoadedConfig& loaded, const json::Object& values,
                     const Environment& environment, FileSystem& files, std::int64_t gpu_count,
                     Problems& problems);

}  // namespace troupe::train
