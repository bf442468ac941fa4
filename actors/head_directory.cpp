#include "actors/head_directory.h"

#include <utility>

#include "runtime/base/random.h"

namespace troupe::detail {

Directory::WatchId HeadDirectory::watch(ActorId actor_id, const std::string& name,
                                        OnActor on_actor) {
  return refused(on_actor) ? 0 : client_->watch_actor(actor_id, name, std::move(on_actor));
}

Directory::WatchId HeadDirectory::watch_in(const std::string& namespace_name,
                                           const std::string& name, OnActor on_actor) {
  return refused(on_actor) ? 0
                           : client_->watch_actor({}, name, std::move(on_actor), namespace_name);
}

Directory::WatchId HeadDirectory::watch_supervisor(SupervisorId id, OnSupervisor on_supervisor) {
  return refused(on_supervisor) ? 0 : client_->watch_supervisor(id, std::move(on_supervisor));
}

void HeadDirectory::unwatch(WatchId watch) {
  if (!closed_) client_->unwatch(watch);
}

void HeadDirectory::create(std::vector<wire::ActorSpec> specs, bool gang, bool no_wait,
                           OnDone done) {
  if (!refused(done)) client_->create_actors(std::move(specs), gang, no_wait, std::move(done));
}

void HeadDirectory::kill(ActorId actor_id, bool allow_restart, std::int64_t grace_ms,
                         const std::string& reason, OnDone done) {
  if (refused(done)) return;
  client_->kill_actor(actor_id, allow_restart, grace_ms, reason, std::move(done));
}

void HeadDirectory::get_or_create(wire::ActorSpec spec, OnCreated done) {
  if (!refused(done)) client_->get_or_create_actor(std::move(spec), std::move(done));
}

void HeadDirectory::drain(ActorId actor_id, std::int64_t grace_ms, const std::string& reason,
                          OnDone done) {
  if (refused(done)) return;
  client_->kill_actor(actor_id, false, grace_ms, reason, std::move(done), true);
}

void HeadDirectory::supervise(wire::SupervisorSpec spec, OnDone done) {
  if (!refused(done)) client_->create_supervisor(std::move(spec), std::move(done));
}

void HeadDirectory::end_supervisor(SupervisorId id, const std::string& reason, OnDone done) {
  if (!refused(done)) client_->end_supervisor(id, reason, std::move(done));
}

void HeadDirectory::list_nodes(OnNodes done) {
  if (!refused(done)) client_->list_nodes(std::move(done));
}

void HeadDirectory::close() {
  if (!closed_.exchange(true)) client_->close();
}

std::shared_ptr<Directory> make_head_directory(net::EventLoop& loop, const wire::HostStart& start) {
  SystemRandom random;
  const wire::ActorSpec& spec = start.spec;
  wire::ClientHello hello;
  hello.client_id = ClientId::make(random);
  hello.job_id = spec.job_id;
  hello.namespace_name = spec.namespace_name;
  hello.name = spec.name.empty() ? spec.type + " " + spec.actor_id.brief() : spec.name;
  hello.kind = "actor";
  return std::make_shared<HeadDirectory>(scheduler::HeadClient::make(
      loop, net::Address{start.head_endpoint.host, start.head_endpoint.port, {}},
      net::Token(start.token, net::security_from_number(start.security)), hello));
}

}  // namespace troupe::detail
