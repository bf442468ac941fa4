#include "train/parts/training_parts.h"

#include <fmt/format.h>

namespace troupe::train {
namespace {

template <typename Part>
typename PartFactory<Part>::result_type make(const char* what,
                                             const std::map<std::string, PartFactory<Part>>& listed,
                                             const PartChoice& choice) {
  const auto found = listed.find(choice.name);
  if (found == listed.end()) {
    std::string names;
    for (const auto& [name, factory] : listed) names += (names.empty() ? "" : ", ") + name;
    return error(Code::kNotFound,
                 "this program lists no {} \"{}\" in the TrainingParts of its trainer class; it "
                 "lists {}",
                 what, choice.name, names.empty() ? "none" : names);
  }
  auto made = found->second(choice.arguments);
  if (!made.ok()) return made.status().prefixed(fmt::format("{} \"{}\"", what, choice.name));
  if (!*made)
    return error(Code::kInternal, "{} \"{}\": its factory made nothing", what, choice.name);
  return made;
}

json::Value to_json(const PartChoice& choice) {
  return json::Object{{"name", choice.name}, {"arguments", choice.arguments}};
}

Result<PartChoice> choice_from_json(const json::Value& value) {
  const auto name = json::find_string(value, "name");
  const json::Value* arguments = json::find(value, "arguments");
  if (!name || !arguments || !arguments->is_object())
    return error(Code::kDataLoss, "the choice of a training part lacks its name or arguments");
  return PartChoice{std::string(*name), arguments->get_object()};
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
  if (const json::Value* callbacks = json::find(value, "callbacks");
      callbacks && callbacks->is_array()) {
    for (const json::Value& callback : callbacks->get_array())
      choices.callbacks.push_back(TROUPE_TRY(choice_from_json(callback)));
  }
  return choices;
}

Result<std::shared_ptr<const Objective>> make_part(
    const std::map<std::string, PartFactory<Objective>>& listed, const PartChoice& choice) {
  return make<Objective>("objective", listed, choice);
}
Result<std::shared_ptr<const Optimizer>> make_part(
    const std::map<std::string, PartFactory<Optimizer>>& listed, const PartChoice& choice) {
  return make<Optimizer>("optimizer", listed, choice);
}
Result<std::shared_ptr<const DataSource>> make_part(
    const std::map<std::string, PartFactory<DataSource>>& listed, const PartChoice& choice) {
  return make<DataSource>("data source", listed, choice);
}
Result<std::shared_ptr<TrainingCallback>> make_part(
    const std::map<std::string, PartFactory<TrainingCallback>>& listed, const PartChoice& choice) {
  return make<TrainingCallback>("callback", listed, choice);
}

}  // namespace troupe::train
