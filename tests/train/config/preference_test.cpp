// Keys of the preference stages: what is stored, what belongs to which stage, what is refused.

#include <doctest/doctest.h>

#include "tests/train/config/load_helpers.h"

namespace troupe::train {
namespace {

using namespace tests;

Result<LoadedConfig> stage(const std::string& name, std::string_view lines = "") {
  return load_with(lines, {"stage=" + name, "template=llama3", "finetuning_type=full"});
}

TEST_CASE("the keys of dpo and kto, with LLaMA-Factory's defaults") {
  const MethodSection plain = accepted(stage("dpo")).config.method;
  CHECK(plain.stage == TrainingStage::kDpo);
  CHECK(plain.pref_beta == 0.1);
  CHECK(plain.pref_loss == "sigmoid");
  CHECK(plain.simpo_gamma == 0.5);
  CHECK_FALSE(plain.ld_alpha);
  CHECK(plain.has_reference());
  const MethodSection dpo =
      accepted(stage("dpo",
                     "pref_beta: 2.0\npref_loss: simpo\nsimpo_gamma: 1\nld_alpha: 0.5\n"
                     "pref_ftx: 0.2\n"))
          .config.method;
  CHECK(dpo.pref_beta == 2.0);
  CHECK(dpo.simpo_gamma == 1);
  CHECK(dpo.ld_alpha == 0.5);
  CHECK_FALSE(dpo.has_reference());
  const MethodSection kto =
      accepted(stage("kto", "kto_chosen_weight: 2\nref_model: r\nref_model_adapters: a,b\n"))
          .config.method;
  CHECK(kto.kto_chosen_weight == 2);
  CHECK(kto.ref_model == "r");
  CHECK(kto.ref_model_adapters == std::vector<std::string>{"a", "b"});
  const TrainConfig rm = accepted(stage("rm", "packing: true\n")).config;
  CHECK(rm.method.stage == TrainingStage::kReward);
  CHECK_FALSE(rm.method.has_reference());
  CHECK_FALSE(rm.data.packing);
  const MethodSection asft = accepted(stage("sft", "use_asft_loss: true\n")).config.method;
  CHECK(asft.asft_alpha == 0.1);
  CHECK(asft.has_reference());
}

TEST_CASE("what preference stages do not do is refused by name") {
  CHECK(contains(refusal(stage("ppo")), "stage=ppo is not supported"));
  CHECK(contains(refusal(stage("dpo", "pref_loss: kto_pair\n")), "pref_loss=kto_pair"));
  CHECK(contains(refusal(stage("dpo", "pref_bco_weight: 0.5\n")), "pref_bco_weight"));
  CHECK(contains(refusal(stage("dpo", "pref_beta: 0\n")), "pref_beta"));
  CHECK(contains(refusal(stage("dpo", "pref_loss: hinge\ndpo_label_smoothing: 0.1\n")),
                 "`dpo_label_smoothing` is only valid for sigmoid loss function."));
  CHECK(contains(refusal(stage("dpo", "ref_model: r\nref_model_quantization_bit: 4\n")),
                 "ref_model_quantization_bit"));
  CHECK(contains(refusal(stage("kto", "neat_packing: true\n")), "except SFT"));
  CHECK(contains(refusal(stage("dpo", "use_asft_loss: true\n")), "a loss of stage=sft"));
  CHECK(contains(refusal(stage("sft", "use_asft_loss: true\nuse_dft_loss: true\n")),
                 "leave all but one out"));
}

TEST_CASE("what the reference cannot be asked about before training is refused") {
  const std::string key = "troupe.precompute_ref_log_probs: true\n";
  for (const char* name : {"stage=dpo", "stage=kto"})
    CHECK(accepted(load_with(key, {name, "template=llama3", "finetuning_type=full",
                                   "train_from_scratch=false"}))
              .config.troupe.precompute_ref_log_probs);
  CHECK(contains(refusal(stage("dpo", key + "streaming: true\n")),
                 "a stream's samples are not known before training"));
  CHECK(contains(refusal(stage("dpo", key)), "a model that is trained from scratch has no files"));
  // Another model has files, whatever is done to this one; and where there is no reference the key
  // has no effect, and refuses nothing.
  CHECK(accepted(stage("dpo", key + "ref_model: r\n")).config.asks_reference_before());
  CHECK_FALSE(accepted(stage("dpo", key + "pref_loss: orpo\n")).config.asks_reference_before());
  CHECK_FALSE(accepted(stage("sft", key + "use_asft_loss: true\n")).config.asks_reference_before());
  CHECK(contains(refusal(load_with(key + "quantization_bit: 4\n",
                                   {"stage=dpo", "template=llama3", "finetuning_type=lora"})),
                 "beside adapters a reference takes no memory"));
}

}  // namespace
}  // namespace troupe::train
