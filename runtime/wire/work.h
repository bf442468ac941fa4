#pragma once
// What a process has under way beside single actors, as it says of itself to the head: tasks,
// groups and pools of actors, pipelines. For people who look; nothing is decided by it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/wire/types.h"

namespace troupe::wire {

// A task that has ended, of those that took limits::kTaskShownMin.
struct TaskSpan {
  std::string name;
  ActorId worker;
  std::int64_t begin_unix_us = 0;  // it was sent there
  std::int64_t end_unix_us = 0;    // its end was heard of
  bool failed = false;
  TROUPE_WIRE(TaskSpan, name, worker, begin_unix_us, end_unix_us, failed);
  friend bool operator==(const TaskSpan&, const TaskSpan&) = default;
};

// Tasks whose workers hold the same.
struct TaskWork {
  Resources resources;  // of each worker
  std::uint64_t waiting = 0;
  std::uint64_t running = 0;
  std::uint64_t done = 0;    // since the process began; with those that failed
  std::uint64_t failed = 0;  // with those that were cancelled
  std::uint64_t again = 0;   // how often one was run again, since its worker died
  std::uint64_t workers = 0;
  std::uint64_t workers_awaited = 0;
  std::string why;             // what an awaited one waits for, and how the last one was lost
  std::vector<TaskSpan> last;  // not more than limits::kTasksShownMax, the latest at the end
  TROUPE_WIRE(TaskWork, resources, waiting, running, done, failed, again, workers, workers_awaited,
              why, last);
  friend bool operator==(const TaskWork&, const TaskWork&) = default;
};

// An ActorGroup, or an ActorPool.
struct GroupWork {
  std::string type;  // the members' class
  bool is_pool = false;
  std::string axes;               // of a group: "dp 2, tp 4"
  std::uint64_t members = 0;      // of a pool: those that there are now
  std::uint64_t members_max = 0;  // of a pool
  // The members' processes, not more than limits::kWorkActorsMax: how they are the head knows.
  std::vector<ActorId> actors;
  std::uint64_t calls_waiting = 0;  // of a pool, as the next
  std::uint64_t calls_under_way = 0;
  std::string why;  // how the last member was lost, or why it could not be placed
  TROUPE_WIRE(GroupWork, type, is_pool, axes, members, members_max, actors, calls_waiting,
              calls_under_way, why);
  friend bool operator==(const GroupWork&, const GroupWork&) = default;
};

struct StageWork {
  std::string name;
  std::uint64_t actors = 0;
  std::uint64_t bound = 0;     // of them; the others are not there, or not there again
  std::uint64_t waiting = 0;   // items that have come to it and that it has not done
  std::uint64_t respawns = 0;  // processes of its actors that were replaced
  bool has_oldest = false;     // of the items that which all results behind it wait for
  TROUPE_WIRE(StageWork, name, actors, bound, waiting, respawns, has_oldest);
  friend bool operator==(const StageWork&, const StageWork&) = default;
};
struct PipelineWork {
  std::uint64_t number = 0;  // among the process's pipelines, from 1
  std::uint64_t pushed = 0;
  std::uint64_t delivered = 0;
  std::uint64_t in_flight_max = 0;
  std::vector<StageWork> stages;
  std::string why;  // it has ended, and why
  TROUPE_WIRE(PipelineWork, number, pushed, delivered, in_flight_max, stages, why);
  friend bool operator==(const PipelineWork&, const PipelineWork&) = default;

  // The stage that the others wait for, where the pipeline is full; null: it takes more items. It
  // is the one that has the oldest item, not that with most of them, which may take them in order
  // and wait itself; of a client that does not say, it is the last of those with most.
  const StageWork* held_up_by() const;
  // "read → map → sum"
  std::string to_string() const;
};

// All of a process. What it leaves out, since there is more than limits::kWorkListedMax of a kind,
// it counts.
struct Work {
  ActorId actor_id;  // of the process; empty: a driver
  std::vector<TaskWork> tasks;
  std::vector<GroupWork> groups;
  std::vector<PipelineWork> pipelines;
  std::uint64_t left_out = 0;
  std::uint64_t items_done = 0;  // of all its pipelines, also those that have ended
  TROUPE_WIRE(Work, actor_id, tasks, groups, pipelines, left_out, items_done);
  friend bool operator==(const Work&, const Work&) = default;
  bool empty() const { return tasks.empty() && groups.empty() && pipelines.empty(); }
};

// Sums over what many processes have under way.
struct WorkTotals {
  std::uint64_t tasks_waiting = 0;
  std::uint64_t tasks_running = 0;
  std::uint64_t task_workers = 0;
  std::uint64_t task_workers_awaited = 0;
  std::uint64_t pool_calls_waiting = 0;
  std::uint64_t pipelines = 0;  // those that run
  std::uint64_t pipelines_held_up = 0;
  std::uint64_t pipeline_items = 0;  // under way

  void add(const Work& work);
};

// Bytes, about.
std::size_t size_in_memory(const Work& work);

}  // namespace troupe::wire
