#include "actors/directory.h"

namespace troupe::detail {
namespace {

Status needs_a_head() {
  return Status(Code::kUnsupported, "only a cluster with a head can do this");
}

}  // namespace

Directory::WatchId Directory::watch_in(const std::string&, const std::string&, OnActor on_actor) {
  on_actor(needs_a_head());
  return 0;
}
void Directory::get_or_create(wire::ActorSpec, OnCreated done) { done(needs_a_head()); }
void Directory::drain(ActorId, std::int64_t, const std::string&, OnDone done) {
  done(needs_a_head());
}
void Directory::supervise(wire::SupervisorSpec, OnDone done) { done(needs_a_head()); }
void Directory::end_supervisor(SupervisorId, const std::string&, OnDone done) {
  done(needs_a_head());
}
void Directory::lend_cpus(ActorId, std::uint64_t, bool) {}
void Directory::report(wire::Work) {}
Directory::WatchId Directory::watch_supervisor(SupervisorId, OnSupervisor on_supervisor) {
  on_supervisor(needs_a_head());
  return 0;
}

}  // namespace troupe::detail
