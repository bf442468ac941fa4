#pragma once
// Tasks whatever their functions: what the templates of tasks.h ask of the process's leases
// (actors/tasks).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

#include "troupe/codec.h"
#include "troupe/detail/actor_class.h"
#include "troupe/detail/call_line.h"
#include "troupe/detail/future_core.h"
#include "troupe/detail/method_call.h"
#include "troupe/detail/queued_task.h"
#include "troupe/detail/verbs.h"
#include "troupe/ids.h"
#include "troupe/status.h"

namespace troupe {

struct TaskOptions;

namespace detail {

class TaskPool;  // the leases of one kind of tasks

// A function that tasks run, as a program knows it.
struct TaskFunction {
  std::string_view name;
  std::uint64_t id = 0;  // of the name and the signature
  // One of the two: it has a result, or gives a stream.
  Result<Bytes> (*invoke)(ActorContext& context, std::span<const std::byte> arguments,
                          const DecodeContext& decode) = nullptr;
  Result<std::unique_ptr<AsyncMethod>> (*start)(ActorContext& context,
                                                std::span<const std::byte> arguments,
                                                const DecodeContext& decode,
                                                std::shared_ptr<TaskHost> host) = nullptr;
};

using CreateTaskWorker = Result<std::unique_ptr<ActorInstance>> (*)(
    ActorContext& context, std::span<const std::byte> arguments, const DecodeContext& decode);
// The class whose actors run tasks.
ActorClass task_worker_class(CreateTaskWorker create);
// `functions`: what they can run; as long as the program.
Result<std::unique_ptr<ActorInstance>> make_task_worker(ActorContext& context,
                                                        std::span<const TaskFunction> functions,
                                                        std::span<const std::byte> arguments);

// A task from when it is submitted until it ends.
class TaskCall : public QueuedTask {
 public:
  virtual ~TaskCall() = default;
  // Once. `line`: the call that brought the result; null: none did, or it was made in this process.
  virtual void end(const Status& status, std::span<const std::byte> result, const CallLine* line,
                   Continuations* later) = 0;
  // Of the future, or the stream, that whoever submitted it has.
  virtual void ends_at(Deadline deadline) = 0;
  virtual bool over() const = 0;
  virtual void give_up_task(const char* why) = 0;
  // Of a stream: how many items may come in all, at least 1; 0: it is none. And an item.
  virtual std::uint64_t items_allowed() const { return 0; }
  virtual void item(std::uint64_t index, std::span<const std::byte> bytes, const CallLine& line) {
    (void)index, (void)bytes, (void)line;
  }

  std::string_view name;
  std::uint64_t function = 0;
  PackedArguments arguments;
  std::weak_ptr<TaskPool> pool;
  std::shared_ptr<class TaskAttempt> attempt;  // under the pool's lock
  std::optional<std::stop_callback<std::function<void()>>> with_outer;

 protected:
  TaskCall() = default;
  void cancel_in_pool();
  void allow_items_in_pool(std::uint64_t items);
  bool forked_from_pool() const;
  Status late_in_pool(const char* what) const;
  void help_in_pool(Deadline deadline);
  DecodeContext local_context() const;
};

// The pool of tasks with these options; kInvalidArgument for those that make no sense.
Result<std::shared_ptr<TaskPool>> task_pool(const ClientPtr& client, const TaskOptions& options);
FutureOptions task_future_options(const ClientPtr& client);
Status check_stream_window(std::uint32_t window);
// The task ends in any case.
void submit_task(const std::shared_ptr<TaskPool>& pool, const TaskOptions& options,
                 std::shared_ptr<TaskCall> task);

}  // namespace detail
}  // namespace troupe
