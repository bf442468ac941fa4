#pragma once
// What config.json says of a model.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/tensor/dtype.h"
#include "train/tensor/quantized.h"

namespace troupe::train {

// How rotary frequencies are stretched for longer contexts (`rope_scaling`, `rope_parameters`), as
// in transformers' modeling_rope_utils.
struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3, kYarn };
  Kind kind = Kind::kNone;
  double factor = 1.0;
  // Default: max_position_embeddings.
  std::int64_t original_max_position_embeddings = 0;
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // yarn. attention_factor multiplies cosines and sines: given, or from the factor and mscale.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 1.0;
  bool truncate = true;
  friend bool operator==(const RopeScaling&, const RopeScaling&) = default;
};

// Rotary positions.
struct Rope {
  double theta = 10000.0;
  RopeScaling scaling;
  friend bool operator==(const Rope&, const Rope&) = default;
};

enum class PositionKind { kRotary, kLearned };

// The parts of which a family chooses: norm.h, mlp.h, embedding.h.
struct NormKind;
extern const NormKind kRmsNorm, kLayerNorm;
struct Activation;
extern const Activation kSwiGlu, kGeluTanh;
struct EmbeddingKind;
extern const EmbeddingKind kTokenEmbedding, kTokenAndPositionEmbedding;

// A decoder-only model. Where config.json lacks a key, the default is that of the type's class in
// transformers 5 (model_family.h); the sizes of the matrices must be there.
struct ModelConfig {
  std::string model_type = "llama";
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_hidden_layers = 0;
  std::int64_t num_attention_heads = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_position_embeddings = 0;

  const NormKind* norm = &kRmsNorm;
  double norm_eps = 1e-6;
  const EmbeddingKind* embedding = &kTokenEmbedding;
  PositionKind positions = PositionKind::kRotary;
  Rope rope;
  std::optional<Rope> window_rope;          // of the windowed layers, where theirs are others
  const Activation* activation = &kSwiGlu;  // of the MLP
  bool qkv_bias = false;
  bool attention_output_bias = false;
  bool mlp_bias = false;
  // RMS norms over each query and key head, before the rotation, times weights as `norm` has them.
  bool qk_norm = false;
  // Norms of what attention and MLP add to the stream, before it is added.
  bool post_norms = false;
  // Weights of the layers' products are stored [in, out] (HF's Conv1D) instead of [out, in].
  bool transposed_weights = false;
  // What adds to the stream begins smaller the more layers add (GPT-2's scheme).
  bool scales_residual_weights = false;
  bool tie_word_embeddings = false;

  // Scores are divided by √head_dim, or the root of another number (`query_pre_attn_scalar`), and
  // in layer i by i + 1 (`scale_attn_by_inverse_layer_idx`).
  bool scale_by_head_dim = true;
  std::optional<double> query_scalar;
  bool scale_by_inverse_layer = false;
  // Tokens of the layers that are marked see the last `sliding_window` tokens only.
  std::optional<std::int64_t> sliding_window;
  std::vector<bool> windowed_layers;  // (num_hidden_layers); empty: none

  // Probabilities, in training alone: of the embeddings' sum, of what attention and MLP add to the
  // stream, of the weights after attention's softmax. In [0, 1).
  double embedding_dropout = 0.0;
  double residual_dropout = 0.0;
  double attention_dropout = 0.0;

  double initializer_range = 0.02;
  std::optional<std::int64_t> bos_token_id;
  std::vector<std::int64_t> eos_token_ids;
  // What `dtype` or `torch_dtype` says the weights are stored in.
  std::optional<DType> dtype;
  // What `quantization_config` says that bitsandbytes keeps the layers' products in; the modules
  // that it leaves as they are (llm_int8_skip_modules).
  Quantization quantization = {};
  std::vector<std::string> quantization_skipped;
  // What the reader of a run should know: keys that are accepted and have no effect here.
  std::vector<std::string> notes;
  // config.json as it was read, for writing it back with keys that mean nothing here. Of a language
  // model within another model (is_part): that model's own object.
  json::Object source;
  bool is_part = false;

  // Of an object as config.json holds it; `name` stands in errors. Whatever would change the
  // computation and is not implemented is refused by its key (kUnsupported); sizes that do not fit
  // together and values of the wrong type are kInvalidArgument.
  static Result<ModelConfig> from_json(const json::Value& value, std::string_view name);
  // Parses the text of a language model's config.json.
  static Result<ModelConfig> parse(std::string_view text, std::string_view name);

  // `source` with the sizes above set where it lacks them or they were changed. Write it with
  // json::write_indented(…, true), as HF does.
  json::Object to_json() const;
  // The config.json to save beside this model's weights: `text`, the one it was read from, or where
  // it is a part its own.
  std::string saved_text(std::string text) const;

  std::int64_t query_width() const { return num_attention_heads * head_dim; }
  std::int64_t key_width() const { return num_key_value_heads * head_dim; }
  // Queries, keys and values side by side.
  std::int64_t qkv_width() const { return query_width() + 2 * key_width(); }
  // Outputs of the MLP's first products.
  std::int64_t mlp_input_width() const;
  // Numbers that a norm keeps of so many rows for its backward pass, and those of query and key
  // heads together.
  std::int64_t norm_statistics(std::int64_t rows) const;
  std::int64_t head_norm_statistics(std::int64_t rows) const;
  bool has_dropout() const {
    return embedding_dropout > 0 || residual_dropout > 0 || attention_dropout > 0;
  }
  // What scores are multiplied by.
  double attention_scale(std::int64_t layer) const;
  // Tokens that a token of the layer sees, itself included; nothing where it sees all before it.
  std::optional<std::int64_t> window(std::int64_t layer) const;
  // Tokens a row may have at most: the rows of a learned position table. Rotary positions have no
  // such end.
  std::optional<std::int64_t> length_limit() const;
};

}  // namespace troupe::train
