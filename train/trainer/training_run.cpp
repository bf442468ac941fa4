#include "train/trainer/training_run.h"

#include <algorithm>
#include <cmath>

#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/cpu/cpu_operators.h"
#include "train/model/initialize.h"
#include "train/optimizer/adamw.h"
#include "train/optimizer/gradient_norm.h"
#include "train/trainer/training_state_io.h"

namespace troupe::train {
namespace {

SamplerOptions sampler_options(const TrainConfig& config, std::int64_t samples, int world_size) {
  return {.sample_count = samples,
          .world_size = world_size,
          .per_device_batch_size = config.training.per_device_train_batch_size,
          .gradient_accumulation_steps = config.training.gradient_accumulation_steps,
          .seed = static_cast<std::uint32_t>(config.training.order_seed()),
          .shuffle = !config.data.disable_shuffling,
          .drop_last = config.training.dataloader_drop_last};
}

std::int64_t longest_row(const TokenDataset& dataset) {
  std::int64_t longest = 1;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    longest = std::max(longest, static_cast<std::int64_t>(dataset.ids(i).size()));
  }
  // Batches of supervised samples are padded to a multiple of 8.
  return (longest + 7) / 8 * 8;
}

ActivationOptions activation_options(const RunBundle& bundle) {
  return {.rows_max = bundle.config.training.per_device_train_batch_size,
          .length_max = longest_row(bundle.dataset),
          .training = true,
          .recompute = bundle.config.model.disable_gradient_checkpointing
                           ? Recompute::kCheapOperators
                           : Recompute::kBlocks};
}

// What the forward pass keeps for the backward pass, or a refusal that says what to make smaller.
Result<std::unique_ptr<Activations>> make_activations(const RunBundle& bundle,
                                                      Operators& operators) {
  const ActivationOptions options = activation_options(bundle);
  auto made = Activations::allocate(bundle.model, options, operators);
  if (made.ok()) return made;
  return made.status().prefixed(
      fmt::format("{} rows of {} tokens: lower per_device_train_batch_size (with "
                  "gradient_accumulation_steps the step keeps its size) or cutoff_len",
                  options.rows_max, options.length_max));
}

MicroBatch view(const TokenBatch& batch) {
  return {.rows = batch.rows,
          .length = batch.length,
          .ids = batch.ids,
          .labels = batch.labels,
          .position_ids = batch.position_ids,
          .segment_ids = batch.segment_ids};
}

}  // namespace

struct TrainingRun::Prepared {
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Operators> operators;
  std::unique_ptr<Model> model;
  std::unique_ptr<Activations> activations;
  TrainingState state;
  Sampler sampler;
  Schedule schedule;
  RunSchedule facts;
};

Result<std::unique_ptr<TrainingRun>> TrainingRun::create(FileSystem& files, const Clock& clock,
                                                         Logger log, RunBundle bundle,
                                                         const TrainingRunOptions& options) {
  auto arena = std::make_unique<Arena>(options.threads);
  auto operators = make_cpu_operators(*arena);
  auto model = make_model(bundle.model, *operators);
  auto activations = TROUPE_TRY(make_activations(bundle, *operators));
  auto state = TROUPE_TRY(TrainingState::create(
      model->layout(), fmt::format("troupe-{}-rank{}", options.run, options.rank)));
  const std::int64_t samples = bundle.dataset.size();
  auto sampler =
      TROUPE_TRY(Sampler::make(sampler_options(bundle.config, samples, options.world_size)));
  const auto& training = bundle.config.training;
  const auto facts = TROUPE_TRY(plan_steps(training, samples, options.world_size));
  auto schedule =
      TROUPE_TRY(Schedule::make(training.lr_scheduler_type, training.lr_scheduler_kwargs,
                                training.learning_rate, facts.total_steps, facts.warmup_steps));
  return std::unique_ptr<TrainingRun>(new TrainingRun(
      files, clock, std::move(log), std::move(bundle), options,
      Prepared{std::move(arena), std::move(operators), std::move(model), std::move(activations),
               std::move(state), std::move(sampler), std::move(schedule), facts}));
}

TrainingRun::TrainingRun(FileSystem& files, const Clock& clock, Logger log, RunBundle bundle,
                         const TrainingRunOptions& options, Prepared prepared)
    : files_(files),
      clock_(clock),
      log_(std::move(log)),
      bundle_(std::move(bundle)),
      config_(bundle_.config),
      options_(options),
      arena_(std::move(prepared.arena)),
      operators_(std::move(prepared.operators)),
      model_(std::move(prepared.model)),
      activations_(std::move(prepared.activations)),
      state_(std::move(prepared.state)),
      sampler_(std::move(prepared.sampler)),
      schedule_(std::move(prepared.schedule)),
      schedule_facts_(prepared.facts) {}

// --- loading
// ---------------------------------------------------------------------------------------

Status TrainingRun::load_initial_weights() {
  const ParameterLayout& layout = model_->layout();
  const auto parameters = state_.parameters();
  if (config_.model.train_from_scratch) {
    for (std::size_t unit = 0; unit < layout.units().size(); ++unit) {
      const UnitInfo& info = layout.units()[unit];
      initialize_unit(layout, static_cast<int>(unit), model_->config().initializer_range,
                      static_cast<std::uint64_t>(config_.training.seed),
                      parameters.subspan(static_cast<std::size_t>(info.flat_offset),
                                         static_cast<std::size_t>(info.elements)));
    }
    return {};
  }
  const auto weights = TROUPE_TRY(Weights::load(files_, config_.model.model_name_or_path));
  return read_parameters(weights, model_->config(), layout, parameters);
}

Status TrainingRun::load_checkpoint_state(const GoodCheckpoint& good) {
  const std::string& path = good.path;
  const auto checkpoint = TROUPE_TRY(load_checkpoint(files_, good));
  TROUPE_RETURN_IF_ERROR(
      read_parameters(checkpoint.weights, model_->config(), model_->layout(), state_.parameters()));
  if (checkpoint.optimizer) {
    TROUPE_RETURN_IF_ERROR(read_moments(*checkpoint.optimizer, model_->layout(), state_.exp_avg(),
                                        state_.exp_avg_sq()));
  } else {
    log_.warning("{} has no optimizer state: the optimizer starts anew", path);
  }
  state_.record().step = good.step;
  if (!checkpoint.cursor.is_null()) {
    cursor_ = TROUPE_TRY(SampleCursor::from_json(checkpoint.cursor));
  } else {
    // Another program's checkpoint: the position that this many steps of this run would reach.
    for (std::int64_t step = 0; step < good.step; ++step)
      cursor_ = sampler_.next_step(cursor_).after;
  }
  if (!checkpoint.trainer_state.empty()) {
    restored_ = TROUPE_TRY(parse_trainer_state(checkpoint.trainer_state, path));
  }
  restored_.global_step = good.step;
  return {};
}

Status TrainingRun::load_here(std::uint64_t generation) {
  operators_->zero(state_.parameters().data(), model_->layout().total_elements());
  operators_->zero(state_.exp_avg().data(), model_->layout().total_elements());
  operators_->zero(state_.exp_avg_sq().data(), model_->layout().total_elements());
  state_.record() = {.step = 0, .generation = generation};
  cursor_ = {};
  restored_ = {};
  const std::string& output = config_.training.output_dir;
  TROUPE_RETURN_IF_ERROR(files_.create_directories(output));
  std::vector<RefusedCheckpoint> refused;
  std::optional<GoodCheckpoint> own;
  if (generation > 1) {
    own = TROUPE_TRY(newest_good_checkpoint(files_, output, &refused, {.run = options_.run}));
    if (const auto text = refused_message(refused, own); !text.empty()) log_.warning("{}", text);
  } else if (options_.resume_path.empty() && config_.training.overwrite_output_dir) {
    TROUPE_RETURN_IF_ERROR(remove_all_checkpoints(files_, output));
  }
  if (own) return load_checkpoint_state(*own);
  if (!options_.resume_path.empty()) {
    return load_checkpoint_state(TROUPE_TRY(validate_checkpoint(files_, options_.resume_path)));
  }
  return load_initial_weights();
}

Status TrainingRun::share(collective::Communicator& communicator) {
  // step, epoch, next sample, consumed samples
  std::int64_t facts[4] = {state_.record().step, cursor_.epoch, cursor_.next_sample,
                           cursor_.consumed_samples};
  TROUPE_RETURN_IF_ERROR(communicator.broadcast(std::span<std::int64_t>(facts), 0));
  state_.record().step = facts[0];
  cursor_ = {.epoch = facts[1], .next_sample = facts[2], .consumed_samples = facts[3]};
  TROUPE_RETURN_IF_ERROR(communicator.broadcast(state_.parameters(), 0));
  if (facts[0] > 0) {
    TROUPE_RETURN_IF_ERROR(communicator.broadcast(state_.exp_avg(), 0));
    TROUPE_RETURN_IF_ERROR(communicator.broadcast(state_.exp_avg_sq(), 0));
  } else if (options_.rank != 0) {
    operators_->zero(state_.exp_avg().data(), model_->layout().total_elements());
    operators_->zero(state_.exp_avg_sq().data(), model_->layout().total_elements());
  }
  return {};
}

Status TrainingRun::load(collective::Communicator& communicator, std::uint64_t generation) {
  recorder_.reset();
  if (options_.rank == 0) TROUPE_RETURN_IF_ERROR(load_here(generation));
  state_.record().generation = generation;
  TROUPE_RETURN_IF_ERROR(share(communicator));
  if (options_.rank == 0) {
    const double flos_per_token =
        6.0 * static_cast<double>(model_->layout().parameter_elements() -
                                  model_->config().vocab_size * model_->config().hidden_size);
    recorder_ = TROUPE_TRY(RunRecorder::open(files_, clock_, config_,
                                             {.schedule = schedule_facts_,
                                              .flos_per_token = flos_per_token,
                                              .dataset_tokens = bundle_.dataset.token_count(),
                                              .world_size = options_.world_size,
                                              .started_unix_us = options_.started_unix_us},
                                             std::move(restored_)));
  }
  return {};
}

// --- stepping
// --------------------------------------------------------------------------------------

Status TrainingRun::run_generation(collective::Communicator& communicator, std::uint64_t generation,
                                   TrainingObserver& observer) {
  TROUPE_RETURN_IF_ERROR(load(communicator, generation));
  observer.loaded(state_.record().step);
  DataParallelUnits units(model_->layout(), *operators_, communicator, state_.parameters(),
                          state_.gradients(), config_.training.gradient_accumulation_steps > 1);
  while (state_.record().step < schedule_facts_.total_steps) {
    if (observer.stop_requested()) return error(Code::kCancelled, "the run was told to stop");
    const StepPlan plan = sampler_.next_step(cursor_);
    const StepRecord record = TROUPE_TRY(step(communicator, units, plan, observer));
    cursor_ = plan.after;
    bool logged = false;
    if (options_.rank == 0) {
      auto recorded = recorder_->step(record);
      // A full disk costs a line of a log, not the run.
      if (!recorded.ok()) observer.warning(recorded.status().to_string());
      logged = std::move(recorded).value_or(false);
    }
    if (checkpoint_due(plan)) {
      observer.phase(record.step, ChaosPhase::kCheckpoint);
      if (options_.rank == 0) write_checkpoint(observer);
    }
    if (options_.rank == 0) observer.step_finished(record, logged);
  }
  if (options_.rank == 0) TROUPE_RETURN_IF_ERROR(finish());
  return {};
}

Result<StepRecord> TrainingRun::step(collective::Communicator& communicator,
                                     DataParallelUnits& units, const StepPlan& plan,
                                     TrainingObserver& observer) {
  const std::int64_t number = state_.record().step + 1;
  observer.phase(number, ChaosPhase::kBegin);
  StepRecord record{.step = number, .learning_rate = schedule_.learning_rate(number - 1)};
  // Every rank knows every rank's samples, so the step's target count needs no communication.
  std::vector<TokenBatch> mine;
  std::int64_t targets = 0;
  for (std::int64_t micro = 0; micro < plan.micro_batch_count(); ++micro) {
    for (std::int64_t rank = 0; rank < options_.world_size; ++rank) {
      auto batch = collate(bundle_.dataset, plan.samples(micro, rank));
      targets += count_target_tokens(batch);
      record.tokens += static_cast<std::int64_t>(batch.ids.size());
      if (rank == options_.rank) mine.push_back(std::move(batch));
    }
  }
  const float scale =
      static_cast<float>(1.0 / static_cast<double>(std::max<std::int64_t>(1, targets)));
  observer.phase(number, ChaosPhase::kForward);
  const CrossEntropyLoss cross_entropy;
  double loss_sum = 0;
  for (std::size_t micro = 0; micro < mine.size(); ++micro) {
    units.begin_micro_batch(micro == 0);
    const LossSum loss = TROUPE_TRY(
        model_->forward_backward(view(mine[micro]), units, cross_entropy, scale, *activations_));
    loss_sum += loss.loss_sum;
    observer.phase(number, ChaosPhase::kBackward);
  }
  observer.phase(number, ChaosPhase::kCommunication);
  record.loss = TROUPE_TRY(sum_losses(communicator, loss_sum, number)) /
                static_cast<double>(std::max<std::int64_t>(1, targets));
  const GradientNorm norm = TROUPE_TRY(gradient_norm());
  record.grad_norm = norm.norm;
  observer.phase(number, ChaosPhase::kOptimizer);
  TROUPE_RETURN_IF_ERROR(optimize(record, norm));
  return record;
}

Result<double> TrainingRun::sum_losses(collective::Communicator& communicator, double loss_sum,
                                       std::int64_t step) {
  const auto world = static_cast<std::size_t>(options_.world_size);
  std::vector<double> sums(world);
  const std::vector<std::size_t> counts(world, 1);
  TROUPE_RETURN_IF_ERROR(communicator.all_gather(std::span<const double>(&loss_sum, 1),
                                                 std::span<double>(sums), counts));
  double total = 0;
  for (std::size_t rank = 0; rank < world; ++rank) {
    if (!std::isfinite(sums[rank])) {
      return error(
          Code::kFailedPrecondition,
          "the loss of rank {} at step {} is not finite ({}): lower learning_rate, or look "
          "for damaged data",
          rank, step, sums[rank]);
    }
    total += sums[rank];
  }
  return total;
}

Result<GradientNorm> TrainingRun::gradient_norm() {
  const ParameterLayout& layout = model_->layout();
  const auto gradients = state_.gradients();
  std::vector<double> sums(static_cast<std::size_t>(layout.tile_count()));
  arena_->parallel_for(layout.tile_count(), [&](std::int64_t tile, int) {
    sums[static_cast<std::size_t>(tile)] = tile_sum_of_squares(gradients.subspan(
        static_cast<std::size_t>(tile * kTileElements), static_cast<std::size_t>(kTileElements)));
  });
  const GradientNorm norm = combine_tile_sums(sums);
  if (norm.first_non_finite_tile) {
    const auto* parameter = layout.at_flat_offset(*norm.first_non_finite_tile * kTileElements);
    return error(Code::kFailedPrecondition,
                 "the gradient of {} at step {} is not finite: lower learning_rate, or look for "
                 "damaged data",
                 parameter ? parameter->name : "a tensor", state_.record().step + 1);
  }
  return norm;
}

Status TrainingRun::optimize(const StepRecord& record, const GradientNorm& norm) {
  const ParameterLayout& layout = model_->layout();
  const auto& training = config_.training;
  const AdamWStep step{.learning_rate = record.learning_rate,
                       .beta1 = training.adam_beta1,
                       .beta2 = training.adam_beta2,
                       .epsilon = training.adam_epsilon,
                       .weight_decay = training.weight_decay,
                       .step = record.step,
                       .gradient_scale = clip_coefficient(norm.norm, training.max_grad_norm)};
  std::vector<FlatDecayRange> ranges;
  for (const DecayRange& range : layout.decay_ranges()) {
    ranges.push_back({range.begin, range.end, range.decays});
  }
  arena_->parallel_for(layout.tile_count(), [&](std::int64_t tile, int) {
    const auto begin = static_cast<std::size_t>(tile * kTileElements);
    const auto size = static_cast<std::size_t>(kTileElements);
    adamw_update(step, ranges, tile * kTileElements, state_.parameters().subspan(begin, size),
                 state_.gradients().subspan(begin, size), state_.exp_avg().subspan(begin, size),
                 state_.exp_avg_sq().subspan(begin, size));
  });
  state_.record().step = record.step;
  state_.record().grad_norm = norm.norm;
  return {};
}

// --- saving
// ----------------------------------------------------------------------------------------

bool TrainingRun::checkpoint_due(const StepPlan& plan) const {
  const std::int64_t step = state_.record().step;
  const bool last = step == schedule_facts_.total_steps;
  switch (config_.training.save_strategy) {
    case IntervalStrategy::kNo:
    case IntervalStrategy::kBest:
      return false;
    case IntervalStrategy::kEpoch:
      return plan.last_of_epoch;
    case IntervalStrategy::kSteps:
      return last || step % schedule_facts_.save_interval == 0;
  }
  return false;
}

void TrainingRun::write_checkpoint(TrainingObserver& observer) {
  const std::int64_t step = state_.record().step;
  CheckpointOptions options{.weights_only = config_.training.save_only_model};
  if (config_.training.save_total_limit) {
    options.save_total_limit = static_cast<int>(*config_.training.save_total_limit);
  }
  CheckpointContents contents{.step = step,
                              .world_size = options_.world_size,
                              .run = options_.run,
                              .weights = weight_tensors(),
                              .optimizer = optimizer_tensors(),
                              .scheduler = json::Object{{"last_step", step}},
                              .rng_state = json::Object{{"seed", config_.training.seed}},
                              .cursor = cursor_.to_json(),
                              .files = bundle_.companions};
  contents.files[kTrainerStateFile] = recorder_->trainer_state_text();
  contents.files[kTrainingArgsFile] = json::write_indented(to_json(config_), true) + "\n";
  CheckpointWriter writer(files_, config_.training.output_dir, options, log_);
  Status synced = recorder_->sync();
  auto written = synced.ok() ? writer.write(contents) : Result<WrittenCheckpoint>(synced);
  if (written.ok()) {
    observer.checkpoint_written(step, written->path);
  } else {
    // Training goes on: the checkpoints before are as good as they were.
    observer.warning(
        fmt::format("checkpoint-{} was not written: {}", step, written.status().to_string()));
  }
}

std::vector<StoredTensor> TrainingRun::weight_tensors() const {
  return tensors_of(model_->layout(), "", state_.parameters());
}

std::vector<StoredTensor> TrainingRun::optimizer_tensors() const {
  auto tensors = tensors_of(model_->layout(), "exp_avg.", state_.exp_avg());
  auto second = tensors_of(model_->layout(), "exp_avg_sq.", state_.exp_avg_sq());
  tensors.insert(tensors.end(), second.begin(), second.end());
  return tensors;
}

Status TrainingRun::finish() {
  TROUPE_RETURN_IF_ERROR(
      save_model(files_, config_.training.output_dir, weight_tensors(), bundle_.companions));
  return recorder_->finish();
}

}  // namespace troupe::train
