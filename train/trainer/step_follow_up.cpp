#include "train/trainer/step_follow_up.h"

#include <utility>

#include "train/progress/abandon.h"
#include "train/trainer/sharding_setup.h"

namespace troupe::train {
namespace {

// The arena of the activations, cut for evaluation as long as this lives.
class EvaluationCut {
 public:
  EvaluationCut(Activations& activations, Operators& operators, const ModelConfig& model,
                ActivationOptions evaluation)
      : activations_(activations),
        operators_(operators),
        model_(model),
        training_(activations.options()) {
    evaluation.type = training_.type;
    activations_.cut_for(model_, evaluation, operators_);
  }
  ~EvaluationCut() { activations_.cut_for(model_, training_, operators_); }
  EvaluationCut(const EvaluationCut&) = delete;
  EvaluationCut& operator=(const EvaluationCut&) = delete;

 private:
  Activations& activations_;
  Operators& operators_;
  const ModelConfig& model_;
  const ActivationOptions training_;
};

}  // namespace

std::optional<ActivationOptions> evaluation_of(const RunBundle& bundle) {
  if (!bundle.eval) return std::nullopt;
  return evaluation_options(bundle.config, bundle.model, bundle.trainables, bundle.eval->size(),
                            longest_collated_length(*bundle.eval));
}

// Order as in transformers: log, evaluate, save.
Status StepFollowUp::after(RunGeneration& generation, StepRecord record, bool save_and_stop) {
  RankParts& f = parts_;
  f.progress.stage(record.step, Stage::kFinished);
  const FollowUp before = follow_.now();
  const CommitRecord& committed = f.transaction().record();
  record.epoch = committed.cursor.epoch;
  record.next_sample = committed.cursor.next_sample;
  if (const auto metrics = f.objective->metrics(); !metrics.empty())
    record.extra[kMetricsKey] = metric_sums_to_json(metrics, record.metrics);
  f.progress.step_seconds(record.step, record.seconds);
  if (const auto& limit = f.config().troupe.loss_limit)
    follow_.high_losses = record.loss > *limit ? follow_.high_losses + 1 : 0;
  std::optional<double> logged_loss;
  if (follow_.recorder) {
    auto recorded = follow_.recorder->step(record);
    // A full disk costs a line of a log, not the run.
    if (!recorded.ok()) generation.observer.warning(recorded.status().to_string());
    logged_loss = std::move(recorded).value_or(std::nullopt);
  }
  const bool last = parts_.step() == parts_.total_steps();
  // An evaluation may take longer than the user waits for the run's end.
  if (!save_and_stop && f.evaluation.due(parts_.step(), committed.last_of_epoch != 0))
    TROUPE_RETURN_IF_ERROR(evaluate(generation));
  if (!f.callbacks.empty()) TROUPE_RETURN_IF_ERROR(ask_callbacks(generation, record));
  if (save_and_stop || saves_.due(committed, last || follow_.ends_run())) {
    f.progress.stage(record.step, Stage::kCheckpoint);
    TROUPE_RETURN_IF_ERROR(saves_.start(generation));
  }
  follow_.finished_step = record.step;
  follow_.before = before;
  follow_.note();
  saves_.report(generation);
  generation.observer.step_done(record);
  if (f.leads()) generation.observer.step_finished(record, logged_loss);
  return {};
}

Status StepFollowUp::ask_callbacks(RunGeneration& generation, const StepRecord& record) {
  std::int64_t end = 0;
  if (parts_.leads()) {
    for (const auto& callback : parts_.callbacks)
      if (callback->step_finished(told_step(record)) == AfterStep::kEndRun) end = 1;
  }
  TROUPE_RETURN_IF_ERROR(generation.world.broadcast(std::span(&end, 1), 0));
  if (end != 0 && parts_.leads() && parts_.step() < parts_.total_steps())
    generation.observer.notice(fmt::format("a callback ends the run after step {} of {}",
                                           parts_.step(), parts_.total_steps()));
  follow_.end_run = end != 0;
  return {};
}

Status StepFollowUp::evaluate(RunGeneration& generation) {
  RankParts& f = parts_;
  if (f.evaluators.empty()) return {};
  f.progress.stage(parts_.step(), Stage::kEvaluate);
  generation.engine->units().begin_pass(ShardedUnits::Pass::kForwardOnly);
  Activations& activations = f.rank_compute->activations();
  const EvaluationCut cut(activations, f.compute->operators(), f.bundle.model,
                          *evaluation_of(f.bundle));
  std::vector<EvalResult> results;
  for (const Evaluator& evaluator : f.evaluators) {
    results.push_back(TROUPE_TRY(unless_abandoned([&] {
      return evaluator.run(*f.objective,
                           {.model = *f.model,
                            .reference = f.reference.get(),
                            .units = generation.engine->units(),
                            .activations = activations},
                           generation.world, f.clock, [&](std::int64_t, std::int64_t) -> Status {
                             if (!generation.observer.stop_requested()) return {};
                             return error(Code::kCancelled, "the run was told to stop");
                           });
    })));
  }
  for (const EvalResult& result : results) note_evaluation(generation, result);
  follow_.evaluated_step = parts_.step();
  if (follow_.recorder) follow_.recorder->set_best(follow_.best);
  return {};
}

void StepFollowUp::note_evaluation(RunGeneration& generation, const EvalResult& result) {
  RankParts& f = parts_;
  // As in transformers, the initial parameters are no candidate and cost no patience.
  const bool compared =
      parts_.step() > 0 && f.config().evaluation.dataset_of_metric() == result.data_set;
  const bool best = compared && follow_.best.evaluated(result, parts_.step());
  if (const PlateauRule* rule = f.schedule.plateau(); rule && compared) {
    PlateauState& plateau = follow_.plateau;
    if (!(plateau.learning_rate > 0)) plateau.learning_rate = f.config().training.learning_rate;
    plateau = plateau_after(*rule, plateau, follow_.best.value_of(result));
  }
  if (f.leads()) {
    generation.observer.evaluated(result, parts_.step(), best);
    for (const auto& callback : f.callbacks)
      callback->evaluated({.step = parts_.step(),
                           .loss = result.loss,
                           .samples = result.samples,
                           .best = best,
                           .data_set = result.data_set});
  }
  if (!follow_.recorder) return;
  if (const Status written = follow_.recorder->evaluated(result); !written.ok())
    generation.observer.warning(written.to_string());
}

}  // namespace troupe::train
