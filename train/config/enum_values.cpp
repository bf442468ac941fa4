// Enumerations and their words.
#include "train/config/values.h"

namespace troupe::train {
namespace {

// The first word of a value is how it is written; the others are read too.
template <typename E>
struct Word {
  E value;
  std::string_view text;
};

constexpr Word<TrainingStage> kStageWords[] = {{TrainingStage::kPretrain, "pt"},
                                               {TrainingStage::kSupervised, "sft"},
                                               {TrainingStage::kReward, "rm"},
                                               {TrainingStage::kDpo, "dpo"},
                                               {TrainingStage::kKto, "kto"}};

constexpr Word<FinetuningType> kFinetuningWords[] = {{FinetuningType::kFull, "full"},
                                                     {FinetuningType::kFreeze, "freeze"},
                                                     {FinetuningType::kLora, "lora"}};

constexpr Word<IntervalStrategy> kIntervalWords[] = {
    {IntervalStrategy::kNo, "no"},
    {IntervalStrategy::kSteps, "steps"},
    {IntervalStrategy::kEpoch, "epoch"},
    {IntervalStrategy::kBest, "best"},
};

constexpr Word<ActivationCheckpointing> kCheckpointingWords[] = {
    {ActivationCheckpointing::kNone, "none"},
    {ActivationCheckpointing::kFull, "full"},
    {ActivationCheckpointing::kSelective, "selective"},
};

constexpr Word<Precision> kPrecisionWords[] = {
    {Precision::kFloat32, "float32"}, {Precision::kBfloat16, "bfloat16"},
    {Precision::kFloat16, "float16"}, {Precision::kFloat32, "fp32"},
    {Precision::kBfloat16, "bf16"},
};

constexpr Word<Deterministic> kDeterministicWords[] = {
    {Deterministic::kStrategy, "strategy"},
    {Deterministic::kAcrossWorldSizes, "across_world_sizes"},
    {Deterministic::kOff, "off"},
};

constexpr Word<OffloadChoice> kOffloadWords[] = {
    {OffloadChoice::kNone, "none"},
    {OffloadChoice::kOptimizer, "optimizer"},
    {OffloadChoice::kParameters, "parameters"},
};

constexpr Word<CheckpointFormat> kFormatWords[] = {
    {CheckpointFormat::kHf, "hf"},
    {CheckpointFormat::kSharded, "sharded"},
};

constexpr Word<StepRules> kStepRuleWords[] = {
    {StepRules::kTransformers, "transformers"},
    {StepRules::kAxolotl, "axolotl"},
};

template <typename E, std::size_t N>
Status read_word(const Word<E> (&words)[N], const json::Value& value, E& out) {
  const auto text = TROUPE_TRY(read_text(value));
  std::vector<std::string> known;
  for (const auto& word : words) {
    if (word.text == text) {
      out = word.value;
      return {};
    }
    known.emplace_back(word.text);
  }
  return error(Code::kInvalidArgument, "expected {}, found {}", join_words(known, " or "),
               json::write(value));
}

template <typename E, std::size_t N>
json::Value word_of(const Word<E> (&words)[N], E value) {
  for (const auto& word : words) {
    if (word.value == value) return to_value(std::string(word.text));
  }
  return nullptr;
}

}  // namespace

Status from_value(const json::Value& value, TrainingStage& out) {
  return read_word(kStageWords, value, out);
}
Status from_value(const json::Value& value, FinetuningType& out) {
  return read_word(kFinetuningWords, value, out);
}
Status from_value(const json::Value& value, IntervalStrategy& out) {
  return read_word(kIntervalWords, value, out);
}
Status from_value(const json::Value& value, ActivationCheckpointing& out) {
  return read_word(kCheckpointingWords, value, out);
}
Status from_value(const json::Value& value, Precision& out) {
  return read_word(kPrecisionWords, value, out);
}
Status from_value(const json::Value& value, Deterministic& out) {
  return read_word(kDeterministicWords, value, out);
}
Status from_value(const json::Value& value, OffloadChoice& out) {
  return read_word(kOffloadWords, value, out);
}
Status from_value(const json::Value& value, CheckpointFormat& out) {
  return read_word(kFormatWords, value, out);
}

Status from_value(const json::Value& value, StepRules& out) {
  return read_word(kStepRuleWords, value, out);
}

json::Value to_value(StepRules value) { return word_of(kStepRuleWords, value); }
json::Value to_value(TrainingStage value) { return word_of(kStageWords, value); }
json::Value to_value(FinetuningType value) { return word_of(kFinetuningWords, value); }
json::Value to_value(IntervalStrategy value) { return word_of(kIntervalWords, value); }
json::Value to_value(ActivationCheckpointing value) { return word_of(kCheckpointingWords, value); }
json::Value to_value(Precision value) { return word_of(kPrecisionWords, value); }
json::Value to_value(Deterministic value) { return word_of(kDeterministicWords, value); }
json::Value to_value(OffloadChoice value) { return word_of(kOffloadWords, value); }
json::Value to_value(CheckpointFormat value) { return word_of(kFormatWords, value); }

}  // namespace troupe::train
