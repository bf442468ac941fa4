#include "actors/tasks/task_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "actors/actor_spec.h"
#include "actors/guarded.h"
#include "actors/objects/object_client.h"
#include "actors/session/head_is_away.h"
#include "actors/tasks/task_worker.h"
#include "runtime/base/clock.h"
#include "runtime/base/hash.h"
#include "runtime/base/limits.h"
#include "runtime/base/short_slices.h"
#include "scheduler/client/actor_words.h"
#include "troupe/detail/running_call.h"

namespace troupe::detail {
namespace {

// For a worker to end: a task that was given up sees its stop token before it.
constexpr std::chrono::milliseconds kWorkerGrace{5'000};
constexpr Duration kEndAgainAfter = std::chrono::seconds(1);

// A task that is run by the one which waits for it needs room behind that one's frames.
bool stack_is_nearly_used_up() {
  struct Stack {
    std::uintptr_t begin = 0;
    std::size_t least = 0;
    Stack() {
      pthread_attr_t attributes;
      if (::pthread_getattr_np(::pthread_self(), &attributes) != 0) return;
      void* lowest = nullptr;
      std::size_t bytes = 0;
      if (::pthread_attr_getstack(&attributes, &lowest, &bytes) == 0) {
        begin = reinterpret_cast<std::uintptr_t>(lowest);
        least = std::min<std::size_t>(1u << 20, bytes / 4);
      }
      ::pthread_attr_destroy(&attributes);
    }
  };
  thread_local const Stack stack;
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  return stack.begin != 0 && here - stack.begin < stack.least;
}

ActorOptions worker_options(const TaskOptions& options) {
  return {.num_cpus = options.num_cpus,
          .num_gpus = options.num_gpus,
          .memory_bytes = options.memory_bytes,
          .resources = options.resources,
          .node_affinity = options.node_affinity,
          .node_affinity_soft = options.node_affinity_soft,
          .label_selector = options.label_selector,
          .label_preference = options.label_preference,
          .placement_group = options.placement_group,
          .bundle_index = options.bundle_index,
          .awaits_nodes = options.awaits_nodes,
          .priority = options.priority,
          .environment = options.environment};
}

WorkerRoom room_of(const ActorOptions& o) {
  WorkerRoom room{.resources = o.resources};
  room.resources["CPU"] = o.num_cpus;
  room.resources["GPU"] = o.num_gpus;
  room.resources["memory"] = o.memory_bytes;
  Encoder place;
  Codec<std::optional<NodeId>>::encode(place, o.node_affinity);
  place.put(o.node_affinity_soft);
  Codec<std::map<std::string, std::string>>::encode(place, o.label_selector);
  Codec<std::map<std::string, std::string>>::encode(place, o.label_preference);
  Codec<GroupId>::encode(place, o.placement_group);
  place.put(o.bundle_index);
  Codec<std::map<std::string, std::string>>::encode(place, o.environment);
  room.anywhere = !o.node_affinity && o.label_selector.empty() && o.placement_group.empty() &&
                  o.environment.empty();
  place.put(o.awaits_nodes);
  place.put(o.priority);
  Codec<std::map<std::string, double>>::encode(place, room.resources);
  const auto bytes = place.take();
  room.key = fmt::format("{:016x}{:x}", xxh3_64(bytes), bytes.size());
  return room;
}

// Where most bytes are of the objects that the arguments refer to; nowhere where those are few.
NodeId node_of_objects(const PackedArguments& arguments) {
  constexpr std::uint64_t kManyBytes = 64 * 1024;
  NodeId node;
  std::uint64_t most = kManyBytes;
  std::map<NodeId, std::uint64_t> bytes;
  for (const auto& kept : arguments.kept) {
    const auto& record = static_cast<const HeldObject*>(kept.get())->record;
    const std::uint64_t here = bytes[record.home] += record.bytes;
    if (here >= most) node = record.home, most = here;
  }
  return node;
}

}  // namespace

// A task at a worker.
class TaskAttempt final : public CallSink,
                          public Cancellable,
                          public std::enable_shared_from_this<TaskAttempt> {
 public:
  TaskAttempt(std::shared_ptr<TaskPool> of, std::shared_ptr<TaskCall> what, ChannelPtr where)
      : task(std::move(what)),
        lease(task->lease),
        channel(std::move(where)),
        pool_(std::move(of)),
        pool_of_items_(pool_),
        line_(pool_->client(), channel) {}

  void send() {
    if (given_up_) return abandon();
    const std::uint64_t items = task->items_allowed();
    // (A stream may take long, and has not the room of others meanwhile.)
    OutgoingArguments arguments(*channel, kNoLightNumber, /*lends=*/items == 0);
    arguments.encoder().put(task->function);
    task->arguments.append_to(arguments.encoder());
    // (The pool has seen to what the task takes over from a call inside which it was submitted.)
    CallOptions options;
    options.inherit = false;
    options.timeout = Deadline::at(task->ends_by).remaining();
    options.retry = task->retries > 0 && items == 0;
    line_.send(items > 0 ? kStreamTask : kRunTask, arguments, options, shared_from_this(), *this,
               nullptr, items);
    // (What its reader has allowed meanwhile.)
    if (const std::uint64_t now = task->items_allowed(); now > items) line_.allow_items(now);
    if (given_up_) line_.cancel();
  }
  void item(std::uint64_t index, std::span<const std::byte> bytes) override {
    if (const auto pool = pool_of_items_.lock()) pool->item(*this, index, bytes);
  }
  void allow_items(std::uint64_t items) { line_.allow_items(items); }
  void answer(const Status& status, std::span<const std::byte> result,
              Continuations* later) override {
    line_.answered();
    over.store(true, std::memory_order_release);
    // (It may be the last to hold the pool.)
    if (const auto pool = std::exchange(pool_, nullptr)) {
      pool->answered(*this, status, result, later);
    }
  }
  void abandon() override { answer(broken_promise(), {}, nullptr); }
  void cancel(const char*) override { give_up(); }
  void give_up() {
    given_up_ = true;
    line_.cancel();
  }
  std::optional<Status> late(const char* what) const { return line_.late(what); }
  const CallLine& line() const { return line_; }

  const std::shared_ptr<TaskCall> task;
  const std::uint64_t lease;
  const ChannelPtr channel;
  const TimePoint since = SystemClock().now();
  std::atomic<bool> over{false};

 private:
  std::shared_ptr<TaskPool> pool_;
  const std::weak_ptr<TaskPool> pool_of_items_;
  CallLine line_;
  std::atomic<bool> given_up_{false};
};

// --- what the templates ask ----------------------------------------------------------------------

Result<std::shared_ptr<TaskPool>> task_pool(const ClientPtr& client, const TaskOptions& options) {
  return client->tasks().pool(client, options);
}

FutureOptions task_future_options(const ClientPtr& client) {
  return client->future_options(ActorId{});
}

Status check_stream_window(std::uint32_t window) {
  if (window > 0) return {};
  return Status(Code::kInvalidArgument, "TaskOptions::stream_window is at least 1");
}

void submit_task(const std::shared_ptr<TaskPool>& pool, const TaskOptions& options,
                 std::shared_ptr<TaskCall> task) {
  pool->submit(std::move(task), options);
}

void TaskCall::cancel_in_pool() {
  if (const auto alive = pool.lock()) alive->cancel(*this);
}
void TaskCall::allow_items_in_pool(std::uint64_t items) {
  if (const auto alive = pool.lock()) alive->allow_items(*this, items);
}
bool TaskCall::forked_from_pool() const {
  const auto alive = pool.lock();
  return alive && alive->forked();
}
Status TaskCall::late_in_pool(const char* what) const {
  if (const auto alive = pool.lock()) return alive->late(*this, what);
  return Status(Code::kDeadlineExceeded, what);
}
void TaskCall::help_in_pool(Deadline deadline) {
  if (const auto alive = pool.lock()) alive->help(*this, deadline);
}
DecodeContext TaskCall::local_context() const {
  const auto alive = pool.lock();
  const auto client = alive ? alive->client() : nullptr;
  return {.client = client, .takes_references = client != nullptr};
}

}  // namespace troupe::detail

namespace troupe {

Tasks::Tasks(Result<detail::ClientPtr> client, TaskOptions options)
    : client_(client.ok() ? *client : nullptr),
      pool_(client.ok() ? detail::task_pool(*client, options)
                        : Result<std::shared_ptr<detail::TaskPool>>(client.status())),
      options_(std::move(options)) {}

Tasks Actors::tasks(const TaskOptions& options) const {
  return detail::Access::make<Tasks>(usable(), options);
}
Tasks Actors::tasks() const { return tasks(TaskOptions()); }

}  // namespace troupe

namespace troupe::detail {

// --- a pool's life -------------------------------------------------------------------------------

TaskPool::TaskPool(const ClientPtr& client, ActorOptions worker, WorkerRoom room,
                   wire::Resources resources)
    : client_(client),
      worker_(std::move(worker)),
      room_(std::move(room)),
      resources_(std::move(resources)),
      reporter_(client->work().shared_from_this()),
      queue_(LeaseLimits{}) {}

TaskPool::~TaskPool() = default;

void TaskPool::closed(const Status& why) {
  std::vector<LeaseQueue::TaskPtr> waiting;
  {
    MutexLock lock(mutex_);
    if (!closed_.ok()) return;
    closed_ = why;
    waiting = queue_.take_all();
    workers_.clear();
  }
  for (const auto& task : waiting) {
    finish(static_cast<TaskCall&>(*task), why, {}, nullptr, nullptr);
  }
  MutexLock lock(mutex_);
  for (const auto& task : waiting) static_cast<TaskCall&>(*task).attempt.reset();
}

// --- tasks ---------------------------------------------------------------------------------------

void TaskPool::submit(TaskPtr task, const TaskOptions& options) {
  RunningCall* const outer = RunningCall::current();
  const bool inherits = outer != nullptr && options.inherit;
  const Deadline own = Deadline::after(options.timeout);
  const Deadline deadline = inherits ? earlier(own, outer->deadline()) : own;
  task->retries = options.retries;
  task->ends_by = deadline.time();
  task->prefers = node_of_objects(task->arguments);
  task->pool = weak_from_this();
  task->ends_at(deadline);
  // (Nothing else comes to its end at its worker while its reader takes its time.)
  task->alone = task->items_allowed() > 0;
  if (inherits) {
    task->with_outer.emplace(outer->stop_token(), [weak = std::weak_ptr(task)] {
      if (const auto alive = weak.lock()) {
        alive->give_up_task("the call inside which it was submitted was cancelled");
      }
    });
  }
  Status closed;
  {
    MutexLock lock(mutex_);
    closed = closed_;
    if (closed.ok() && !task->over()) queue_.submit(task);
  }
  if (!closed.ok()) return finish(*task, closed, {}, nullptr, nullptr);
  reporter_->changed();
  go_on_here();
}

// On a thread of the user's, which may hold what continuations of other tasks want: they run on the
// loop's.
void TaskPool::go_on_here() {
  auto later = std::make_shared<Continuations>();
  go_on(later.get());
  const auto client = later->empty() ? nullptr : client_.lock();
  if (!client) return;
  client->loop().post([later] {
    for (const auto& continuation : *later) continuation();
  });
}

void TaskPool::cancel(TaskCall& task) {
  std::shared_ptr<TaskAttempt> attempt;
  PackedArguments unneeded;  // go without the lock
  {
    MutexLock lock(mutex_);
    attempt = std::exchange(task.attempt, nullptr);
    queue_.drop(task);
    if (!attempt) unneeded = std::exchange(task.arguments, {});
  }
  if (attempt) attempt->give_up();
  go_on_here();
}

void TaskPool::allow_items(TaskCall& task, std::uint64_t items) {
  std::shared_ptr<TaskAttempt> attempt;
  {
    MutexLock lock(mutex_);
    attempt = task.attempt;
  }
  if (attempt) attempt->allow_items(items);
}

// (One that comes late, of a worker that was lost, comes again from the next one.)
void TaskPool::item(TaskAttempt& attempt, std::uint64_t index, std::span<const std::byte> bytes) {
  {
    MutexLock lock(mutex_);
    if (attempt.task->attempt.get() != &attempt) return;
  }
  attempt.task->item(index, bytes, attempt.line());
}

bool TaskPool::forked() const {
  const auto client = client_.lock();
  return client && client->forked();
}

Status TaskPool::late(const TaskCall& task, const char* what) const {
  std::shared_ptr<TaskAttempt> attempt;
  std::string lacking;
  {
    MutexLock lock(mutex_);
    attempt = task.attempt;
    if (!attempt) lacking = what_is_lacking_locked();
  }
  std::optional<Status> why = attempt ? attempt->late(what) : std::nullopt;
  if (!why) {
    why = error(Code::kDeadlineExceeded, "{}: the task waits for a worker: {}", what,
                lacking.empty() ? "it has just been answered" : lacking);
  }
  return std::move(why->with("task", task.name));
}

void TaskPool::help(TaskCall& task, Deadline deadline) {
  const auto client = client_.lock();
  if (!client) return;
  const TaskFunction* const here = client->tasks().function_here(room_, task.function);
  std::shared_ptr<TaskAttempt> attempt;
  bool taken = false;
  PackedArguments arguments;  // this thread's while it runs it: others may cancel it
  {
    MutexLock lock(mutex_);
    taken = here != nullptr && queue_.take(task);
    if (taken) {
      task.attempt.reset();
      arguments = std::exchange(task.arguments, {});
    }
    attempt = task.attempt;
  }
  if (taken && stack_is_nearly_used_up()) {
    return finish(task,
                  Status(Code::kResourceExhausted,
                         "tasks wait for each other in one process, and its thread's stack is "
                         "nearly used up: write the recursion as a loop, or let tasks return "
                         "what is to be done next"),
                  {}, nullptr, nullptr);
  }
  if (taken) {
    const TaskPools::Running running(client->tasks(), client);
    const DecodeContext context{.client = client, .in_place = true, .takes_references = true};
    const auto result =
        guarded([&] { return here->invoke(client->tasks().context(), arguments.bytes, context); });
    return finish(task, result.status(), result.ok() ? *result : std::span<const std::byte>(),
                  nullptr, nullptr);
  }
  if (!attempt) return;
  take_short_slices();
  attempt->channel->read_answers(
      deadline, [&] { return attempt->over.load(std::memory_order_acquire) || task.over(); });
}

void TaskPool::answered(TaskAttempt& attempt, const Status& status,
                        std::span<const std::byte> result, Continuations* later) {
  TaskCall& task = *attempt.task;
  // What the function returned is its result, also where it passes on what another actor's process
  // said of itself.
  const bool ran = status.ok() || is_of_function(status);
  const bool died = !ran && status.code() == Code::kActorDied && attempt.channel->ended();
  bool over = false;
  {
    MutexLock lock(mutex_);
    if (task.attempt.get() != &attempt) return;
    if (!closed_.ok()) {
      over = queue_.answered(task, attempt.lease, SystemClock().now());
    } else if (died) {
      lost_locked(attempt.lease, status, false);
    } else if (!ran && is_not_begun(status)) {
      (void)queue_.given_back(task, attempt.lease, SystemClock().now());
    } else if (!ran && is_worker_leaving(status)) {
      queue_.closing(attempt.lease);
      (void)queue_.given_back(task, attempt.lease, SystemClock().now());
    } else {
      // The worker may go on with it.
      if (!ran &&
          (status.code() == Code::kDeadlineExceeded || status.code() == Code::kUnavailable)) {
        queue_.closing(attempt.lease);
      }
      over = queue_.answered(task, attempt.lease, SystemClock().now());
    }
    if (over) remember_locked(attempt, !status.ok());
    // (Of those that lie at a lease that was lost the pool ends some below.)
    if (over || !died) task.attempt.reset();
  }
  if (over) finish(task, status, result, &attempt.line(), later);
  go_on(later);
}

void TaskPool::remember_locked(const TaskAttempt& attempt, bool failed) {
  const Duration took = SystemClock().now() - attempt.since;
  if (took < limits::kTaskShownMin) return;
  const std::int64_t now = SystemClock().unix_time_us();
  last_.push_back(
      {.name = work_text(std::string(attempt.task->name)),
       .worker = attempt.channel->actor_id(),
       .begin_unix_us = now - std::chrono::duration_cast<std::chrono::microseconds>(took).count(),
       .end_unix_us = now,
       .failed = failed});
  if (last_.size() > limits::kTasksShownMax) last_.pop_front();
}

void TaskPool::finish(TaskCall& task, const Status& status, std::span<const std::byte> result,
                      const CallLine* line, Continuations* later) {
  task.with_outer.reset();
  PackedArguments unneeded;  // go without the lock
  {
    MutexLock lock(mutex_);
    // (With an attempt it may be about to be sent: closed().)
    if (!task.attempt) unneeded = std::exchange(task.arguments, {});
  }
  done_.fetch_add(1, std::memory_order_relaxed);
  if (!status.ok()) failed_.fetch_add(1, std::memory_order_relaxed);
  if (status.ok()) return task.end(status, result, line, later);
  Status named = status;
  task.end(std::move(named.with(kTaskContext, task.name)), {}, line, later);
}

// --- what follows --------------------------------------------------------------------------------

// One thread at a time does it, with what others bring meanwhile.
void TaskPool::go_on(Continuations* later) {
  for (bool first = true;; first = false) {
    LeaseQueue::Todo todo;
    bool starved = false;
    {
      MutexLock lock(mutex_);
      if (!closed_.ok() || (first && going_on_)) return;
      going_on_ = true;
      const TimePoint now = SystemClock().now();
      todo = queue_.plan(now);
      starved = queue_.starved();
      if (todo.empty()) {
        going_on_ = false;
        arm_locked(now);
      }
    }
    if (starved) {
      if (const auto client = client_.lock()) client->tasks().starved(*this);
    }
    if (todo.empty()) return;
    carry_out(std::move(todo), later);
  }
}

void TaskPool::carry_out(LeaseQueue::Todo todo, Continuations* later) {
  for (const auto& [task, why] : todo.ended) {
    auto& call = static_cast<TaskCall&>(*task);
    Status told = why;
    {
      MutexLock lock(mutex_);
      call.attempt.reset();
      if (why.code() == Code::kDeadlineExceeded) {
        told = Status(why.code(), why.message() + ": of its workers " + what_is_lacking_locked());
      }
    }
    finish(call, told, {}, nullptr, later);
  }
  std::vector<std::shared_ptr<TaskAttempt>> attempts;
  attempts.reserve(todo.sends.size());
  std::vector<LeaseQueue::TaskPtr> unsent;
  Status closed;
  {
    MutexLock lock(mutex_);
    closed = closed_;
    for (auto& task : todo.sends) {
      if (task->state != QueuedTask::State::kAtLease) continue;  // (cancelled meanwhile)
      const auto worker = workers_.find(task->lease);
      if (worker == workers_.end()) {
        static_cast<TaskCall&>(*task).attempt.reset();
        unsent.push_back(std::move(task));  // (it was closed meanwhile)
        continue;
      }
      auto call = std::static_pointer_cast<TaskCall>(std::move(task));
      attempts.push_back(
          std::make_shared<TaskAttempt>(shared_from_this(), call, worker->second.channel));
      call->attempt = attempts.back();
    }
  }
  for (const auto& task : unsent) {
    finish(static_cast<TaskCall&>(*task), closed, {}, nullptr, later);
  }
  for (const auto& attempt : attempts) attempt->send();
  for (const auto& [lease, near] : todo.asks) ask(lease, near);
  for (const std::uint64_t lease : todo.ends) end(lease);
}

void TaskPool::arm_locked(TimePoint now) {
  const auto next = queue_.next();
  if (!next || (armed_ && *armed_ <= *next)) return;
  const auto client = client_.lock();
  if (!client) return;
  armed_ = next;
  client->loop().call_after(std::max(*next - now, Duration::zero()),
                            [weak = weak_from_this(), due = *next] {
                              const auto self = weak.lock();
                              if (!self) return;
                              {
                                MutexLock lock(self->mutex_);
                                if (self->armed_ == due) self->armed_.reset();
                              }
                              self->go_on();
                            });
}

void TaskPool::give_up_idle() {
  {
    MutexLock lock(mutex_);
    if (!closed_.ok() || queue_.waiting() > 0) return;
    queue_.give_up_idle();
  }
  go_on();
}

// --- workers -------------------------------------------------------------------------------------

void TaskPool::ask(std::uint64_t lease, NodeId near) {
  const auto client = client_.lock();
  if (!client) return;
  const auto on_info = [weak = weak_from_this(), lease](const Result<wire::ActorInfo>& info) {
    if (const auto self = weak.lock()) self->on_worker(lease, info);
  };
  const auto on_refused = [loop = &client->loop(), weak = weak_from_this(),
                           lease](const Status& why) {
    loop->post([weak, lease, why] {
      const auto self = weak.lock();
      if (!self) return;
      {
        MutexLock lock(self->mutex_);
        self->lost_locked(lease, why, true);
      }
      self->go_on();
    });
  };
  ActorOptions options = worker_;
  {
    // While others run, nobody is told that there is no room for more.
    MutexLock lock(mutex_);
    options.awaits_nodes = options.awaits_nodes || queue_.running_leases() > 0;
  }
  if (!near.empty() && !options.node_affinity) {
    options.node_affinity = near;
    options.node_affinity_soft = true;
  }
  auto channel = client->create(options, task_worker_interface(),
                                PackedArguments{task_worker_arguments(room_), {}}, on_refused);
  if (!channel.ok()) {
    {
      MutexLock lock(mutex_);
      lost_locked(lease, channel.status(), true);
    }
    return;  // (go_on() goes on.)
  }
  const ActorId id = (*channel)->actor_id();
  {
    MutexLock lock(mutex_);
    workers_[lease].channel = std::move(*channel);
  }
  const auto watch = client->directory().watch(id, "", on_info);
  MutexLock lock(mutex_);
  const auto worker = workers_.find(lease);
  if (worker != workers_.end()) {
    worker->second.watch = watch;
  } else {
    client->unwatch(watch);
  }
}

// That it has ended its watch tells.
void TaskPool::end(std::uint64_t lease) {
  const auto client = client_.lock();
  if (!client) return;
  ActorId id;
  bool runs = false;
  {
    MutexLock lock(mutex_);
    const auto worker = workers_.find(lease);
    if (worker == workers_.end()) return;
    // (It may have ended by itself, which nobody tells again.)
    if (worker->second.state == ActorState::kDead) return lost_locked(lease, Status(), false);
    id = worker->second.channel->actor_id();
    runs = worker->second.state == ActorState::kAlive;
  }
  // (A head that was away too long to hear of it is asked again.)
  const auto told = [weak = weak_from_this(), lease](const Status& status) {
    if (!head_is_away(status)) return;
    const auto self = weak.lock();
    const auto connected = self ? self->client_.lock() : nullptr;
    if (!connected) return;
    connected->loop().call_after(kEndAgainAfter, [weak, lease] {
      if (const auto alive = weak.lock()) alive->end(lease);
    });
  };
  constexpr const char* kReason = "no task needs it";
  if (runs) {
    client->directory().drain(id, kWorkerGrace.count(), kReason, told);
  } else {
    client->directory().kill(id, false, 0, kReason, told);
  }
}

void TaskPool::on_worker(std::uint64_t lease, const Result<wire::ActorInfo>& info) {
  {
    MutexLock lock(mutex_);
    const auto found = workers_.find(lease);
    if (found == workers_.end() || (!info.ok() && head_is_away(info.status()))) return;
    Worker& worker = found->second;
    if (!info.ok()) {
      lost_locked(lease, info.status(), false);
    } else {
      worker.state = info->state;
      worker.waits_for = info->state == ActorState::kAlive
                             ? ""
                             : scheduler::actor_waits_for(*info, info->node_id.brief());
      switch (info->state) {
        case ActorState::kAlive:
          queue_.runs(lease, info->node_id, SystemClock().now());
          break;
        case ActorState::kDead:
          // Answers that have come before its end are read first: the last of its tasks tells.
          if (queue_.has_tasks(lease)) {
            queue_.closing(lease);
          } else {
            lost_locked(lease, info->death, false);
          }
          break;
        default:
          if (!info->pending_why.empty()) queue_.has_no_room(lease);
          break;
      }
    }
  }
  reporter_->changed();
  go_on();
}

void TaskPool::lost_locked(std::uint64_t lease, const Status& why, bool refused) {
  queue_.lost(lease, why, refused, SystemClock().now());
  const auto worker = workers_.find(lease);
  if (worker == workers_.end()) return;
  if (const auto client = client_.lock(); client && worker->second.watch != 0) {
    client->unwatch(worker->second.watch);
  }
  workers_.erase(worker);
}

std::string TaskPool::what_is_lacking_locked() const {
  std::size_t running = 0;
  std::string waits_for;
  for (const auto& [lease, worker] : workers_) {
    if (worker.state == ActorState::kAlive) {
      ++running;
    } else if (waits_for.empty()) {
      waits_for = worker.waits_for;
    }
  }
  std::string text = running == 0 ? "none runs"
                                  : std::to_string(running) + " run, and have " +
                                        std::to_string(queue_.at_leases()) + " tasks";
  if (!waits_for.empty()) text += "; one does not yet: " + waits_for;
  if (!queue_.trouble().ok()) text += "; the last loss: " + queue_.trouble().to_string();
  return text;
}

bool TaskPool::tell(wire::Work& work) const {
  MutexLock lock(mutex_);
  wire::TaskWork mine{.resources = resources_};
  mine.running = queue_.running();
  mine.waiting = queue_.waiting() + queue_.at_leases() - mine.running;
  mine.done = done_.load(std::memory_order_relaxed);
  mine.failed = failed_.load(std::memory_order_relaxed);
  mine.again = queue_.again();
  for (const auto& [lease, worker] : workers_) {
    ++(worker.state == ActorState::kAlive ? mine.workers : mine.workers_awaited);
    if (worker.state != ActorState::kAlive && mine.why.empty()) mine.why = worker.waits_for;
  }
  if (!queue_.trouble().ok()) {
    mine.why +=
        (mine.why.empty() ? "the last loss: " : "; the last loss: ") + queue_.trouble().to_string();
  }
  mine.why = work_text(std::move(mine.why));
  mine.last.assign(last_.begin(), last_.end());
  const bool busy = mine.running + mine.waiting > 0;
  work.tasks.push_back(std::move(mine));
  return busy;
}

// --- all of a process ----------------------------------------------------------------------------

Result<std::shared_ptr<TaskPool>> TaskPools::pool(const ClientPtr& client,
                                                  const TaskOptions& options) {
  ActorOptions worker = worker_options(options);
  wire::Resources resources = TROUPE_TRY(make_spec(worker)).resources;
  WorkerRoom room = room_of(worker);
  MutexLock lock(mutex_);
  auto& pool = pools_[room.key];
  if (!pool) {
    pool = std::make_shared<TaskPool>(client, std::move(worker), std::move(room),
                                      std::move(resources));
    client->work().add(pool);
    if (!closed_.ok()) pool->closed(closed_);
  }
  return pool;
}

void TaskPools::close(const Status& why) {
  std::map<std::string, std::shared_ptr<TaskPool>> pools;
  {
    MutexLock lock(mutex_);
    closed_ = why;
    pools.swap(pools_);
  }
  for (const auto& [key, pool] : pools) pool->closed(why);
}

void TaskPools::starved(const TaskPool& pool) {
  std::vector<std::shared_ptr<TaskPool>> others;
  {
    MutexLock lock(mutex_);
    for (const auto& [key, other] : pools_) {
      if (other.get() != &pool) others.push_back(other);
    }
  }
  for (const auto& other : others) other->give_up_idle();
}

namespace {

// Set in a process that is a worker, before its first task, and kept as long as it runs.
std::weak_ptr<ActorClient> worker_client;
std::atomic<bool> is_worker{false};

}  // namespace

std::shared_ptr<void> begin_wait_of_task() {
  if (!is_worker.load(std::memory_order_acquire)) return nullptr;
  const auto client = worker_client.lock();
  if (!client) return nullptr;
  return std::make_shared<TaskPools::Waiting>(client->tasks(), client);
}

void TaskPools::set_worker(WorkerRoom room, std::span<const TaskFunction> functions,
                           ActorContext& context) {
  worker_client = Access::usable(context).value();
  is_worker.store(true, std::memory_order_release);
  own_ = std::move(room);
  functions_ = functions;
  context_ = &context;
}

const TaskFunction* TaskPools::function_here(const WorkerRoom& room, std::uint64_t function) const {
  if (context_ == nullptr || RunningCall::current() == nullptr || !own_.holds(room)) return nullptr;
  for (const TaskFunction& own : functions_) {
    if (own.id == function) return &own;
  }
  return nullptr;
}

}  // namespace troupe::detail
