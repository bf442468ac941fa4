#pragma once
// The loss on an evaluation data set, the same to the last bit however many ranks share the work.
//
// Samples go in order, per_device_eval_batch_size to a batch, the last batch short. Batches are
// dealt to the ranks in turn: round r gives batch r·W + rank to each. Which rank computes a batch
// does not change its sum, sums are gathered and added in the order of the data: so the result
// depends on the batch size, not on strategy or world size.
//
// eval_loss is the number that transformers reports for one process: each batch has the mean over
// its own targets, the batches are averaged with their numbers of samples as weights:
//
//   eval_loss = Σ_b rows_b · (loss_sum_b / targets_b) / Σ_b rows_b
//
// (Trainer; its Seq2SeqTrainer, by which LLaMA-Factory trains stage sft, lets a short batch count
// as much as the others: BatchWeights::kEqual.) (A mean over all targets, as in training, would
// weigh a batch by its targets.) With several processes transformers' number depends on their
// count, because it averages a round's processes by targets and counts wrapped-around samples; ours
// stays that of one process. Batches without a target have no mean; they are left out, as
// transformers leaves out what is not finite.

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/collective/communicator.h"
#include "train/data/eval_parts.h"
#include "train/data/token_dataset.h"
#include "train/model/model.h"
#include "train/objectives/objective.h"

namespace troupe::train {

// What an evaluation found. Equal on all ranks but for `seconds`.
struct EvalResult {
  std::string data_set;        // eval_on_each_dataset; else empty
  double loss = 0;             // eval_loss; NaN where no batch has a target
  double loss_per_target = 0;  // Σ losses / Σ targets, of the same batches: what training reports
  std::int64_t samples = 0;
  std::int64_t batches = 0;
  std::int64_t targets = 0;
  // Batches whose loss was NaN or infinite. With logging_nan_inf_filter they are left out of the
  // losses as long as there are others; such a result is never a best one.
  std::int64_t non_finite_batches = 0;
  MetricSums metrics;  // of all batches, as the objective lists them
  double seconds = 0;  // on this rank
};

// Sums of one batch, and what they come to; pure, for tests and other ways of evaluating.
struct EvalBatch {
  double loss_sum = 0;
  std::int64_t targets = 0;
  std::int64_t rows = 0;
  MetricSums metrics = {};
};
// What names of its metrics begin with: "eval_", of a data set "eval_NAME_".
std::string metric_prefix(const EvalResult& result);
// What an evaluation has beside its losses.
std::span<const MetricInfo> eval_metrics(const Objective& objective, bool accuracy);
enum class BatchWeights { kRows, kEqual };
EvalResult combine_eval_batches(std::span<const EvalBatch> batches, bool nan_inf_filter,
                                BatchWeights weights = BatchWeights::kRows);

class Evaluator {
 public:
  struct Options {
    std::int64_t batch_size = 8;  // per_device_eval_batch_size
    bool nan_inf_filter = true;   // logging_nan_inf_filter
    BatchWeights weights = BatchWeights::kRows;
    // compute_accuracy: instead of the objective's metrics the mean over samples of the share of
    // their targets that no token is more probable than, as LLaMA-Factory's ComputeAccuracy.
    bool accuracy = false;
    // The samples [first, first + part->samples); not given: all of them.
    std::int64_t first = 0;
    std::optional<EvalPart> part = {};
  };
  // `dataset` must outlive the object. kInvalidArgument where it is empty or the batch size is not
  // positive.
  static Result<Evaluator> make(const TokenDataset& dataset, const Options& options);

  // One for each part, one for all samples where there are none.
  static Result<std::vector<Evaluator>> make_all(const TokenDataset& dataset,
                                                 const std::vector<EvalPart>& parts,
                                                 const Options& options);

  // The batches of the data set, and how many forward passes each of `world_size` ranks makes.
  std::int64_t batch_count() const;
  std::int64_t rounds(int world_size) const;
  // What run() needs: forward passes only. Activations for training of at least these rows and this
  // length serve as well.
  ActivationOptions activation_options() const;

  // Called before every round with the rounds done and their number; an error ends the evaluation
  // and is returned (the others wait then: abort the communicator).
  using Progress = std::function<Status(std::int64_t done, std::int64_t rounds)>;
  // All ranks of `ranks` call together; each makes the same number of forward passes, so that
  // `units` may gather collectively: a rank without a batch left passes one token without a target,
  // which counts for nothing. kInvalidArgument where `activations` are too small; failures of the
  // units and of the communicator are passed on.
  // What the objective asks of other ranks is asked of this one alone: an evaluation does not
  // depend on the world's size.
  Result<EvalResult> run(const Objective& objective, const AskedModels& models,
                         collective::Communicator& ranks, const Clock& clock,
                         const Progress& progress = {}) const;

 private:
  Evaluator(const TokenDataset& dataset, const Options& options);
  std::int64_t size() const { return options_.part ? options_.part->samples : dataset_->size(); }
  std::int64_t rows_of(std::int64_t batch) const;
  Result<EvalBatch> run_batch(std::int64_t batch, const Objective& objective,
                              const AskedModels& models) const;

  const TokenDataset* dataset_;
  Options options_;
};

}  // namespace troupe::train
