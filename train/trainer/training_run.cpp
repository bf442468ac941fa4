#include "train/trainer/training_run.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "runtime/base/build_options.h"
#include "runtime/base/check.h"
#include "train/adapters/pissa_convert.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_names.h"
#include "train/model/flops.h"
#include "train/progress/abandon.h"
#include "train/report/format.h"
#include "train/trainer/saved_stop.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/training_run_parts.h"

namespace troupe::train {
namespace {

// How long the end of a run waits for the last checkpoint's commit.
constexpr auto kCommitTimeout = std::chrono::minutes(10);
// How long a generation that is lost waits for a commit under way.
constexpr auto kLastCommit = std::chrono::seconds(2);

// A finished model that could not be written is tried again; between, a named folder is looked for.
constexpr auto kTryModelAgain = std::chrono::seconds(3);
constexpr auto kLookForRoom = std::chrono::milliseconds(100);

// Whether a save failed of its files, on all ranks the same, and not of the ranks' communication.
bool is_of_the_disk(const Status& status) {
  switch (status.code()) {
    case Code::kAborted:
    case Code::kCancelled:
    case Code::kUnavailable:
    case Code::kDeadlineExceeded:
    case Code::kProtocol:
      return false;
    default:
      return true;
  }
}

// The way out where there is too little memory for a pass.
Status with_way_out(const Status& status, const ActivationOptions& activations) {
  if (status.code() != Code::kOutOfMemory) return status;
  return Status(status).prefixed(
      fmt::format("{} rows of {} tokens: lower per_device_train_batch_size (with "
                  "gradient_accumulation_steps the step keeps its size) or cutoff_len",
                  activations.rows_max, activations.length_max));
}

ActivationOptions activations_of(const RunBundle& bundle) {
  return activation_options(bundle.config, bundle.model, bundle.trainables,
                            longest_collated_length(bundle.dataset));
}

std::optional<ActivationOptions> evaluation_of(const RunBundle& bundle) {
  if (!bundle.eval) return std::nullopt;
  return evaluation_options(bundle.config, bundle.model, bundle.trainables, bundle.eval->size(),
                            longest_collated_length(*bundle.eval));
}

// The arena of the activations, cut for evaluation as long as this lives.
class EvaluationCut {
 public:
  EvaluationCut(ComputeDevice& compute, const ModelConfig& model, ActivationOptions evaluation)
      : compute_(compute), model_(model), training_(compute.activations().options()) {
    evaluation.type = training_.type;
    compute_.activations().cut_for(model_, evaluation, compute_.operators());
  }
  ~EvaluationCut() { compute_.activations().cut_for(model_, training_, compute_.operators()); }
  EvaluationCut(const EvaluationCut&) = delete;
  EvaluationCut& operator=(const EvaluationCut&) = delete;

 private:
  ComputeDevice& compute_;
  const ModelConfig& model_;
  const ActivationOptions training_;
};

Result<std::unique_ptr<ComputeDevice>> open_compute(const RunBundle& bundle,
                                                    std::shared_ptr<const Objective> objective,
                                                    const TrainingRunOptions& options,
                                                    const Logger& log) {
  static const SystemEnvironment environment;
  const ActivationOptions activations = activations_of(bundle);
  auto opened = ComputeDevice::open(
      options.compute,
      {.model = bundle.model,
       .activations = activations,
       .objective = std::move(objective),
       .evaluation = evaluation_of(bundle),
       .threads = options.threads,
       .deterministic = bundle.config.sharding.deterministic != Deterministic::kOff,
       .ragged = !equal_lengths(bundle.dataset) || (bundle.eval && !equal_lengths(*bundle.eval)),
       .offload = offload_of(bundle.config, options.compute.kind == ComputeKind::kCuda),
       .stands_by = options.stands_by,
       .memory_patience = options.memory_patience},
      environment, log);
  if (opened.ok()) return opened;
  return with_way_out(opened.status(), activations);
}

CheckpointLayout checkpoint_layout(CheckpointFormat format) {
  return format == CheckpointFormat::kSharded ? CheckpointLayout::kSharded : CheckpointLayout::kHf;
}

}  // namespace

// Of all ranks together.
double TrainingRun::step_flops(const StepPlan& plan) const {
  double flops = 0;
  for (const auto& samples : plan.batches) {
    for (const auto sample : samples)
      flops += model_flops(fixed_->bundle.model, fixed_->model->model_layout(), 1,
                           real_length(fixed_->bundle.dataset, sample));
  }
  return flops;
}

TrainingRun::TrainingRun(std::unique_ptr<Fixed> fixed)
    : fixed_(std::move(fixed)), best_(fixed_->best) {}
TrainingRun::~TrainingRun() = default;

std::int64_t TrainingRun::total_steps() const { return fixed_->facts.total_steps; }
std::int64_t TrainingRun::step() const {
  return fixed_->state ? fixed_->transaction().position().step : 0;
}
int TrainingRun::rank() const { return fixed_->rank; }

Result<std::unique_ptr<TrainingRun>> TrainingRun::create(FileSystem& files, const Clock& clock,
                                                         Logger log, RunBundle bundle,
                                                         const TrainingRunOptions& options,
                                                         ProgressRecorder& progress) {
  const TrainConfig& config = bundle.config;
  const Strategy strategy = TROUPE_TRY(strategy_of(config));
  const auto objective = objective_of(config);
  auto compute = TROUPE_TRY(open_compute(bundle, objective, options, log));
  TROUPE_RETURN_IF_ERROR(check_operators(bundle.model, compute->operators()));
  TROUPE_RETURN_IF_ERROR(objective->check(compute->operators(), bundle.model));
  auto observed = std::make_unique<ObservedOperators>(compute->operators(), progress);
  auto model = make_model(bundle.model, *observed, bundle.trainables);
  const std::int64_t samples = bundle.dataset.size();
  auto sampler = TROUPE_TRY(Sampler::make(sampler_options(config, samples, options.world_size)));
  const auto facts = TROUPE_TRY(run_schedule(config, samples, options.world_size));
  const auto& training = config.training;
  auto schedule =
      TROUPE_TRY(Schedule::make(training.lr_scheduler_type, training.lr_scheduler_kwargs,
                                training.learning_rate, facts.total_steps, facts.warmup_steps));
  auto best = TROUPE_TRY(BestModel::make(config.evaluation, training.save_strategy));
  const auto evaluation = plan_evaluation(config, facts);
  auto optimizer = optimizer_of(config);
  const auto engine =
      engine_options(config, bundle.model, strategy, options.overlaps,
                     offload_of(config, options.compute.kind == ComputeKind::kCuda));
  std::unique_ptr<Fixed> fixed(new Fixed{.files = files,
                                         .clock = clock,
                                         .log = std::move(log),
                                         .bundle = std::move(bundle),
                                         .options = options,
                                         .compute = std::move(compute),
                                         .observed = std::move(observed),
                                         .model = std::move(model),
                                         .objective = objective,
                                         .progress = progress,
                                         .operator_times = nullptr,
                                         .collectives = ObservedCollectives(progress),
                                         .sampler = std::move(sampler),
                                         .schedule = std::move(schedule),
                                         .planned = facts,
                                         .facts = facts,
                                         .best = std::move(best),
                                         .evaluation = evaluation,
                                         .evaluator = std::nullopt,
                                         .engine_options = engine,
                                         .optimizer = std::move(optimizer),
                                         .layout = nullptr,
                                         .state = std::nullopt,
                                         .updates = nullptr,
                                         .held = {}});
  if (fixed->config().troupe.operator_times) {
    // An operator's time ends where its work does.
    if (!fixed->compute->access().in_place())
      fixed->observed->settle_by([device = fixed->compute.get()] { (void)device->settle(); });
    fixed->operator_times =
        std::make_unique<OperatorTimes>(static_cast<int>(fixed->model->layout().units().size()));
  }
  if (fixed->bundle.eval) {
    const TrainConfig& kept = fixed->config();
    fixed->evaluator = TROUPE_TRY(Evaluator::make(
        *fixed->bundle.eval, {.batch_size = kept.evaluation.per_device_eval_batch_size,
                              .nan_inf_filter = kept.training.logging_nan_inf_filter}));
  }
  return std::unique_ptr<TrainingRun>(new TrainingRun(std::move(fixed)));
}

Status TrainingRun::warm_up() {
  TROUPE_RETURN_IF_ERROR(fixed_->compute->warm_up());
  if (const std::string text = fixed_->compute->memory_text(); !text.empty())
    fixed_->log.info("ready for a rank; {}", text);
  return {};
}

Status TrainingRun::take_rank(int rank, SurvivingMemory& memory) {
  Fixed& f = *fixed_;
  TROUPE_CHECK(f.rank < 0, "rank {} is to become rank {}", f.rank, rank);
  if (const Status held = f.compute->hold_memory(); !held.ok())
    return with_way_out(held, activations_of(f.bundle));
  const Strategy strategy = TROUPE_TRY(strategy_of(f.config()));
  const Mesh mesh = TROUPE_TRY(mesh_of(f.config(), f.options.world_size, f.options.ranks_per_node));
  f.layout = std::make_unique<RankLayout>(f.model->model_layout(), strategy, mesh, rank);
  f.state = TROUPE_TRY(f.compute->open_state(
      *f.layout, state_dtype(f.config()), f.engine_options.compute.frozen, *f.optimizer, memory,
      "state", fmt::format("troupe-{}-rank{}", f.options.run, rank)));
  TROUPE_RETURN_IF_ERROR(f.compute->reserve(*f.layout, f.engine_options));
  f.updates = TROUPE_TRY(f.compute->optimizer_device(
      *f.layout, *f.state, *f.optimizer,
      [&f](std::uint64_t chunk, std::string_view moment) { f.progress.chunk(chunk, moment); }));
  f.memory = &memory;
  f.rank = rank;
  if (const std::string text = f.compute->memory_text(); f.leads() && !text.empty())
    f.log.info("{}", text);
  return {};
}

Result<std::unique_ptr<DeviceCommunicator>> TrainingRun::connect(
    collective::Communicator& communicator, DeviceLinks links) {
  const TrainConfig& config = fixed_->config();
  links.deterministic = config.sharding.deterministic != Deterministic::kOff;
  // The default is nobody's word: the environment's counts then.
  if (const auto seconds = config.training.ddp_timeout_s;
      seconds != TrainingSection().ddp_timeout_s)
    links.timeout = std::chrono::seconds(seconds);
  return fixed_->compute->connect(communicator, links);
}

Status TrainingRun::alive() { return fixed_->compute->alive(); }

Status TrainingRun::run_generation(collective::Communicator& communicator, std::uint64_t number,
                                   TrainingObserver& observer, DeviceCommunicator* device,
                                   GenerationPurpose purpose) {
  Fixed& f = *fixed_;
  TROUPE_CHECK(f.rank >= 0, "a generation without a rank");
  Generation generation{.world = communicator,
                        .device = device,
                        .number = number,
                        .observer = observer,
                        .purpose = purpose,
                        .engine_device = nullptr,
                        .engine = nullptr,
                        .saver = nullptr};
  f.progress.stage(step(), Stage::kLoad);
  communicator.observe(&f.collectives);
  if (device) device->observe(&f.collectives);
  const Status ended = run_observed(generation);
  generation.saver.reset();
  generation.engine.reset();
  generation.engine_device.reset();
  if (device) device->observe(nullptr);
  communicator.observe(nullptr);
  return ended;
}

std::unique_ptr<CheckpointSaver> TrainingRun::make_saver(Generation& generation,
                                                         const std::string& folder) {
  Fixed& f = *fixed_;
  SaverOptions saver{.output_dir = folder,
                     .run = f.options.run,
                     .layout = checkpoint_layout(f.config().training.checkpoint_format)};
  if (const auto limit = f.config().training.save_total_limit)
    saver.save_total_limit = static_cast<int>(*limit);
  return std::make_unique<CheckpointSaver>(f.files, generation.world, f.clock, saver, f.log);
}

Status TrainingRun::run_observed(Generation& generation) {
  Fixed& f = *fixed_;
  collective::Communicator& communicator = generation.world;
  TrainingObserver& observer = generation.observer;
  generation.engine_device = f.compute->engine_device(communicator, generation.device);
  generation.engine =
      TROUPE_TRY(Engine::make(*f.layout, f.engine_options, *generation.engine_device, f.clock,
                              *f.updates, f.state->buffers()));
  TrainerLoaded loaded{.rank = f.rank, .generation = generation.number};
  TROUPE_RETURN_IF_ERROR(begin(generation, loaded));
  generation.saver = make_saver(generation, f.output_dir());
  if (f.leads() && compute_dtype(f.config()) == DType::kBF16 &&
      !f.compute->operators().fast_bf16()) {
    observer.warning(
        "this processor has no bf16 arithmetic: bf16 is computed with rounded fp32 operands and is "
        "slower than fp32 (bf16: false)");
  }
  observer.loaded(loaded);
  f.progress.time_operators(f.operator_times.get());
  const Status looped = loop(generation);
  f.progress.time_operators(nullptr);
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

TrainingStep TrainingRun::step_of(Generation& generation) {
  Fixed& f = *fixed_;
  return TrainingStep({.config = f.config(),
                       .dataset = f.bundle.dataset,
                       .model = *f.model,
                       .objective = *f.objective,
                       .activations = f.compute->activations(),
                       .layout = *f.layout,
                       .schedule = f.schedule,
                       .schedule_offset = f.facts.schedule_offset,
                       .clock = f.clock,
                       .engine = *generation.engine,
                       .compute = *f.compute,
                       .transaction = f.transaction(),
                       .progress = f.progress,
                       .observer = generation.observer,
                       .before_update = [this, &generation] { return seal_save(generation); }});
}

Status TrainingRun::loop(Generation& generation) {
  Fixed& f = *fixed_;
  if (generation.purpose == GenerationPurpose::kSave) return save_and_leave(generation);
  if (step() == 0 && f.evaluation.due_on_start() && evaluated_step_ != 0) {
    before_ = follow_up_now();
    TROUPE_RETURN_IF_ERROR(evaluate(generation));
    finished_step_ = 0;
    note();
  }
  if (std::exchange(save_again_, false)) {
    TROUPE_RETURN_IF_ERROR(start_save(generation));
    note();
  }
  if (step() > 0 && finished_step_ < step()) {
    TROUPE_RETURN_IF_ERROR(follow_up(generation, last_step_record(), false));
  }
  TrainingStep next = step_of(generation);
  while (step() < total_steps() && !best_.should_stop()) {
    if (generation.observer.stop_requested())
      return error(Code::kCancelled, "the run was told to stop");
    const TimePoint began = f.clock.now();
    const std::uint64_t sent = generation.bytes_sent();
    generation.saver_bytes = 0;
    const StepPlan plan = f.sampler.next_step(f.transaction().record().cursor);
    StepOutcome outcome = TROUPE_TRY(next.run(plan));
    StepRecord& record = outcome.record;
    record.rates = step_rates(record.tokens, step_flops(plan), gemm_flops_per_s_, record.seconds);
    record.rates.bytes_sent = generation.bytes_sent() - sent - generation.saver_bytes;
    const double spent = std::chrono::duration<double>(f.clock.now() - began).count();
    record.operators = f.progress.take_operator_seconds();
    if (f.leads()) record.device_bytes = f.compute->memory_growth();
    record.seconds.stall = std::max(0.0, spent - record.seconds.total());
    // What starting a save took after the last step belongs to the step that it held up.
    record.seconds.checkpoint += std::exchange(generation.save_start_seconds, 0.0);
    if (outcome.save_and_stop && f.leads()) generation.observer.saving(record.step);
    TROUPE_RETURN_IF_ERROR(follow_up(generation, std::move(record), outcome.save_and_stop));
    if (outcome.save_and_stop) return leave_saved(generation);
  }
  return {};
}

StepRecord TrainingRun::last_step_record() const {
  const CommitRecord& record = fixed_->transaction().record();
  return {.step = record.step,
          .loss = record.loss,
          .grad_norm = record.grad_norm,
          .learning_rate = record.learning_rate,
          .tokens = record.tokens,
          .skipped = std::string(record.why())};
}

// Order as in transformers: log, evaluate, save.
Status TrainingRun::follow_up(Generation& generation, StepRecord record, bool save_and_stop) {
  Fixed& f = *fixed_;
  f.progress.stage(record.step, Stage::kFinished);
  const FollowUp before = follow_up_now();
  f.progress.step_seconds(record.step, record.seconds);
  std::optional<double> logged_loss;
  if (f.leads()) {
    auto recorded = recorder_->step(record);
    // A full disk costs a line of a log, not the run.
    if (!recorded.ok()) generation.observer.warning(recorded.status().to_string());
    logged_loss = std::move(recorded).value_or(std::nullopt);
  }
  const CommitRecord& committed = f.transaction().record();
  const bool last = step() == total_steps();
  // An evaluation may take longer than the user waits for the run's end.
  if (!save_and_stop && f.evaluation.due(step(), committed.last_of_epoch != 0))
    TROUPE_RETURN_IF_ERROR(evaluate(generation));
  if (save_and_stop || checkpoint_due(committed, last || best_.should_stop())) {
    f.progress.stage(record.step, Stage::kCheckpoint);
    TROUPE_RETURN_IF_ERROR(start_save(generation));
  }
  finished_step_ = record.step;
  before_ = before;
  note();
  report_saves(generation);
  generation.observer.step_done(record);
  if (f.leads()) generation.observer.step_finished(record, logged_loss);
  return {};
}

FollowUp TrainingRun::follow_up_now() const {
  FollowUp now{.evaluated_step = evaluated_step_.value_or(-1), .best = best_.state()};
  if (recorder_) {
    now.total_flos = recorder_->state().total_flos;
    now.input_tokens = recorder_->state().num_input_tokens_seen;
    now.loss_since_log = recorder_->unlogged().loss;
    now.steps_since_log = recorder_->unlogged().steps;
  }
  return now;
}

void TrainingRun::note() {
  fixed_->transaction().set_aftermath({.finished_step = finished_step_,
                                       .now = follow_up_now(),
                                       .before = before_,
                                       .saving_step = saving_step_,
                                       .final_model = final_model_ ? 1 : 0,
                                       .gemm_flops_per_s = gemm_flops_per_s_here_});
}

Status TrainingRun::evaluate(Generation& generation) {
  Fixed& f = *fixed_;
  if (!f.evaluator) return {};
  f.progress.stage(step(), Stage::kEvaluate);
  generation.engine->units().begin_pass(ShardedUnits::Pass::kForwardOnly);
  const EvaluationCut cut(*f.compute, f.bundle.model, *evaluation_of(f.bundle));
  const EvalResult result = TROUPE_TRY(unless_abandoned([&] {
    return f.evaluator->run(*f.objective, *f.model, generation.engine->units(),
                            f.compute->activations(), generation.world, f.clock,
                            [&](std::int64_t, std::int64_t) -> Status {
                              if (!generation.observer.stop_requested()) return {};
                              return error(Code::kCancelled, "the run was told to stop");
                            });
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
  f.progress.stage(step(), Stage::kFinish);
  TROUPE_RETURN_IF_ERROR(seal_save(generation));
  TROUPE_RETURN_IF_ERROR(settle_saves(generation));
  // A checkpoint of the best model may have failed since that was told: the one before is meant.
  if (f.leads()) recorder_->set_best(best_);
  std::int64_t final_step = step();
  if (f.leads() && best_.should_stop() && step() < total_steps()) {
    generation.observer.notice(fmt::format(
        "early stopping after step {} of {}: {} evaluations in a row were no better than that of "
        "step {} (eval_loss {})",
        step(), total_steps(), best_.state().misses, best_.state().best_step,
        format_scientific(best_.state().best_metric)));
  }
  if (f.config().evaluation.load_best_model_at_end)
    TROUPE_RETURN_IF_ERROR(load_best_model(generation, final_step));
  if (f.evaluation.due_at_end(final_step, evaluated_step_))
    TROUPE_RETURN_IF_ERROR(evaluate(generation));
  note();
  TROUPE_RETURN_IF_ERROR(save_model(generation));
  if (!f.leads()) return {};
  // A full disk costs the run's results, not the model that is written.
  if (const Status reported = recorder_->finish(final_step); !reported.ok())
    generation.observer.warning(
        reported.prefixed("the run's results are not complete").to_string());
  return {};
}

Status TrainingRun::save_model(Generation& generation) {
  Fixed& f = *fixed_;
  const TimePoint until = f.clock.now() + std::chrono::seconds(f.config().troupe.hold_timeout_s);
  std::string folder = f.output_dir();
  std::string told;  // where it did not go
  for (;;) {
    const bool elsewhere = folder != f.output_dir();
    const auto other = elsewhere ? make_saver(generation, folder) : nullptr;
    CheckpointSaver& saver = elsewhere ? *other : *generation.saver;
    const Status saved = saver.save_model(TROUPE_TRY(held_contents(generation, true)));
    if (saved.ok()) {
      if (elsewhere && f.leads()) generation.observer.model_saved(folder);
      if (f.leads() && f.config().finetuning.pissa_convert) {
        // What was trained is saved, and can be converted by an export.
        const Status converted =
            convert_pissa(f.files, folder, join_path(f.output_dir(), kPissaInitFolder));
        if (!converted.ok())
          generation.observer.warning(
              converted.prefixed("the adapter was not converted (pissa_convert)").to_string());
      }
      return {};
    }
    if (!is_of_the_disk(saved)) return saved;
    // All ranks know the same outcome; rank 0 decides.
    if (f.leads()) {
      if (until > f.clock.now() && std::exchange(told, folder) != folder)
        generation.observer.model_held(folder, saved);
      folder = next_folder(generation, until);
      if (generation.observer.stop_requested())
        return error(Code::kCancelled, "the run was told to stop");
    }
    TROUPE_RETURN_IF_ERROR(broadcast_text(generation.world, folder));
    if (folder.empty()) return saved;
  }
}

std::string TrainingRun::next_folder(Generation& generation, TimePoint until) {
  Fixed& f = *fixed_;
  const auto& second = f.config().troupe.second_output_dir;
  if (second && !std::exchange(second_folder_tried_, true)) return *second;
  const TimePoint again = f.clock.now() + kTryModelAgain;
  while (f.clock.now() < until && !generation.observer.stop_requested()) {
    if (auto named = generation.observer.save_to()) return *named;
    if (f.clock.now() >= again) return f.output_dir();
    // It does not hang, it waits.
    f.progress.stage(step(), Stage::kFinish);
    std::this_thread::sleep_for(kLookForRoom);
  }
  return {};
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
  if (source.path.empty()) {
    if (!final_model_) return {};
    return error(Code::kDataLoss,
                 "a trainer died while the best model was being loaded over the last one, and the "
                 "best model cannot be loaded any more");
  }
  final_model_ = true;
  note();
  TROUPE_RETURN_IF_ERROR(load_state(f.files, source, f.bundle.model, f.model->model_layout(),
                                    static_cast<std::uint64_t>(f.config().training.seed), *f.layout,
                                    f.state->kept(), f.compute->kept_access(), false,
                                    generation.world));
  // That step was evaluated, or it would not be the best.
  evaluated_step_ = final_step = best_step;
  if (f.leads()) {
    generation.observer.notice(
        fmt::format("the best model, {} (eval_loss {}), was loaded: it is what the run ends with",
                    source.path, format_scientific(best_.state().best_metric)));
  }
  return parameters_loaded(generation);
}

// --- saving

bool TrainingRun::checkpoint_due(const CommitRecord& record, bool last) const {
  switch (fixed_->config().training.save_strategy) {
    case IntervalStrategy::kNo:
      return false;
    case IntervalStrategy::kBest:
      return best_.save_due(step());
    case IntervalStrategy::kEpoch:
      return last || record.last_of_epoch != 0;
    case IntervalStrategy::kSteps:
      return last || step() % fixed_->facts.save_interval == 0;
  }
  return false;
}

SaveContents TrainingRun::save_contents(const RankLayout& layout, bool final_model) {
  Fixed& f = *fixed_;
  const CommitRecord& record = f.transaction().record();
  SaveContents contents{.step = record.step,
                        .weights = weight_pieces(f.model->model_layout(), layout, f.state->kept(),
                                                 f.engine_options.compute.frozen),
                        .files = f.bundle.companions};
  if (final_model) return contents;
  contents.has_optimizer = !f.config().training.save_only_model;
  if (contents.has_optimizer)
    contents.optimizer = optimizer_pieces(f.model->model_layout(), layout, f.state->kept());
  contents.scheduler = json::Object{{"last_step", record.step},
                                    {"skipped_steps", record.skipped},
                                    {"skipped_steps_in_a_row", record.skipped_in_a_row},
                                    {"moment_updates", record.moment_updates}};
  contents.rng_state = json::Object{{"seed", f.config().training.seed}};
  contents.cursor = record.cursor.to_json();
  for (const std::int64_t step : best_.protected_steps()) contents.protected_steps.insert(step);
  if (f.leads()) {
    recorder_->set_best(best_);
    contents.files[kTrainerStateFile] = recorder_->trainer_state_text();
    if (!f.bundle.sample_stream.empty()) contents.files[kSampleStreamFile] = f.bundle.sample_stream;
    contents.files[kTrainingArgsFile] = json::write_indented(to_json(f.config()), true) + "\n";
  }
  return contents;
}

Result<SaveContents> TrainingRun::held_contents(Generation& generation, bool final_model) {
  SaveContents contents = save_contents(
      generation.saved_layout ? *generation.saved_layout : *fixed_->layout, final_model);
  TROUPE_RETURN_IF_ERROR(
      fixed_->held.hold(fixed_->compute->kept_access(), {contents.weights, contents.optimizer}));
  return contents;
}

Status TrainingRun::start_save(Generation& generation) {
  const TimePoint began = fixed_->clock.now();
  best_.saving(step());
  saving_step_ = step();
  if (fixed_->leads()) {
    // The lines of the steps before stand for the checkpoint.
    if (const Status synced = recorder_->sync(); !synced.ok())
      generation.observer.warning(synced.to_string());
  }
  TROUPE_RETURN_IF_ERROR(generation.saver->start(TROUPE_TRY(held_contents(generation, false))));
  generation.save_start_seconds =
      std::chrono::duration<double>(fixed_->clock.now() - began).count();
  return {};
}

Status TrainingRun::save_and_leave(Generation& generation) {
  Fixed& f = *fixed_;
  if (step() == 0) return error(Code::kCancelled, "the run was told to stop before its first step");
  if (f.leads()) generation.observer.saving(step());
  save_again_ = false;
  if (finished_step_ < step()) {
    TROUPE_RETURN_IF_ERROR(follow_up(generation, last_step_record(), true));
    return leave_saved(generation);
  }
  std::int64_t stands =
      f.leads() && f.files.exists(join_path(f.output_dir(), checkpoint_name(step()))) ? 1 : 0;
  TROUPE_RETURN_IF_ERROR(generation.world.broadcast(std::span(&stands, 1), 0));
  if (stands == 0) {
    if (final_model_) return best_in_place();
    TROUPE_RETURN_IF_ERROR(start_save(generation));
  }
  return leave_saved(generation);
}

// A checkpoint of parameters and optimizer state of two steps would load, and be wrong.
Status TrainingRun::best_in_place() const {
  return error(Code::kCancelled,
               "the run was told to stop when its best model had taken the place of step {}'s, of "
               "which no checkpoint can be made any more",
               step());
}

Status TrainingRun::leave_saved(Generation& generation) {
  TROUPE_RETURN_IF_ERROR(seal_save(generation));
  TROUPE_RETURN_IF_ERROR(settle_saves(generation));
  return saved_stop(step());
}

Status TrainingRun::save_alone(collective::Communicator& communicator, std::uint64_t number,
                               TrainingObserver& observer) {
  Fixed& f = *fixed_;
  TROUPE_CHECK(f.leads() && communicator.world_size() == 1, "others save with their peers");
  if (f.layout->sharded(Region::kParameters) || f.layout->sharded(Region::kOptimizer)) {
    return error(Code::kFailedPrecondition,
                 "rank 0 holds a shard of the state only (strategy {}), and the other ranks' are "
                 "not to be had",
                 f.layout->row().name);
  }
  StepTransaction& transaction = f.transaction();
  const RankPosition position = transaction.position();
  if (!position.loaded || position.phase == CommitPhase::kCommitted) {
    return error(Code::kFailedPrecondition, "rank 0's memory does not hold the state of one step");
  }
  if (position.phase == CommitPhase::kPrepared) transaction.discard();
  const Aftermath aftermath = transaction.aftermath();
  if (aftermath.final_model != 0) return best_in_place();
  TROUPE_RETURN_IF_ERROR(open_recorder(&take_up(aftermath, aftermath.finished_step)));
  const Strategy strategy = TROUPE_TRY(strategy_of(f.config()));
  const RankLayout whole(f.model->model_layout(), strategy,
                         TROUPE_TRY(make_mesh(strategy, 1, 1, 0, 0)), 0);
  Generation generation{.world = communicator,
                        .device = nullptr,
                        .number = number,
                        .observer = observer,
                        .purpose = GenerationPurpose::kSaveAlone,
                        .saved_layout = &whole,
                        .engine_device = nullptr,
                        .engine = nullptr,
                        .saver = nullptr};
  TROUPE_RETURN_IF_ERROR(agree_on_saves(generation));
  generation.saver = make_saver(generation, f.output_dir());
  return save_and_leave(generation);
}

Status TrainingRun::seal_save(Generation& generation) {
  if (!generation.saver->started()) return {};
  const std::uint64_t before = generation.bytes_sent();
  const SealReport report = TROUPE_TRY(generation.saver->seal());
  generation.saver_bytes += generation.bytes_sent() - before;
  if (!report.outcome.ok()) {
    best_.save_failed(report.step);
    save_settled(report.step);
    // Training goes on: the checkpoints before are as good as they were.
    if (fixed_->leads()) generation.observer.checkpoint_failed(report.step, report.outcome);
    return {};
  }
  // A run that ends with its best model cannot do without this checkpoint: once the parameters have
  // changed it could not be written again.
  if (best_.state().checkpoint_step == report.step) return settle_saves(generation);
  return {};
}

void TrainingRun::save_settled(std::int64_t step) {
  if (saving_step_ != step) return;
  saving_step_ = -1;
  note();
}

void TrainingRun::report_saves(Generation& generation) {
  if (!fixed_->leads() || !generation.saver) return;
  while (auto saved = generation.saver->poll()) {
    if (saved->ok()) {
      const std::string& path = (*saved)->path;
      const auto step = checkpoint_step(path.substr(path.rfind('/') + 1));
      generation.observer.checkpoint_written(step.value_or(-1), path);
      save_settled(step.value_or(-1));
    } else {
      // No checkpoint of the best model: the one before is kept from rotation again.
      std::int64_t step = -1;
      if (const auto text = saved->status().context("step")) {
        step = std::atoll(std::string(*text).c_str());
        best_.save_failed(step);
        save_settled(step);
      }
      generation.observer.checkpoint_failed(step, saved->status());
    }
  }
}

Status TrainingRun::settle_saves(Generation& generation) {
  const Status settled = generation.saver->wait(Deadline::after(kCommitTimeout));
  report_saves(generation);
  return settled;
}

}  // namespace troupe::train
