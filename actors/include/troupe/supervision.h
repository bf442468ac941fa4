#pragma once
// Supervisors: groups of actors that are restarted by one rule.
//
//   auto stages = cluster.supervise({.name = "stages",
//                                    .strategy = RestartStrategy::kRestForOne,
//                                    .max_restarts = 3,
//                                    .window = std::chrono::seconds(10)}).value();
//   auto reader = cluster.spawn<Reader>({.supervisor = stages.id()}).value();
//   auto parser = cluster.spawn<Parser>({.supervisor = stages.id()}, reader).value();
//
// The head decides, so that it goes on while drivers and heads come and go. When a member's process
// ends, the strategy says whose processes are ended with it; when the last of them is gone all
// start anew, each with its last saved state. More than max_restarts within the window: the group
// gives up. Where it has a parent, that restarts it whole, as one failure of its own; else every
// member ends, and whoever watches the supervisor is told kAborted with the last cause. What dies
// with one node is one failure. A member that is killed without restart, or stopped, leaves the
// group.

#include <functional>
#include <memory>
#include <string>

#include "troupe/detail/access.h"
#include "troupe/detail/durations.h"
#include "troupe/detail/verbs.h"
#include "troupe/info.h"
#include "troupe/options.h"
#include "troupe/spawn.h"

namespace troupe {

struct SupervisorOptions {
  std::string name = {};  // for people; need not be unique
  RestartStrategy strategy = RestartStrategy::kOneForOne;
  int max_restarts = 3;                      // of the group within the window; -1 without limit
  std::chrono::milliseconds window{60'000};  // 0: over the group's whole life
  std::chrono::milliseconds backoff_initial{10};
  std::chrono::milliseconds backoff_max{2'000};
  // What members that are restarted, or ended, with others may take to finish their method.
  std::chrono::milliseconds grace{0};
  SupervisorId parent = {};  // empty: none
  // As of an actor. Its end ends the members, whoever owns them.
  Owner owner = Owner::kProcess;
  bool detached = false;
};

using SupervisorWatch = Watch;

// A value. Does not keep the group alive. Thread-safe.
class Supervisor {
 public:
  // No group, as one that was moved from: everything ends with kFailedPrecondition.
  Supervisor() = default;

  // For ActorOptions::supervisor and SupervisorOptions::parent.
  SupervisorId id() const { return id_; }

  // Its state, its members and the last failure.
  Result<SupervisorInfo> info(Duration timeout = std::chrono::seconds(10)) const;
  // Calls `on_change` with its state now and at each change, on a thread of Troupe's: short,
  // without waiting. Until the watch goes.
  [[nodiscard]] SupervisorWatch watch(std::function<void(const SupervisorInfo&)> on_change) const;
  // Waits until it has ended and says why: kAborted where it gave up, kCancelled where it was
  // ended, or its owner was. kDeadlineExceeded: it goes on.
  Status wait_for_end(Duration timeout) const;
  // Ends the group and every member. One that has ended stays so.
  Status end(const std::string& reason = "ended by its user",
             Duration timeout = std::chrono::seconds(10)) const;

 private:
  friend struct detail::Access;
  static Result<Supervisor> create(std::shared_ptr<detail::ActorClient> client,
                                   const SupervisorOptions& options, Deadline deadline);
  Supervisor(std::shared_ptr<detail::ActorClient> client, SupervisorId id)
      : client_(std::move(client)), id_(id) {}
  Result<SupervisorInfo> wait_for(Duration timeout,
                                  std::function<bool(const SupervisorInfo&)> enough) const;

  std::shared_ptr<detail::ActorClient> client_;
  SupervisorId id_;
};

}  // namespace troupe
