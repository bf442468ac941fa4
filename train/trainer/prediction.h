#pragma once
// do_predict: prompts of eval_dataset, answered by processes of the run's cluster, and the files
// and scores that LLaMA-Factory makes of the answers.
//
// The rows are dealt out a batch at a time (per_device_eval_batch_size) to whichever process is
// free. One that dies is replaced, and the batch that it had is given to another: answers that were
// told are kept by the driver, and which process answers a row changes nothing of it.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/environment.h"
#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/config/train_config.h"
#include "train/data/prompts.h"
#include "train/scores/word_cutter.h"
#include "train/trainer/predictor_actor.h"
#include "troupe/cluster.h"

namespace troupe::train {

struct PreparedPrediction {
  PromptModule prompts;
  bool cleans_up = false;            // decoded texts, as the tokenizer's configuration asks
  std::optional<WordCutter> cutter;  // nothing: Chinese words cannot be told
  std::vector<std::string> notes;
};

// Reads and encodes the rows.
Result<PreparedPrediction> prepare_prediction(FileSystem& files, const Environment& environment,
                                              const TrainConfig& config,
                                              const Tokenizer& tokenizer);

struct PredictionJob {
  PredictorSetup setup;
  int predictors = 1;   // processes
  ActorOptions member;  // of each
  std::int64_t batch_rows = 8;
  std::uint64_t seed = 42;
};
// How answers are made, as `config` says, by `threads` threads of a process.
PredictorSetup predictor_setup(const TrainConfig& config, const PreparedPrediction& prepared,
                               const std::string& model, std::vector<std::string> adapters,
                               int threads);

struct PredictionWatch {
  std::function<void(std::int64_t done, std::int64_t rows)> progress;
  std::function<bool()> is_stopped;  // asked several times a second: kCancelled
  // Why a process was lost or has no place, once for each reason.
  std::function<void(const Status& why)> trouble;
};
// The new tokens of each row, in order.
Result<std::vector<std::vector<TokenId>>> predict_rows(const Cluster& cluster,
                                                       const std::vector<PromptRow>& rows,
                                                       const PredictionJob& job,
                                                       const PredictionWatch& watch);

// Writes generated_predictions.jsonl, predict_results.json and all_results.json. The metrics; what
// a person should know goes into `notes`.
Result<json::Object> save_predictions(FileSystem& files, const TrainConfig& config,
                                      const PreparedPrediction& prepared,
                                      const std::vector<std::vector<TokenId>>& answers,
                                      double seconds, int world_size,
                                      std::vector<std::string>& notes);

}  // namespace troupe::train
