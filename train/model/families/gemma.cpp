#include "train/model/families/gemma.h"

#include <cmath>

#include <fmt/format.h>

#include "train/model/embedding.h"
#include "train/model/mlp.h"
#include "train/model/norm.h"
#include "train/model/rope_config.h"
#include "train/tensor/convert.h"

namespace troupe::train {
namespace {

// The tokens' vectors are multiplied by √(hidden size), as a number of the type that the model is
// computed in.
float embedding_factor(const EmbeddingPass& pass) {
  const auto factor = static_cast<float>(std::sqrt(static_cast<double>(pass.config.hidden_size)));
  const bool bf16 = pass.activations.options().compute == DType::kBF16;
  return bf16 ? bf16_to_float(float_to_bf16(factor)) : factor;
}

void scale_rows(const EmbeddingPass& pass, Elements x) {
  const std::int64_t width = pass.config.hidden_size;
  pass.operators.scale(x, width, embedding_factor(pass), pass.tokens, width);
}

// RMS norm times 1 + w, which the forward pass leaves behind the rows' rstd.
float* weight_plus_one(const NormPass& p) { return p.statistics + p.rows; }

NormPass with_weight_plus_one(const NormPass& p) {
  NormPass of_rms = p;
  of_rms.weight = weight_plus_one(p);
  return of_rms;
}

NormPass begin_forward(const NormPass& p) {
  p.operators.add_number(p.weight, 1.0f, weight_plus_one(p), p.width);
  return with_weight_plus_one(p);
}

}  // namespace

const EmbeddingKind kScaledTokenEmbedding{
    .operators = {OperatorName::embedding_forward, OperatorName::embedding_backward,
                  OperatorName::scale},
    .forward =
        [](const EmbeddingPass& pass, const UnitParameters& unit, Elements x) {
          kTokenEmbedding.forward(pass, unit, x);
          scale_rows(pass, x);
        },
    .backward =
        [](const EmbeddingPass& pass, const UnitGradient& gradient, Elements dx) {
          scale_rows(pass, dx);
          kTokenEmbedding.backward(pass, gradient, dx);
        }};

const NormKind kOffsetRmsNorm{
    .has_bias = false,
    .decays_by_name = true,
    .initial_weight = InitialValue::Kind::kZeros,
    .weight_offset = 1.0f,
    .operators = {OperatorName::add_number, OperatorName::rms_norm_forward,
                  OperatorName::residual_rms_norm_forward, OperatorName::rms_norm_apply,
                  OperatorName::rms_norm_backward},
    .statistics = [](std::int64_t rows, std::int64_t width) { return rows + width; },
    .forward = [](const NormPass& p, ConstElements x,
                  Elements y) { kRmsNorm.forward(begin_forward(p), x, y); },
    .residual_forward =
        [](const NormPass& p, ConstElements x, ConstElements delta, Elements sum, Elements y) {
          kRmsNorm.residual_forward(begin_forward(p), x, delta, sum, y);
        },
    .apply = [](const NormPass& p, ConstElements x,
                Elements y) { kRmsNorm.apply(with_weight_plus_one(p), x, y); },
    .backward =
        [](const NormPass& p, ConstElements dy, ConstElements x, Elements dx, float* dweight,
           float* dbias) {
          kRmsNorm.backward(with_weight_plus_one(p), dy, x, dx, dweight, dbias);
        }};

const Activation kGeGlu{
    .inputs = 2,
    .is_gelu_epilogue = false,
    .operators = {OperatorName::geglu_forward, OperatorName::geglu_backward},
    .forward = [](Operators& operators, ConstElements product, Elements hidden, std::int64_t rows,
                  std::int64_t width) { operators.geglu_forward(product, hidden, rows, width); },
    .backward =
        [](Operators& operators, Elements product, ConstElements dhidden, Elements hidden,
           std::int64_t rows, std::int64_t width) {
          operators.geglu_backward(product, dhidden, hidden, rows, width);
        }};

void read_gemma_parts(ConfigReader& reader, ModelConfig& config) {
  config.embedding = &kScaledTokenEmbedding;
  config.norm = &kOffsetRmsNorm;
  config.activation = &kGeGlu;
  read_attention_bias(reader, config);
  refuse_true(reader, config, "mlp_bias");
  refuse_true(reader, config, "use_bidirectional_attention");
  // In the first published files "gelu" stands for the tanh form, which transformers computes.
  const std::string instead = fmt::format("{} models use gelu_pytorch_tanh", config.model_type);
  read_activation(reader, "hidden_act", {"gelu_pytorch_tanh", "gelu_new", "gelu"}, instead);
  read_activation(reader, "hidden_activation", {"gelu_pytorch_tanh", "gelu_new"}, instead);
  read_dropout(reader, config, {{"attention_dropout", &config.attention_dropout, 0.0}});
}

namespace {

void read_gemma(ConfigReader& reader, ModelConfig& config) {
  read_gemma_parts(reader, config);
  read_rope(reader, config);
  refuse_sliding_window(reader, config);
}

}  // namespace

const ModelFamily& gemma_family() {
  static const ModelFamily kGemma{.model_type = "gemma",
                                  .architecture = "GemmaForCausalLM",
                                  .max_position_embeddings = 8192,
                                  .num_key_value_heads = 16,
                                  .head_dim = 256,
                                  .tie_word_embeddings = true,
                                  .bos_token_id = 2,
                                  .eos_token_id = 1,
                                  .read = read_gemma};
  return kGemma;
}

}  // namespace troupe::train
