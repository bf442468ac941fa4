#pragma once
// What of a model is trained: everything, some of its tensors, or low-rank adapters beside frozen
// layers.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/tensor/dtype.h"
#include "train/tensor/quantized.h"
#include "train/tensor/update_rule.h"

namespace troupe::train {

// A linear layer with a low-rank adapter (Hu et al., 2021): y = x·Wᵀ + scale·(dropout(x)·Aᵀ)·Bᵀ,
// A (rank, in), B (out, rank). Its tensors are named as in PEFT's files without their prefix:
// MODULE.lora_A.weight, MODULE.lora_B.weight, and with DoRA MODULE.lora_magnitude_vector.
struct LoraModule {
  std::string module;  // as in HF's state dict, without ".weight": "model.layers.0.mlp.up_proj"
  std::int64_t rank = 8;
  double scale = 2.0;    // lora_alpha / rank, with rsLoRA lora_alpha / √rank
  double dropout = 0.0;  // of the adapter's input
  bool dora = false;     // weight-decomposed (Liu et al., 2024): adds a magnitude for each output
  // LoRA+ (Hayou et al., 2024): times the learning rate, for B (and magnitudes).
  double b_learning_rate_factor = 1.0;
  friend bool operator==(const LoraModule&, const LoraModule&) = default;
};

// What the weights of frozen layers' products are kept in, where that is not what the rest of the
// frozen parameters is kept in.
struct QuantizedBase {
  Quantization quantization = {};
  DType beside = DType::kF32;  // of the rest
  // Modules that are of the rest all the same, as transformers' llm_int8_skip_modules: names as in
  // HF's state dict, of a module, of one that holds it, or the ends of such behind a dot.
  std::vector<std::string> skipped = {};
  bool skips(std::string_view module) const;
  friend bool operator==(const QuantizedBase&, const QuantizedBase&) = default;
};

// What the run's optimizer asks of the layout of trained tensors; null: nothing. It follows from
// the run's configuration, and is no part of what is compared or written.
struct LayoutRule : std::shared_ptr<const UpdateRule> {
  friend bool operator==(const LayoutRule&, const LayoutRule&) { return true; }
};

// A model that the trained one is compared with: it shares what is frozen, and has of the rest
// copies that are frozen beside it, named with kReferencePrefix.
enum class Reference {
  kNone,
  kBase,   // the model as it was before training, without adapters: copies of what is trained
  kOther,  // another model of the same configuration: copies of everything
};
inline constexpr std::string_view kReferencePrefix = "reference.";

// The names of a value head: one number for each token, of the last layer's normed output.
inline constexpr std::string_view kValueHeadPrefix = "v_head.";
inline constexpr const char* kValueHeadModule = "v_head.summary";

// Where an optimizer's groups are not transformers'. As the rule, of the configuration, and not of
// a file.
struct OptimizerGroups {
  bool (*decays)(std::string_view name) = nullptr;  // null: parameter_decays()
  // LoRA+: tensors of one dimension take the rate of the matrices B.
  std::optional<double> vector_rate_factor;
  friend bool operator==(const OptimizerGroups&, const OptimizerGroups&) = default;
};

struct Trainables {
  // Every tensor of the model: the rest is empty.
  bool everything = true;
  // Names of the model's own tensors that are trained, as in HF's state dict; all others are
  // frozen.
  std::vector<std::string> tensors;
  // In the model's order.
  std::vector<LoraModule> lora;
  // A head tied to the embedding gets a matrix of its own, equal at first: one of the two is
  // trained, or both apart ("lm_head.weight" may then stand in `tensors`).
  bool unties_head = false;
  QuantizedBase base = {};
  LayoutRule rule = {};
  OptimizerGroups groups = {};
  Reference reference = Reference::kNone;
  // The model's output is a value head, which is trained, in the place of logits.
  bool value_head = false;
  friend bool operator==(const Trainables&, const Trainables&) = default;

  // Whether a checkpoint holds what is trained alone, beside which the model's own folder is
  // needed: adapters. Where some of the model's own tensors are trained it holds all.
  bool adapters_only() const { return !lora.empty(); }
};

json::Value to_json(const Trainables& trainables);
// The inverse; `name` stands in errors.
Result<Trainables> trainables_from_json(const json::Value& value, std::string_view name);

}  // namespace troupe::train
