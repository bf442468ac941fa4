#include "train/trainer/training_run.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "runtime/base/build_options.h"
#include "runtime/base/check.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_names.h"
#include "train/model/flops.h"
#include "train/parts/own_model_passes.h"
#include "train/progress/abandon.h"
#include "train/report/format.h"
#include "train/trainer/saved_stop.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/stream_setup.h"

namespace troupe::train {
namespace {

// How long a generation that is lost waits for a commit under way.
constexpr auto kLastCommit = std::chrono::seconds(2);

Result<std::unique_ptr<ComputeDevice>> open_compute(const RunBundle& bundle,
                                                    std::shared_ptr<const Objective> objective,
                                                    const TrainingRunOptions& options,
                                                    const Logger& log) {
  static const SystemEnvironment environment;
  return ComputeDevice::open(
      options.compute,
      {.model = bundle.model,
       .activations =
           activation_options(bundle.config, bundle.model, bundle.trainables, length_max(bundle)),
       .objective = std::move(objective),
       .evaluation = evaluation_of(bundle),
       .threads = options.threads,
       .deterministic = bundle.config.sharding.deterministic != Deterministic::kOff,
       .ragged = lengths_differ(bundle) || (bundle.eval && !equal_lengths(*bundle.eval)),
       .offload = offload_of(bundle.config, options.compute.kind == ComputeKind::kCuda),
       .stands_by = options.stands_by,
       .memory_patience = options.memory_patience},
      environment, log);
}

// What checkpoints and shards name them by.
Status check_slots(const Optimizer& optimizer) {
  const auto slots = optimizer.slots();
  if (slots.size() > kOptimizerSlotsMax)
    return error(Code::kInvalidArgument, "optimizer {} has {} slots, and {} is the limit",
                 optimizer.name(), slots.size(), kOptimizerSlotsMax);
  for (const std::string_view slot : slots) {
    if (slot.empty() || slot.find('.') != slot.npos)
      return error(Code::kInvalidArgument, "optimizer {} has a slot \"{}\": a name has no dot",
                   optimizer.name(), slot);
  }
  return {};
}

}  // namespace

TrainingRun::TrainingRun(std::unique_ptr<RankParts> parts)
    : owned_parts_(std::move(parts)), parts_(*owned_parts_) {}
TrainingRun::~TrainingRun() = default;

std::int64_t TrainingRun::total_steps() const { return parts_.total_steps(); }
std::int64_t TrainingRun::step() const { return parts_.step(); }

Reached TrainingRun::reached(std::int64_t loaded_step) const {
  if (!parts_.rank_compute) return Reached::kNoStep;
  return reached_from(loaded_step, parts_.transaction().position());
}

TrainingStep step_of(RankParts& f, RunGeneration& generation,
                     std::function<Status()> before_update) {
  return TrainingStep({.config = f.config(),
                       .dataset = f.dataset(),
                       .model = *f.model,
                       .reference = f.reference.get(),
                       .objective = *f.objective,
                       .activations = f.rank_compute->activations(),
                       .layout = *f.layout,
                       .batch_world = f.options.batch_world(),
                       .schedule = f.schedule,
                       .schedule_offset = f.facts.schedule_offset,
                       .plateau = f.plateau,
                       .own_data = f.own_data.get(),
                       .clock = f.clock,
                       .engine = *generation.engine,
                       .compute = *f.compute,
                       .transaction = f.transaction(),
                       .kept = f.kept.get(),
                       .own_part = f.own_part(),
                       .buddies = generation.buddies ? &*generation.buddies : nullptr,
                       .progress = f.progress,
                       .observer = generation.observer,
                       .before_update = std::move(before_update)});
}

// Of all ranks together.
double TrainingRun::step_flops(const StepPlan& plan) const {
  double flops = 0;
  for (const auto& samples : plan.batches) {
    for (const auto sample : samples)
      flops += model_flops(parts_.bundle.model, parts_.model->model_layout(), 1,
                           real_length(parts_.dataset(), sample));
  }
  return flops;
}

int TrainingRun::rank() const { return parts_.rank; }

Result<std::unique_ptr<TrainingRun>> TrainingRun::create(FileSystem& files, const Clock& clock,
                                                         Logger log, RunBundle bundle,
                                                         const TrainingRunOptions& options,
                                                         ProgressRecorder& progress,
                                                         CarriedOver carried) {
  const TrainConfig& config = bundle.config;
  bundle.model = trained_model(config, std::move(bundle.model));
  const Strategy strategy = TROUPE_TRY(strategy_of(config));
  const PartChoices& own = bundle.parts;
  bundle.trainables = with_rule(std::move(bundle.trainables), config, bundle.model);
  const auto objective = own.objective ? TROUPE_TRY(make_objective(options.parts, *own.objective))
                                       : objective_of(config);
  if (config.asks_reference_before() && !bundle.dataset.reference())
    return error(Code::kInvalidArgument,
                 "troupe.precompute_ref_log_probs: nobody has asked the reference about these "
                 "samples, which the program brings or makes itself; leave the key out");
  auto compute = carried.compute ? std::move(carried.compute)
                                 : TROUPE_TRY(open_compute(bundle, objective, options, log));
  TROUPE_RETURN_IF_ERROR(check_operators(bundle.model, compute->operators()));
  TROUPE_RETURN_IF_ERROR(objective->check(compute->operators(), bundle.model));
  auto observed = std::make_unique<ObservedOperators>(compute->operators(), progress);
  auto model = own.model ? TROUPE_TRY(make_model(
                               TROUPE_TRY(make_own_model(options.parts, *own.model)), bundle.model))
                         : make_model(bundle.model, *observed, bundle.trainables);
  auto reference = bundle.trainables.reference == Reference::kNone
                       ? nullptr
                       : make_reference(bundle.model, *observed, bundle.trainables);
  const std::int64_t samples = sample_count(bundle);
  auto sampler = TROUPE_TRY(Sampler::make(sampler_options(
      config, samples, options.batch_world(), makes_samples(bundle) ? nullptr : &bundle.dataset)));
  const auto facts =
      TROUPE_TRY(run_schedule(config, samples, options.batch_world(), sampler.packed_batches()));
  const auto& training = config.training;
  const json::Value* of_deepspeed = config.deepspeed.if_contains("scheduler");
  auto schedule =
      of_deepspeed ? TROUPE_TRY(Schedule::make_deepspeed(*of_deepspeed, training.learning_rate,
                                                         facts.total_steps, facts.warmup_steps))
                   : TROUPE_TRY(Schedule::make(training.lr_scheduler_type,
                                               training.lr_scheduler_kwargs, training.learning_rate,
                                               facts.total_steps, facts.warmup_steps));
  auto best = TROUPE_TRY(BestModel::make(config.evaluation, training.save_strategy));
  const auto evaluation = plan_evaluation(config, facts);
  std::shared_ptr<const Optimizer> optimizer =
      own.optimizer ? TROUPE_TRY(make_optimizer(options.parts, *own.optimizer))
                    : std::shared_ptr<const Optimizer>(optimizer_of(config, bundle.model));
  TROUPE_RETURN_IF_ERROR(check_slots(*optimizer));
  if (own.optimizer && (optimizer->rule() || bundle.trainables.rule))
    return error(
        Code::kUnsupported,
        "an optimizer of the program's own updates elements by themselves: leave optim and "
        "the switches of other optimizers out");
  if (own.data_source && bundle.model.has_dropout())
    return error(
        Code::kUnsupported,
        "a data source of the program's own with dropout, whose masks are counted by a data "
        "set's samples: set the dropouts of config.json to 0");
  std::vector<std::shared_ptr<TrainingCallback>> callbacks;
  for (const PartChoice& callback : own.callbacks)
    callbacks.push_back(TROUPE_TRY(make_callback(options.parts, callback)));
  auto engine = engine_options(config, bundle.model, strategy, options.overlaps,
                               offload_of(config, options.compute.kind == ComputeKind::kCuda));
  // The step's micro-batches are dealt out to as many ranks as there are.
  engine.reduction.micro_batches =
      (training.gradient_accumulation_steps * options.batch_world() + options.world_size - 1) /
      options.world_size;
  auto parts =
      std::unique_ptr<RankParts>(new RankParts{.files = files,
                                               .clock = clock,
                                               .log = std::move(log),
                                               .bundle = std::move(bundle),
                                               .options = options,
                                               .compute = std::move(compute),
                                               .observed = std::move(observed),
                                               .model = std::move(model),
                                               .reference = std::move(reference),
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
                                               .evaluators = {},
                                               .strategy = strategy,
                                               .engine_options = engine,
                                               .optimizer = std::move(optimizer),
                                               .own_data = nullptr,
                                               .streamed = std::move(carried.stream),
                                               .callbacks = std::move(callbacks),
                                               .layout = nullptr,
                                               .rank_compute = nullptr,
                                               .held = {}});
  if (parts->bundle.parts.data_source)
    parts->own_data =
        TROUPE_TRY(OwnData::make(parts->options.parts, parts->bundle.parts, parts->bundle.source,
                                 parts->bundle.model.vocab_size));
  if (parts->config().data.streaming && !parts->streamed)
    parts->streamed =
        TROUPE_TRY(open_stream(files, parts->bundle, options.batch_world(),
                               [recorder = &parts->progress] { recorder->operation("stream"); }));
  if (parts->config().troupe.operator_times) {
    // An operator's time ends where its work does.
    if (!parts->compute->access().in_place())
      parts->observed->settle_by([device = parts->compute.get()] { (void)device->settle(); });
    parts->operator_times =
        std::make_unique<OperatorTimes>(static_cast<int>(parts->model->layout().units().size()));
  }
  if (parts->bundle.eval) {
    const TrainConfig& kept = parts->config();
    const bool as_seq2seq = kept.method.stage == TrainingStage::kSupervised &&
                            kept.data.rows.datasets.empty() && !kept.data.is_from_program;
    parts->evaluators = TROUPE_TRY(
        Evaluator::make_all(*parts->bundle.eval, parts->bundle.eval_parts,
                            {.batch_size = kept.evaluation.per_device_eval_batch_size,
                             .nan_inf_filter = kept.training.logging_nan_inf_filter,
                             .weights = as_seq2seq ? BatchWeights::kEqual : BatchWeights::kRows,
                             .accuracy = kept.measures_accuracy()}));
  }
  return std::unique_ptr<TrainingRun>(new TrainingRun(std::move(parts)));
}

Status TrainingRun::warm_up() {
  TROUPE_RETURN_IF_ERROR(parts_.compute->warm_up());
  if (const std::string text = parts_.compute->memory_text(); !text.empty())
    parts_.log.info("ready for a rank; {}", text);
  return {};
}

Status TrainingRun::take_rank(int rank, SurvivingMemory& memory) {
  RankParts& f = parts_;
  TROUPE_CHECK(f.rank < 0, "rank {} is to become rank {}", f.rank, rank);
  const Mesh mesh = TROUPE_TRY(mesh_of(f.config(), f.options.world_size, f.options.ranks_per_node));
  f.layout = std::make_unique<RankLayout>(f.model->model_layout(), f.strategy, mesh, rank);
  f.rank_compute =
      TROUPE_TRY(f.compute->hold({.layout = *f.layout,
                                  .state = state_dtype(f.config()),
                                  .engine = f.engine_options,
                                  .optimizer = *f.optimizer,
                                  .memory = memory,
                                  .label = fmt::format("troupe-{}-rank{}", f.options.run, rank),
                                  .observer = [&f](std::uint64_t chunk, std::string_view moment) {
                                    f.progress.chunk(chunk, moment);
                                  }}));
  f.memory = &memory;
  f.rank = rank;
  if (const int owner = f.transaction().keeps(); owner >= 0)
    f.kept = TROUPE_TRY(f.open_kept(owner));
  if (const std::string text = f.compute->memory_text(); f.leads() && !text.empty())
    f.log.info("{}", text);
  return {};
}

Result<GenerationCompute> TrainingRun::join(std::shared_ptr<collective::Communicator> world,
                                            DeviceLinks links) {
  TROUPE_CHECK(parts_.rank_compute, "a generation without a rank");
  const TrainConfig& config = parts_.config();
  links.deterministic = config.sharding.deterministic != Deterministic::kOff;
  // The default is nobody's word: the environment's counts then.
  if (const auto seconds = config.training.ddp_timeout_s;
      seconds != TrainingSection().ddp_timeout_s)
    links.timeout = std::chrono::seconds(seconds);
  parts_.machine = links.machine;
  const auto domain = links.labels.find(parts_.config().troupe.failure_domain);
  parts_.domain = domain == links.labels.end() ? links.machine : domain->second;
  return parts_.rank_compute->join(std::move(world), links);
}

Status RankParts::drop_kept() {
  kept.reset();
  transaction().set_keeps(-1);
  return TrainingState::drop_kept(*memory);
}

BuddyTask RankParts::buddy_task(const RankLayout& own, SurvivingMemory& in, std::string label) {
  return {.own = own,
          .state = {.state = state_dtype(config()),
                    .optimizer = optimizer.get(),
                    .threads = compute->threads().threads()},
          .optimizer = *optimizer,
          .parallel_for = parallel_for_on(compute->threads()),
          .memory = in,
          .label = std::move(label)};
}

Result<std::unique_ptr<BuddyState>> RankParts::open_kept(int owner) {
  return BuddyState::open(
      buddy_task(*layout, *memory, fmt::format("troupe-{}-rank{}-kept", options.run, rank)), owner);
}

Status TrainingRun::come_from(std::vector<FormerRanks> worlds) {
  RankParts& f = parts_;
  // A step stands without those that are not named any more, though the generation in which it was
  // finished may have ended before this rank dropped them.
  for (const auto& former : f.former) {
    if (std::ranges::find(worlds, former->memory(), &FormerRanks::memory) == worlds.end())
      TROUPE_RETURN_IF_ERROR(former->drop());
  }
  f.former.clear();
  for (FormerRanks& world : worlds)
    f.former.push_back(TROUPE_TRY(FormerWorld::open(f, std::move(world))));
  return {};
}

RunBundle TrainingRun::give_bundle() { return std::move(parts_.bundle); }
CarriedOver TrainingRun::carry_over() {
  return {std::move(parts_.compute), std::move(parts_.streamed)};
}

Status TrainingRun::alive() { return parts_.compute->alive(); }

Status TrainingRun::run_generation(const GenerationCompute& compute, std::uint64_t number,
                                   TrainingObserver& observer, GenerationPurpose purpose) {
  RankParts& f = parts_;
  RunGeneration generation{.world = *compute.world,
                           .number = number,
                           .observer = observer,
                           .purpose = purpose,
                           .engine = nullptr,
                           .saver = nullptr};
  f.progress.stage(parts_.step(), Stage::kLoad);
  compute.world->observe(&f.collectives);
  if (compute.device) compute.device->observe(&f.collectives);
  const Status ended = run_observed(generation, *compute.engine_device);
  generation.saver.reset();
  generation.engine.reset();
  if (compute.device) compute.device->observe(nullptr);
  compute.world->observe(nullptr);
  return ended;
}

Status TrainingRun::run_observed(RunGeneration& generation, EngineDevice& device) {
  RankParts& f = parts_;
  TrainingObserver& observer = generation.observer;
  generation.engine = TROUPE_TRY(Engine::make(*f.layout, f.engine_options, device, f.clock,
                                              f.rank_compute->updates(), f.state().buffers()));
  TrainerLoaded loaded{.rank = f.rank, .generation = generation.number};
  TROUPE_RETURN_IF_ERROR(start_.begin(generation, loaded));
  generation.saver = saves_.make_saver(generation, f.output_dir());
  if (f.leads() && compute_dtype(f.config()) == DType::kBF16 &&
      !f.compute->operators().fast_bf16()) {
    observer.warning(
        "this processor has no bf16 arithmetic: bf16 is computed with rounded fp32 operands and is "
        "slower than fp32 (bf16: false)");
  }
  // Once in a run.
  if (f.leads() && generation.number == 1 && f.config().model.compute == Precision::kFloat16) {
    observer.warning(
        "CPUs have no fp16 arithmetic: operands are rounded to fp16, sums are fp32, and a step is "
        "slower than in fp32; bf16: true needs no loss scale, and is faster where the processor "
        "has bf16");
  }
  observer.loaded(loaded);
  f.progress.time_operators(f.operator_times.get());
  const Status looped = loop(generation);
  f.progress.time_operators(nullptr);
  const Status ended = looped.ok() ? finish_.finish(generation) : looped;
  if (ended.ok()) return ended;
  // The others must not wait for a rank that gave up for a reason of its own, nor this one's
  // communication for them.
  if (!saved_step_of(ended) && !paused_step_of(ended)) generation.world.abort(ended);
  // A checkpoint that all ranks have written is good, whatever ended the generation.
  if (!generation.saver->started())
    static_cast<void>(generation.saver->wait(Deadline::after(kLastCommit)));
  saves_.report(generation);
  return ended;
}

Status TrainingRun::loop(RunGeneration& generation) {
  RankParts& f = parts_;
  if (generation.purpose == GenerationPurpose::kSave) return save_and_leave(generation);
  if (parts_.step() == 0 && f.evaluation.due_on_start() && follow_.evaluated_step != 0) {
    follow_.before = follow_.now();
    TROUPE_RETURN_IF_ERROR(steps_.evaluate(generation));
    follow_.finished_step = 0;
    follow_.note();
  }
  if (std::exchange(saves_.save_again, false)) {
    TROUPE_RETURN_IF_ERROR(saves_.start(generation));
    follow_.note();
  }
  if (parts_.step() > 0 && follow_.finished_step < parts_.step()) {
    TROUPE_RETURN_IF_ERROR(steps_.after(generation, parts_.last_step_record(), false));
  }
  TrainingStep next =
      step_of(f, generation, [this, &generation] { return saves_.seal(generation); });
  int steps = 0;  // in this generation
  while (parts_.step() < parts_.total_steps() && !follow_.ends_run()) {
    if (generation.observer.stop_requested())
      return error(Code::kCancelled, "the run was told to stop");
    if (steps++ == 1 && f.gemm_flops_per_s == 0)
      TROUPE_RETURN_IF_ERROR(follow_.agree_on_gemm_rate(generation.world));
    const TimePoint began = f.clock.now();
    const std::uint64_t sent = generation.bytes_sent();
    generation.saver_bytes = 0;
    generation.observer.between_steps(TrainingView(f));
    const CommitRecord& last = f.transaction().record();
    StepPlan plan;
    if (f.streamed) {
      f.progress.stage(last.step + 1, Stage::kData);
      plan = TROUPE_TRY(f.streamed->next_step(last.cursor));
      for (const auto& warning : f.streamed->take_warnings())
        if (f.leads()) generation.observer.warning(warning);
    } else {
      plan = f.sampler.next_step(last.cursor);
    }
    if (f.leads()) {
      for (const auto& callback : f.callbacks) callback->step_begun(last.step + 1);
    }
    if (f.own_data)
      TROUPE_RETURN_IF_ERROR(
          f.own_data->begin_step(generation.world, generation.observer, last, plan));
    if (f.bundle.dataset.is_mapped()) {
      for (const auto& samples : plan.batches)
        TROUPE_RETURN_IF_ERROR(check_tokens(f.dataset(), samples, f.bundle.model.vocab_size));
    }
    StepOutcome outcome = TROUPE_TRY(next.run(plan));
    StepRecord& record = outcome.record;
    // All ranks have voted: nobody needs the memory of the world before any more.
    for (const auto& former : std::exchange(f.former, {})) TROUPE_RETURN_IF_ERROR(former->drop());
    const std::uint64_t bytes_sent = generation.bytes_sent() - sent - generation.saver_bytes;
    const double spent = std::chrono::duration<double>(f.clock.now() - began).count();
    record.operators = f.progress.take_operator_seconds();
    if (f.leads()) record.device_bytes = f.compute->memory_growth();
    record.seconds.stall = std::max(0.0, spent - record.seconds.total());
    record.rates = step_rates(record.tokens, step_flops(plan), f.gemm_flops_per_s, record.seconds);
    record.rates.bytes_sent = bytes_sent;
    // What starting a save took after the last step belongs to the step that it held up.
    record.seconds.checkpoint += std::exchange(generation.save_start_seconds, 0.0);
    if (outcome.save_and_stop && f.leads()) generation.observer.saving(record.step);
    TROUPE_RETURN_IF_ERROR(steps_.after(generation, std::move(record), outcome.save_and_stop));
    if (f.own_data) f.own_data->step_stands(generation.observer);
    if (outcome.save_and_stop) return saves_.leave(generation);
    const bool goes_on = parts_.step() < parts_.total_steps() && !follow_.ends_run();
    if (outcome.pause && goes_on) return paused_after(parts_.step());
  }
  generation.observer.between_steps(TrainingView(f, true));
  return {};
}

StepRecord RankParts::last_step_record() {
  const CommitRecord& record = transaction().record();
  return {.step = record.step,
          .loss = record.loss,
          .grad_norm = record.grad_norm,
          .learning_rate = record.learning_rate,
          .tokens = record.tokens,
          .skipped = std::string(record.why()),
          .metrics = record.metrics};
}

FinishedStep told_step(const StepRecord& record) {
  return {.step = record.step,
          .loss = record.loss,
          .grad_norm = record.grad_norm,
          .learning_rate = record.learning_rate,
          .tokens = record.tokens,
          .epoch = record.epoch,
          .skipped = record.skipped};
}

Status TrainingRun::save_and_leave(RunGeneration& generation) {
  RankParts& f = parts_;
  if (parts_.step() == 0)
    return error(Code::kCancelled, "the run was told to stop before its first step");
  if (f.leads()) generation.observer.saving(parts_.step());
  saves_.save_again = false;
  if (follow_.finished_step < parts_.step()) {
    TROUPE_RETURN_IF_ERROR(steps_.after(generation, parts_.last_step_record(), true));
    return saves_.leave(generation);
  }
  std::int64_t stands =
      f.leads() && f.files.exists(join_path(f.output_dir(), checkpoint_name(parts_.step()))) ? 1
                                                                                             : 0;
  TROUPE_RETURN_IF_ERROR(generation.world.broadcast(std::span(&stands, 1), 0));
  if (stands == 0) {
    if (follow_.final_model) return saves_.best_in_place();
    TROUPE_RETURN_IF_ERROR(saves_.start(generation));
  }
  return saves_.leave(generation);
}

Status TrainingRun::save_alone(collective::Communicator& communicator, std::uint64_t number,
                               TrainingObserver& observer) {
  RankParts& f = parts_;
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
  if (aftermath.final_model != 0) return saves_.best_in_place();
  TROUPE_RETURN_IF_ERROR(
      follow_.open_recorder(&follow_.take_up(aftermath, aftermath.finished_step)));
  const Strategy strategy = TROUPE_TRY(strategy_of(f.config()));
  const RankLayout whole(f.model->model_layout(), strategy,
                         TROUPE_TRY(make_mesh(strategy, 1, 1, 0, 0)), 0);
  RunGeneration generation{.world = communicator,
                           .number = number,
                           .observer = observer,
                           .purpose = GenerationPurpose::kSaveAlone,
                           .saved_layout = &whole,
                           .engine = nullptr,
                           .saver = nullptr};
  TROUPE_RETURN_IF_ERROR(saves_.take_up_left(generation));
  generation.saver = saves_.make_saver(generation, f.output_dir());
  return save_and_leave(generation);
}

}  // namespace troupe::train
