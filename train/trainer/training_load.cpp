// The beginning of a generation: where the state comes from, and its way to all ranks.

#include <type_traits>

#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/trainer/gemm_rate.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/training_run_parts.h"

namespace troupe::train {
namespace {

// What rank 0 knows of the source and the others must.
struct Progress {
  CommitRecord record;
  SampleCursor cursor;
  BestModelState best;
  std::int64_t evaluated_step = -1;
  std::int64_t checkpoint = 0;
  std::int64_t moments = 0;
};
static_assert(std::is_trivially_copyable_v<Progress>);

}  // namespace

Status TrainingRun::load(Generation& generation) {
  Fixed& f = *fixed_;
  recorder_.reset();
  StateSource source;
  cursor_ = {};
  restored_ = {};
  best_ = f.best;
  evaluated_step_.reset();
  f.state.record() = {.generation = generation.number};
  if (f.leads()) source = TROUPE_TRY(choose_source(generation.number));
  TROUPE_RETURN_IF_ERROR(agree(generation.world, source));
  if (source.path.empty()) {
    initialize_state(f.bundle.model, static_cast<std::uint64_t>(f.config().training.seed),
                     *f.layout, f.state.buffers());
  } else {
    TROUPE_RETURN_IF_ERROR(load_state(f.files, source, f.bundle.model, *f.layout, f.state.buffers(),
                                      generation.world));
  }
  TROUPE_RETURN_IF_ERROR(measure_gemms(generation.world));
  return f.leads() ? open_recorder() : Status();
}

Result<StateSource> TrainingRun::choose_source(std::uint64_t generation) {
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
    TROUPE_RETURN_IF_ERROR(read_progress(*from));
    return StateSource{.path = from->path, .checkpoint = true, .moments = from->has_optimizer};
  }
  if (f.config().model.train_from_scratch) return StateSource{};
  return StateSource{.path = f.config().model.model_name_or_path};
}

Status TrainingRun::read_progress(const GoodCheckpoint& good) {
  Fixed& f = *fixed_;
  const auto state = TROUPE_TRY(read_checkpoint_state(f.files, good));
  if (!good.has_optimizer)
    f.log.warning("{} has no optimizer state: the optimizer starts anew", good.path);
  CommitRecord& record = f.state.record();
  record.step = good.step;
  const bool kept = state.scheduler.is_object();
  const auto number = [&](const char* key, std::int64_t otherwise) {
    return kept ? json::find_integer(state.scheduler, key).value_or(otherwise) : otherwise;
  };
  record.skipped = number("skipped_steps", 0);
  record.skipped_in_a_row = number("skipped_steps_in_a_row", 0);
  // Moments that begin anew are corrected from the begin.
  record.moment_updates = good.has_optimizer ? number("moment_updates", record.updates()) : 0;
  if (!state.cursor.is_null()) {
    cursor_ = TROUPE_TRY(SampleCursor::from_json(state.cursor));
  } else {
    // Another program's checkpoint: the position that this many steps of this run would reach.
    for (std::int64_t step = 0; step < good.step; ++step)
      cursor_ = f.sampler.next_step(cursor_).after;
  }
  if (!state.trainer_state.empty())
    restored_ = TROUPE_TRY(parse_trainer_state(state.trainer_state, good.path));
  restored_.global_step = good.step;
  best_.restore(restored_);
  if (find_eval_log(restored_, good.step)) evaluated_step_ = good.step;
  return {};
}

Status TrainingRun::agree(collective::Communicator& world, StateSource& source) {
  CommitRecord& record = fixed_->state.record();
  Progress progress{.record = record,
                    .cursor = cursor_,
                    .best = best_.state(),
                    .evaluated_step = evaluated_step_.value_or(-1),
                    .checkpoint = source.checkpoint,
                    .moments = source.moments};
  TROUPE_RETURN_IF_ERROR(
      world.broadcast(std::span(reinterpret_cast<std::byte*>(&progress), sizeof progress), 0));
  TROUPE_RETURN_IF_ERROR(broadcast_text(world, source.path));
  source.checkpoint = progress.checkpoint != 0;
  source.moments = progress.moments != 0;
  record = progress.record;
  if (progress.evaluated_step >= 0) evaluated_step_ = progress.evaluated_step;
  cursor_ = progress.cursor;
  best_.set_state(progress.best);
  return {};
}

Status TrainingRun::measure_gemms(collective::Communicator& world) {
  // Once a process: the machine does not change.
  if (gemm_flops_per_s_here_ == 0) {
    const bool bf16 = compute_dtype(fixed_->config()) == DType::kBF16;
    gemm_flops_per_s_here_ =
        measure_gemm_rate(*fixed_->operators, fixed_->clock, fixed_->bundle.model,
                          bf16 ? Arithmetic::kBf16 : Arithmetic::kFp32);
  }
  gemm_flops_per_s_ = gemm_flops_per_s_here_;
  return world.all_reduce(std::span(&gemm_flops_per_s_, 1), collective::ReduceOp::kSum);
}

Status TrainingRun::open_recorder() {
  Fixed& f = *fixed_;
  const ParameterLayout& layout = f.model->layout();
  const double flos_per_token =
      6.0 * static_cast<double>(layout.parameter_elements() -
                                f.bundle.model.vocab_size * f.bundle.model.hidden_size);
  recorder_ = TROUPE_TRY(RunRecorder::open(f.files, f.clock, f.config(),
                                           {.schedule = f.facts,
                                            .flos_per_token = flos_per_token,
                                            .dataset_tokens = f.bundle.dataset.token_count(),
                                            .world_size = f.options.world_size,
                                            .started_unix_us = f.options.started_unix_us},
                                           restored_));
  return {};
}

}  // namespace troupe::train
