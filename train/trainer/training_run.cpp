#include "train/trainer/training_run.h"

#include <algorithm>

#include "train/checkpoint/checkpoint_directory.h"
#include "train/cpu/cpu_operators.h"
#include "train/model/flops.h"
#include "train/trainer/saved_stop.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/training_run_parts.h"

namespace troupe::train {
namespace {

// How long the end of a run waits for the last checkpoint's commit.
constexpr auto kCommitTimeout = std::chrono::minutes(10);
// How long a generation that is lost waits for a commit under way.
constexpr auto kLastCommit = std::chrono::seconds(2);

// What the forward pass keeps for the backward pass, or a refusal that says what to make smaller.
Result<std::unique_ptr<Activations>> make_activations(const RunBundle& bundle,
                                                      Operators& operators) {
  const ActivationOptions options =
      activation_options(bundle.config, bundle.dataset, bundle.eval ? &*bundle.eval : nullptr);
  auto made = Activations::allocate(bundle.model, options, operators);
  if (made.ok()) return made;
  return made.status().prefixed(
      fmt::format("{} rows of {} tokens: lower per_device_train_batch_size (with "
                  "gradient_accumulation_steps the step keeps its size) or cutoff_len",
                  options.rows_max, options.length_max));
}

// Across world sizes an epoch's steps are those that one rank would make.
Result<RunSchedule> plan_run(const TrainConfig& config, std::int64_t samples, int world_size) {
  if (config.sharding.deterministic != Deterministic::kAcrossWorldSizes)
    return plan_steps(config.training, samples, world_size);
  TrainingSection alone = config.training;
  alone.gradient_accumulation_steps *= world_size;
  return plan_steps(alone, samples, 1);
}

CheckpointLayout checkpoint_layout(CheckpointFormat format) {
  return format == CheckpointFormat::kSharded ? CheckpointLayout::kSharded : CheckpointLayout::kHf;
}

}  // namespace

// Of all ranks together.
double TrainingRun::step_flops(const StepPlan& plan) const {
  double flops = 0;
  for (const auto& samples : plan.batches) {
    if (samples.empty()) continue;
    flops += model_flops(fixed_->bundle.model, static_cast<std::int64_t>(samples.size()),
                         collated_length(fixed_->bundle.dataset, samples));
  }
  return flops;
}

TrainingRun::TrainingRun(std::unique_ptr<Fixed> fixed)
    : fixed_(std::move(fixed)), best_(fixed_->best) {}
TrainingRun::~TrainingRun() = default;

std::int64_t TrainingRun::total_steps() const { return fixed_->facts.total_steps; }
std::int64_t TrainingRun::step() const { return fixed_->state.record().step; }
memory::Segment& TrainingRun::state_segment() { return fixed_->state.segment(); }

Result<std::unique_ptr<TrainingRun>> TrainingRun::create(FileSystem& files, const Clock& clock,
                                                         Logger log, RunBundle bundle,
                                                         const TrainingRunOptions& options) {
  const TrainConfig& config = bundle.config;
  const Strategy strategy = TROUPE_TRY(strategy_of(config));
  const Mesh mesh = TROUPE_TRY(mesh_of(config, options.world_size, options.ranks_per_node));
  auto arena = std::make_unique<Arena>(options.threads);
  auto operators = make_cpu_operators(*arena);
  auto model = make_model(bundle.model, *operators);
  auto activations = TROUPE_TRY(make_activations(bundle, *operators));
  auto layout = std::make_unique<RankLayout>(model->layout(), strategy, mesh, options.rank);
  auto state = TROUPE_TRY(TrainingState::create(
      *layout, state_dtype(config), fmt::format("troupe-{}-rank{}", options.run, options.rank)));
  const std::int64_t samples = bundle.dataset.size();
  auto sampler = TROUPE_TRY(Sampler::make(sampler_options(config, samples, options.world_size)));
  const auto facts = TROUPE_TRY(plan_run(config, samples, options.world_size));
  const auto& training = config.training;
  auto schedule =
      TROUPE_TRY(Schedule::make(training.lr_scheduler_type, training.lr_scheduler_kwargs,
                                training.learning_rate, facts.total_steps, facts.warmup_steps));
  auto best = TROUPE_TRY(BestModel::make(config.evaluation, training.save_strategy));
  const auto evaluation = plan_evaluation(config, facts);
  const auto engine = engine_options(config, bundle.model, strategy, options.overlaps);
  std::unique_ptr<Fixed> fixed(new Fixed{.files = files,
                                         .clock = clock,
                                         .log = std::move(log),
                                         .bundle = std::move(bundle),
                                         .options = options,
                                         .arena = std::move(arena),
                                         .operators = std::move(operators),
                                         .model = std::move(model),
                                         .activations = std::move(activations),
                                         .layout = std::move(layout),
                                         .engine_options = engine,
                                         .state = std::move(state),
                                         .sampler = std::move(sampler),
                                         .schedule = std::move(schedule),
                                         .facts = facts,
                                         .best = std::move(best),
                                         .evaluation = evaluation,
                                         .evaluator = std::nullopt});
  if (fixed->bundle.eval) {
    const TrainConfig& kept = fixed->config();
    fixed->evaluator = TROUPE_TRY(Evaluator::make(
        *fixed->bundle.eval, {.batch_size = kept.evaluation.per_device_eval_batch_size,
                              .nan_inf_filter = kept.training.logging_nan_inf_filter}));
  }
  return std::unique_ptr<TrainingRun>(new TrainingRun(std::move(fixed)));
}

Status TrainingRun::run_generation(collective::Communicator& communicator, std::uint64_t number,
                                   TrainingObserver& observer) {
  Fixed& f = *fixed_;
  Generation generation{.world = communicator,
                        .number = number,
                        .observer = observer,
                        .engine = nullptr,
                        .saver = nullptr};
  TROUPE_RETURN_IF_ERROR(load(generation));
  generation.engine = TROUPE_TRY(Engine::make(
      *f.layout, f.engine_options, communicator, *f.operators, f.clock,
      [&f](std::int64_t count, const std::function<void(std::int64_t)>& fn) {
        f.arena->parallel_for(count, [&](std::int64_t i, int) { fn(i); });
      },
      f.state.buffers()));
  TROUPE_RETURN_IF_ERROR(generation.engine->parameters_changed(false));
  SaverOptions saver{.output_dir = f.output_dir(),
                     .run = f.options.run,
                     .layout = checkpoint_layout(f.config().training.checkpoint_format)};
  if (const auto limit = f.config().training.save_total_limit)
    saver.save_total_limit = static_cast<int>(*limit);
  generation.saver =
      std::make_unique<CheckpointSaver>(f.files, communicator, f.clock, saver, f.log);
  if (f.leads() && compute_dtype(f.config()) == DType::kBF16 && !f.operators->fast_bf16()) {
    observer.warning(
        "this processor has no bf16 arithmetic: bf16 is computed with rounded fp32 operands and is "
        "slower than fp32 (bf16: false)");
  }
  observer.loaded(step());
  const Status looped = loop(generation);
  const Status ended = looped.ok() ? finish(generation) : looped;
  if (ended.ok()) return ended;
  // The others must not wait for a rank that gave up for a reason of its own, nor this one's
  // communication for them.
  if (!saved_step_of(ended)) communicator.abort(ended);
  // A checkpoint that all ranks have written is good, whatever ended the generation.
  if (!generation.saver->started())
    static_cast<void>(generation.saver->wait(Deadline::after(kLastCommit)));
  report_saves(generation);
  return ended;
}

// --- the loop
// ---------------------------------------------------------------------------------------

Status TrainingRun::loop(Generation& generation) {
  Fixed& f = *fixed_;
  if (step() == 0 && f.evaluation.due_on_start()) TROUPE_RETURN_IF_ERROR(evaluate(generation));
  TrainingStep next({.config = f.config(),
                     .dataset = f.bundle.dataset,
                     .model = *f.model,
                     .activations = *f.activations,
                     .layout = *f.layout,
                     .schedule = f.schedule,
                     .clock = f.clock,
                     .engine = *generation.engine,
                     .record = f.state.record(),
                     .observer = generation.observer,
                     .before_update = [&] { return seal_save(generation); }});
  while (step() < total_steps() && !best_.should_stop()) {
    if (generation.observer.stop_requested())
      return error(Code::kCancelled, "the run was told to stop");
    const TimePoint began = f.clock.now();
    const std::uint64_t sent = generation.engine->communicators().algorithm_bytes_sent();
    generation.saver_bytes = 0;
    const StepPlan plan = f.sampler.next_step(cursor_);
    StepOutcome outcome = TROUPE_TRY(next.run(plan));
    cursor_ = plan.after;
    StepRecord& record = outcome.record;
    record.rates.bytes_sent =
        generation.engine->communicators().algorithm_bytes_sent() - sent - generation.saver_bytes;
    const double spent = std::chrono::duration<double>(f.clock.now() - began).count();
    record.seconds.stall = std::max(0.0, spent - record.seconds.total());
    // What starting a save took after the last step belongs to the step that it held up.
    record.seconds.checkpoint += std::exchange(generation.save_start_seconds, 0.0);
    TROUPE_RETURN_IF_ERROR(finish_step(generation, plan, outcome));
    if (outcome.save_and_stop) {
      TROUPE_RETURN_IF_ERROR(seal_save(generation));
      TROUPE_RETURN_IF_ERROR(settle_saves(generation));
      return saved_stop(step());
    }
  }
  return {};
}

// Order as in transformers: log, evaluate, save.
Status TrainingRun::finish_step(Generation& generation, const StepPlan& plan,
                                const StepOutcome& outcome) {
  Fixed& f = *fixed_;
  StepRecord record = outcome.record;
  bool logged = false;
  if (f.leads()) {
    const auto rates =
        step_rates(record.tokens, step_flops(plan), gemm_flops_per_s_, record.seconds);
    record.rates.tokens_per_s = rates.tokens_per_s;
    record.rates.gflops = rates.gflops;
    record.rates.gemm_share = rates.gemm_share;
    auto recorded = recorder_->step(record);
    // A full disk costs a line of a log, not the run.
    if (!recorded.ok()) generation.observer.warning(recorded.status().to_string());
    logged = std::move(recorded).value_or(false);
  }
  const bool last = step() == total_steps();
  if (f.evaluation.due(step(), plan.last_of_epoch)) TROUPE_RETURN_IF_ERROR(evaluate(generation));
  if (outcome.save_and_stop || checkpoint_due(plan, last || best_.should_stop())) {
    generation.observer.phase(record.step, ChaosPhase::kCheckpoint);
    TROUPE_RETURN_IF_ERROR(start_save(generation));
  }
  report_saves(generation);
  if (f.leads()) generation.observer.step_finished(record, logged);
  return {};
}

Status TrainingRun::evaluate(Generation& generation) {
  Fixed& f = *fixed_;
  if (!f.evaluator) return {};
  generation.engine->units().begin_pass(ShardedUnits::Pass::kForwardOnly);
  const EvalResult result = TROUPE_TRY(
      f.evaluator->run(*f.model, generation.engine->units(), *f.activations, generation.world,
                       f.clock, [&](std::int64_t, std::int64_t) -> Status {
                         if (!generation.observer.stop_requested()) return {};
                         return error(Code::kCancelled, "the run was told to stop");
                       }));
  // As in transformers, the initial parameters are no candidate and cost no patience.
  const bool best = step() > 0 && best_.evaluated(result, step());
  evaluated_step_ = step();
  if (!f.leads()) return {};
  generation.observer.evaluated(result, step(), best);
  if (const Status written = recorder_->evaluated(result); !written.ok())
    generation.observer.warning(written.to_string());
  recorder_->set_best(best_);
  return {};
}

Status TrainingRun::finish(Generation& generation) {
  Fixed& f = *fixed_;
  TROUPE_RETURN_IF_ERROR(seal_save(generation));
  TROUPE_RETURN_IF_ERROR(settle_saves(generation));
  std::int64_t final_step = step();
  if (f.config().evaluation.load_best_model_at_end)
    TROUPE_RETURN_IF_ERROR(load_best_model(generation, final_step));
  if (f.evaluation.due_at_end(final_step, evaluated_step_))
    TROUPE_RETURN_IF_ERROR(evaluate(generation));
  TROUPE_RETURN_IF_ERROR(generation.saver->save_model(save_contents(true)));
  return f.leads() ? recorder_->finish(final_step) : Status();
}

// Rank 0 decides: what became of commits is known to it alone. Without a good checkpoint of the
// best model the final one stays, as in transformers.
Status TrainingRun::load_best_model(Generation& generation, std::int64_t& final_step) {
  Fixed& f = *fixed_;
  StateSource source{.checkpoint = true};
  std::int64_t best_step = -1;
  if (f.leads() && best_.best_checkpoint_step()) {
    // A run that was resumed from another folder may have its best model there.
    source.path = recorder_->state().best_model_checkpoint.value_or("");
    best_step = *best_.best_checkpoint_step();
    if (const auto good = validate_checkpoint(f.files, source.path); !good.ok()) {
      generation.observer.warning(
          fmt::format("the best model, {}, cannot be loaded, the final one is kept: {}",
                      source.path, good.status().to_string()));
      source.path.clear();
    }
  }
  TROUPE_RETURN_IF_ERROR(broadcast_text(generation.world, source.path));
  TROUPE_RETURN_IF_ERROR(generation.world.broadcast(std::span(&best_step, 1), 0));
  if (source.path.empty()) return {};
  TROUPE_RETURN_IF_ERROR(
      load_state(f.files, source, f.bundle.model, *f.layout, f.state.buffers(), generation.world));
  // That step was evaluated, or it would not be the best.
  evaluated_step_ = final_step = best_step;
  return generation.engine->parameters_changed(false);
}

// --- saving
// ----------------------------------------------------------------------------------------

bool TrainingRun::checkpoint_due(const StepPlan& plan, bool last) const {
  switch (fixed_->config().training.save_strategy) {
    case IntervalStrategy::kNo:
      return false;
    case IntervalStrategy::kBest:
      return best_.save_due(step());
    case IntervalStrategy::kEpoch:
      return last || plan.last_of_epoch;
    case IntervalStrategy::kSteps:
      return last || step() % fixed_->facts.save_interval == 0;
  }
  return false;
}

SaveContents TrainingRun::save_contents(bool final_model) {
  Fixed& f = *fixed_;
  const CommitRecord& record = f.state.record();
  SaveContents contents{.step = record.step,
                        .weights = weight_pieces(*f.layout, f.state.buffers()),
                        .files = f.bundle.companions};
  if (final_model) return contents;
  if (!f.config().training.save_only_model)
    contents.optimizer = moment_pieces(*f.layout, f.state.buffers());
  contents.scheduler = json::Object{{"last_step", record.step},
                                    {"skipped_steps", record.skipped},
                                    {"skipped_steps_in_a_row", record.skipped_in_a_row},
                                    {"moment_updates", record.moment_updates}};
  contents.rng_state = json::Object{{"seed", f.config().training.seed}};
  contents.cursor = cursor_.to_json();
  for (const std::int64_t step : best_.protected_steps()) contents.protected_steps.insert(step);
  if (f.leads()) {
    recorder_->set_best(best_);
    contents.files[kTrainerStateFile] = recorder_->trainer_state_text();
    contents.files[kTrainingArgsFile] = json::write_indented(to_json(f.config()), true) + "\n";
  }
  return contents;
}

Status TrainingRun::start_save(Generation& generation) {
  const TimePoint began = fixed_->clock.now();
  best_.saving(step());
  if (fixed_->leads()) {
    // The lines of the steps before stand for the checkpoint.
    if (const Status synced = recorder_->sync(); !synced.ok())
      generation.observer.warning(synced.to_string());
  }
  TROUPE_RETURN_IF_ERROR(generation.saver->start(save_contents(false)));
  generation.save_start_seconds =
      std::chrono::duration<double>(fixed_->clock.now() - began).count();
  return {};
}

Status TrainingRun::seal_save(Generation& generation) {
  if (!generation.saver->started()) return {};
  const auto& communicators = generation.engine->communicators();
  const std::uint64_t before = communicators.algorithm_bytes_sent();
  const SealReport report = TROUPE_TRY(generation.saver->seal());
  generation.saver_bytes += communicators.algorithm_bytes_sent() - before;
  if (report.outcome.ok()) return {};
  best_.save_failed(report.step);
  // Training goes on: the checkpoints before are as good as they were.
  if (fixed_->leads()) {
    generation.observer.warning(
        fmt::format("checkpoint-{} was not written: {}", report.step, report.outcome.to_string()));
  }
  return {};
}

void TrainingRun::report_saves(Generation& generation) {
  if (!fixed_->leads()) return;
  while (auto saved = generation.saver->poll()) {
    if (saved->ok()) {
      const std::string& path = (*saved)->path;
      generation.observer.checkpoint_written(
          checkpoint_step(path.substr(path.rfind('/') + 1)).value_or(-1), path);
    } else {
      // No checkpoint of the best model: the one before is kept from rotation again.
      if (const auto step = saved->status().context("step"))
        best_.save_failed(std::atoll(std::string(*step).c_str()));
      generation.observer.warning(saved->status().to_string());
    }
  }
}

Status TrainingRun::settle_saves(Generation& generation) {
  const Status settled = generation.saver->wait(Deadline::after(kCommitTimeout));
  report_saves(generation);
  return settled;
}

}  // namespace troupe::train
