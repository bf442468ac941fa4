#include "runtime/wire/work.h"

namespace troupe::wire {

const StageWork* PipelineWork::held_up_by() const {
  // An item that was just taken out leaves room for a moment.
  if (!why.empty() || 8 * (pushed - delivered) < 7 * in_flight_max) return nullptr;
  const StageWork* most = nullptr;
  for (const StageWork& stage : stages) {
    if (stage.has_oldest) return &stage;
    if (stage.waiting > 0 && (most == nullptr || stage.waiting >= most->waiting)) most = &stage;
  }
  return most;
}

std::string PipelineWork::to_string() const {
  std::string text;
  for (const StageWork& stage : stages) text += (text.empty() ? "" : " → ") + stage.name;
  return text;
}

void WorkTotals::add(const Work& work) {
  for (const TaskWork& tasks : work.tasks) {
    tasks_waiting += tasks.waiting;
    tasks_running += tasks.running;
    task_workers += tasks.workers;
    task_workers_awaited += tasks.workers_awaited;
  }
  for (const GroupWork& group : work.groups) pool_calls_waiting += group.calls_waiting;
  for (const PipelineWork& pipeline : work.pipelines) {
    if (!pipeline.why.empty()) continue;
    ++pipelines;
    pipelines_held_up += pipeline.held_up_by() != nullptr ? 1 : 0;
    pipeline_items += pipeline.pushed - pipeline.delivered;
  }
}

std::size_t size_in_memory(const Work& work) {
  std::size_t bytes = sizeof work;
  for (const TaskWork& tasks : work.tasks) {
    bytes += sizeof tasks + tasks.why.size();
    for (const auto& [name, amount] : tasks.resources) bytes += name.size() + 2 * sizeof amount;
    for (const TaskSpan& task : tasks.last) bytes += sizeof task + task.name.size();
  }
  for (const GroupWork& group : work.groups) {
    bytes += sizeof group + group.type.size() + group.axes.size() + group.why.size() +
             group.actors.size() * sizeof(ActorId);
  }
  for (const PipelineWork& pipeline : work.pipelines) {
    bytes += sizeof pipeline + pipeline.why.size();
    for (const StageWork& stage : pipeline.stages) bytes += sizeof stage + stage.name.size();
  }
  return bytes;
}

}  // namespace troupe::wire
