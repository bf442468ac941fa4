#pragma once
// Runs the calls of one actor, as many at once as its concurrency allows (concurrency.h).
//
// The actor's thread takes calls from the mailbox and gives each to accept(). Most begin and end
// right there. Where the call's group is full, or has threads of its own, it waits in the group's
// queue; so does a call of a caller that has not read its answers (CallServer::held_back).
// Asynchronous methods are resumed by work that is posted to the mailbox; streams are parked at a
// co_yield until their caller allows more items.

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/call_cycles.h"
#include "actors/call_server.h"
#include "actors/mailbox.h"
#include "runtime/base/clock.h"
#include "troupe/detail/actor_class.h"
#include "troupe/detail/mutex.h"
#include "troupe/detail/running_call.h"

namespace troupe::detail {

struct RunnerConfig {
  const ActorClass* actor_class = nullptr;
  std::string actor;  // as errors name it
  NodeId node_id;
  std::shared_ptr<ActorClient> client;
  std::shared_ptr<Mailbox> mailbox;
  const Clock* clock = nullptr;
  int max_concurrency = 1;  // of the actor's own group
  // After a method has run, with the answer that is about to leave. Any of the actor's threads.
  std::function<Status(const QueuedCall& call, const Result<wire::Bytes>& result)> ran;
};

class CallRunner final : public HeldCalls, public CallHost {
 public:
  explicit CallRunner(RunnerConfig config);
  ~CallRunner() override;

  // Before accept(); both outlive what is accepted.
  void begin(ActorInstance& actor, CallServer& server);

  // The next call. Actor's thread.
  void accept(QueuedCall call);
  // Answers a call that is not to begin any more.
  void refuse(const QueuedCall& call, Status why) { answer(call, std::move(why)); }
  // Takes out the calls that have left the mailbox and have not begun. Any thread.
  std::deque<QueuedCall> take_waiting();
  // Begins nothing more, waits for the methods that run in threads, and destroys what is suspended.
  // Actor's thread.
  void stop();

  bool remove(ClientId caller, std::uint64_t sequence) override;
  void credit_changed(ClientId caller, std::uint64_t sequence) override;
  void caller_reads(ClientId caller) override;
  void probed(ClientId caller, const wire::CallProbe& probe) override;

  std::stop_token stop_token_of(ClientId caller, std::uint64_t sequence) override;
  void begin_wait(const RunningCall& call, AwaitedCall& awaited) override;
  void end_wait(const RunningCall& call) override;

 private:
  struct AsyncCall;
  class AsyncHost;
  using Key = std::pair<ClientId, std::uint64_t>;
  struct Group {
    int limit = 1;
    bool threads = false;
    int running = 0;        // asynchronous calls in progress: actor's thread
    bool draining = false;  // actor's thread
    std::atomic<std::size_t> waiting{0};
    std::deque<QueuedCall> queue;  // this and the following: the runner's mutex
    std::vector<std::thread> pool;
    std::size_t idle = 0;
    std::uint64_t changes = 0;  // of what may be taken out of the queue
    CondVar ready;
  };

  void wait_in_group(Group& group, QueuedCall call);
  bool add_thread_locked(Group& group) TROUPE_REQUIRES(mutex_);
  void begin_call(Group& group, QueuedCall call);
  void begin_waiting(Group& group);
  void work(Group& group);
  std::optional<QueuedCall> next_locked(Group& group) TROUPE_REQUIRES(mutex_);
  void run(QueuedCall& call);
  bool expired(const QueuedCall& call) const;
  void begin_async(Group& group, QueuedCall call, MethodKind kind);
  void step(const std::shared_ptr<AsyncCall>& call, std::coroutine_handle<> coroutine);
  void go_on(const std::shared_ptr<AsyncCall>& call, bool now);
  void end_async(const std::shared_ptr<AsyncCall>& call, Result<wire::Bytes> result);
  // Ends a call whose method has run.
  void finish(const QueuedCall& call, Result<wire::Bytes> result);
  void answer(const QueuedCall& call, Result<wire::Bytes> result);
  Result<wire::Bytes> decorated(const QueuedCall& call, Result<wire::Bytes> result) const;
  MethodLabel label(std::size_t method) const;
  int lane(std::size_t method) const;

  const RunnerConfig config_;
  ActorInstance* actor_ = nullptr;
  CallServer* server_ = nullptr;
  std::vector<std::unique_ptr<Group>> groups_;
  std::map<Key, std::shared_ptr<AsyncCall>> in_progress_;  // actor's thread
  CallCycles cycles_;
  Mutex mutex_;
  bool stopped_ TROUPE_GUARDED_BY(mutex_) = false;
};

}  // namespace troupe::detail
