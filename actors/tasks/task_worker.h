#pragma once
// The actor that runs tasks, of every program that has some.

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "troupe/detail/actor_class.h"
#include "troupe/detail/interface.h"
#include "troupe/status.h"

namespace troupe::detail {

inline constexpr std::string_view kTaskWorkerType = "TaskWorker";
// Its methods: arguments are the function's id, and the function's own.
inline constexpr std::uint32_t kRunTask = 0;
inline constexpr std::uint32_t kStreamTask = 1;
const ActorInterface& task_worker_interface();

// What a worker holds, by which it knows whose tasks it may run itself.
struct WorkerRoom {
  std::string key;  // of its pool: equal for tasks with equal options
  // CPU, GPU, memory and the user's own kinds.
  std::map<std::string, double> resources;
  // The tasks ask for resources alone, and not for a place.
  bool anywhere = false;

  // Whether a task of `other` finds here what it asks for.
  bool holds(const WorkerRoom& other) const;
};
// What its constructor takes, as it travels.
Bytes task_worker_arguments(const WorkerRoom& room);

// The function's name, of every failure that it has returned: what says that it ran.
inline constexpr std::string_view kTaskContext = "task";
bool is_of_function(const Status& status);
// Of a task that a worker has not begun, since another one takes long.
Status not_begun();
bool is_not_begun(const Status& status);
// Of one that a worker refuses since it is being stopped (host.cpp): that it did not begin, either.
bool is_worker_leaving(const Status& status);

}  // namespace troupe::detail
