#include "train/trainer/evaluator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "train/trainer/batch_view.h"

namespace troupe::train {
namespace {

// What a batch's sums are gathered as, beside a sum and a count of each metric: two doubles, since
// counts below 2⁵³ are exact in them.
constexpr std::size_t kFieldsPerBatch = 2;

constexpr MetricInfo kAccuracy[] = {{.name = "accuracy"}};

// The sum over samples of their accuracy, and the number of samples that have a target.
MetricSums accuracy_of(const MicroBatch& batch, std::span<const std::int32_t> sample_of_token,
                       std::size_t samples, const std::vector<bool>& hits) {
  if (std::ssize(hits) != count_targets(batch)) return {};  // of an objective that tells none
  std::vector<std::int64_t> targets(samples), right(samples);
  std::size_t target = 0;
  for (std::int64_t token = 0; token < batch.tokens(); ++token) {
    if (!batch.has_target(token)) continue;
    const auto sample = static_cast<std::size_t>(sample_of_token[static_cast<std::size_t>(token)]);
    ++targets[sample];
    right[sample] += hits[target++];
  }
  double sum = 0, count = 0;
  for (std::size_t i = 0; i < samples; ++i) {
    if (targets[i] == 0) continue;
    sum += static_cast<double>(right[i]) / static_cast<double>(targets[i]);
    ++count;
  }
  MetricSums out;
  out.set(0, sum, count);
  return out;
}

bool has_room(const ActivationOptions& have, const ActivationOptions& need) {
  return have.rows_max >= need.rows_max && have.length_max >= need.length_max;
}

}  // namespace

std::string metric_prefix(const EvalResult& result) {
  return result.data_set.empty() ? "eval_" : fmt::format("eval_{}_", result.data_set);
}

std::span<const MetricInfo> eval_metrics(const Objective& objective, bool accuracy) {
  return accuracy ? std::span<const MetricInfo>(kAccuracy) : objective.metrics();
}

EvalResult combine_eval_batches(std::span<const EvalBatch> batches, bool nan_inf_filter,
                                BatchWeights weights) {
  EvalResult result;
  result.batches = static_cast<std::int64_t>(batches.size());
  double finite_sum = 0, all_sum = 0;              // of weight · mean loss
  std::int64_t finite_weight = 0, all_weight = 0;  // of batches with targets
  double finite_losses = 0, all_losses = 0;
  std::int64_t finite_targets = 0;
  for (const EvalBatch& batch : batches) {
    result.samples += batch.rows;
    result.targets += batch.targets;
    result.metrics.add(batch.metrics);
    if (batch.targets == 0) continue;
    const std::int64_t weight = weights == BatchWeights::kRows ? batch.rows : 1;
    const double weighted =
        batch.loss_sum / static_cast<double>(batch.targets) * static_cast<double>(weight);
    all_sum += weighted;
    all_weight += weight;
    all_losses += batch.loss_sum;
    if (!std::isfinite(batch.loss_sum)) {
      ++result.non_finite_batches;
      continue;
    }
    finite_sum += weighted;
    finite_weight += weight;
    finite_losses += batch.loss_sum;
    finite_targets += batch.targets;
  }
  const bool filtered = nan_inf_filter && finite_weight > 0;
  const auto ratio = [](double sum, std::int64_t count) {
    return count > 0 ? sum / static_cast<double>(count) : std::numeric_limits<double>::quiet_NaN();
  };
  result.loss = filtered ? ratio(finite_sum, finite_weight) : ratio(all_sum, all_weight);
  result.loss_per_target =
      filtered ? ratio(finite_losses, finite_targets) : ratio(all_losses, result.targets);
  return result;
}

Result<Evaluator> Evaluator::make(const TokenDataset& dataset, const Options& options) {
  if (dataset.size() == 0) {
    return error(Code::kInvalidArgument, "the evaluation data set is empty");
  }
  if (options.part &&
      (options.part->samples < 1 || options.first > dataset.size() - options.part->samples)) {
    return error(Code::kInvalidArgument, "{} samples to evaluate on are no parts of such a size",
                 dataset.size());
  }
  if (options.batch_size < 1) {
    return error(Code::kInvalidArgument, "per_device_eval_batch_size={}: must be at least 1",
                 options.batch_size);
  }
  return Evaluator(dataset, options);
}

Result<std::vector<Evaluator>> Evaluator::make_all(const TokenDataset& dataset,
                                                   const std::vector<EvalPart>& parts,
                                                   const Options& options) {
  std::vector<Evaluator> out;
  Options own = options;
  for (const EvalPart& part : parts) {
    own.part = part;
    out.push_back(TROUPE_TRY(make(dataset, own)));
    own.first += part.samples;
  }
  if (parts.empty()) out.push_back(TROUPE_TRY(make(dataset, own)));
  return out;
}

Evaluator::Evaluator(const TokenDataset& dataset, const Options& options)
    : dataset_(&dataset), options_(options) {}

std::int64_t Evaluator::batch_count() const { return (size() - 1) / options_.batch_size + 1; }

std::int64_t Evaluator::rounds(int world_size) const {
  return (batch_count() - 1) / world_size + 1;
}

std::int64_t Evaluator::rows_of(std::int64_t batch) const {
  const std::int64_t begin = batch * options_.batch_size;
  return std::clamp<std::int64_t>(size() - begin, 0, options_.batch_size);
}

ActivationOptions Evaluator::activation_options() const {
  return {.rows_max = std::min(options_.batch_size, size()),
          .length_max = longest_collated_length(*dataset_),
          .training = false};
}

Result<EvalBatch> Evaluator::run_batch(std::int64_t batch, const Objective& objective,
                                       const AskedModels& models) const {
  const std::int64_t rows = rows_of(batch);
  std::vector<bool> hits;
  const auto pass = [&](const MicroBatch& own, const MicroBatch& others) -> Result<ObjectiveSum> {
    const Asked asked = TROUPE_TRY(objective.ask(models, own, others));
    return objective.forward(models.model, own, models.units, models.activations, asked,
                             options_.accuracy ? &hits : nullptr);
  };
  if (rows == 0) {
    // Takes part in the gathering of units.
    const std::int32_t id = 0;
    const std::int32_t label = kIgnoreLabel;
    const MicroBatch nothing{.rows = 1, .length = 1, .ids = {&id, 1}, .labels = {&label, 1}};
    TROUPE_RETURN_IF_ERROR(pass(nothing, nothing));
    return EvalBatch();
  }
  std::vector<std::uint32_t> samples(static_cast<std::size_t>(rows));
  std::iota(samples.begin(), samples.end(),
            static_cast<std::uint32_t>(options_.first + batch * options_.batch_size));
  if (dataset_->is_mapped())
    TROUPE_RETURN_IF_ERROR(check_tokens(*dataset_, samples, models.model.config().vocab_size));
  const bool judged = dataset_->kind() == TokenDataset::Kind::kFeedback;
  TokenBatch own = judged ? collate_answers(*dataset_, samples, Answers::kOwn)
                          : collate_ragged(*dataset_, samples);
  const TokenBatch others =
      judged ? collate_answers(*dataset_, samples, Answers::kOfOthers) : TokenBatch();
  ObjectiveSum sum = TROUPE_TRY(pass(view_of(own), view_of(others)));
  if (options_.accuracy) {
    // By their places in the batch.
    add_places(*dataset_, samples, own, -static_cast<std::int64_t>(samples.front()));
    sum.metrics = accuracy_of(view_of(own), own.samples, samples.size(), hits);
  }
  // Of an objective that gives a batch's mean there is nothing to divide.
  const bool is_mean = objective.division() != Objective::Division::kTargets;
  return EvalBatch{.loss_sum = sum.loss_sum,
                   .targets = is_mean ? 1 : sum.target_count,
                   .rows = rows,
                   .metrics = sum.metrics};
}

Result<EvalResult> Evaluator::run(const Objective& objective, const AskedModels& models,
                                  collective::Communicator& ranks, const Clock& clock,
                                  const Progress& progress) const {
  const Activations& activations = models.activations;
  const TimePoint begin = clock.now();
  const ActivationOptions need = activation_options();
  if (!has_room(activations.options(), need)) {
    return error(Code::kInvalidArgument,
                 "evaluation batches of {} rows of {} tokens do not fit activations for {} of {}: "
                 "lower per_device_eval_batch_size",
                 need.rows_max, need.length_max, activations.options().rows_max,
                 activations.options().length_max);
  }
  const auto world = static_cast<std::size_t>(ranks.world_size());
  const std::int64_t round_count = rounds(ranks.world_size());
  const std::size_t metrics = eval_metrics(objective, options_.accuracy).size();
  const std::size_t fields = kFieldsPerBatch + 2 * metrics;
  std::vector<double> mine;
  for (std::int64_t round = 0; round < round_count; ++round) {
    if (progress) TROUPE_RETURN_IF_ERROR(progress(round, round_count));
    const std::int64_t batch = round * ranks.world_size() + ranks.rank();
    const EvalBatch sums = TROUPE_TRY(run_batch(batch, objective, models));
    mine.push_back(sums.loss_sum);
    mine.push_back(static_cast<double>(sums.targets));
    for (std::size_t i = 0; i < metrics; ++i) {
      mine.push_back(sums.metrics.sums[i]);
      mine.push_back(sums.metrics.counts[i]);
    }
  }
  // By rank, each rank's by round.
  std::vector<double> all(mine.size() * world);
  const std::vector<std::size_t> counts(world, mine.size());
  TROUPE_RETURN_IF_ERROR(
      ranks.all_gather(std::span<const double>(mine), std::span<double>(all), counts));
  std::vector<EvalBatch> batches(static_cast<std::size_t>(batch_count()));
  for (std::size_t batch = 0; batch < batches.size(); ++batch) {
    const std::size_t at = batch % world * mine.size() + batch / world * fields;
    batches[batch] = {.loss_sum = all[at],
                      .targets = static_cast<std::int64_t>(all[at + 1]),
                      .rows = rows_of(static_cast<std::int64_t>(batch))};
    for (std::size_t i = 0; i < metrics; ++i)
      batches[batch].metrics.set(i, all[at + 2 + 2 * i], all[at + 3 + 2 * i]);
  }
  EvalResult result = combine_eval_batches(batches, options_.nan_inf_filter, options_.weights);
  if (options_.part) result.data_set = options_.part->name;
  result.seconds = std::chrono::duration<double>(clock.now() - begin).count();
  return result;
}

}  // namespace troupe::train
