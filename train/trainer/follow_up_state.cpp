#include "train/trainer/follow_up_state.h"

#include <numeric>
#include <sstream>
#include <vector>

#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/checkpoint_names.h"
#include "train/checkpoint/manifest.h"
#include "train/report/format.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/state_io.h"

namespace troupe::train {
namespace {

// A line of the surviving history that drops what came for later steps.
constexpr const char* kTruncate = "truncate";

}  // namespace

FollowUp FollowUpState::now() const {
  FollowUp now{.evaluated_step = evaluated_step.value_or(-1),
               .best = best.state(),
               .plateau = plateau,
               .end_run = end_run ? 1 : 0,
               .high_losses = high_losses};
  if (recorder) {
    now.total_flos = recorder->state().total_flos;
    now.input_tokens = recorder->state().num_input_tokens_seen;
    now.loss_since_log = recorder->unlogged().loss;
    now.steps_since_log = recorder->unlogged().steps;
    now.metrics_since_log = recorder->unlogged().metrics;
  }
  return now;
}

void FollowUpState::note() {
  parts_.transaction().set_aftermath({.finished_step = finished_step,
                                      .now = now(),
                                      .before = before,
                                      .saving_step = saving_step,
                                      .final_model = final_model ? 1 : 0,
                                      .gemm_flops_per_s = gemm_flops_per_s_here});
}

const FollowUp& FollowUpState::take_up(const Aftermath& aftermath, std::int64_t finished_by_all) {
  // All ranks do a follow-up together: what one of them has not finished, all do again.
  const FollowUp& left =
      aftermath.finished_step > finished_by_all ? aftermath.before : aftermath.now;
  best = parts_.best;
  best.set_state(left.best);
  plateau = left.plateau;
  finished_step = finished_by_all;
  before = aftermath.before;
  evaluated_step.reset();
  end_run = left.end_run != 0;
  high_losses = left.high_losses;
  if (left.evaluated_step >= 0) evaluated_step = left.evaluated_step;
  saving_step = aftermath.saving_step;
  final_model = aftermath.final_model != 0;
  return left;
}

bool FollowUpState::loss_is_too_high() const {
  const auto& troupe = parts_.config().troupe;
  return troupe.loss_limit && high_losses >= troupe.loss_limit_steps;
}

bool FollowUpState::records() const { return records(parts_.rank); }

bool FollowUpState::records(int rank) const {
  return parts_.layout->mesh().shard_of(rank) == 0 || parts_.buddies.kept_by(rank) == 0;
}

Status FollowUpState::open_history() {
  if (!history_) history_ = TROUPE_TRY(SurvivingLog::open(*parts_.memory, kHistoryName));
  return {};
}

Status FollowUpState::share_history(collective::Communicator& group, int root) {
  TROUPE_RETURN_IF_ERROR(open_history());
  std::string text;
  if (group.rank() == root) {
    for (const std::string& line : history_->lines()) text += line + "\n";
  }
  TROUPE_RETURN_IF_ERROR(broadcast_text(group, text, root));
  return group.rank() == root ? Status() : take_history(text);
}

Status FollowUpState::take_history(const std::string& text) {
  TROUPE_RETURN_IF_ERROR(open_history());
  history_->clear();
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) TROUPE_RETURN_IF_ERROR(history_->append(line));
  return {};
}

Status FollowUpState::open_recorder(const FollowUp* left, const Unlogged& unlogged) {
  RankParts& f = parts_;
  recorder.reset();
  TROUPE_RETURN_IF_ERROR(open_history());
  std::optional<RecorderPosition> position;
  if (!left) {
    history_->clear();
    const std::string text = trainer_state_text(restored);
    if (const auto state = parse_python_json(text, "trainer_state.json"))
      TROUPE_RETURN_IF_ERROR(history_->append(python_json(*state)));
    if (!f.leads()) position = {.kept_step = restored.global_step, .unlogged = unlogged};
  } else {
    restored = {};
    for (const std::string& line : history_->lines()) {
      auto entry = parse_python_json(line, "the surviving history");
      if (!entry) continue;
      if (const auto kept = json::find_integer(*entry, kTruncate)) {
        truncate_log_history(restored, *kept);
      } else if (json::find(*entry, "log_history")) {
        restored = TROUPE_TRY(parse_trainer_state(line, "the surviving history"));
      } else {
        restored.log_history.push_back(*entry);
      }
    }
    TROUPE_RETURN_IF_ERROR(history_->append(python_json(json::Object{{kTruncate, finished_step}})));
    truncate_log_history(restored, finished_step);
    restored.global_step = finished_step;
    restored.total_flos = left->total_flos;
    restored.num_input_tokens_seen = left->input_tokens;
    position = {.kept_step = finished_step,
                .unlogged = {.loss = left->loss_since_log,
                             .steps = left->steps_since_log,
                             .metrics = left->metrics_since_log}};
  }
  const double flos_per_token =
      6.0 * static_cast<double>(f.model->model_layout().parameter_elements() -
                                f.bundle.model.vocab_size * f.bundle.model.hidden_size);
  RunFacts facts{.schedule = f.facts,
                 .flos_per_token = flos_per_token,
                 .dataset_tokens = f.bundle.dataset.token_count(),
                 .world_size = f.options.world_size,
                 .started_unix_us = f.options.started_unix_us,
                 .metrics = f.objective->metrics(),
                 .eval_metrics = eval_metrics(*f.objective, f.config().measures_accuracy())};
  if (f.leads()) {
    facts.first_step = first_step_of_run();
    recorder =
        TROUPE_TRY(RunRecorder::open(f.files, f.clock, f.config(), facts, restored, position));
  } else {
    recorder = RunRecorder::without_files(f.files, f.clock, f.config(), facts, restored, *position);
  }
  recorder->on_history([this](const json::Object& entry) {
    // Without it the next process of a killed rank 0 would forget a line of trainer_state.json,
    // nothing more.
    if (const Status kept = history_->append(python_json(entry)); !kept.ok())
      parts_.log.warning("{}", kept.to_string());
  });
  recorder->on_missing_events(
      [this](const Status& why) { parts_.log.warning("{}", why.to_string()); });
  if (left) recorder->set_best(best);
  return {};
}

std::int64_t FollowUpState::first_step_of_run() const {
  const RankParts& f = parts_;
  std::string path = f.options.resume_path;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  if (path.empty()) return 0;
  if (const auto step = checkpoint_step(path.substr(path.rfind('/') + 1))) return *step;
  const auto manifest = read_manifest(f.files, path);
  return manifest.ok() ? manifest->step : 0;
}

Status FollowUpState::agree_on_gemm_rate(collective::Communicator& world) {
  // Measured once a rank: the machine does not change.
  if (gemm_flops_per_s_here == 0) {
    gemm_flops_per_s_here = parts_.rank_compute->gemm_rate(parts_.clock, parts_.bundle.model,
                                                           arithmetic_of(parts_.config()));
  }
  const auto ranks = static_cast<std::size_t>(world.world_size());
  std::vector<double> all(ranks);
  const std::vector<std::size_t> counts(ranks, 1);
  TROUPE_RETURN_IF_ERROR(world.all_gather(std::span<const double>(&gemm_flops_per_s_here, 1),
                                          std::span<double>(all), counts));
  parts_.gemm_flops_per_s = std::accumulate(all.begin(), all.end(), 0.0);
  return {};
}

}  // namespace troupe::train
