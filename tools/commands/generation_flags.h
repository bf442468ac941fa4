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
  std::uint64_t tokens_default = 128;
  static constexpr std::uint64_t kNotGiven = UINT64_MAX;
  std::uint64_t tokens = kNotGiven;  // tokens_default
  std::uint64_t seed = kSeed;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::uint64_t top_k = 0;
  std::optional<double> repetition_penalty;
  std::uint64_t threads = 0;

  // kInvalidArgument for values that no sampling has.
  Result<train::SamplingOptions> sampling() const;
  std::int64_t tokens_max() const;
  // The model with its adapters. Where `model` is an adapter's folder: that one, over the model
  // that its adapter_config.json names. Notices go to context.err.
  struct Opened {
    std::unique_ptr<train::LoadedModel> model;
    std::vector<std::string> adapter_folders;
  };
  Result<Opened> open_model(CommandContext& context) const;
};

// `flags` live until parsing.
void add_model_flags(Command& command, GenerationFlags& flags);
void add_sampling_flags(Command& command, GenerationFlags& flags);

}  // namespace troupe::tools
