#pragma once
// The leases of one process for tasks with the same options: carries out what LeaseQueue decides,
// by actors whose class is task_worker.h's.

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "actors/actor_channel.h"
#include "actors/client.h"
#include "actors/tasks/lease_queue.h"
#include "actors/tasks/task_worker.h"
#include "actors/work_reporter.h"
#include "troupe/detail/mutex.h"
#include "troupe/detail/task_core.h"
#include "troupe/tasks.h"

namespace troupe::detail {

class TaskAttempt;
class TaskPools;

// Thread-safe.
class TaskPool final : public WorkSource, public std::enable_shared_from_this<TaskPool> {
 public:
  using TaskPtr = std::shared_ptr<TaskCall>;

  // `room`: what the workers are told that they hold; `resources`: as the head is told it.
  TaskPool(const ClientPtr& client, ActorOptions worker, WorkerRoom room,
           wire::Resources resources);
  ~TaskPool() override;

  void submit(TaskPtr task, const TaskOptions& options);
  void cancel(TaskCall& task);
  // `what`: of what there is none yet.
  Status late(const TaskCall& task, const char* what) const;
  // A stream's reader takes so many items in all.
  void allow_items(TaskCall& task, std::uint64_t items);
  bool forked() const;
  // Before a thread sleeps for the task: runs it, where this process may, or reads its answer.
  void help(TaskCall& task, Deadline deadline);
  std::shared_ptr<ActorClient> client() const { return client_.lock(); }

  void answered(TaskAttempt& attempt, const Status& status, std::span<const std::byte> result,
                Continuations* later);
  void item(TaskAttempt& attempt, std::uint64_t index, std::span<const std::byte> bytes);
  void closed(const Status& why);
  // Others of this process wait for resources.
  void give_up_idle();
  bool tell(wire::Work& work) const override;

 private:
  struct Worker {
    ChannelPtr channel;
    Directory::WatchId watch = 0;
    ActorState state = ActorState::kPending;
    std::string waits_for;
  };
  void go_on(Continuations* later = nullptr) TROUPE_EXCLUDES(mutex_);
  void go_on_here() TROUPE_EXCLUDES(mutex_);
  void carry_out(LeaseQueue::Todo todo, Continuations* later) TROUPE_EXCLUDES(mutex_);
  void arm_locked(TimePoint now) TROUPE_REQUIRES(mutex_);
  void ask(std::uint64_t lease, NodeId near) TROUPE_EXCLUDES(mutex_);
  void end(std::uint64_t lease) TROUPE_EXCLUDES(mutex_);
  void on_worker(std::uint64_t lease, const Result<wire::ActorInfo>& info) TROUPE_EXCLUDES(mutex_);
  void remember_locked(const TaskAttempt& attempt, bool failed) TROUPE_REQUIRES(mutex_);
  void lost_locked(std::uint64_t lease, const Status& why, bool refused) TROUPE_REQUIRES(mutex_);
  void finish(TaskCall& task, const Status& status, std::span<const std::byte> result,
              const CallLine* line, Continuations* later);
  std::string what_is_lacking_locked() const TROUPE_REQUIRES(mutex_);

  const std::weak_ptr<ActorClient> client_;
  const ActorOptions worker_;
  const WorkerRoom room_;
  const wire::Resources resources_;
  const std::shared_ptr<WorkReporter> reporter_;
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::uint64_t> failed_{0};
  mutable Mutex mutex_;
  LeaseQueue queue_ TROUPE_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Worker> workers_ TROUPE_GUARDED_BY(mutex_);
  std::deque<wire::TaskSpan> last_ TROUPE_GUARDED_BY(mutex_);  // that took a while
  Status closed_ TROUPE_GUARDED_BY(mutex_);
  bool going_on_ TROUPE_GUARDED_BY(mutex_) = false;
  std::optional<TimePoint> armed_ TROUPE_GUARDED_BY(mutex_);
};

// All of a process.
class TaskPools {
 public:
  Result<std::shared_ptr<TaskPool>> pool(const ClientPtr& client, const TaskOptions& options);
  void close(const Status& why);
  // Others of the process end workers that have nothing to do.
  void starved(const TaskPool& pool);

  // This process is a worker.
  void set_worker(WorkerRoom room, std::span<const TaskFunction> functions, ActorContext& context);
  // The function, where a task that wants `room` may run on this thread now.
  const TaskFunction* function_here(const WorkerRoom& room, std::uint64_t function) const;
  ActorContext& context() const { return *context_; }

  // A task of this process waits for what another process does, as long as one of these lives:
  // others may have its CPUs. On the thread of the task.
  class Waiting {
   public:
    explicit Waiting(TaskPools& of, ClientPtr client) : of_(of), client_(std::move(client)) {
      if (of_.waits_++ == 0) client_->lend_cpus(false);
    }
    ~Waiting() {
      if (--of_.waits_ == 0) client_->lend_cpus(true);
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    TaskPools& of_;
    const ClientPtr client_;
  };
  // It runs another task meanwhile.
  class Running {
   public:
    Running(TaskPools& of, ClientPtr client)
        : of_(of), client_(std::move(client)), waits_(std::exchange(of.waits_, 0)) {
      if (waits_ > 0) client_->lend_cpus(true);
    }
    ~Running() {
      of_.waits_ = waits_;
      if (waits_ > 0) client_->lend_cpus(false);
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    TaskPools& of_;
    const ClientPtr client_;
    const int waits_;
  };

 private:
  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<TaskPool>> pools_ TROUPE_GUARDED_BY(mutex_);
  Status closed_ TROUPE_GUARDED_BY(mutex_);
  // Written before the worker's first task.
  WorkerRoom own_;
  std::span<const TaskFunction> functions_;
  ActorContext* context_ = nullptr;
  int waits_ = 0;  // the thread's of the tasks
};

}  // namespace troupe::detail
