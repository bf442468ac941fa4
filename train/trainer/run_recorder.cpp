#include "train/trainer/run_recorder.h"

#include <algorithm>
#include <cmath>

#include "train/report/loss_plot.h"

namespace troupe::train {
namespace {

constexpr const char* kAccuracies = "rewards/accuracies";

// What names of metrics begin with.
std::vector<std::string> eval_prefixes(const EvaluationSection& evaluation) {
  if (!evaluation.is_by_dataset()) return {"eval_"};
  std::vector<std::string> out;
  for (const auto& name : evaluation.eval_dataset) out.push_back(fmt::format("eval_{}_", name));
  return out;
}

// As LLaMA-Factory's stages.
std::vector<std::string> plotted_keys(const TrainConfig& config) {
  if (config.evaluation.is_by_dataset()) {
    std::vector<std::string> out = {"loss"};
    for (const auto& prefix : eval_prefixes(config.evaluation))
      for (const char* metric : {"loss", "accuracy"}) out.push_back(prefix + metric);
    return out;
  }
  switch (config.method.stage) {
    case TrainingStage::kReward:
      return {"loss", "eval_loss", "eval_accuracy"};
    case TrainingStage::kDpo:
      return {"loss", "rewards/accuracies", "eval_loss"};
    case TrainingStage::kKto:
      return {"loss", "rewards/chosen", "eval_loss"};
    case TrainingStage::kPretrain:
    case TrainingStage::kSupervised:
      break;
  }
  return {"loss", "eval_loss"};
}

}  // namespace

Result<RunRecorder> RunRecorder::open(FileSystem& files, const Clock& clock,
                                      const TrainConfig& config, const RunFacts& facts,
                                      TrainerState state,
                                      const std::optional<RecorderPosition>& position) {
  const std::string& directory = config.training.output_dir;
  // Before the first step there may be an evaluation, which a run that begins anew makes again.
  const std::int64_t kept = position                ? position->kept_step
                            : state.global_step > 0 ? state.global_step
                                                    : -1;
  auto steps =
      TROUPE_TRY(LineFile::open_at_step(files, join_path(directory, kStepsFile), "step", kept));
  auto log = TROUPE_TRY(
      LineFile::open_at_step(files, join_path(directory, kTrainerLogFile), "current_steps", kept));
  RunRecorder recorder(files, clock, config, facts, std::move(state), kept);
  recorder.steps_ = std::move(steps);
  recorder.log_ = std::move(log);
  recorder.open_events();
  if (position) {
    recorder.go_on_from(*position);
  } else {
    TROUPE_RETURN_IF_ERROR(recorder.remember_unlogged_steps());
  }
  return recorder;
}

RunRecorder RunRecorder::without_files(FileSystem& files, const Clock& clock,
                                       const TrainConfig& config, const RunFacts& facts,
                                       TrainerState state, const RecorderPosition& position) {
  RunRecorder recorder(files, clock, config, facts, std::move(state), position.kept_step);
  recorder.go_on_from(position);
  return recorder;
}

RunRecorder::RunRecorder(FileSystem& files, const Clock& clock, const TrainConfig& config,
                         const RunFacts& facts, TrainerState state, std::int64_t kept_step)
    : files_(&files), clock_(&clock), config_(&config), facts_(facts), state_(std::move(state)) {
  truncate_log_history(state_, kept_step);
  state_.max_steps = facts.schedule.total_steps;
  state_.num_train_epochs = facts.schedule.epoch_count;
  state_.logging_steps = config.training.logging_steps;
  state_.save_steps = config.training.save_steps;
  state_.eval_steps = eval_steps_value(config);
  state_.train_batch_size = config.training.per_device_train_batch_size;
}

void RunRecorder::go_on_from(const RecorderPosition& position) {
  unlogged_ = position.unlogged;
  state_.epoch = facts_.schedule.epoch_of(state_.global_step);
}

double RunRecorder::elapsed_s() const {
  return static_cast<double>(clock_->unix_time_us() - facts_.started_unix_us) / 1e6;
}

double RunRecorder::remaining_s() const {
  const auto done =
      static_cast<double>(std::max<std::int64_t>(1, state_.global_step - facts_.first_step));
  const auto left = static_cast<double>(facts_.schedule.total_steps - state_.global_step);
  return elapsed_s() / done * left;
}

Status RunRecorder::remember_unlogged_steps() {
  // Steps since the last log event, so that a recovered run logs what an undisturbed one does.
  std::int64_t logged = 0;
  for (const auto& entry : state_.log_history) {
    if (json::find(entry, "loss")) logged = json::find_integer(entry, "step").value_or(logged);
  }
  const auto lines = TROUPE_TRY(read_steps(
      *files_, join_path(config_->training.output_dir, kStepsFile), DamagedLines::kSkip));
  for (const StepRecord& line : lines) {
    if (line.step <= logged) continue;
    add_loss(line.loss);
    unlogged_.metrics.add(
        metric_sums_from_json(facts_.metrics, line.extra.if_contains(kMetricsKey)));
  }
  return {};
}

bool RunRecorder::logging_due(std::int64_t step) const {
  const RunSchedule& schedule = facts_.schedule;
  if (config_->training.logging_first_step && step == 1) return true;
  if (schedule.logging_interval <= 0) return false;
  const bool by_epoch = config_->training.logging_strategy == IntervalStrategy::kEpoch;
  return (by_epoch ? step - schedule.step_offset : step) % schedule.logging_interval == 0;
}

void RunRecorder::open_events() {
  if (!reports_to_tensorboard(*config_)) return;
  const std::string path =
      join_path(tensorboard_dir(*config_), event_file_name(config_->training.output_dir));
  auto file = TensorBoardFile::open(*files_, *clock_, path, state_.log_history);
  if (file.ok()) {
    events_ = std::move(*file);
    events_missing_ = {};
  } else if (events_missing_.ok()) {
    events_missing_ = file.status().prefixed("report_to: tensorboard");
    if (on_missing_events_) on_missing_events_(events_missing_);
  }
}

void RunRecorder::on_missing_events(std::function<void(const Status&)> sink) {
  on_missing_events_ = std::move(sink);
  if (!events_missing_.ok()) on_missing_events_(events_missing_);
}

void RunRecorder::show(const json::Object& entry) {
  if (!log_) return;  // of a rank without files
  if (events_ && events_->add(entry).ok()) return;
  events_.reset();
  open_events();
}

void RunRecorder::add_history(json::Object entry) {
  if (on_history_) on_history_(entry);
  state_.log_history.push_back(std::move(entry));
  show(state_.log_history.back().get_object());
}

void RunRecorder::add_loss(double loss) {
  const bool hidden = config_->training.logging_nan_inf_filter && !std::isfinite(loss);
  unlogged_.loss += hidden ? unlogged_.loss / static_cast<double>(1 + unlogged_.steps) : loss;
  ++unlogged_.steps;
}

Result<std::optional<double>> RunRecorder::step(const StepRecord& record) {
  if (steps_) TROUPE_RETURN_IF_ERROR(steps_->append(step_line(record)));
  state_.global_step = record.step;
  state_.epoch = facts_.schedule.epoch_of(record.step);
  state_.total_flos += facts_.flos_per_token * static_cast<double>(record.tokens);
  state_.num_input_tokens_seen += record.tokens;
  add_loss(record.loss);
  unlogged_.metrics.add(record.metrics);
  if (!logging_due(record.step)) return std::optional<double>();
  const double loss = unlogged_.loss / static_cast<double>(unlogged_.steps);
  const json::Object metrics = metric_values(facts_.metrics, unlogged_.metrics);
  unlogged_ = {};
  json::Object history =
      train_log(state_.epoch, record.grad_norm, record.learning_rate, loss, record.step);
  for (const auto& metric : metrics) history.insert(metric);
  if (config_->training.counts_input_tokens())
    history["num_input_tokens_seen"] = state_.num_input_tokens_seen;
  add_history(std::move(history));
  TrainerLogEntry entry{.current_steps = record.step,
                        .total_steps = facts_.schedule.total_steps,
                        .loss = loss,
                        .accuracy = json::find_number(metrics, kAccuracies),
                        .learning_rate = record.learning_rate,
                        .epoch = state_.epoch,
                        .elapsed_s = elapsed_s(),
                        .remaining_s = remaining_s()};
  if (config_->training.counts_input_tokens()) entry.total_tokens = state_.num_input_tokens_seen;
  if (log_) TROUPE_RETURN_IF_ERROR(log_->append(trainer_log_line(entry)));
  return std::optional(loss);
}

Status RunRecorder::evaluated(const EvalResult& result) {
  const std::string prefix = metric_prefix(result);
  json::Object entry = eval_log(state_.epoch, result.loss, result.seconds, result.samples,
                                result.batches, state_.global_step, prefix);
  for (const auto& metric : metric_values(facts_.eval_metrics, result.metrics, prefix))
    entry.insert(metric);
  add_history(std::move(entry));
  if (!log_) return {};
  TrainerLogEntry line{.current_steps = state_.global_step,
                       .total_steps = facts_.schedule.total_steps,
                       .epoch = state_.epoch,
                       .elapsed_s = elapsed_s(),
                       .remaining_s = remaining_s()};
  // As LLaMA-Factory: the file has no keys for data sets apart.
  if (result.data_set.empty()) line.eval_loss = result.loss;
  return log_->append(trainer_log_line(line));
}

void RunRecorder::set_best(const BestModel& best) {
  best.store(state_, config_->training.output_dir);
}

Status RunRecorder::sync() {
  const Status steps = steps_->sync();
  const Status log = log_->sync();
  return steps.ok() ? log : steps;
}

Status RunRecorder::finish(std::int64_t final_step) {
  const std::string& directory = config_->training.output_dir;
  const bool trained = !is_told_already();
  if (trained) TROUPE_RETURN_IF_ERROR(save_training());
  TROUPE_RETURN_IF_ERROR(save_evaluation(final_step));
  if (trained) {
    TROUPE_RETURN_IF_ERROR(write_file_atomically(
        *files_, join_path(directory, "trainer_state.json"), trainer_state_text()));
  }
  if (config_->method.plot_loss) {
    TROUPE_RETURN_IF_ERROR(
        plot_loss(*files_, directory, state_.log_history, plotted_keys(*config_)));
  }
  return sync();
}

bool RunRecorder::is_told_already() const {
  if (state_.global_step > facts_.first_step) return false;
  const std::string path = join_path(config_->training.output_dir, "trainer_state.json");
  const auto text = files_->read(path, limits::kJsonFileBytesMax);
  if (!text.ok()) return false;
  auto told = parse_trainer_state(*text, path);
  if (!told.ok() || told->log_history.empty()) return false;
  if (!json::find(told->log_history.back(), "train_runtime")) return false;
  told->log_history.pop_back();
  return told->log_history == state_.log_history;
}

Status RunRecorder::save_training() {
  const std::string& directory = config_->training.output_dir;
  // Lines that a full disk still has no room for do not cost the run's end.
  static_cast<void>(sync());
  const auto lines =
      TROUPE_TRY(read_steps(*files_, join_path(directory, kStepsFile), DamagedLines::kSkip));
  double loss_sum = 0;
  for (const StepRecord& line : lines) {
    const bool hidden = config_->training.logging_nan_inf_filter && !std::isfinite(line.loss);
    if (!hidden) loss_sum += line.loss;
  }
  TrainResults results{
      .epoch = state_.epoch,
      .total_flos = state_.total_flos,
      .train_loss = loss_sum / static_cast<double>(std::max<std::size_t>(1, lines.size())),
      .runtime_s = elapsed_s(),
      .steps = state_.global_step,
      .samples = (state_.global_step - facts_.first_step) * facts_.schedule.effective_batch_size,
      .steps_in_runtime = state_.global_step - facts_.first_step};
  state_.log_history.push_back(final_log(results));
  show(state_.log_history.back().get_object());
  state_.should_training_stop = true;
  json::Object metrics = train_metrics(results);
  if (config_->method.include_effective_tokens_per_second) {
    // As LLaMA-Factory: tokens of the data set × epochs, per second and rank.
    const double epochs = state_.epoch - facts_.schedule.epoch_of(facts_.first_step);
    metrics["effective_tokens_per_sec"] =
        static_cast<double>(facts_.dataset_tokens) * epochs / results.runtime_s / facts_.world_size;
  }
  return save_metrics(*files_, directory, "train", metrics);
}

Status RunRecorder::save_evaluation(std::int64_t final_step) {
  auto metrics = find_eval_log(state_, final_step);
  if (!metrics) return {};
  metrics->erase("step");
  if (config_->method.stage == TrainingStage::kPretrain) {
    // LLaMA-Factory reports it in pre-training.
    for (const auto& prefix : eval_prefixes(config_->evaluation))
      if (const auto loss = json::find_number(*metrics, prefix + "loss"))
        (*metrics)[prefix + "perplexity"] = std::exp(*loss);
  }
  return save_metrics(*files_, config_->training.output_dir, "eval", *metrics);
}

}  // namespace troupe::train
