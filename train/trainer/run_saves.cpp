#include "train/trainer/run_saves.h"

#include <cstdlib>

#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/checkpoint_names.h"
#include "train/trainer/saved_stop.h"
#include "train/trainer/state_io.h"

namespace troupe::train {
namespace {

// How long the end of a run waits for the last checkpoint's commit.
constexpr auto kCommitTimeout = std::chrono::minutes(10);

CheckpointLayout checkpoint_layout(CheckpointFormat format) {
  return format == CheckpointFormat::kSharded ? CheckpointLayout::kSharded : CheckpointLayout::kHf;
}

}  // namespace

std::unique_ptr<CheckpointSaver> RunSaves::make_saver(RunGeneration& generation,
                                                      const std::string& folder) {
  RankParts& f = parts_;
  SaverOptions saver{.output_dir = folder,
                     .run = f.options.run,
                     .layout = checkpoint_layout(f.config().training.checkpoint_format)};
  if (const auto limit = f.config().training.save_total_limit)
    saver.save_total_limit = static_cast<int>(*limit);
  return std::make_unique<CheckpointSaver>(f.files, generation.world, f.clock, saver, f.log);
}

bool RunSaves::due(const CommitRecord& record, bool last) const {
  switch (parts_.config().training.save_strategy) {
    case IntervalStrategy::kNo:
      return false;
    case IntervalStrategy::kBest:
      return follow_.best.save_due(parts_.step());
    case IntervalStrategy::kEpoch:
      return last || record.last_of_epoch != 0;
    case IntervalStrategy::kSteps:
      return last || parts_.step() % parts_.facts.save_interval == 0;
  }
  return false;
}

SaveContents RunSaves::contents_of(const RankLayout& layout, bool final_model) {
  RankParts& f = parts_;
  const CommitRecord& record = f.transaction().record();
  SaveContents contents{.step = record.step,
                        .weights = weight_pieces(f.model->model_layout(), layout, f.state().kept(),
                                                 f.engine_options.compute.frozen),
                        .files = f.bundle.companions};
  if (final_model) return contents;
  contents.has_optimizer = !f.config().training.save_only_model;
  if (contents.has_optimizer)
    contents.optimizer =
        optimizer_pieces(f.model->model_layout(), layout, f.state().kept(), record.moment_updates);
  json::Object scheduler{{"last_step", record.step},
                         {"skipped_steps", record.skipped},
                         {"skipped_steps_in_a_row", record.skipped_in_a_row},
                         {"moment_updates", record.moment_updates}};
  if (const LossScale& scale = record.loss_scale; scale.next > 0)
    scheduler["loss_scale"] = json::Object{
        {"next", scale.next}, {"clean_steps", scale.clean_steps}, {"hysteresis", scale.hysteresis}};
  if (const PlateauState& plateau = follow_.plateau; plateau.learning_rate > 0)
    scheduler["plateau"] = json::Object{{"learning_rate", plateau.learning_rate},
                                        {"best", plateau.best},
                                        {"has_best", plateau.has_best},
                                        {"misses", plateau.misses},
                                        {"cooldown", plateau.cooldown}};
  if (!record.data().empty()) scheduler["data_arguments"] = record.data();
  if (follow_.end_run) scheduler["ended_by_callback"] = true;
  if (follow_.high_losses > 0) scheduler["high_losses"] = follow_.high_losses;
  contents.scheduler = std::move(scheduler);
  contents.rng_state = json::Object{{"seed", f.config().training.seed}};
  contents.cursor = record.cursor.to_json();
  for (const std::int64_t step : follow_.best.protected_steps())
    contents.protected_steps.insert(step);
  if (f.leads()) {
    follow_.recorder->set_best(follow_.best);
    contents.files[kTrainerStateFile] = follow_.recorder->trainer_state_text();
    if (!f.bundle.sample_stream.empty()) contents.files[kSampleStreamFile] = f.bundle.sample_stream;
    contents.files[kTrainingArgsFile] = json::write_indented(to_json(f.config()), true) + "\n";
  }
  return contents;
}

Result<SaveContents> RunSaves::held_contents(RunGeneration& generation, bool final_model) {
  SaveContents contents =
      contents_of(generation.saved_layout ? *generation.saved_layout : *parts_.layout, final_model);
  TROUPE_RETURN_IF_ERROR(
      parts_.held.hold(parts_.rank_compute->kept_access(), {contents.weights, contents.optimizer}));
  return contents;
}

Status RunSaves::start(RunGeneration& generation) {
  const TimePoint began = parts_.clock.now();
  follow_.best.saving(parts_.step());
  follow_.saving_step = parts_.step();
  if (parts_.leads()) {
    // The lines of the steps before stand for the checkpoint.
    if (const Status synced = follow_.recorder->sync(); !synced.ok())
      generation.observer.warning(synced.to_string());
  }
  TROUPE_RETURN_IF_ERROR(generation.saver->start(TROUPE_TRY(held_contents(generation, false))));
  generation.save_start_seconds = std::chrono::duration<double>(parts_.clock.now() - began).count();
  return {};
}

// A checkpoint of parameters and optimizer state of two steps would load, and be wrong.
Status RunSaves::best_in_place() const {
  return error(Code::kCancelled,
               "the run was told to stop when its best model had taken the place of step {}'s, of "
               "which no checkpoint can be made any more",
               parts_.step());
}

Status RunSaves::leave(RunGeneration& generation) {
  TROUPE_RETURN_IF_ERROR(seal(generation));
  TROUPE_RETURN_IF_ERROR(settle(generation));
  return saved_stop(parts_.step());
}

Status RunSaves::seal(RunGeneration& generation) {
  if (!generation.saver->started()) return {};
  const std::uint64_t before = generation.bytes_sent();
  const SealReport report = TROUPE_TRY(generation.saver->seal());
  generation.saver_bytes += generation.bytes_sent() - before;
  if (!report.outcome.ok()) {
    follow_.best.save_failed(report.step);
    settled(report.step);
    // Training goes on: the checkpoints before are as good as they were.
    if (parts_.leads()) generation.observer.checkpoint_failed(report.step, report.outcome);
    return {};
  }
  // A run that ends with its best model cannot do without this checkpoint: once the parameters have
  // changed it could not be written again.
  if (follow_.best.state().checkpoint_step == report.step) return settle(generation);
  return {};
}

void RunSaves::tell_written(RunGeneration& generation, std::int64_t step, const std::string& path) {
  generation.observer.checkpoint_written(step, path);
  for (const auto& callback : parts_.callbacks) callback->saved(step, path);
}

void RunSaves::settled(std::int64_t step) {
  if (follow_.saving_step != step) return;
  follow_.saving_step = -1;
  follow_.note();
}

void RunSaves::report(RunGeneration& generation) {
  if (!parts_.leads() || !generation.saver) return;
  while (auto saved = generation.saver->poll()) {
    if (saved->ok()) {
      const std::string& path = (*saved)->path;
      const auto step = checkpoint_step(path.substr(path.rfind('/') + 1));
      tell_written(generation, step.value_or(-1), path);
      settled(step.value_or(-1));
    } else {
      // No checkpoint of the best model: the one before is kept from rotation again.
      std::int64_t step = -1;
      if (const auto text = saved->status().context("step")) {
        step = std::atoll(std::string(*text).c_str());
        follow_.best.save_failed(step);
        settled(step);
      }
      generation.observer.checkpoint_failed(step, saved->status());
    }
  }
}

Status RunSaves::settle(RunGeneration& generation) {
  const Status settled = generation.saver->wait(Deadline::after(kCommitTimeout));
  report(generation);
  return settled;
}

// The save that was under way ended with the generation. Where the state is still that of its step,
// it is begun anew.
Status RunSaves::take_up_left(RunGeneration& generation) {
  RankParts& f = parts_;
  struct Saves {
    std::int64_t again = 0;
    std::int64_t lost_step = -1;
  } saves;
  if (f.leads()) {
    const Status cleared = clear_unfinished_saves(f.files, f.output_dir());
    if (!cleared.ok()) generation.observer.warning(cleared.to_string());
    const std::string name = checkpoint_name(follow_.saving_step);
    const std::string path = join_path(f.output_dir(), name);
    if (follow_.saving_step >= 0 && f.files.exists(path)) {
      tell_written(generation, follow_.saving_step, path);
    } else if (follow_.saving_step >= 0 && follow_.saving_step == parts_.step()) {
      saves.again = follow_.finished_step == parts_.step() ? 1 : 0;
    } else if (follow_.saving_step >= 0) {
      saves.lost_step = follow_.saving_step;
      generation.observer.checkpoint_abandoned(follow_.saving_step, path);
    }
  }
  TROUPE_RETURN_IF_ERROR(
      generation.world.broadcast(std::as_writable_bytes(std::span(&saves, 1)), 0));
  save_again = saves.again != 0;
  if (saves.lost_step >= 0) follow_.best.save_failed(saves.lost_step);
  follow_.saving_step = -1;
  follow_.note();
  return {};
}

}  // namespace troupe::train
