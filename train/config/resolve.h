#pragma once
// Defaults that depend on other keys.

#include "train/config/load.h"
#include "train/config/problems.h"

namespace troupe::train {

// packing by stage, neat_packing; what an evaluation compares; do_eval where there is a strategy.
void resolve_defaults(LoadedConfig& loaded, const json::Object& values);

// bf16, pure_bf16, fp8. `values` are the canonical values of the keys that were given.
void resolve_precision(LoadedConfig& loaded, const json::Object& values, Problems& problems);

// troupe.activation_checkpointing and disable_gradient_checkpointing. `fsdp_key` is the key by
// which FSDP's own checkpointing is asked for, or empty.
void resolve_activation_checkpointing(LoadedConfig& loaded, const json::Object& values,
                                      const std::string& fsdp_key, Problems& problems);

}  // namespace troupe::train
