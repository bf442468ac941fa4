#include "train/config/resolve.h"

#include "train/config/keys.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

// The value of a given key, or nothing. Null counts as not given.
const json::Value* find_given(const json::Object& values, std::string_view key) {
  const auto* value = values.if_contains({key.data(), key.size()});
  return value && !value->is_null() ? value : nullptr;
}

std::optional<bool> given_flag(const json::Object& values, std::string_view key) {
  const auto* value = find_given(values, key);
  if (!value || !value->is_bool()) return std::nullopt;
  return value->get_bool();
}

}  // namespace

void resolve_defaults(LoadedConfig& loaded, const json::Object& values) {
  auto& config = loaded.config;
  if (config.data.neat_packing) {
    if (given_flag(values, "packing") == false)
      loaded.warnings.push_back("neat_packing requires packing, which is changed to true");
    config.data.packing = true;
  } else if (!find_given(values, "packing")) {
    config.data.packing = config.method.stage == TrainingStage::kPretrain;
  }
  if (config.method.compares_answers() && std::exchange(config.data.packing, false))
    loaded.warnings.push_back("packing=true has no effect: answers that are compared lie apart");
  auto& evaluation = config.evaluation;
  // As TrainingArguments: a strategy turns do_eval on; "loss" and "eval_loss" are one metric.
  if (evaluation.strategy != IntervalStrategy::kNo) evaluation.do_eval = true;
  auto& metric = evaluation.metric_for_best_model;
  if (metric.empty() || metric == "loss") metric = "eval_loss";
  if (!metric.starts_with("eval_")) metric.insert(0, "eval_");
  if (evaluation.val_size > 1e-6 && !evaluation.do_eval && !evaluation.on_start) {
    loaded.warnings.push_back(fmt::format(
        "val_size={} keeps data back that nothing evaluates on: eval_strategy is no and "
        "do_eval is false",
        evaluation.val_size));
  }
}

void resolve_precision(LoadedConfig& loaded, const json::Object& values, Problems& problems) {
  auto& model = loaded.config.model;
  for (const char* key : {"pure_bf16", "fp8"}) {
    if (model.compute == Precision::kFloat16 && given_flag(values, key) == true)
      problems.add(Code::kInvalidArgument, key,
                   fmt::format("{}=true and fp16 disagree: {} computes in bf16; leave one of them "
                               "out",
                               key, key));
  }
  if (model.state == Precision::kBfloat16) {
    if (given_flag(values, "bf16") == false) {
      problems.add(Code::kInvalidArgument, "pure_bf16",
                   "pure_bf16=true and bf16=false disagree: pure_bf16 computes in bf16; leave one "
                   "of them out");
    }
    model.compute = Precision::kBfloat16;
  }
  if (model.stochastic_rounding && model.state != Precision::kBfloat16) {
    loaded.warnings.push_back(fmt::format(
        "troupe.stochastic_rounding={} has no effect: parameters and optimizer state are kept in "
        "fp32, which rounds nothing away; pure_bf16: true keeps them in bf16",
        *model.stochastic_rounding));
  }
  if (model.fp8) {
    if (given_flag(values, "bf16") == false) {
      problems.add(Code::kInvalidArgument, "fp8",
                   "fp8=true and bf16=false disagree: what fp8 does not reach is computed in bf16; "
                   "leave one of them out");
    }
    model.compute = Precision::kBfloat16;
  }
  const std::string computes = value_text(to_value(model.compute));
  for (const auto& [key, wanted] :
       {std::pair("bf16", Precision::kBfloat16), std::pair("fp16", Precision::kFloat16)}) {
    const std::string full_eval = fmt::format("{}_full_eval", key);
    if (given_flag(values, full_eval) == true && model.compute != wanted)
      problems.add_named(Code::kUnsupported, full_eval,
                         fmt::format("{}=true is not supported: an evaluation computes as training "
                                     "does, in {} here; use {}: true, or leave {} out",
                                     full_eval, computes, key, full_eval));
  }
}

void resolve_activation_checkpointing(LoadedConfig& loaded, const json::Object& values,
                                      const std::string& fsdp_key, Problems& problems) {
  constexpr const char* kKey = "troupe.activation_checkpointing";
  auto& model = loaded.config.model;
  const auto disabled = given_flag(values, "disable_gradient_checkpointing");
  const auto disagree = [&](std::string_view other) {
    problems.add(Code::kInvalidArgument, kKey,
                 fmt::format("{}={} and {} disagree; leave one of them out", kKey,
                             value_text(to_value(model.activation_checkpointing)), other));
  };
  if (find_given(values, kKey)) {
    const bool none = model.activation_checkpointing == ActivationCheckpointing::kNone;
    if (disabled && *disabled != none) {
      disagree(fmt::format("disable_gradient_checkpointing={}", *disabled));
    }
    if (!fsdp_key.empty() && none) disagree(fsdp_key + "=true");
    return;
  }
  model.activation_checkpointing = model.disable_gradient_checkpointing
                                       ? ActivationCheckpointing::kNone
                                       : ActivationCheckpointing::kFull;
  if (fsdp_key.empty() || !model.disable_gradient_checkpointing) return;
  model.activation_checkpointing = ActivationCheckpointing::kFull;
  loaded.warnings.push_back(fmt::format(
      "activations are computed again in the backward pass: {} turns on what "
      "disable_gradient_checkpointing turns off; troupe.activation_checkpointing decides for both",
      fsdp_key));
}

}  // namespace troupe::train
