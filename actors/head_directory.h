#pragma once
// The Directory of a real cluster: a client of the head (scheduler/client).

#include <atomic>
#include <memory>
#include <string>
#include <utility>
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

  WatchId watch(ActorId id, const std::string& name, OnActor on_actor) override {
    return refused(on_actor) ? 0 : client_->watch_actor(id, name, std::move(on_actor));
  }
  WatchId watch_in(const std::string& namespace_name, const std::string& name,
                   OnActor on_actor) override {
    return refused(on_actor) ? 0
                             : client_->watch_actor({}, name, std::move(on_actor), namespace_name);
  }
  WatchId watch_supervisor(SupervisorId id, OnSupervisor on_supervisor) override {
    return refused(on_supervisor) ? 0 : client_->watch_supervisor(id, std::move(on_supervisor));
  }
  void unwatch(WatchId watch) override {
    if (!closed_) client_->unwatch(watch);
  }
  void create(std::vector<wire::ActorSpec> specs, bool gang, bool no_wait, OnDone done) override {
    if (!refused(done)) client_->create_actors(std::move(specs), gang, no_wait, std::move(done));
  }
  void get_or_create(wire::ActorSpec spec, OnCreated done) override {
    if (!refused(done)) client_->get_or_create_actor(std::move(spec), std::move(done));
  }
  void kill(ActorId id, bool allow_restart, std::int64_t grace_ms, const std::string& reason,
            OnDone done) override {
    if (!refused(done)) client_->kill_actor(id, allow_restart, grace_ms, reason, std::move(done));
  }
  void drain(ActorId id, std::int64_t grace_ms, const std::string& reason, OnDone done) override {
    if (!refused(done)) client_->kill_actor(id, false, grace_ms, reason, std::move(done), true);
  }
  void supervise(wire::SupervisorSpec spec, OnDone done) override {
    if (!refused(done)) client_->create_supervisor(std::move(spec), std::move(done));
  }
  void end_supervisor(SupervisorId id, const std::string& reason, OnDone done) override {
    if (!refused(done)) client_->end_supervisor(id, reason, std::move(done));
  }
  void list_nodes(OnNodes done) override {
    if (!refused(done)) client_->list_nodes(std::move(done));
  }
  void lend_cpus(ActorId id, std::uint64_t generation, bool back) override {
    if (!closed_) client_->lend_cpus(id, generation, back);
  }
  void report(wire::Work work) override {
    if (!closed_) client_->report_work(std::move(work));
  }
  void close() override {
    if (!closed_.exchange(true)) client_->close();
  }

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
