#include "train/trainer/run_finish.h"

#include <thread>
#include <utility>

#include "train/adapters/pissa_convert.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/report/format.h"

namespace troupe::train {
namespace {

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

// A model that no step has changed would pass for a trained one. All ranks have the same record.
Status check_trained(const CommitRecord& record) {
  if (record.step == 0 || record.updates() > 0) return {};
  return error(Code::kFailedPrecondition,
               "nothing was trained: every step was skipped, from step 1 to step {}, the last one "
               "because {}; look for damaged weights (model_name_or_path) or data, and where the "
               "run computes in bf16 try fp32. No model was written",
               record.step, record.why());
}

}  // namespace

Status RunFinish::finish(RunGeneration& generation) {
  RankParts& f = parts_;
  f.progress.stage(parts_.step(), Stage::kFinish);
  TROUPE_RETURN_IF_ERROR(saves_.seal(generation));
  TROUPE_RETURN_IF_ERROR(saves_.settle(generation));
  TROUPE_RETURN_IF_ERROR(check_trained(f.transaction().record()));
  // A checkpoint of the best model may have failed since that was told: the one before is meant.
  if (f.leads()) follow_.recorder->set_best(follow_.best);
  std::int64_t final_step = parts_.step();
  if (f.leads() && follow_.best.should_stop() && parts_.step() < parts_.total_steps()) {
    generation.observer.notice(fmt::format(
        "early stopping after step {} of {}: {} evaluations in a row were no better than that of "
        "step {} ({} {})",
        parts_.step(), parts_.total_steps(), follow_.best.state().misses,
        follow_.best.state().best_step, f.config().evaluation.metric_for_best_model,
        format_scientific(follow_.best.state().best_metric)));
  }
  if (f.leads() && follow_.loss_is_too_high() && parts_.step() < parts_.total_steps()) {
    generation.observer.notice(fmt::format(
        "the run ends after step {} of {}: {} steps in a row had a loss above {} "
        "(troupe.loss_limit)",
        parts_.step(), parts_.total_steps(), follow_.high_losses, *f.config().troupe.loss_limit));
  }
  if (f.config().evaluation.load_best_model_at_end)
    TROUPE_RETURN_IF_ERROR(load_best_model(generation, final_step));
  if (f.evaluation.due_at_end(final_step, follow_.evaluated_step))
    TROUPE_RETURN_IF_ERROR(steps_.evaluate(generation));
  follow_.note();
  TROUPE_RETURN_IF_ERROR(save_model(generation));
  if (!f.leads()) return {};
  // A full disk costs the run's results, not the model that is written.
  if (const Status reported = follow_.recorder->finish(final_step); !reported.ok())
    generation.observer.warning(
        reported.prefixed("the run's results are not complete").to_string());
  return {};
}

Status RunFinish::save_model(RunGeneration& generation) {
  RankParts& f = parts_;
  const TimePoint until = f.clock.now() + std::chrono::seconds(f.config().troupe.hold_timeout_s);
  std::string folder = f.output_dir();
  std::string told;  // where it did not go
  for (;;) {
    const bool elsewhere = folder != f.output_dir();
    const auto other = elsewhere ? saves_.make_saver(generation, folder) : nullptr;
    CheckpointSaver& saver = elsewhere ? *other : *generation.saver;
    const Status saved = saver.save_model(TROUPE_TRY(saves_.held_contents(generation, true)));
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

std::string RunFinish::next_folder(RunGeneration& generation, TimePoint until) {
  RankParts& f = parts_;
  const auto& second = f.config().troupe.second_output_dir;
  if (second && !std::exchange(second_folder_tried_, true)) return *second;
  const TimePoint again = f.clock.now() + kTryModelAgain;
  while (f.clock.now() < until && !generation.observer.stop_requested()) {
    if (auto named = generation.observer.save_to()) return *named;
    if (f.clock.now() >= again) return f.output_dir();
    // It does not hang, it waits.
    f.progress.stage(parts_.step(), Stage::kFinish);
    std::this_thread::sleep_for(kLookForRoom);
  }
  return {};
}

// Rank 0 decides: what became of commits is known to it alone. Without a good checkpoint of the
// best model the final one stays, as in transformers.
Status RunFinish::load_best_model(RunGeneration& generation, std::int64_t& final_step) {
  RankParts& f = parts_;
  StateSource source{.checkpoint = true};
  std::int64_t best_step = -1;
  if (f.leads() && follow_.best.best_checkpoint_step()) {
    // A run that was resumed from another folder may have its best model there.
    source.path = follow_.recorder->state().best_model_checkpoint.value_or("");
    best_step = *follow_.best.best_checkpoint_step();
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
    if (!follow_.final_model) return {};
    return error(Code::kDataLoss,
                 "a trainer died while the best model was being loaded over the last one, and the "
                 "best model cannot be loaded any more");
  }
  follow_.final_model = true;
  follow_.note();
  TROUPE_RETURN_IF_ERROR(load_state(f.files, source, f.bundle.model, f.model->model_layout(),
                                    static_cast<std::uint64_t>(f.config().training.seed), *f.layout,
                                    f.state().kept(), f.rank_compute->kept_access(), false,
                                    generation.world));
  // That step was evaluated, or it would not be the best.
  follow_.evaluated_step = final_step = best_step;
  if (f.leads()) {
    generation.observer.notice(
        fmt::format("the best model, {} ({} {}), was loaded: it is what the run ends with",
                    source.path, f.config().evaluation.metric_for_best_model,
                    format_scientific(follow_.best.state().best_metric)));
  }
  return start_.parameters_loaded(generation);
}

}  // namespace troupe::train
