#pragma once
// The families of models (`model_type`). Each has a file of its own in families/, which says what
// of config.json it reads and of which parts its layers are made; nothing outside of that file
// knows a family by its name. A new family is a new file there: the build finds it.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::train {

class ConfigReader;
struct ModelConfig;
struct UnitSpec;

// Names of config.json's keys.
struct ConfigKeys {
  std::string_view hidden_size = "hidden_size";
  std::string_view intermediate_size = "intermediate_size";
  std::string_view num_hidden_layers = "num_hidden_layers";
  std::string_view num_attention_heads = "num_attention_heads";
  std::string_view max_position_embeddings = "max_position_embeddings";
  std::string_view norm_eps = "rms_norm_eps";
};

// Names of modules, to which ".weight" and ".bias" are added. All are part of a state dict's names
// as transformers 5 writes them.
struct LayerNames {
  std::string attention_norm;
  // The products that give queries, keys and values: three, or one for all.
  std::vector<std::string> qkv;
  // Norms of query and key heads; empty where there are none.
  std::string query_norm;
  std::string key_norm;
  std::string attention_output;
  std::string post_attention_norm = {};  // with ModelConfig::post_norms, as post_mlp_norm
  std::string mlp_norm;
  // The MLP's first products: as many as its activation takes, or one for all.
  std::vector<std::string> mlp_inputs;
  std::string mlp_output;
  std::string post_mlp_norm = {};
};

struct EndNames {
  std::string token_embedding;
  std::string position_embedding;  // empty with rotary positions
  std::string final_norm;
  std::string output;  // the token embedding when tied
};

// Llama's names, which most families with rotary positions have.
LayerNames llama_layer_names(const ModelConfig& config, std::int64_t layer);
EndNames llama_end_names();
inline constexpr std::string_view kRotaryBuffers[] = {".rotary_emb.inv_freq"};

// What all models of a type have in common. Defaults are those of the type's configuration class in
// transformers 5 (models/*/configuration_*.py).
struct ModelFamily {
  std::string_view model_type;
  std::string_view architecture;            // the class in config.json's `architectures`
  std::string_view base_prefix = "model.";  // of all names but the head's; a file may lack it
  // Of models that hold this one and more (pictures): what stands for base_prefix there, and what
  // all that is not this one begins with.
  std::span<const std::string_view> prefixes_in_wrappers = {};
  std::span<const std::string_view> others_in_wrappers = {};
  // The type of the model in such a model's `text_config`, which is read instead of the rest.
  std::string_view text_type = {};
  ConfigKeys keys = {};
  // 0: the key must be there.
  std::int64_t vocab_size = 0;
  std::int64_t num_attention_heads = 0;
  // Without the key the MLP is so many times as wide as the stream; 0: the key must be there.
  std::int64_t intermediate_factor = 0;
  std::int64_t max_position_embeddings = 0;
  double norm_eps = 1e-6;
  std::optional<std::int64_t> num_key_value_heads = std::nullopt;  // else num_attention_heads
  std::optional<std::int64_t> head_dim = std::nullopt;  // else hidden_size / num_attention_heads
  bool tie_word_embeddings = false;
  std::optional<std::int64_t> bos_token_id = std::nullopt;
  std::optional<std::int64_t> eos_token_id = std::nullopt;

  // Reads the keys that not every family has, chooses the parts (ModelConfig's norm, activation,
  // embedding and so on) and refuses what would be computed otherwise. Sizes have been read.
  void (*read)(ConfigReader& reader, ModelConfig& config) = nullptr;
  // The tensors by units, of what is no language model; null: by the parts and names below.
  std::vector<UnitSpec> (*units)(const ModelConfig& config) = nullptr;
  LayerNames (*layer_names)(const ModelConfig& config, std::int64_t layer) = llama_layer_names;
  EndNames (*end_names)() = llama_end_names;  // of a model whose head is not tied
  // Ends of the names of buffers that older versions of transformers saved among the weights.
  std::span<const std::string_view> saved_buffers = kRotaryBuffers;
};

// Null for a type that is not supported.
const ModelFamily* find_model_family(std::string_view model_type);
// The family of a configuration: its type is supported.
const ModelFamily& family_of(const ModelConfig& config);
// "gpt2, llama, …".
std::string supported_model_types();

LayerNames layer_names(const ModelConfig& config, std::int64_t layer);
EndNames end_names(const ModelConfig& config);

// A parameter's names in files that hold the base model alone (`wte.weight` of the published GPT-2,
// `layers.0.…`) or that of a model with this one in it (`language_model.model.layers.0.…`).
std::vector<std::string> other_names(const ModelConfig& config, std::string_view name);
// The parameter or module name that other_names() gives `name` for, a model's own name unchanged.
std::string own_name(const ModelConfig& config, std::string_view name);
// Whether a tensor that the model does not have may be in a file of weights: a stored copy of a
// tied head, a saved buffer, or what is not this model of one that holds it.
bool ignored_in_weights(const ModelConfig& config, std::string_view name);

}  // namespace troupe::train
