#include "actors/call_runner.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>

#include <fmt/format.h>

#include "actors/guarded.h"
#include "runtime/base/large_buffers.h"
#include "runtime/base/limits.h"
#include "runtime/base/start_thread.h"

namespace troupe::detail {
namespace {

// A thread of a group that has nothing to do wakes so often: every wait has a deadline.
constexpr Duration kIdleWait = std::chrono::hours(1);
// So many calls or items in a row, before the rest of the actor's work has its turn.
constexpr int kInARow = 16;

}  // namespace

// A call of an asynchronous method in progress. Owned by the actor's thread alone: coroutines are
// destroyed there.
struct CallRunner::AsyncCall {
  AsyncCall(CallHost& host, QueuedCall queued, MethodLabel label, bool asynchronous, Group& of)
      : call(std::move(queued)),
        running(host, call.caller, call.sequence, call.deadline, label, /*lane=*/-1, asynchronous),
        group(of) {}
  QueuedCall call;  // its bytes outlive the method
  RunningCall running;
  Group& group;
  std::unique_ptr<AsyncMethod> method;
  // A stream's.
  std::uint64_t items = 0;
  bool parked = false;
  std::optional<std::stop_callback<std::function<void()>>> on_stop;
};

// What the call's coroutines know of it: other threads may own this, and not the coroutine.
class CallRunner::AsyncHost final : public TaskHost {
 public:
  AsyncHost(CallRunner& runner, std::shared_ptr<Mailbox> mailbox)
      : runner_(runner), mailbox_(std::move(mailbox)) {}
  void set(std::weak_ptr<AsyncCall> call) { call_ = std::move(call); }
  void resume_later(std::coroutine_handle<> coroutine) override {
    mailbox_->post([keep = weak_, coroutine] {
      if (const auto self = keep.lock()) self->resume(coroutine);
    });
  }
  void set_self(std::weak_ptr<AsyncHost> self) { weak_ = std::move(self); }

 private:
  // Actor's thread, while the runner is there: it runs the mailbox's work.
  void resume(std::coroutine_handle<> coroutine) {
    if (const auto call = call_.lock()) runner_.step(call, coroutine);
  }
  CallRunner& runner_;
  const std::shared_ptr<Mailbox> mailbox_;
  std::weak_ptr<AsyncCall> call_;
  std::weak_ptr<AsyncHost> weak_;
};

CallRunner::CallRunner(RunnerConfig config) : config_(std::move(config)) {
  const ActorClass& actor = *config_.actor_class;
  groups_.push_back(std::make_unique<Group>());
  groups_[0]->limit = config_.max_concurrency;
  for (const auto& limits : actor.groups) {
    groups_.push_back(std::make_unique<Group>());
    groups_.back()->limit = limits.limit;
  }
  // Where there are several groups, none may keep the actor's thread from the others' calls.
  for (auto& group : groups_) group->threads = group->limit > 1 || groups_.size() > 1;
  // Coroutines share one thread, and ordinary methods of their group share it with them.
  for (std::size_t i = 0; i < actor.method_kinds.size(); ++i) {
    if (actor.method_kinds[i] != MethodKind::kPlain) {
      groups_[actor.method_groups[i]]->threads = false;
    }
  }
}

CallRunner::~CallRunner() { stop(); }

void CallRunner::begin(ActorInstance& actor, CallServer& server) {
  actor_ = &actor;
  server_ = &server;
}

MethodLabel CallRunner::label(std::size_t method) const {
  const ActorInterface& interface = config_.actor_class->interface;
  return {interface.type, interface.methods[method].name};
}

// The group, where one call at a time runs in it.
int CallRunner::lane(std::size_t method) const {
  const std::uint16_t group = config_.actor_class->method_groups[method];
  return groups_[group]->limit == 1 ? group : -1;
}

std::stop_token CallRunner::stop_token_of(ClientId caller, std::uint64_t sequence) {
  return server_->stop_token_of(caller, sequence);
}

void CallRunner::begin_wait(const RunningCall& call, AwaitedCall& awaited) {
  cycles_.begin_wait({.caller = call.caller(),
                      .sequence = call.sequence(),
                      .lane = call.lane(),
                      .label = fmt::format("{} of {}", call.label().to_string(), config_.actor)},
                     awaited);
}

void CallRunner::end_wait(const RunningCall& call) {
  cycles_.end_wait(call.caller(), call.sequence());
}

void CallRunner::probed(ClientId caller, const wire::CallProbe& probe) {
  std::optional<int> waits_in;
  if (!cycles_.waits(caller, probe.sequence)) {
    std::optional<std::uint32_t> method = config_.mailbox->method_of(caller, probe.sequence);
    MutexLock lock(mutex_);
    for (const auto& group : groups_) {
      for (const QueuedCall& call : group->queue) {
        if (call.caller == caller && call.sequence == probe.sequence) method = call.method;
      }
    }
    if (method && lane(*method) >= 0) waits_in = lane(*method);
  }
  cycles_.arrived(caller, probe, waits_in);
}

bool CallRunner::expired(const QueuedCall& call) const {
  return call.deadline.passed(config_.clock->now());
}

// --- taking calls --------------------------------------------------------------------------------

void CallRunner::accept(QueuedCall call) {
  Group& group = *groups_[config_.actor_class->method_groups[call.method]];
  if (!group.threads && group.running < group.limit &&
      group.waiting.load(std::memory_order_relaxed) == 0 && !server_->holds_back(call.caller)) {
    begin_call(group, std::move(call));
  } else {
    wait_in_group(group, std::move(call));
    begin_waiting(group);  // calls of other callers may be held back, and this one not
  }
}

void CallRunner::wait_in_group(Group& group, QueuedCall call) {
  const std::size_t calls_max = config_.mailbox->calls_max();
  std::size_t waiting = 0;
  for (const auto& g : groups_) waiting += g->waiting.load(std::memory_order_relaxed);
  if (waiting >= calls_max) {  // a caller that overlooks what the mailbox says
    answer(call, error(Code::kOverloaded,
                       "{} calls wait for the actor already. Wait for answers "
                       "before calling on",
                       waiting));
    return;
  }
  // Counted first: whoever takes it out again must find it counted.
  config_.mailbox->count_held(1);
  std::optional<QueuedCall> unrunnable;
  {
    MutexLock lock(mutex_);
    if (stopped_) return;
    group.queue.push_back(std::move(call));
    group.waiting.store(group.queue.size(), std::memory_order_relaxed);
    ++group.changes;
    if (group.threads && group.idle < group.queue.size() &&
        group.pool.size() < static_cast<std::size_t>(group.limit) && !add_thread_locked(group) &&
        group.pool.empty()) {
      unrunnable = next_locked(group);
    }
    group.ready.notify_one();
  }
  if (!unrunnable) return;
  config_.mailbox->count_held(-1);
  answer(*unrunnable, Status(Code::kResourceExhausted, "the process can have no more threads"));
}

bool CallRunner::add_thread_locked(Group& group) {
  auto thread = start_thread("run calls", [this, &group] { work(group); });
  if (!thread.ok()) return false;
  group.pool.push_back(std::move(*thread));
  ++group.idle;  // until it takes a call
  return true;
}

// The first call in the queue that may begin.
std::optional<QueuedCall> CallRunner::next_locked(Group& group) {
  auto next = group.queue.begin();
  if (const auto held_back = server_->held_back(); !held_back.empty()) {
    next = std::find_if(group.queue.begin(), group.queue.end(), [&](const QueuedCall& call) {
      // One whose time is over is answered so: callers that do not read must not fill the mailbox.
      return expired(call) ||
             std::find(held_back.begin(), held_back.end(), call.caller) == held_back.end();
    });
  }
  if (next == group.queue.end()) return std::nullopt;
  QueuedCall call = std::move(*next);
  group.queue.erase(next);
  group.waiting.store(group.queue.size(), std::memory_order_relaxed);
  return call;
}

bool CallRunner::remove(ClientId caller, std::uint64_t sequence) {
  {
    MutexLock lock(mutex_);
    Group* found = nullptr;
    for (const auto& group : groups_) {
      const auto it = std::find_if(
          group->queue.begin(), group->queue.end(),
          [&](const QueuedCall& c) { return c.caller == caller && c.sequence == sequence; });
      if (it == group->queue.end()) continue;
      found = group.get();
      found->queue.erase(it);
      found->waiting.store(found->queue.size(), std::memory_order_relaxed);
      break;
    }
    if (found == nullptr) return false;
  }
  config_.mailbox->count_held(-1);
  return true;
}

std::deque<QueuedCall> CallRunner::take_waiting() {
  std::deque<QueuedCall> calls;
  {
    MutexLock lock(mutex_);
    for (const auto& group : groups_) {
      std::move(group->queue.begin(), group->queue.end(), std::back_inserter(calls));
      group->queue.clear();
      group->waiting.store(0, std::memory_order_relaxed);
    }
  }
  config_.mailbox->count_held(-static_cast<int>(calls.size()));
  return calls;
}

// A thread of a group.
void CallRunner::work(Group& group) TROUPE_NO_ANALYSIS {
  for (;;) {
    std::optional<QueuedCall> call;
    {
      MutexLock lock(mutex_);
      while (!stopped_ && !(call = next_locked(group))) {
        (void)group.ready.wait_until(mutex_, Deadline::after(kIdleWait), [&, seen = group.changes] {
          return stopped_ || group.changes != seen;
        });
      }
      if (stopped_) return;
      --group.idle;
    }
    config_.mailbox->count_held(-1);
    run(*call);
    call.reset();
    MutexLock lock(mutex_);
    ++group.idle;
  }
}

// What waits in a group of the actor's thread, as far as there is room.
void CallRunner::begin_waiting(Group& group) {
  if (group.threads || group.draining) return;
  group.draining = true;
  for (int i = 0; group.running < group.limit && group.waiting.load() > 0; ++i) {
    if (i == kInARow) {
      config_.mailbox->post([this, &group] { begin_waiting(group); });
      break;
    }
    std::optional<QueuedCall> call;
    {
      MutexLock lock(mutex_);
      if (!stopped_) call = next_locked(group);
    }
    if (!call) break;
    config_.mailbox->count_held(-1);
    begin_call(group, std::move(*call));
  }
  group.draining = false;
}

// --- ordinary methods ----------------------------------------------------------------------------

void CallRunner::begin_call(Group& group, QueuedCall call) {
  const MethodKind kind = config_.actor_class->method_kinds[call.method];
  if (kind == MethodKind::kPlain) {
    run(call);
  } else {
    begin_async(group, std::move(call), kind);
  }
}

void CallRunner::run(QueuedCall& call) {
  if (expired(call)) {
    answer(call, Status(Code::kDeadlineExceeded,
                        "the call waited in the actor's mailbox until its deadline"));
    return;
  }
  RunningCall running(*this, call.caller, call.sequence, call.deadline, label(call.method),
                      lane(call.method), /*asynchronous=*/false);
  Result<wire::Bytes> result = [&] {
    const RunningCall::Scope scope(&running);
    return guarded([&] {
      return actor_->invoke(call.method, call.argument_bytes(),
                            {.client = config_.client, .in_place = true, .takes_references = true});
    });
  }();
  if (!running.lent().empty()) server_->lend(call, std::move(running.lent()));
  // Before the caller knows, which may send as much again at once.
  give_back_large_buffer(std::move(call.arguments));
  finish(call, std::move(result));
}

// Also after a failure: the method may have changed the state before it failed.
void CallRunner::finish(const QueuedCall& call, Result<wire::Bytes> result) {
  result = decorated(call, std::move(result));
  if (const Status saved = config_.ran(call, result); !saved.ok()) {
    result =
        decorated(call, saved.prefixed("the call ran, but the actor's state could not be saved"));
  }
  server_->answer(call, std::move(result));
}

void CallRunner::answer(const QueuedCall& call, Result<wire::Bytes> result) {
  server_->answer(call, decorated(call, std::move(result)));
}

Result<wire::Bytes> CallRunner::decorated(const QueuedCall& call,
                                          Result<wire::Bytes> result) const {
  if (result.ok()) return result;
  Status status = result.status();
  status.with("actor", config_.actor);
  status.with("method", label(call.method).to_string());
  status.with("node", config_.node_id.brief());
  return status;
}

// --- asynchronous methods ------------------------------------------------------------------------

void CallRunner::begin_async(Group& group, QueuedCall queued, MethodKind kind) {
  if (expired(queued)) {
    answer(queued, Status(Code::kDeadlineExceeded,
                          "the call waited in the actor's mailbox until its deadline"));
    return;
  }
  // The items of a stream come over the socket, and so its end comes there, after them.
  queued.by_socket = kind == MethodKind::kStream;
  const std::size_t method = queued.method;
  auto call = std::make_shared<AsyncCall>(*this, std::move(queued), label(method),
                                          /*asynchronous=*/!config_.actor_class->may_wait, group);
  auto host = std::make_shared<AsyncHost>(*this, config_.mailbox);
  host->set(call);
  host->set_self(host);
  auto made = guarded([&] {
    const RunningCall::Scope scope(&call->running);
    return actor_->start(method, call->call.argument_bytes(),
                         {.client = config_.client, .in_place = true, .takes_references = true},
                         host);
  });
  if (!made.ok()) {
    answer(call->call, made.status());
    return;
  }
  call->method = std::move(*made);
  const Key key(call->call.caller, call->call.sequence);
  in_progress_.emplace(key, call);
  ++group.running;
  if (kind == MethodKind::kStream) {
    call->on_stop.emplace(call->running.stop_token(), [this, key, mailbox = config_.mailbox] {
      mailbox->post([this, key] {
        const auto it = in_progress_.find(key);
        if (it != in_progress_.end() && it->second->parked)
          go_on(std::shared_ptr(it->second), true);
      });
    });
  }
  step(call, call->method->coroutine());
}

// Any thread.
void CallRunner::credit_changed(ClientId caller, std::uint64_t sequence) {
  config_.mailbox->post([this, key = Key(caller, sequence)] {
    const auto it = in_progress_.find(key);
    if (it != in_progress_.end() && it->second->parked) go_on(std::shared_ptr(it->second), true);
  });
}

// Any thread.
void CallRunner::caller_reads(ClientId caller) {
  {
    MutexLock lock(mutex_);
    for (const auto& group : groups_) {
      ++group->changes;
      group->ready.notify_all();
    }
  }
  config_.mailbox->post([this, caller] {
    for (const auto& group : groups_) begin_waiting(*group);
    // Its streams go on later, since that changes in_progress_.
    for (const auto& [key, call] : in_progress_) {
      if (key.first == caller && call->parked) credit_changed(caller, key.second);
    }
  });
}

void CallRunner::step(const std::shared_ptr<AsyncCall>& call, std::coroutine_handle<> coroutine) {
  {
    const RunningCall::Scope scope(&call->running);
    if (coroutine) coroutine.resume();  // (what the user's code throws stays in its promise)
  }
  AsyncMethod& method = *call->method;
  auto item = method.take_item();
  if (item && !call->running.lent().empty()) {
    server_->lend(call->call, std::exchange(call->running.lent(), {}), call->items + 1);
  }
  if (item) {
    if (!item->ok()) {
      end_async(call, item->status());
    } else if (Status sent = server_->send_item(call->call, ++call->items, std::move(**item));
               !sent.ok()) {
      end_async(call, std::move(sent));
    } else {
      go_on(call, call->items % kInARow != 0);
    }
  } else if (method.done()) {
    auto result = [&] {
      const RunningCall::Scope scope(&call->running);
      return guarded([&] { return method.result(); });
    }();
    if (!call->running.lent().empty()) server_->lend(call->call, std::move(call->running.lent()));
    end_async(call, std::move(result));
  }
}

// At a co_yield; unless `now`, after the rest of the actor's work has had its turn.
void CallRunner::go_on(const std::shared_ptr<AsyncCall>& call, bool now) {
  if (std::exchange(call->parked, false)) call->method->waits(false);
  const std::optional<std::uint64_t> credit = server_->credit(call->call);
  if (call->running.stop_token().stop_requested()) {
    end_async(call, error(Code::kCancelled, "the stream's caller cancelled it"));
  } else if (!credit) {
    end_async(call, Status(Code::kUnavailable, "the stream's caller is gone"));
  } else if (*credit <= call->items || server_->holds_back(call->call.caller)) {
    call->parked = true;
    call->method->waits(true);
  } else if (!now) {
    call->parked = true;
    credit_changed(call->call.caller, call->call.sequence);
  } else {
    step(call, call->method->coroutine());
  }
}

void CallRunner::end_async(const std::shared_ptr<AsyncCall>& ended, Result<wire::Bytes> result) {
  const std::shared_ptr<AsyncCall> call = ended;  // the reference may lead into what is erased
  in_progress_.erase(Key(call->call.caller, call->call.sequence));
  call->on_stop.reset();
  {
    // Its destructors are the user's code.
    const RunningCall::Scope scope(&call->running);
    call->method.reset();
  }
  give_back_large_buffer(std::move(call->call.arguments));
  --call->group.running;
  finish(call->call, std::move(result));
  begin_waiting(call->group);
}

// --- the end -------------------------------------------------------------------------------------

void CallRunner::stop() {
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    for (const auto& group : groups_) {
      for (auto& thread : group->pool) threads.push_back(std::move(thread));
      group->pool.clear();
      group->ready.notify_all();
    }
  }
  for (auto& thread : threads) thread.join();
  for (auto& [key, call] : std::exchange(in_progress_, {})) {
    call->on_stop.reset();
    call->method.reset();
  }
}

}  // namespace troupe::detail
