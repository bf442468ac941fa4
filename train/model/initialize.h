#pragma once
// Random weights for a model that is trained from scratch.

#include <cstdint>
#include <span>
#include <string_view>

#include "train/model/parameter_layout.h"

namespace troupe::train {

// Fills elements [begin, begin + out.size()) of a parameter as HF's _init_weights does: norm
// weights are 1, biases 0, all others normal with standard deviation `initializer_range`, times
// ParameterInfo::initial.scale (GPT-2's c_proj: 1/√(2·layers)); and as PEFT does for adapters. An
// element's value depends on (seed, name, its index) alone: shards may be filled anywhere, in any
// order.
void initialize_parameter(const ParameterInfo& parameter, double initializer_range,
                          std::uint64_t seed, std::int64_t begin, std::span<float> out);

// A whole unit's buffer, (UnitInfo::elements), padding zero.
void initialize_unit(const ParameterLayout& layout, int unit, double initializer_range,
                     std::uint64_t seed, std::span<float> out);

}  // namespace troupe::train
