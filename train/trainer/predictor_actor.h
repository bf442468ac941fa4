#pragma once
// A process that has a model and answers prompts with it.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/model/sampling.h"
#include "train/trainer/loaded_model.h"
#include "troupe/actor.h"

namespace troupe::train {

// The same for all prompts of a run.
struct PredictorSetup {
  std::string model;  // its folder
  std::vector<std::string> adapters;
  std::string hub_cache;  // in place of the environment's; empty: that
  std::int32_t threads = 1;
  SamplingOptions sampling;
  std::int64_t tokens_max = 1024;  // of an answer
  std::int64_t length_max = 0;     // of prompt and answer together, in place of tokens_max; 0: not
  std::vector<std::int64_t> stop_ids;
};

// Prompts that are answered together. Each has a generator of its own, seeded by its number among
// all: which process answers it, and how often it is tried, changes nothing.
struct PromptBatch {
  std::uint64_t seed = 0;  // of the first
  std::vector<std::vector<std::int32_t>> prompts;
};

class PredictorActor {
 public:
  explicit PredictorActor(PredictorSetup setup) : setup_(std::move(setup)) {}

  // The first call reads the model.
  Result<std::vector<std::vector<std::int32_t>>> answer(const PromptBatch& batch);

  static constexpr auto constructor = troupe::constructor<PredictorSetup>;
  static constexpr auto methods = troupe::methods<&PredictorActor::answer>;

 private:
  Status open_model();

  const PredictorSetup setup_;
  std::unique_ptr<LoadedModel> model_;
};

}  // namespace troupe::train
