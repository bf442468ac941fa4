#include "train/trainer/predictor_actor.h"

#include <algorithm>

#include "train/trainer/hub_names.h"

namespace troupe::train {

Status PredictorActor::open_model() {
  if (model_) return {};
  PosixFileSystem files;
  const std::optional<std::string> cache =
      setup_.hub_cache.empty() ? std::nullopt : std::optional(setup_.hub_cache);
  const auto here = [&](const std::string& folder) {
    return same_snapshot_here(files, SystemEnvironment(), cache, folder).value_or(folder);
  };
  std::vector<std::string> adapters;
  for (const std::string& adapter : setup_.adapters) adapters.push_back(here(adapter));
  model_ = TROUPE_TRY(LoadedModel::open(files, here(setup_.model), setup_.threads, adapters));
  return {};
}

Result<std::vector<std::vector<std::int32_t>>> PredictorActor::answer(const PromptBatch& batch) {
  TROUPE_RETURN_IF_ERROR(open_model());
  std::vector<GenerateRequest> requests;
  for (const auto& prompt : batch.prompts)
    requests.push_back({.prompt = prompt, .seed = batch.seed + requests.size()});
  GenerateOptions options{.sampling = setup_.sampling,
                          .tokens_max = setup_.tokens_max,
                          .length_max = setup_.length_max,
                          .stop_ids = setup_.stop_ids};
  return model_->generate_all(requests, options);
}

}  // namespace troupe::train
