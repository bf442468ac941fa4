#pragma once
// Faults for tests of your own actors: kill, stop and continue their processes, wait until they are
// back, or let a seeded random killer loose on them.
//
//   auto process = process_of(counter, deadline).value();
//   strike(process, ActorFault::kKill);
//   auto next = wait_until_back(counter, process, deadline).value();   // another process answers
//
//   RandomKiller killer(cluster, std::vector{counter}, {.seed = 7, .strikes_max = 20});
//   … calls that must lose nothing …
//   KillerReport report = killer.finish(Deadline::after(10s)).value();
//
// Signals go to processes of this machine only, each through a descriptor of the process itself:
// never to another one that got its number. See examples/04_chaos_test.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/clock.h"
#include "troupe/cluster.h"
#include "troupe/handle.h"
#include "troupe/status.h"

namespace troupe {

enum class ActorFault : std::uint8_t {
  kKill,      // SIGKILL: the actor is restarted, within its budget
  kStop,      // SIGSTOP: alive and silent, until kContinue
  kContinue,  // SIGCONT
};
std::string_view actor_fault_name(ActorFault fault);

// An actor's process.
struct ActorProcess {
  ActorId actor_id;
  std::string name;  // of the actor, or its class
  std::int64_t pid = 0;
  std::uint64_t generation = 0;  // grows at each restart
};

namespace detail {
// Untyped; any thread but Troupe's own.
Result<ActorProcess> process_of(const std::shared_ptr<ActorClient>& client, ActorId actor_id,
                                std::uint64_t later_than, Deadline deadline);
}  // namespace detail

// The process that hosts the actor; waits until there is one that answers. kActorDied: there is
// none any more; kDeadlineExceeded.
template <typename T>
Result<ActorProcess> process_of(const ActorHandle<T>& handle, Deadline deadline) {
  return detail::process_of(detail::Access::client(handle), handle.host_id(), 0, deadline);
}
// The process after `before`: the actor has been restarted and answers.
template <typename T>
Result<ActorProcess> wait_until_back(const ActorHandle<T>& handle, const ActorProcess& before,
                                     Deadline deadline) {
  return detail::process_of(detail::Access::client(handle), handle.host_id(), before.generation,
                            deadline);
}
// kNotFound: the process is gone, or is none of this machine's.
Status strike(const ActorProcess& process, ActorFault fault);

struct KillerOptions {
  std::uint64_t seed = 1;  // decides whom, what and after which pause
  int strikes_max = 10;    // the budget
  // Between the return of one victim and the next strike; the pauses are spread evenly from nothing
  // to twice this.
  Duration pause = std::chrono::milliseconds(50);
  // Some of the strikes stop the process for a while instead of killing it: this share of them.
  double stop_share = 0;
  Duration stop_for = std::chrono::milliseconds(50);
  // A victim that is not back by then ends the killing, with an error in the report.
  Duration back_within = std::chrono::seconds(10);
};

struct KillerReport {
  struct Strike {
    ActorProcess victim;
    ActorFault fault = ActorFault::kKill;
    Duration at{0};          // since the killer began
    Duration back_after{0};  // until another process, or the continued one, was there
  };
  std::vector<Strike> strikes;
  int count(ActorFault fault) const;
  // The share-th of the kills' back_after, share in [0, 1]; 0 without any.
  Duration back_after_quantile(double share) const;
  // "20 kills, 3 stops; back after 31 ms at the median, 58 ms at most"
  std::string to_string() const;
};

// Strikes the actors' processes in a thread of its own, one after the other, until its budget is
// used up or finish() is called. The same seed chooses the same victims and pauses.
class RandomKiller {
 public:
  template <typename T>
  RandomKiller(const Cluster& cluster, const std::vector<ActorHandle<T>>& victims,
               const KillerOptions& options)
      : RandomKiller(detail::Access::client(cluster), ids_of(victims), options) {}
  ~RandomKiller();  // strikes no more; stopped processes go on
  RandomKiller(const RandomKiller&) = delete;
  RandomKiller& operator=(const RandomKiller&) = delete;

  // Waits until the budget is used up, or the deadline; then what happened. An error: a victim did
  // not come back, or could not be struck, or there is no thread for the killer.
  Result<KillerReport> finish(Deadline deadline);

 private:
  friend struct detail::Access;
  struct State;
  RandomKiller(std::shared_ptr<detail::ActorClient> client, std::vector<ActorId> victims,
               const KillerOptions& options);
  template <typename T>
  static std::vector<ActorId> ids_of(const std::vector<ActorHandle<T>>& handles) {
    std::vector<ActorId> ids;
    for (const auto& handle : handles) ids.push_back(handle.host_id());
    return ids;
  }
  std::unique_ptr<State> state_;
};

}  // namespace troupe
