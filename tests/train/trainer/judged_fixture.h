#pragma once
// Runs of the preference stages on a tiny model and answers that were made for it.
#include <string>

#include "tests/train/trainer/run_fixture.h"

namespace troupe::train::tests {

struct JudgedRun {
  TrainingStage stage = TrainingStage::kDpo;
  bool lora = true;
  std::string strategy = "ddp";
  int world = 2;
  std::string loss = "sigmoid";
  bool bf16 = false;
  std::string resume = "";
};

inline TokenDataset judged_samples(TokenDataset::Kind kind) {
  TokenDataset dataset(kind, 0);
  SeededRandom random(5);
  for (int sample = 0; sample < 24; ++sample) {
    std::vector<TokenId> ids;
    std::vector<std::int32_t> labels, parts;
    for (int part = 0; part < 2; ++part) {
      const int length = 5 + static_cast<int>(random.below(8));
      // The good answer counts upwards.
      TokenId id = static_cast<TokenId>(random.below(30));
      for (int i = 0; i < length; ++i) {
        id = part == 0 ? static_cast<TokenId>(id % 62 + 1) : static_cast<TokenId>(random.below(62));
        ids.push_back(id);
        labels.push_back(i < 2 ? kIgnoredLabel : id);
      }
      parts.push_back(length);
    }
    if (kind == TokenDataset::Kind::kFeedback && sample % 3 != 1) parts.push_back(0);
    dataset.append(ids, labels, parts);
  }
  return dataset;
}

inline Trainables judged_trainables(const ModelConfig& model, const JudgedRun& run) {
  Trainables trainables;
  if (run.lora) {
    trainables.everything = false;
    const ParameterLayout layout(model);
    for (const ParameterInfo& info : layout.parameters())
      if (info.name.find("_proj.weight") != std::string::npos)
        trainables.lora.push_back({.module = info.name.substr(0, info.name.size() - 7),
                                   .rank = 4,
                                   // A reward model's adapters may drop their inputs.
                                   .dropout = run.stage == TrainingStage::kReward ? 0.1 : 0});
  }
  trainables.value_head = run.stage == TrainingStage::kReward;
  const bool compares =
      run.stage == TrainingStage::kKto || (run.stage == TrainingStage::kDpo && run.loss != "simpo");
  if (compares) trainables.reference = Reference::kBase;
  return trainables;
}

inline RunChange judged_change(const JudgedRun& run) {
  return {.world = run.world,
          .batch = 2,
          .accumulation = 4 / run.world,
          .resume = run.resume,
          .change = [=](RunBundle& bundle) {
            auto& config = bundle.config;
            config.method.stage = run.stage;
            config.method.pref_loss = run.loss;
            config.method.pref_ftx = 0.1;
            config.data.packing = false;
            config.sharding.strategy = run.strategy;
            if (run.bf16) config.model.compute = Precision::kBfloat16;
            config.training.max_steps = 5;
            config.training.save_steps = 4;
            config.training.logging_steps = 2;
            bundle.dataset =
                judged_samples(run.stage == TrainingStage::kKto ? TokenDataset::Kind::kFeedback
                                                                : TokenDataset::Kind::kPairs);
            bundle.eval = bundle.dataset;
            config.evaluation.strategy = IntervalStrategy::kSteps;
            config.evaluation.do_eval = true;
            config.evaluation.eval_steps = 4;
            config.evaluation.per_device_eval_batch_size = 5;
            bundle.trainables = judged_trainables(bundle.model, run);
            config.finetuning.type = run.lora ? FinetuningType::kLora : FinetuningType::kFull;
          }};
}

}  // namespace troupe::train::tests
