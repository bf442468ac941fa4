#include "train/adapters/adapter_config.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace troupe::train {
namespace {

bool asks_for_nothing(const json::Value& value) {
  return value.is_null() || (value.is_bool() && !value.get_bool()) ||
         (value.is_array() && value.get_array().empty()) ||
         (value.is_object() && value.get_object().empty());
}

// Keys of features that are not there: a value that asks for nothing is accepted.
struct AbsentFeature {
  std::string_view key;
  std::string_view what;
};
constexpr std::array kAbsentFeatures = {
    AbsentFeature{"alora_invocation_tokens", "activated LoRA"},
    AbsentFeature{"arrow_config", "Arrow routing"},
    AbsentFeature{"auto_mapping", "adapters of custom model classes"},
    AbsentFeature{"corda_config", "CorDA"},
    AbsentFeature{"ensure_weight_tying", "keeping copies of tied weights equal"},
    AbsentFeature{"eva_config", "EVA"},
    AbsentFeature{"layer_replication", "replicated layers"},
    AbsentFeature{"layers_pattern", "a pattern of layers; name the modules in target_modules"},
    AbsentFeature{"layers_to_transform", "a list of layers; name the modules in target_modules"},
    AbsentFeature{"loftq_config", "LoftQ"},
    AbsentFeature{"lora_bias", "a bias of lora_B"},
    AbsentFeature{"megatron_config", "Megatron's layers"},
    AbsentFeature{"target_parameters", "adapters of parameters that are no module's weight"},
    AbsentFeature{"trainable_token_indices", "training single tokens' embeddings"},
    AbsentFeature{"use_bdlora", "block-diagonal LoRA"},
    AbsentFeature{"use_qalora", "QA-LoRA"},
};

// Keys that are read and say nothing more.
constexpr std::array<std::string_view, 6> kWithoutEffect = {"inference_mode", "megatron_core",
                                                            "peft_version",   "qalora_group_size",
                                                            "runtime_config", "task_type"};

class AdapterConfigReader {
 public:
  AdapterConfigReader(const json::Object& object, std::string_view name)
      : object_(object), name_(name) {}

  Result<AdapterConfig> read() {
    TROUPE_RETURN_IF_ERROR(refuse_others());
    AdapterConfig config;
    TROUPE_RETURN_IF_ERROR(text("base_model_name_or_path", config.base_model_name_or_path));
    TROUPE_RETURN_IF_ERROR(text("revision", config.revision));
    double rank = static_cast<double>(config.rank);
    TROUPE_RETURN_IF_ERROR(number("r", rank));
    if (rank < 1 || rank != std::floor(rank) || rank > 1e6)
      return wrong("r", "expected a whole number of at least 1");
    config.rank = static_cast<std::int64_t>(rank);
    TROUPE_RETURN_IF_ERROR(number("lora_alpha", config.lora_alpha));
    TROUPE_RETURN_IF_ERROR(number("lora_dropout", config.lora_dropout));
    if (!(config.lora_dropout >= 0 && config.lora_dropout < 1))
      return wrong("lora_dropout", "expected a probability in [0, 1)");
    TROUPE_RETURN_IF_ERROR(boolean("fan_in_fan_out", config.fan_in_fan_out));
    TROUPE_RETURN_IF_ERROR(boolean("use_rslora", config.use_rslora));
    TROUPE_RETURN_IF_ERROR(boolean("use_dora", config.use_dora));
    TROUPE_RETURN_IF_ERROR(selection("target_modules", config.target_modules));
    TROUPE_RETURN_IF_ERROR(selection("exclude_modules", config.exclude_modules));
    TROUPE_RETURN_IF_ERROR(names("modules_to_save", config.modules_to_save));
    TROUPE_RETURN_IF_ERROR(pattern("rank_pattern", config.rank_pattern, true));
    TROUPE_RETURN_IF_ERROR(pattern("alpha_pattern", config.alpha_pattern, false));
    TROUPE_RETURN_IF_ERROR(initial_weights(config));
    for (const auto& member : object_)
      if (!known(member.key()))
        config.notes.push_back(fmt::format("{}: the unknown key '{}' is passed over", name_,
                                           std::string_view(member.key())));
    return config;
  }

 private:
  const json::Value* find(std::string_view key) const {
    const json::Value* value = object_.if_contains({key.data(), key.size()});
    return value && !value->is_null() ? value : nullptr;
  }

  Status wrong(std::string_view key, std::string_view expected) const {
    const json::Value* value = find(key);
    return error(Code::kInvalidArgument, "{}: {}: {}, found {}", name_, key, expected,
                 value ? json::write(*value) : "nothing");
  }

  Status refuse_others() const {
    if (const auto* type = find("peft_type"); !type || !type->is_string())
      return wrong("peft_type", "expected \"LORA\"");
    else if (type->get_string() != "LORA")
      return error(Code::kUnsupported, "{}: peft_type={} is not supported: only LoRA adapters are",
                   name_, std::string_view(type->get_string()));
    if (const auto* bias = find("bias"); bias && *bias != json::Value("none"))
      return error(Code::kUnsupported,
                   "{}: bias={} is not supported: adapters train no biases of the base; train with "
                   "bias \"none\"",
                   name_, json::write(*bias));
    for (const AbsentFeature& feature : kAbsentFeatures) {
      const auto* value = find(feature.key);
      if (!value || asks_for_nothing(*value)) continue;
      return error(Code::kUnsupported, "{}: {} is not supported: {}", name_, feature.key,
                   feature.what);
    }
    return {};
  }

  static bool known(std::string_view key) {
    static constexpr std::array<std::string_view, 16> kRead = {"alpha_pattern",
                                                               "base_model_name_or_path",
                                                               "bias",
                                                               "exclude_modules",
                                                               "fan_in_fan_out",
                                                               "init_lora_weights",
                                                               "lora_alpha",
                                                               "lora_dropout",
                                                               "modules_to_save",
                                                               "peft_type",
                                                               "r",
                                                               "rank_pattern",
                                                               "revision",
                                                               "target_modules",
                                                               "use_dora",
                                                               "use_rslora"};
    return std::find(kRead.begin(), kRead.end(), key) != kRead.end() ||
           std::find(kWithoutEffect.begin(), kWithoutEffect.end(), key) != kWithoutEffect.end() ||
           std::any_of(kAbsentFeatures.begin(), kAbsentFeatures.end(),
                       [&](const AbsentFeature& feature) { return feature.key == key; });
  }

  Status text(std::string_view key, std::optional<std::string>& out) const {
    const auto* value = find(key);
    if (!value) return {};
    if (!value->is_string()) return wrong(key, "expected a text");
    out = std::string(value->get_string());
    return {};
  }

  Status number(std::string_view key, double& out) const {
    const auto* value = find(key);
    if (!value) return {};
    if (!value->is_number()) return wrong(key, "expected a number");
    out = value->to_number<double>();
    return {};
  }

  Status boolean(std::string_view key, bool& out) const {
    const auto* value = find(key);
    if (!value) return {};
    if (!value->is_bool()) return wrong(key, "expected true or false");
    out = value->get_bool();
    return {};
  }

  Status names(std::string_view key, std::vector<std::string>& out) const {
    const auto* value = find(key);
    if (!value) return {};
    if (!value->is_array()) return wrong(key, "expected a list of names");
    for (const json::Value& element : value->get_array()) {
      if (!element.is_string() || element.get_string().empty())
        return wrong(key, "expected a list of names");
      out.emplace_back(element.get_string());
    }
    return {};
  }

  Status selection(std::string_view key, ModuleSelection& out) const {
    const auto* value = find(key);
    if (!value || !value->is_string()) return names(key, out.names);
    out.expression = value->get_string();
    return {};
  }

  Status pattern(std::string_view key, json::Object& out, bool whole) const {
    const auto* value = find(key);
    if (!value) return {};
    const std::string expected = fmt::format("expected an object of module names and {}",
                                             whole ? "whole numbers of at least 1" : "numbers");
    if (!value->is_object()) return wrong(key, expected);
    for (const auto& member : value->get_object()) {
      const bool good = member.value().is_number() &&
                        (!whole || (member.value().is_int64() && member.value().get_int64() >= 1 &&
                                    member.value().get_int64() <= 1'000'000));
      if (!good) return wrong(key, expected);
    }
    out = value->get_object();
    return {};
  }

  Status initial_weights(AdapterConfig& config) const {
    const auto* value = find("init_lora_weights");
    if (!value) return {};
    if (value->is_string() && value->get_string() != "gaussian" &&
        !std::string_view(value->get_string()).starts_with("pissa"))
      return error(Code::kUnsupported,
                   "{}: init_lora_weights={} is not supported: true, false, gaussian and pissa are",
                   name_, json::write(*value));
    if (!value->is_bool() && !value->is_string())
      return wrong("init_lora_weights", "expected true, false or a text");
    config.init_lora_weights = *value;
    return {};
  }

  const json::Object& object_;
  std::string_view name_;
};

json::Value text_or_null(const std::optional<std::string>& text) {
  return text ? json::Value(boost::json::string(*text)) : json::Value(nullptr);
}

json::Value list_or_null(const std::vector<std::string>& names) {
  if (names.empty()) return nullptr;
  json::Array list;
  for (const std::string& name : names) list.emplace_back(boost::json::string(name));
  return list;
}

json::Value selection_value(const ModuleSelection& selection) {
  if (!selection.expression.empty()) return boost::json::string(selection.expression);
  return list_or_null(selection.names);
}

}  // namespace

Result<AdapterConfig> AdapterConfig::parse(std::string_view text, std::string_view name) {
  const json::Value value = TROUPE_TRY(json::parse(text, name));
  if (!value.is_object())
    return error(Code::kInvalidArgument, "{}: expected an object, found {}", name,
                 json::write(value).substr(0, 40));
  return AdapterConfigReader(value.get_object(), name).read();
}

bool AdapterConfig::is_pissa() const {
  return init_lora_weights.is_string() &&
         std::string_view(init_lora_weights.get_string()).starts_with("pissa");
}

std::string AdapterConfig::to_text() const { return json::write_indented(to_json(), true); }

json::Object AdapterConfig::to_json() const {
  // An alpha that LLaMA-Factory or PEFT was given is whole.
  const bool whole_alpha = lora_alpha == std::floor(lora_alpha) && std::abs(lora_alpha) < 1e15;
  return json::Object{
      {"alora_invocation_tokens", nullptr},
      {"alpha_pattern", alpha_pattern},
      {"arrow_config", nullptr},
      {"auto_mapping", nullptr},
      {"base_model_name_or_path", text_or_null(base_model_name_or_path)},
      {"bias", "none"},
      {"corda_config", nullptr},
      {"ensure_weight_tying", false},
      {"eva_config", nullptr},
      {"exclude_modules", selection_value(exclude_modules)},
      {"fan_in_fan_out", fan_in_fan_out},
      {"inference_mode", true},
      {"init_lora_weights", init_lora_weights},
      {"layer_replication", nullptr},
      {"layers_pattern", nullptr},
      {"layers_to_transform", nullptr},
      {"loftq_config", json::Object()},
      {"lora_alpha",
       whole_alpha ? json::Value(static_cast<std::int64_t>(lora_alpha)) : json::Value(lora_alpha)},
      {"lora_bias", false},
      {"lora_dropout", lora_dropout},
      {"megatron_config", nullptr},
      {"megatron_core", "megatron.core"},
      {"modules_to_save", list_or_null(modules_to_save)},
      {"peft_type", "LORA"},
      {"peft_version", "0.18.1"},
      {"qalora_group_size", 16},
      {"r", rank},
      {"rank_pattern", rank_pattern},
      {"revision", text_or_null(revision)},
      {"target_modules", selection_value(target_modules)},
      {"target_parameters", nullptr},
      {"task_type", "CAUSAL_LM"},
      {"trainable_token_indices", nullptr},
      {"use_dora", use_dora},
      {"use_qalora", false},
      {"use_rslora", use_rslora},
  };
}

std::optional<std::string> first_difference(const AdapterConfig& checkpoint,
                                            const AdapterConfig& run) {
  const auto differs = [](std::string_view key, const json::Value& theirs,
                          const json::Value& ours) -> std::optional<std::string> {
    if (theirs == ours) return std::nullopt;
    const auto text = [](const json::Value& value) {
      return value.is_double() ? fmt::format("{}", value.get_double()) : json::write(value);
    };
    return fmt::format("{} was {} and is {}", key, text(theirs), text(ours));
  };
  const auto start = [](const AdapterConfig& config) {
    return config.is_pissa() ? config.init_lora_weights : json::Value(false);
  };
  for (auto found : {differs("lora_rank", checkpoint.rank, run.rank),
                     differs("lora_alpha", checkpoint.lora_alpha, run.lora_alpha),
                     differs("alpha_pattern", checkpoint.alpha_pattern, run.alpha_pattern),
                     differs("use_rslora", checkpoint.use_rslora, run.use_rslora),
                     differs("use_dora", checkpoint.use_dora, run.use_dora),
                     differs("pissa_init (init_lora_weights)", start(checkpoint), start(run))})
    if (found) return found;
  return std::nullopt;
}

}  // namespace troupe::train
