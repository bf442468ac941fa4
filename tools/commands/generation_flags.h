#pragma once
// The flags of the commands that generate text.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/commands/command.h"
#include "train/trainer/loaded_model.h"

namespace troupe::tools {

struct GenerationFlags {
  static constexpr std::uint64_t kSeed = 42;
  std::string model;
  std::vector<std::string> adapters;
  std::uint64_t tokens = 128;
  std::uint64_t seed = kSeed;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::uint64_t top_k = 0;
  std::optional<double> repetition_penalty;
  std::uint64_t threads = 0;

  // kInvalidArgument for values that no sampling has.
  Result<train::SamplingOptions> sampling() const;
  std::int64_t tokens_max() const;
  Result<std::unique_ptr<train::LoadedModel>> open_model(CommandContext& context) const;
};

// `flags` live until parsing.
void add_model_flags(Command& command, GenerationFlags& flags);
void add_sampling_flags(Command& command, GenerationFlags& flags);

}  // namespace troupe::tools
