#include "train/model/model_family.h"

#include <algorithm>

#include <fmt/format.h>

#include "runtime/base/check.h"
#include "train/model/model_config.h"

namespace troupe::train {

// families.def, which the build writes, has a row for each file in families/: FILE.cpp defines
// FILE_family().
#define TROUPE_FAMILY(name) const ModelFamily& name##_family();
#include "train/model/families.def"
#undef TROUPE_FAMILY

namespace {

#define TROUPE_FAMILY(name) name##_family,
constexpr const ModelFamily& (*kFamilies[])() = {
#include "train/model/families.def"
};
#undef TROUPE_FAMILY

// Before the head's name, in models that hold another one.
constexpr std::string_view kWrappedHead = "language_model.";

}  // namespace

const ModelFamily* find_model_family(std::string_view model_type) {
  for (const auto& family : kFamilies)
    if (family().model_type == model_type) return &family();
  return nullptr;
}

const ModelFamily& family_of(const ModelConfig& config) {
  const ModelFamily* family = find_model_family(config.model_type);
  TROUPE_CHECK(family, "{}", config.model_type);
  return *family;
}

std::string supported_model_types() {
  std::string list;
  for (const auto& family : kFamilies)
    if (!family().units) list += (list.empty() ? "" : ", ") + std::string(family().model_type);
  return list;
}

LayerNames llama_layer_names(const ModelConfig& config, std::int64_t layer) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.", mlp = prefix + "mlp.";
  return {.attention_norm = prefix + "input_layernorm",
          .qkv = {attention + "q_proj", attention + "k_proj", attention + "v_proj"},
          .query_norm = config.qk_norm ? attention + "q_norm" : "",
          .key_norm = config.qk_norm ? attention + "k_norm" : "",
          .attention_output = attention + "o_proj",
          .mlp_norm = prefix + "post_attention_layernorm",
          .mlp_inputs = {mlp + "gate_proj", mlp + "up_proj"},
          .mlp_output = mlp + "down_proj"};
}

EndNames llama_end_names() { return {"model.embed_tokens", "", "model.norm", "lm_head"}; }

LayerNames layer_names(const ModelConfig& config, std::int64_t layer) {
  return family_of(config).layer_names(config, layer);
}

EndNames end_names(const ModelConfig& config) {
  EndNames names = family_of(config).end_names();
  if (config.tie_word_embeddings) names.output = names.token_embedding;
  return names;
}

std::vector<std::string> other_names(const ModelConfig& config, std::string_view name) {
  const ModelFamily& family = family_of(config);
  const std::string_view prefix = family.base_prefix;
  if (!name.starts_with(prefix)) {
    if (family.prefixes_in_wrappers.empty()) return {};
    return {std::string(kWrappedHead) + std::string(name)};
  }
  const std::string_view rest = name.substr(prefix.size());
  std::vector<std::string> names{std::string(rest)};
  for (const std::string_view other : family.prefixes_in_wrappers)
    names.push_back(std::string(other) + std::string(rest));
  return names;
}

std::string own_name(const ModelConfig& config, std::string_view name) {
  const ModelFamily& family = family_of(config);
  for (const std::string_view other : family.prefixes_in_wrappers)
    if (name.starts_with(other))
      return std::string(family.base_prefix) + std::string(name.substr(other.size()));
  if (!family.prefixes_in_wrappers.empty() && name.starts_with(kWrappedHead))
    name.remove_prefix(kWrappedHead.size());
  return std::string(name);
}

bool ignored_in_weights(const ModelConfig& config, std::string_view name) {
  const ModelFamily& family = family_of(config);
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  if (std::ranges::any_of(family.others_in_wrappers, begins)) return true;
  if (begins(kValueHeadPrefix)) return true;  // of a reward model
  std::string_view head = name;
  if (!family.prefixes_in_wrappers.empty() && begins(kWrappedHead))
    head.remove_prefix(kWrappedHead.size());
  if (config.tie_word_embeddings && head == family.end_names().output + ".weight") return true;
  return std::ranges::any_of(family.saved_buffers,
                             [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace troupe::train
