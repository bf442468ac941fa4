#pragma once
// What callers ask of the head: where actors are, and to create and end them. An interface, so that
// handles can be tested without a head; head_directory.h has the real one.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "actors/session/head_is_away.h"
#include "runtime/base/status.h"
#include "runtime/wire/types.h"
#include "runtime/wire/work.h"

namespace troupe::detail {

// Thread-safe. Callbacks come on the loop's thread, never from within the call that asked, unless
// it is refused because the directory was closed or belongs to the parent of a forked process.
class Directory {
 public:
  using WatchId = std::uint64_t;
  using OnActor = std::function<void(Result<wire::ActorInfo>)>;
  using OnDone = std::function<void(Status)>;
  using OnNodes = std::function<void(Result<std::vector<wire::NodeInfo>>)>;

  virtual ~Directory() = default;
  // Calls `on_actor` now and at each change of the actor, until unwatch or its death. An error is
  // the last call, too, unless it says that the head is away (head_is_away): then the watch goes
  // on, and what changed meanwhile is told when the head is back. `actor_id` empty: the living
  // actor called `name`.
  virtual WatchId watch(ActorId actor_id, const std::string& name, OnActor on_actor) = 0;
  virtual void unwatch(WatchId watch) = 0;
  // Places the actors; `done` when the head has accepted or refused them, not when they run.
  virtual void create(std::vector<wire::ActorSpec> specs, bool gang, bool no_wait, OnDone done) = 0;
  virtual void kill(ActorId actor_id, bool allow_restart, std::int64_t grace_ms,
                    const std::string& reason, OnDone done) = 0;
  virtual void list_nodes(OnNodes done) = 0;

  // What only a head can answer; kUnsupported without one.
  using OnCreated = std::function<void(Result<ActorId>)>;
  using OnSupervisor = std::function<void(Result<wire::SupervisorInfo>)>;
  // The living actor called `name` in another namespace, as watch().
  virtual WatchId watch_in(const std::string& namespace_name, const std::string& name,
                           OnActor on_actor);
  // The living actor of the spec's name, or a new one.
  virtual void get_or_create(wire::ActorSpec spec, OnCreated done);
  // Ends the actor for good when it has done what is queued, or after grace_ms.
  virtual void drain(ActorId actor_id, std::int64_t grace_ms, const std::string& reason,
                     OnDone done);
  virtual void supervise(wire::SupervisorSpec spec, OnDone done);
  virtual void end_supervisor(SupervisorId id, const std::string& reason, OnDone done);
  // As watch(), until unwatch.
  virtual WatchId watch_supervisor(SupervisorId id, OnSupervisor on_supervisor);

  // This process, of that actor, only waits, and others may have its CPUs; or it goes on (`back`).
  virtual void lend_cpus(ActorId actor_id, std::uint64_t generation, bool back);
  // What this process has under way (work_reporter.h); nowhere without a head.
  virtual void report(wire::Work work);

  // No callback comes after it returns.
  virtual void close() = 0;
};

}  // namespace troupe::detail
