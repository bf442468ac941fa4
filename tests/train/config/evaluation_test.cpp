// The keys of evaluation and what they must say together.

#include "tests/train/config/load_helpers.h"

namespace troupe::train {
namespace {

using namespace tests;

std::string refused_evaluation(std::string_view lines, std::vector<std::string> arguments = {}) {
  return refusal(load_with(lines, std::move(arguments)));
}

TEST_CASE("evaluation is off by default") {
  const auto evaluation = accepted(load_with("")).config.evaluation;
  CHECK(evaluation.strategy == IntervalStrategy::kNo);
  CHECK_FALSE(evaluation.do_eval);
  CHECK_FALSE(evaluation.eval_steps);
  CHECK(evaluation.metric_for_best_model == "eval_loss");
  CHECK(evaluation.per_device_eval_batch_size == 8);
}

TEST_CASE("evaluation keys become fields") {
  const auto config = accepted(load_with(R"(val_size: 0.1
per_device_eval_batch_size: 1
eval_strategy: steps
eval_steps: 250
eval_delay: 100
eval_on_start: true
save_strategy: steps
load_best_model_at_end: true
metric_for_best_model: loss
early_stopping_steps: 3)"))
                          .config;
  const auto& evaluation = config.evaluation;
  CHECK(evaluation.val_size == 0.1);
  CHECK(evaluation.per_device_eval_batch_size == 1);
  CHECK(evaluation.strategy == IntervalStrategy::kSteps);
  CHECK(evaluation.eval_steps == 250);
  CHECK(evaluation.delay == 100);
  CHECK(evaluation.on_start);
  CHECK(evaluation.do_eval);
  CHECK(evaluation.load_best_model_at_end);
  CHECK(evaluation.metric_for_best_model == "eval_loss");
  CHECK_FALSE(evaluation.greater_is_better);
  CHECK(evaluation.early_stopping_steps == 3);

  const auto names = accepted(load_with("eval_dataset: a, b\ndo_eval: true\ngreater_is_better: true"
                                        "\nbf16: true\nbf16_full_eval: true"))
                         .config;
  CHECK(names.evaluation.eval_dataset == std::vector<std::string>{"a", "b"});
  CHECK(names.evaluation.do_eval);
  CHECK(names.evaluation.strategy == IntervalStrategy::kNo);
  CHECK(names.evaluation.greater_is_better == true);
  CHECK(accepted(load_with("val_size: 100\nevaluation_strategy: epoch\nsave_strategy: best"))
            .config.training.save_strategy == IntervalStrategy::kBest);
}

TEST_CASE("data to evaluate on") {
  constexpr const char* kMissing = "Please make sure eval_dataset be provided or val_size >1e-6";
  CHECK(contains(refused_evaluation("eval_strategy: steps"),
                 std::string("eval_strategy: ") + kMissing));
  CHECK(contains(refused_evaluation("do_eval: true"), std::string("do_eval: ") + kMissing));
  CHECK(contains(refused_evaluation("eval_on_start: true"),
                 std::string("eval_on_start: ") + kMissing));
  CHECK(contains(refused_evaluation("val_size: 0.1\neval_dataset: a\neval_strategy: steps"),
                 "Cannot specify `val_size` if `eval_dataset` is not None."));
  CHECK(contains(refused_evaluation("val_size: 1"), "leaves nothing to train on"));
  CHECK(contains(refused_evaluation("val_size: 10.5"), "neither a whole number of samples"));
  CHECK(contains(refused_evaluation("val_size: 0.1\ntroupe: {held_out: 0.1}"),
                 "troupe.held_out=0.1 and val_size=0.1 both keep data back"));
  CHECK(load_with("eval_dataset: a\neval_strategy: epoch\ntroupe: {held_out: 0.1}").ok());
  CHECK(contains(refused_evaluation("streaming: true\nval_size: 0.1"),
                 "Streaming mode should have an integer val size."));
}

TEST_CASE("the best model, in transformers' words") {
  const std::string best = "val_size: 0.1\nload_best_model_at_end: true\n";
  CHECK(contains(refused_evaluation(best + "eval_strategy: epoch"),
                 "load_best_model_at_end: --load_best_model_at_end requires the save and eval "
                 "strategy to match, except when --save_strategy=\"best\", but found\n"
                 "- Evaluation strategy: epoch\n- Save strategy: steps"));
  CHECK(contains(refused_evaluation(best + "eval_strategy: steps\neval_steps: 200"),
                 "requires the saving steps to be a round multiple of the evaluation steps, but "
                 "found 500, which is not a round multiple of 200."));
  CHECK(contains(refused_evaluation(best + "eval_strategy: steps\neval_steps: 1000"),
                 "round multiple"));
  CHECK(contains(refused_evaluation(best + "eval_strategy: steps\neval_steps: 0.1"),
                 "cannot get guaranteed when mixing ratio and absolute steps for save_steps 500.0 "
                 "and eval_steps 0.1."));
  CHECK(load_with(best + "eval_strategy: steps\neval_steps: 0.1\nsave_steps: 0.3").ok());
  CHECK(load_with(best + "eval_strategy: steps\nlogging_steps: 50").ok());
  CHECK(contains(refused_evaluation(best + "eval_strategy: steps\nlogging_steps: 300"),
                 "multiple of 300"));
  CHECK(load_with(best + "eval_strategy: epoch\nsave_strategy: best").ok());
  CHECK(contains(refused_evaluation(best + "save_strategy: no"), "there is no best checkpoint"));
  CHECK(contains(refused_evaluation("save_strategy: best"), "use eval_strategy: steps or epoch"));
  CHECK(
      contains(refused_evaluation("early_stopping_steps: 3"), "use eval_strategy: steps or epoch"));
  CHECK(contains(refused_evaluation("early_stopping_steps: 0"), "too small"));
  CHECK(contains(refused_evaluation("val_size: 0.1\neval_strategy: steps\neval_steps: 2.5"),
                 "neither a whole number of steps"));
}

TEST_CASE("eval_on_each_dataset: metrics of each data set, one of which the best model is by") {
  const std::string each = "eval_dataset: a, b\neval_on_each_dataset: true\neval_strategy: steps\n";
  const auto plain = accepted(load_with(each)).config.evaluation;
  CHECK(plain.is_by_dataset());
  CHECK_FALSE(plain.dataset_of_metric());
  CHECK(contains(refused_evaluation(each + "load_best_model_at_end: true"),
                 "'eval_loss' is not found in the evaluation metrics. The available evaluation "
                 "metrics are: eval_a_loss, eval_b_loss"));
  CHECK(contains(refused_evaluation(each, {"lr_scheduler_type=reduce_lr_on_plateau"}),
                 "'eval_loss' is not found"));
  CHECK(contains(refused_evaluation(each + "metric_for_best_model: c_loss"), "eval_c_loss"));
  for (const char* metric : {"b_loss", "eval_b_loss"}) {
    const auto best = accepted(
        load_with(each + "load_best_model_at_end: true\n" + "metric_for_best_model: " + metric));
    CHECK(best.config.evaluation.dataset_of_metric() == "b");
  }
  CHECK(contains(refused_evaluation(each + "metric_for_best_model: b_accuracy"),
                 "metric_for_best_model=eval_b_accuracy is not supported"));
  const auto without =
      accepted(load_with("val_size: 0.1\neval_strategy: steps\neval_on_each_dataset: true"));
  CHECK_FALSE(without.config.evaluation.is_by_dataset());
  CHECK(without.config.evaluation.dataset_of_metric() == "");
}

TEST_CASE("what an evaluation does not measure is refused_evaluation by name") {
  const std::string on = "val_size: 0.1\neval_strategy: steps\n";
  CHECK(contains(refused_evaluation(on + "metric_for_best_model: eval_accuracy"),
                 "x.yaml:16: metric_for_best_model=eval_accuracy is not supported"));
  // Stage sft alone measures it.
  const auto accuracy = load_with(on + "compute_accuracy: true", {"stage=sft", "template=llama3"});
  REQUIRE_MESSAGE(accuracy.ok(), accuracy.status().to_string());
  CHECK(accuracy->config.measures_accuracy());
  CHECK(load_with(on + "compute_accuracy: true\nmetric_for_best_model: accuracy",
                  {"stage=sft", "template=llama3"})
            .value()
            .config.evaluation.metric_for_best_model == "eval_accuracy");
  CHECK_FALSE(load_with(on + "compute_accuracy: true").value().config.measures_accuracy());
  CHECK(contains(refused_evaluation(on + "predict_with_generate: true"),
                 "predict_with_generate=true"));
  CHECK(contains(refused_evaluation(on + "fp16_full_eval: true"),
                 "fp16_full_eval=true is not supported"));
  CHECK(contains(refused_evaluation(on + "bf16_full_eval: true"),
                 "bf16_full_eval=true is not supported"));
  CHECK(contains(refused_evaluation("", {"lr_scheduler_type=reduce_lr_on_plateau"}),
                 "lr_scheduler_type reduce_lr_on_plateau requires an eval strategy"));
  CHECK(contains(refused_evaluation(on, {"lr_scheduler_type=reduce_lr_on_plateau",
                                         "lr_scheduler_kwargs={\"steps\": 3}"}),
                 "the scheduler reduce_lr_on_plateau has no such setting"));
}

TEST_CASE("predictions: LLaMA-Factory's rules and defaults, and what is not done") {
  const std::vector<std::string> sft = {"stage=sft", "do_train=null"};
  const auto refused = [&](const std::string& lines, const std::string& more = "") {
    auto arguments = sft;
    if (!more.empty()) arguments.push_back(more);
    return refused_evaluation(lines, arguments);
  };
  const std::string on = "do_predict: true\npredict_with_generate: true\neval_dataset: d\n";
  const auto alone = accepted(load_with(on, sft)).config;
  CHECK_FALSE(alone.trains());
  CHECK(alone.prediction.max_new_tokens == 1024);
  CHECK(alone.prediction.temperature == 0.95);
  CHECK(alone.prediction.top_p == 0.7);
  CHECK(alone.prediction.top_k == 50);
  CHECK(accepted(load_with(on, {"stage=sft"})).config.trains());
  CHECK(accepted(load_with("", sft)).config.trains());
  CHECK(contains(refused("", "do_train=false"), "do_train=false is not supported without"));
  CHECK(contains(refused("do_predict: true\neval_dataset: d"),
                 "Please enable `predict_with_generate` to save model predictions."));
  CHECK(contains(refused("do_predict: true\npredict_with_generate: true"),
                 "Please make sure eval_dataset be provided or val_size >1e-6"));
  CHECK(contains(refused("do_predict: true\npredict_with_generate: true\nval_size: 0.1"),
                 "Cannot use `predict_with_generate` if `eval_dataset` is None."));
  CHECK(contains(refused(on + "num_beams: 4"), "num_beams=4 is not supported"));
  CHECK(contains(refused(on + "do_eval: true"),
                 "predict_with_generate=true is not supported with do_eval"));
  CHECK(contains(refused(on + "top_p: 1.5"), "top_p"));
  CHECK(contains(refused_evaluation(on), "outside of stage: sft"));
}

}  // namespace
}  // namespace troupe::train
