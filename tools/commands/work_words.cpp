#include "tools/commands/work_words.h"

#include <fmt/format.h>

#include "scheduler/policy/resources.h"
#include "tools/commands/table.h"

namespace troupe::tools {
namespace {

std::string held_up(const wire::PipelineWork& pipeline, const wire::StageWork& slow) {
  return fmt::format(
      "pipeline {} ({}) is full: {} items under way, {} of them at '{}', which "
      "holds the others up",
      pipeline.number, printable(pipeline.to_string()), pipeline.pushed - pipeline.delivered,
      slow.waiting, printable(slow.name));
}

}  // namespace

std::string summary_of_work(const std::vector<wire::ClientWork>& clients) {
  wire::WorkTotals all;
  std::string slow_stages;
  for (const auto& client : clients) {
    all.add(client.work);
    for (const wire::PipelineWork& pipeline : client.work.pipelines) {
      if (const wire::StageWork* slow = pipeline.held_up_by())
        slow_stages += fmt::format("  {}: {}\n", printable(client.name), held_up(pipeline, *slow));
    }
  }
  std::string text;
  if (all.tasks_running + all.tasks_waiting + all.task_workers + all.task_workers_awaited > 0) {
    text += fmt::format(
        "Tasks      {} running, {} waiting; {} workers{}\n", all.tasks_running, all.tasks_waiting,
        all.task_workers,
        all.task_workers_awaited > 0 ? fmt::format(", {} awaited", all.task_workers_awaited) : "");
  }
  if (all.pipelines > 0) {
    text +=
        fmt::format("Pipelines  {}, with {} items under way\n", all.pipelines, all.pipeline_items);
  }
  return text + slow_stages;
}

std::string waits_of_work(const wire::ClientWork& client) {
  std::string text;
  for (const wire::TaskWork& tasks : client.work.tasks) {
    if (tasks.waiting == 0) continue;
    text += fmt::format("  {} of its tasks wait for one of {} workers with {} each, which run {}\n",
                        tasks.waiting, tasks.workers, scheduler::format_resources(tasks.resources),
                        tasks.running);
    if (tasks.workers_awaited > 0) {
      text += fmt::format("  {} more workers were asked for{}{}\n", tasks.workers_awaited,
                          tasks.why.empty() ? "" : ": ", printable(tasks.why));
    }
  }
  for (const wire::GroupWork& group : client.work.groups) {
    if (group.calls_waiting == 0) continue;
    text += fmt::format("  {} calls wait for one of the {} members of its pool of {}{}{}\n",
                        group.calls_waiting, group.members, printable(group.type),
                        group.why.empty() ? "" : ": ", printable(group.why));
  }
  for (const wire::PipelineWork& pipeline : client.work.pipelines) {
    if (const wire::StageWork* slow = pipeline.held_up_by()) {
      text += fmt::format("  its {}\n", held_up(pipeline, *slow));
    }
    for (const wire::StageWork& stage : pipeline.stages) {
      if (stage.bound == stage.actors || !pipeline.why.empty()) continue;
      text += fmt::format("  its pipeline {} waits for {} of {} actors of stage '{}'\n",
                          pipeline.number, stage.actors - stage.bound, stage.actors,
                          printable(stage.name));
    }
  }
  return text;
}

}  // namespace troupe::tools
