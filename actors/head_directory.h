#pragma once
// The Directory of a real cluster: a client of the head (scheduler/client).

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actors/directory.h"
#include "runtime/base/mutex.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "runtime/wire/host_messages.h"
#include "scheduler/client/head_client.h"

namespace troupe::detail {

// Connects when it is first asked something, on a thread of its own, so that an actor that asks
// nothing costs the head no connection and nobody waits in a callback.
class HeadDirectory final : public Directory {
 public:
  using Client = std::shared_ptr<scheduler::HeadClient>;
  using Connect = std::function<Result<Client>()>;  // may wait

  explicit HeadDirectory(net::EventLoop& loop, Connect connect)
      : loop_(loop), connect_(std::move(connect)) {}
  // With a client that is connected already.
  HeadDirectory(net::EventLoop& loop, Client client) : loop_(loop), client_(std::move(client)) {}
  ~HeadDirectory() override;

  WatchId watch(ActorId actor_id, const std::string& name, OnActor on_actor) override;
  void unwatch(WatchId watch) override;
  void create(std::vector<wire::ActorSpec> specs, bool gang, bool no_wait, OnDone done) override;
  void kill(ActorId actor_id, bool allow_restart, std::int64_t grace_ms, const std::string& reason,
            OnDone done) override;
  void list_nodes(OnNodes done) override;
  WatchId watch_in(const std::string& namespace_name, const std::string& name,
                   OnActor on_actor) override;
  void get_or_create(wire::ActorSpec spec, OnCreated done) override;
  void drain(ActorId actor_id, std::int64_t grace_ms, const std::string& reason,
             OnDone done) override;
  void supervise(wire::SupervisorSpec spec, OnDone done) override;
  void end_supervisor(SupervisorId id, const std::string& reason, OnDone done) override;
  WatchId watch_supervisor(SupervisorId id, OnSupervisor on_supervisor) override;
  void close() override;

 private:
  using Work = std::function<void(const Result<Client>&)>;
  // Runs `work` with the client as soon as there is one, or with the reason why there is none.
  void with_client(Work work) TROUPE_EXCLUDES(mutex_);
  // Begins a watch at the client; `failed` where there is none.
  WatchId begin_watch(std::function<std::uint64_t(scheduler::HeadClient&)> begin,
                      std::function<void(Status)> failed) TROUPE_EXCLUDES(mutex_);
  // Asks what is answered by success or failure.
  void ask(std::function<void(scheduler::HeadClient&, OnDone)> request, OnDone done);

  net::EventLoop& loop_;
  const Connect connect_;
  Mutex mutex_;
  Client client_ TROUPE_GUARDED_BY(mutex_);
  bool closed_ TROUPE_GUARDED_BY(mutex_) = false;
  std::vector<Work> waiting_ TROUPE_GUARDED_BY(mutex_);
  std::thread connecting_ TROUPE_GUARDED_BY(mutex_);
  bool connecting_now_ TROUPE_GUARDED_BY(mutex_) = false;
  WatchId next_watch_ TROUPE_GUARDED_BY(mutex_) = 1;
  struct Watch {
    bool known = false;  // `id` is the client's
    std::uint64_t id = 0;
  };
  std::map<WatchId, Watch> watches_ TROUPE_GUARDED_BY(mutex_);
};

// An actor's own client of the head.
std::shared_ptr<Directory> make_head_directory(net::EventLoop& loop, const wire::HostStart& start);

}  // namespace troupe::detail
