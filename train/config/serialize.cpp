// TrainConfig to JSON and back, by the key table.
#include "train/config/keys.h"
#include "train/config/train_config.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

constexpr std::string_view kOurs = "troupe.";

Status store(TrainConfig& config, const std::string& name, const json::Value& value) {
  const auto* key = find_key(name);
  if (!key) return error(Code::kInvalidArgument, "unknown key '{}'", name);
  if (!key->store) {
    config.other[json_view(name)] = value;
    return {};
  }
  return key->store(config, value).prefixed(name);
}

}  // namespace

json::Value to_json(const TrainConfig& config) {
  json::Object out;
  json::Object ours;
  for (const auto& key : key_table()) {
    if (key.secret) continue;
    json::Value value;
    if (key.fetch) {
      value = key.fetch(config);
    } else if (const auto* given = config.other.if_contains(json_view(key.name))) {
      value = *given;
    } else {
      value = key.default_value;
    }
    if (key.name.starts_with(kOurs)) {
      ours[json_view(std::string_view(key.name).substr(kOurs.size()))] = std::move(value);
    } else {
      out[json_view(key.name)] = std::move(value);
    }
  }
  out["troupe"] = std::move(ours);
  return out;
}

Result<TrainConfig> train_config_from_json(const json::Value& value) {
  if (!value.is_object()) {
    return error(Code::kInvalidArgument, "a configuration must be a JSON object");
  }
  TrainConfig config;
  for (const auto& member : value.get_object()) {
    const std::string name(member.key());
    if (name == "troupe" && member.value().is_object()) {
      for (const auto& ours : member.value().get_object()) {
        TROUPE_RETURN_IF_ERROR(
            store(config, std::string(kOurs) + std::string(ours.key()), ours.value()));
      }
      continue;
    }
    TROUPE_RETURN_IF_ERROR(store(config, name, member.value()));
  }
  return config;
}

}  // namespace troupe::train
