#include "train/trainer/told_reports.h"

#include "runtime/base/file_system.h"
#include "train/checkpoint/checkpoint_names.h"
#include "train/report/format.h"

namespace troupe::train {
namespace {

std::optional<double> to_ms(const std::optional<Duration>& time) {
  if (!time) return std::nullopt;
  return std::chrono::duration<double, std::milli>(*time).count();
}

RunEvent event_at(const char* name, const RunPosition& at, std::int64_t step) {
  return {.event = name,
          .generation = static_cast<std::int64_t>(at.generation),
          .rank = at.rank,
          .step = step};
}

}  // namespace

json::Object driver_line(const StepReport& report) {
  return {{"kind", "step"},
          {"step", report.step},
          {"total_steps", report.total_steps},
          {"loss", report.loss},
          {"grad_norm", report.grad_norm},
          {"lr", report.learning_rate},
          {"tokens", report.tokens},
          {"logged", report.logged},
          {"logged_loss", report.logged_loss},
          {"skipped", report.skipped},
          {"seconds", to_json(report.seconds)},
          {"tokens_per_s", report.rates.tokens_per_s},
          {"gflops", report.rates.gflops},
          {"gemm_share", report.rates.gemm_share}};
}

json::Object driver_line(const EvaluationReport& report) {
  return {{"kind", "evaluation"},       {"step", report.step},       {"loss", report.loss},
          {"samples", report.samples},  {"seconds", report.seconds}, {"best", report.best},
          {"data_set", report.data_set}};
}

json::Object driver_line(const CheckpointReport& report) {
  return {{"kind", "checkpoint"}, {"step", report.step}, {"path", report.path}};
}

json::Object driver_line(const WarningReport& report) {
  return {{"kind", "warning"}, {"text", report.text}};
}

RunEvent to_event(const RecordEvent& command) {
  RunEvent event{.event = command.event,
                 .generation = static_cast<std::int64_t>(command.generation),
                 .rank = command.rank,
                 .node = command.node,
                 .step = command.step,
                 .cause = command.cause,
                 .doing = command.doing,
                 .waited_for_by = command.waited_for_by,
                 .detected_after_ms = command.detected_after_ms,
                 .recomputed_steps = command.recomputed_steps,
                 .lost_steps = command.lost_steps};
  if (command.world) {
    event.world_size = std::ssize(command.world->trainers);
    event.world = command.world->number;
    event.trainers.assign(command.world->trainers.begin(), command.world->trainers.end());
  }
  if (command.times) {
    const RecoveryTimes& times = *command.times;
    event.detected_after_ms = to_ms(times.detected_after);
    event.respawn_ms = to_ms(times.respawn);
    event.attach_ms = to_ms(times.attach);
    event.reform_ms = to_ms(times.reform);
    event.first_step_ms = to_ms(times.first_step);
    event.recovery_ms = to_ms(times.whole);
  }
  return event;
}

std::vector<World> worlds_told(const std::vector<RunEvent>& events, World first,
                               std::int64_t steps) {
  std::vector<World> worlds{std::move(first)};
  std::int64_t began = 0;
  for (const RunEvent& event : events) {
    if (event.event == events::kStart) {
      worlds = {worlds.back()};
      began = event.step;
    }
    if (event.event != events::kResize || !event.world || event.trainers.empty()) continue;
    if (event.step > began) worlds.resize(1);
    worlds.insert(worlds.begin(), World{static_cast<std::int32_t>(*event.world),
                                        {event.trainers.begin(), event.trainers.end()}});
    began = event.step;
  }
  if (steps > began) worlds.resize(1);
  return worlds;
}

ToldEvent to_event(const CheckpointFailedReport& report, const RunPosition& at,
                   const RunSpec& spec) {
  RunEvent event = event_at(events::kCheckpointFailed, at, report.step);
  event.cause = report.cause.to_string();
  event.path = join_path(spec.output_dir, checkpoint_name(report.step));
  return {event, fmt::format("warning: checkpoint-{} was not written: {}", report.step,
                             report.cause.to_string())};
}

ToldEvent to_event(const AbandonedReport& report, const RunPosition& at, const RunSpec&) {
  RunEvent event = event_at(events::kCheckpointAbandoned, at, report.step);
  event.path = report.path;
  return {event,
          fmt::format("checkpoint-{} was being committed when a trainer died, and is abandoned",
                      report.step)};
}

ToldEvent to_event(const ModelHeldReport& report, const RunPosition& at, const RunSpec& spec) {
  RunEvent event = event_at(events::kModelHeld, at, at.last_step);
  event.cause = report.cause.to_string();
  event.path = report.folder;
  return {event,
          fmt::format("warning: the finished model could not be written to {}: {}\nIt is kept in "
                      "memory for {} and tried again every few seconds: make room there, or save "
                      "it elsewhere with 'troupe save {} DIR'.",
                      report.folder, report.cause.to_string(),
                      format_duration(static_cast<double>(spec.hold_timeout_s)), spec.run)};
}

ToldEvent to_event(const ModelSavedReport& report, const RunPosition& at, const RunSpec&) {
  RunEvent event = event_at(events::kModelSaved, at, at.last_step);
  event.path = report.folder;
  return {event, ""};
}

ToldEvent to_event(const NoticeReport& report, const RunPosition& at, const RunSpec&) {
  RunEvent event = event_at(events::kNotice, at, at.last_step);
  event.rank = -1;  // a notice is about the run, not about the rank that tells it
  event.cause = report.text;
  return {event, report.text};
}

}  // namespace troupe::train
