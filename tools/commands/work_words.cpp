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
  std::uint64_t running = 0, waiting = 0, workers = 0, awaited = 0;
  std::uint64_t pipelines = 0, items = 0;
  std::string slow_stages;
  for (const auto& client : clients) {
    for (const wire::TaskWork& tasks : client.work.tasks) {
      running += tasks.running;
      waiting += tasks.waiting;
      workers += tasks.workers;
      awaited += tasks.workers_awaited;
    }
    for (const wire::PipelineWork& pipeline : client.work.pipelines) {
      if (!pipeline.why.empty()) continue;
      ++pipelines;
      items += pipeline.pushed - pipeline.delivered;
      const wire::StageWork* slow = pipeline.held_up_by();
      if (slow == nullptr) continue;
      slow_stages += fmt::format("  {}: {}\n", printable(client.name), held_up(pipeline, *slow));
    }
  }
  std::string text;
  if (running + waiting + workers + awaited > 0) {
    text += fmt::format("Tasks      {} running, {} waiting; {} workers{}\n", running, waiting,
                        workers, awaited > 0 ? fmt::format(", {} awaited", awaited) : "");
  }
  if (pipelines > 0) {
    text += fmt::format("Pipelines  {}, with {} items under way\n", pipelines, items);
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
