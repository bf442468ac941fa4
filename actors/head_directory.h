#pragma once
// The Directory of a real cluster: a client of the head (scheduler/client).

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "actors/directory.h"
#include "runtime/net/event_loop.h"
#include "runtime/wire/host_messages.h"
#include "scheduler/client/head_client.h"

namespace troupe::detail {

class HeadDirectory final : public Directory {
 public:
  explicit HeadDirectory(std::shared_ptr<scheduler::HeadClient> client)
      : client_(std::move(client)) {}
  ~HeadDirectory() override { close(); }

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
  // Tells `done` that it was closed, where it was.
  template <typename Done>
  bool refused(const Done& done) const {
    if (!closed_) return false;
    done(Status(Code::kCancelled, "the connection to the head was closed"));
    return true;
  }

  const std::shared_ptr<scheduler::HeadClient> client_;
  std::atomic<bool> closed_{false};
};

// An actor's own client of the head. It connects when it is first asked something, so that an actor
// that asks nothing costs the head no connection.
std::shared_ptr<Directory> make_head_directory(net::EventLoop& loop, const wire::HostStart& start);

}  // namespace troupe::detail
