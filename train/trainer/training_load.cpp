// The beginning of a generation: where the state comes from, and its way to all ranks.

#include <algorithm>
#include <cmath>
#include <set>
#include <type_traits>

#include <fmt/ranges.h>

#include "train/adapters/pissa_convert.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/checkpoint_names.h"
#include "train/checkpoint/tensor_reader.h"
#include "train/optimizer/optimizers.h"
#include "train/report/format.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/training_run_parts.h"

namespace troupe::train {
namespace {

// What rank 0 knows of the source and the others must.
struct Progress {
  CommitRecord record;
  BestModelState best;
  std::int64_t evaluated_step = -1;
  std::int64_t checkpoint = 0;
  std::int64_t optimizer = 0;
};
static_assert(std::is_trivially_copyable_v<Progress>);

// What every rank brings to a new generation.
struct Arrival {
  RankPosition position;
  std::int64_t finished_step = -1;
  double gemm_flops_per_s = 0;
};
static_assert(std::is_trivially_copyable_v<Arrival>);

// A line of the surviving history that drops what came for later steps.
constexpr const char* kTruncate = "truncate";

template <typename T>
std::span<std::byte> bytes_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// By the slots: the state of another optimizer would be missing, or mean something else.
Status check_optimizer_state(FileSystem& files, const GoodCheckpoint& good,
                             const Optimizer& optimizer) {
  if (!good.has_optimizer) return {};
  const auto reader = TROUPE_TRY(TensorReader::open(files, good));
  std::set<std::string_view> saved;
  for (const TensorInfo& tensor : reader.optimizer()) saved.insert(slot_of(tensor.name));
  const auto has = [&](const Optimizer& of) {
    return std::set<std::string_view>(of.slots().begin(), of.slots().end()) == saved;
  };
  if (has(optimizer)) return {};
  std::string writers;
  for (const OptimizerRow& row : optimizer_table()) {
    if (has(*row.make({}))) writers += fmt::format("{}{}", writers.empty() ? "" : ", ", row.optim);
  }
  return error(Code::kFailedPrecondition,
               "{} has the state of another optimizer than {}, which this run is of: it keeps {}. "
               "Go on with the optimizer that wrote it (optim: {}), or begin anew from its weights "
               "(model_name_or_path)",
               good.path, optimizer.name(),
               saved.empty() ? "nothing" : fmt::format("{}", fmt::join(saved, ", ")),
               writers.empty() ? "not known here" : writers);
}

std::string why_not_memory(const RecoveryDecision& decision, std::uint64_t generation) {
  if (generation <= 1) return {};
  if (!decision.broken.empty())
    return "the ranks' memories do not fit together: " + decision.broken;
  return fmt::format("rank {} found no memory of the process before it on its node",
                     decision.empty_rank);
}

}  // namespace

Status TrainingRun::begin(Generation& generation, TrainerLoaded& loaded) {
  const Meeting meeting = TROUPE_TRY(meet(generation));
  if (meeting.decision.kind != RecoveryDecision::Kind::kLoad)
    return resume(generation, meeting, loaded);
  loaded.reason = why_not_memory(meeting.decision, generation.number);
  return load(generation, loaded);
}

Result<TrainingRun::Meeting> TrainingRun::meet(Generation& generation) {
  Fixed& f = *fixed_;
  StepTransaction& transaction = f.transaction();
  // The others may have acted on the position that an earlier process of the rank gave in it.
  if (transaction.generation() >= generation.number) {
    return error(Code::kAborted,
                 "generation {} is past: this rank's memory has been in generation {}",
                 generation.number, transaction.generation());
  }
  transaction.begin_generation(generation.number);
  if (gemm_flops_per_s_here_ == 0 && transaction.position().loaded)
    gemm_flops_per_s_here_ = transaction.aftermath().gemm_flops_per_s;
  measure_gemms();
  const Arrival mine{transaction.position(), transaction.aftermath().finished_step,
                     gemm_flops_per_s_here_};
  const auto ranks = static_cast<std::size_t>(generation.world.world_size());
  std::vector<Arrival> all(ranks);
  const std::vector<std::size_t> counts(ranks, sizeof mine);
  TROUPE_RETURN_IF_ERROR(generation.world.all_gather(
      std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), counts));
  std::vector<RankPosition> positions;
  std::int64_t finished = all.front().finished_step;
  gemm_flops_per_s_ = 0;
  for (const Arrival& arrival : all) {
    positions.push_back(arrival.position);
    finished = std::min(finished, arrival.finished_step);
    gemm_flops_per_s_ += arrival.gemm_flops_per_s;
  }
  return Meeting{decide_recovery(positions), finished};
}

// --- from memory

Status TrainingRun::resume(Generation& generation, const Meeting& meeting, TrainerLoaded& loaded) {
  Fixed& f = *fixed_;
  const RecoveryDecision& decision = meeting.decision;
  StepTransaction& transaction = f.transaction();
  const Aftermath aftermath = transaction.aftermath();
  const FollowUp& left = take_up(aftermath, meeting.finished_step);
  loaded.how = LoadedFrom::kMemory;
  loaded.finished_step = is_behind(decision, transaction.position());
  loaded.recomputes = decision.recomputes;
  if (decision.kind == RecoveryDecision::Kind::kFinish)
    TROUPE_RETURN_IF_ERROR(finish_left_behind(generation, decision));
  if (transaction.position().phase == CommitPhase::kPrepared) transaction.discard();
  place(transaction.record());
  loaded.step = step();
  // Owners' parameters may not have reached all, nor where they are used.
  TROUPE_RETURN_IF_ERROR(f.updates->place_parameters());
  TROUPE_RETURN_IF_ERROR(generation.engine->frozen_loaded());
  TROUPE_RETURN_IF_ERROR(generation.engine->parameters_changed(true));
  if (f.leads()) TROUPE_RETURN_IF_ERROR(open_recorder(&left));
  return agree_on_saves(generation);
}

const FollowUp& TrainingRun::take_up(const Aftermath& aftermath, std::int64_t finished_step) {
  // A follow-up is everybody's: what one has not finished all do again.
  const FollowUp& left = aftermath.finished_step > finished_step ? aftermath.before : aftermath.now;
  best_ = fixed_->best;
  best_.set_state(left.best);
  finished_step_ = finished_step;
  before_ = aftermath.before;
  evaluated_step_.reset();
  if (left.evaluated_step >= 0) evaluated_step_ = left.evaluated_step;
  saving_step_ = aftermath.saving_step;
  final_model_ = aftermath.final_model != 0;
  return left;
}

Status TrainingRun::finish_left_behind(Generation& generation, const RecoveryDecision& decision) {
  StepTransaction& transaction = fixed_->transaction();
  CommitRecord record;
  if (fixed_->rank == decision.record_rank) {
    const bool ahead = transaction.position().step > decision.step;
    record = ahead ? transaction.record() : transaction.committed();
  }
  TROUPE_RETURN_IF_ERROR(generation.world.broadcast(bytes_of(record), decision.record_rank));
  if (!is_behind(decision, transaction.position())) return {};
  transaction.commit(record);
  return step_of(generation).finish_committed();
}

// The save that was under way ended with the generation. Where the state is still that of its step,
// it is begun anew.
Status TrainingRun::agree_on_saves(Generation& generation) {
  Fixed& f = *fixed_;
  struct Saves {
    std::int64_t again = 0;
    std::int64_t lost_step = -1;
  } saves;
  if (f.leads()) {
    const Status cleared = clear_unfinished_saves(f.files, f.output_dir());
    if (!cleared.ok()) generation.observer.warning(cleared.to_string());
    const std::string name = checkpoint_name(saving_step_);
    const std::string path = join_path(f.output_dir(), name);
    if (saving_step_ >= 0 && f.files.exists(path)) {
      generation.observer.checkpoint_written(saving_step_, path);
    } else if (saving_step_ >= 0 && saving_step_ == step()) {
      saves.again = finished_step_ == step() ? 1 : 0;
    } else if (saving_step_ >= 0) {
      saves.lost_step = saving_step_;
      generation.observer.checkpoint_abandoned(saving_step_, path);
    }
  }
  TROUPE_RETURN_IF_ERROR(generation.world.broadcast(bytes_of(saves), 0));
  save_again_ = saves.again != 0;
  if (saves.lost_step >= 0) best_.save_failed(saves.lost_step);
  saving_step_ = -1;
  note();
  return {};
}

void TrainingRun::place(const CommitRecord& record) {
  Fixed& f = *fixed_;
  f.facts =
      go_on_from(f.planned, f.config().training, record.step, f.sampler.steps_at(record.cursor));
  f.evaluation.schedule = f.facts;
  f.sampler.set_even_batches(f.facts.step_offset == 0);
}

// --- from a checkpoint, or from the beginning

Status TrainingRun::load(Generation& generation, TrainerLoaded& loaded) {
  Fixed& f = *fixed_;
  f.transaction().unload();
  recorder_.reset();
  restored_ = {};
  best_ = f.best;
  evaluated_step_.reset();
  saving_step_ = -1;
  final_model_ = false;
  save_again_ = false;
  StateSource source;
  CommitRecord record;
  if (f.leads()) source = TROUPE_TRY(choose_source(generation.number, record));
  TROUPE_RETURN_IF_ERROR(agree(generation.world, source, record));
  const BaseSource base_source{.folder = f.config().model.model_name_or_path,
                               .merged = f.bundle.merged_adapters,
                               .pissa = f.bundle.pissa};
  DerivedBase base(f.files, base_source, f.bundle.model, f.model->model_layout());
  source.base = base_source.is_derived() ? &base : nullptr;
  place(record);
  if (f.leads() && f.facts.step_offset != 0) {
    generation.observer.notice(fmt::format(
        "the {} steps done so far come to {} of this run's (samples in each: {}): the run ends "
        "after step {}",
        record.step, record.step - f.facts.step_offset, f.facts.effective_batch_size,
        std::max(record.step, total_steps())));
  }
  const bool zeroed = f.state->take_zeroed();
  const auto seed = static_cast<std::uint64_t>(f.config().training.seed);
  const StateBuffers kept = f.state->kept();
  if (source.path.empty()) {
    TROUPE_RETURN_IF_ERROR(initialize_state(f.bundle.model, seed, *f.layout, kept,
                                            f.compute->kept_access(), zeroed,
                                            f.compute->threads()));
  } else {
    TROUPE_RETURN_IF_ERROR(load_state(f.files, source, f.bundle.model, f.model->model_layout(),
                                      seed, *f.layout, kept, f.compute->kept_access(), zeroed,
                                      generation.world));
  }
  if (f.layout->frozen()) {
    const DType type = f.engine_options.compute.frozen;
    const ModelSection& model = f.config().model;
    TROUPE_RETURN_IF_ERROR(
        model.train_from_scratch
            ? initialize_frozen(f.bundle.model, seed, *f.layout, kept, type,
                                f.compute->kept_access(), f.compute->threads())
            : load_frozen(f.files,
                          StateSource{.path = model.model_name_or_path, .base = source.base},
                          f.bundle.model, f.model->model_layout(), *f.layout, kept, type,
                          f.compute->kept_access(), generation.world));
  }
  if (f.leads() && f.config().finetuning.pissa_convert) {
    const AdapterConfig adapter = TROUPE_TRY(
        AdapterConfig::parse(f.bundle.companions[kAdapterConfigFile], kAdapterConfigFile));
    TROUPE_RETURN_IF_ERROR(base.write_start(join_path(f.output_dir(), kPissaInitFolder), adapter));
  }
  TROUPE_RETURN_IF_ERROR(generation.engine->frozen_loaded());
  if (f.leads()) TROUPE_RETURN_IF_ERROR(open_recorder(nullptr));
  // What the initial parameters are evaluated to is still to be written.
  const bool unevaluated = record.step == 0 && f.evaluation.due_on_start();
  finished_step_ = unevaluated ? -1 : record.step;
  before_ = follow_up_now();
  note();
  TROUPE_RETURN_IF_ERROR(f.updates->forget_updates());
  f.transaction().load(record);
  loaded.how = source.checkpoint ? LoadedFrom::kCheckpoint : LoadedFrom::kInitial;
  loaded.step = record.step;
  return parameters_loaded(generation);
}

Status TrainingRun::parameters_loaded(Generation& generation) {
  TROUPE_RETURN_IF_ERROR(fixed_->updates->place_parameters());
  // Of what is offloaded a rank loads no more than it updates.
  return generation.engine->parameters_changed(fixed_->state->offload() != Offload::kNothing);
}

Result<StateSource> TrainingRun::choose_source(std::uint64_t generation, CommitRecord& record) {
  Fixed& f = *fixed_;
  TROUPE_RETURN_IF_ERROR(f.files.create_directories(f.output_dir()));
  std::optional<GoodCheckpoint> from;
  if (generation > 1) {
    std::vector<RefusedCheckpoint> refused;
    from = TROUPE_TRY(
        newest_good_checkpoint(f.files, f.output_dir(), &refused, {.run = f.options.run}));
    if (const auto text = refused_message(refused, from); !text.empty()) f.log.warning("{}", text);
  }
  // Whatever the generation: the first may have ended before it came here.
  if (!from && f.options.resume_path.empty() && f.config().training.overwrite_output_dir)
    TROUPE_RETURN_IF_ERROR(remove_all_checkpoints(f.files, f.output_dir()));
  if (!from && !f.options.resume_path.empty())
    from = TROUPE_TRY(validate_checkpoint(f.files, f.options.resume_path));
  if (from) {
    TROUPE_RETURN_IF_ERROR(read_progress(*from, record));
    return StateSource{.path = from->path, .checkpoint = true, .optimizer = from->has_optimizer};
  }
  if (f.config().model.train_from_scratch) return StateSource{};
  return StateSource{.path = f.config().model.model_name_or_path, .adapter = f.bundle.adapter};
}

Status TrainingRun::read_progress(const GoodCheckpoint& good, CommitRecord& record) {
  Fixed& f = *fixed_;
  TROUPE_RETURN_IF_ERROR(check_optimizer_state(f.files, good, *f.optimizer));
  const auto state = TROUPE_TRY(read_checkpoint_state(f.files, good));
  if (!good.has_optimizer)
    f.log.warning("{} has no optimizer state: the optimizer starts anew", good.path);
  record.step = good.step;
  const bool kept = state.scheduler.is_object();
  const auto number = [&](const char* key, std::int64_t otherwise) {
    return kept ? json::find_integer(state.scheduler, key).value_or(otherwise) : otherwise;
  };
  record.skipped = number("skipped_steps", 0);
  record.skipped_in_a_row = number("skipped_steps_in_a_row", 0);
  // Slots that begin anew are corrected from the begin.
  record.moment_updates = good.has_optimizer ? number("moment_updates", record.updates()) : 0;
  if (!state.cursor.is_null()) {
    record.cursor = TROUPE_TRY(SampleCursor::from_json(state.cursor));
  }
  if (!state.trainer_state.empty())
    restored_ = TROUPE_TRY(parse_trainer_state(state.trainer_state, good.path));
  restored_.global_step = good.step;
  if (state.cursor.is_null()) record.cursor = cursor_of_epochs(good);
  best_.restore(restored_);
  if (find_eval_log(restored_, good.step)) evaluated_step_ = good.step;
  return {};
}

// The position of a checkpoint that has no cursor, such as another program's.
SampleCursor TrainingRun::cursor_of_epochs(const GoodCheckpoint& good) {
  Fixed& f = *fixed_;
  SampleCursor cursor;
  const double steps = restored_.epoch * static_cast<double>(f.planned.steps_per_epoch);
  const bool told = restored_.epoch > 0 && restored_.epoch <= static_cast<double>(kEpochsMax);
  if (told && std::llround(steps) != good.step) {
    // Its steps were not of this run's batch: the share of the samples that it has seen counts.
    const double whole = std::floor(restored_.epoch);
    const auto samples = static_cast<double>(f.bundle.dataset.size());
    cursor.epoch = static_cast<std::int64_t>(whole);
    cursor.next_sample = std::llround((restored_.epoch - whole) * samples);
    cursor.consumed_samples = std::llround(restored_.epoch * samples);
    return cursor;
  }
  return f.sampler.cursor_after(good.step);
}

Status TrainingRun::agree(collective::Communicator& world, StateSource& source,
                          CommitRecord& record) {
  Progress progress{.record = record,
                    .best = best_.state(),
                    .evaluated_step = evaluated_step_.value_or(-1),
                    .checkpoint = source.checkpoint,
                    .optimizer = source.optimizer};
  TROUPE_RETURN_IF_ERROR(world.broadcast(bytes_of(progress), 0));
  TROUPE_RETURN_IF_ERROR(broadcast_text(world, source.path));
  TROUPE_RETURN_IF_ERROR(broadcast_text(world, source.adapter));
  source.checkpoint = progress.checkpoint != 0;
  source.optimizer = progress.optimizer != 0;
  record = progress.record;
  if (progress.evaluated_step >= 0) evaluated_step_ = progress.evaluated_step;
  best_.set_state(progress.best);
  return {};
}

void TrainingRun::measure_gemms() {
  // Once a rank: the machine does not change.
  if (gemm_flops_per_s_here_ != 0) return;
  const bool bf16 = compute_dtype(fixed_->config()) == DType::kBF16;
  gemm_flops_per_s_here_ = fixed_->compute->gemm_rate(fixed_->clock, fixed_->bundle.model,
                                                      bf16 ? Arithmetic::kBf16 : Arithmetic::kFp32);
}

// --- rank 0's reports

std::int64_t TrainingRun::first_step_of_run() const {
  const Fixed& f = *fixed_;
  std::string path = f.options.resume_path;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (path.empty()) return 0;
  if (const auto step = checkpoint_step(path.substr(path.rfind('/') + 1))) return *step;
  const auto manifest = read_manifest(f.files, path);
  return manifest.ok() ? manifest->step : 0;
}

Status TrainingRun::open_recorder(const FollowUp* left) {
  Fixed& f = *fixed_;
  recorder_.reset();
  if (!history_) history_ = TROUPE_TRY(SurvivingLog::open(*f.memory, "history"));
  std::optional<RecorderPosition> position;
  if (!left) {
    history_->clear();
    const std::string text = trainer_state_text(restored_);
    if (const auto state = parse_python_json(text, "trainer_state.json"))
      TROUPE_RETURN_IF_ERROR(history_->append(python_json(*state)));
  } else {
    restored_ = {};
    for (const std::string& line : history_->lines()) {
      auto entry = parse_python_json(line, "the surviving history");
      if (!entry) continue;
      if (const auto kept = json::find_integer(*entry, kTruncate)) {
        truncate_log_history(restored_, *kept);
      } else if (json::find(*entry, "log_history")) {
        restored_ = TROUPE_TRY(parse_trainer_state(line, "the surviving history"));
      } else {
        restored_.log_history.push_back(*entry);
      }
    }
    TROUPE_RETURN_IF_ERROR(
        history_->append(python_json(json::Object{{kTruncate, finished_step_}})));
    truncate_log_history(restored_, finished_step_);
    restored_.global_step = finished_step_;
    restored_.total_flos = left->total_flos;
    restored_.num_input_tokens_seen = left->input_tokens;
    position = {.kept_step = finished_step_,
                .unlogged = {.loss = left->loss_since_log, .steps = left->steps_since_log}};
  }
  const double flos_per_token =
      6.0 * static_cast<double>(f.model->model_layout().parameter_elements() -
                                f.bundle.model.vocab_size * f.bundle.model.hidden_size);
  recorder_ = TROUPE_TRY(RunRecorder::open(f.files, f.clock, f.config(),
                                           {.schedule = f.facts,
                                            .flos_per_token = flos_per_token,
                                            .dataset_tokens = f.bundle.dataset.token_count(),
                                            .world_size = f.options.world_size,
                                            .first_step = first_step_of_run(),
                                            .started_unix_us = f.options.started_unix_us},
                                           restored_, position));
  recorder_->on_history([this](const json::Object& entry) {
    // Without it a killed rank 0 would forget a line of trainer_state.json, nothing more.
    if (const Status kept = history_->append(python_json(entry)); !kept.ok())
      fixed_->log.warning("{}", kept.to_string());
  });
  if (left) recorder_->set_best(best_);
  return {};
}

}  // namespace troupe::train
