#pragma once
// trainer_state.json as transformers' TrainerState writes it (indent 2, sorted keys, trailing
// newline), and the result files at the end of a run.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

// The state of transformers' EarlyStoppingCallback.
struct EarlyStoppingState {
  std::int64_t patience = 0;
  std::int64_t counter = 0;  // evaluations in a row without improvement
  friend bool operator==(const EarlyStoppingState&, const EarlyStoppingState&) = default;
};

struct TrainerState {
  std::optional<std::int64_t> best_global_step;
  std::optional<double> best_metric;
  std::optional<std::string> best_model_checkpoint;
  double epoch = 0;
  double eval_steps = 500;
  std::int64_t global_step = 0;
  json::Array log_history;  // entries as made by the functions below
  double logging_steps = 500;
  std::int64_t max_steps = 0;
  std::int64_t num_input_tokens_seen = 0;
  std::int64_t num_train_epochs = 0;
  double save_steps = 500;
  double total_flos = 0;
  std::int64_t train_batch_size = 0;
  bool should_save = false;  // of the TrainerControl callback's state
  bool should_training_stop = false;
  std::optional<EarlyStoppingState> early_stopping;
};

std::string trainer_state_text(const TrainerState& state);
Result<TrainerState> parse_trainer_state(std::string_view text, std::string_view name);

// {epoch, grad_norm, learning_rate, loss, step}; loss with 4 decimals, grad_norm before clipping,
// learning_rate the one that `step` used.
json::Object train_log(double epoch, double grad_norm, double learning_rate, double loss,
                       std::int64_t step);
// {epoch, eval_loss, eval_runtime, eval_samples_per_second, eval_steps_per_second, step}; a step of
// an evaluation is a batch. `prefix`: eval_NAME_ of one of several data sets.
json::Object eval_log(double epoch, double eval_loss, double runtime_s, std::int64_t samples,
                      std::int64_t eval_batches, std::int64_t step,
                      std::string_view prefix = "eval_");

// What the evaluations of `step` wrote into log_history, of all data sets; what the last one said
// where there are several. Nothing: there was none.
std::optional<json::Object> find_eval_log(const TrainerState& state, std::int64_t step);
// The step of the last evaluation in log_history.
std::optional<std::int64_t> last_eval_step(const TrainerState& state);

// Drops entries of steps after `step`: the run resumes from there.
void truncate_log_history(TrainerState& state, std::int64_t step);

// What a finished training comes to.
struct TrainResults {
  double epoch = 0;
  double total_flos = 0;
  double train_loss = 0;  // mean over all steps
  double runtime_s = 0;
  std::int64_t steps = 0;
  // Those that were done within the runtime: a run that went on from a checkpoint did fewer.
  std::int64_t samples = 0;  // of full steps, as transformers counts them
  std::int64_t steps_in_runtime = 0;
};

// The last entry of log_history: metrics with the step.
json::Object final_log(const TrainResults& results);
// {epoch, total_flos, train_loss, train_runtime, train_samples_per_second, train_steps_per_second}:
// runtime with 4 decimals, rates with 3.
json::Object train_metrics(const TrainResults& results);
// transformers' save_metrics: writes `split`_results.json (indent 4, sorted keys) and puts the
// metrics into all_results.json over what is there.
Status save_metrics(FileSystem& files, const std::string& output_dir, std::string_view split,
                    const json::Object& metrics);

}  // namespace troupe::train
