#include "train/parts/training_parts.h"

#include <fmt/format.h>

#include "train/parts/arguments_json.h"
#include "train/parts/own_objective.h"
#include "train/parts/own_optimizer.h"

namespace troupe::train {
namespace {

// The names before are of parts that the choice might mean, too.
template <typename Part>
Result<std::shared_ptr<Part>> make(const char* what, const PartFactories<Part>& listed,
                                   const PartChoice& choice, std::string names = "") {
  const auto found = listed.find(choice.name);
  if (found == listed.end()) {
    for (const auto& [name, factory] : listed) names += (names.empty() ? "" : ", ") + name;
    return error(Code::kNotFound,
                 "this program lists no {} \"{}\" in the TrainingParts of its trainer class; it "
                 "lists {}",
                 what, choice.name, names.empty() ? "none" : names);
  }
  // Which of them are read counts from here.
  const Arguments arguments(choice.arguments.values());
  auto made = found->second(arguments);
  const Status status = made.ok() ? arguments.used() : made.status();
  if (!status.ok()) return status.prefixed(fmt::format("{} \"{}\"", what, choice.name));
  if (!*made)
    return error(Code::kInternal, "{} \"{}\": its factory made nothing", what, choice.name);
  return made;
}

json::Value to_json(const PartChoice& choice) {
  return json::Object{{"name", choice.name}, {"arguments", to_json(choice.arguments)}};
}

Result<PartChoice> choice_from_json(const json::Value& value) {
  const auto name = json::find_string(value, "name");
  const json::Value* arguments = json::find(value, "arguments");
  if (!name || !arguments || !arguments->is_object())
    return error(Code::kDataLoss, "the choice of a training part lacks its name or arguments");
  return PartChoice{std::string(*name), TROUPE_TRY(arguments_from_json(*arguments))};
}

Status read(const json::Value& value, const char* key, std::optional<PartChoice>& choice) {
  if (const json::Value* found = json::find(value, key))
    choice = TROUPE_TRY(choice_from_json(*found));
  return {};
}

}  // namespace

json::Value to_json(const PartChoices& choices) {
  json::Object object;
  if (choices.objective) object["objective"] = to_json(*choices.objective);
  if (choices.optimizer) object["optimizer"] = to_json(*choices.optimizer);
  if (choices.data_source) object["data_source"] = to_json(*choices.data_source);
  if (choices.model) object["model"] = to_json(*choices.model);
  json::Array callbacks;
  for (const PartChoice& callback : choices.callbacks) callbacks.push_back(to_json(callback));
  if (!callbacks.empty()) object["callbacks"] = std::move(callbacks);
  return object;
}

Result<PartChoices> part_choices_from_json(const json::Value& value) {
  PartChoices choices;
  TROUPE_RETURN_IF_ERROR(read(value, "objective", choices.objective));
  TROUPE_RETURN_IF_ERROR(read(value, "optimizer", choices.optimizer));
  TROUPE_RETURN_IF_ERROR(read(value, "data_source", choices.data_source));
  TROUPE_RETURN_IF_ERROR(read(value, "model", choices.model));
  if (const json::Value* callbacks = json::find(value, "callbacks");
      callbacks && callbacks->is_array()) {
    for (const json::Value& callback : callbacks->get_array())
      choices.callbacks.push_back(TROUPE_TRY(choice_from_json(callback)));
  }
  return choices;
}

Result<std::shared_ptr<const Objective>> make_objective(const TrainingParts& parts,
                                                        const PartChoice& choice) {
  if (!parts.logits_objectives.contains(choice.name)) {
    std::string others;
    for (const auto& [name, factory] : parts.logits_objectives)
      others += (others.empty() ? "" : ", ") + name;
    return run_objective(
        TROUPE_TRY(make("objective", parts.target_objectives, choice, std::move(others))));
  }
  return run_objective(TROUPE_TRY(make("objective", parts.logits_objectives, choice)));
}
Result<std::shared_ptr<const Optimizer>> make_optimizer(const TrainingParts& parts,
                                                        const PartChoice& choice) {
  return run_optimizer(TROUPE_TRY(make("optimizer", parts.optimizers, choice)));
}
Result<std::shared_ptr<const DataSource>> make_data_source(const TrainingParts& parts,
                                                           const PartChoice& choice) {
  return std::shared_ptr<const DataSource>(
      TROUPE_TRY(make("data source", parts.data_sources, choice)));
}
Result<std::shared_ptr<const OwnModel>> make_own_model(const TrainingParts& parts,
                                                       const PartChoice& choice) {
  return std::shared_ptr<const OwnModel>(TROUPE_TRY(make("model", parts.models, choice)));
}
Result<std::shared_ptr<TrainingCallback>> make_callback(const TrainingParts& parts,
                                                        const PartChoice& choice) {
  return make("callback", parts.callbacks, choice);
}

}  // namespace troupe::train
