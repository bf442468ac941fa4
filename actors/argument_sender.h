#pragma once
// Constructor arguments that are too large for an actor's spec. The process that created the actor
// keeps them until the actor is dead for good, and sends them to each process of it that starts
// (target "actor/ID/.arguments"): on its own node as a descriptor of the same memory, to other
// nodes as bytes. Neither the head nor a node's daemon ever has them. It keeps the objects, too,
// that constructor arguments of any size refer to.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "actors/actor_channel.h"
#include "actors/directory.h"
#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/memory/segment.h"
#include "runtime/wire/types.h"
#include "troupe/detail/mutex.h"

namespace troupe::detail {

inline constexpr const char* kArgumentsPurpose = ".arguments";
// How long an actor's process waits for them: its creator has ended, or does not reach its node.
inline constexpr Duration kArgumentsWait = std::chrono::seconds(60);
// For so many bytes between nodes with a slow network (10 MB/s).
Duration arguments_time(std::uint64_t bytes);

// Thread-safe. Sends on threads of its own, a few at a time, begun when there is something to send.
class ArgumentSender : public std::enable_shared_from_this<ArgumentSender> {
 public:
  explicit ArgumentSender(std::shared_ptr<const ChannelEnvironment> environment);
  ~ArgumentSender();
  ArgumentSender(const ArgumentSender&) = delete;
  ArgumentSender& operator=(const ArgumentSender&) = delete;

  // Moves constructor arguments out of the spec, where they are large. kOutOfMemory,
  // kResourceExhausted.
  Status take(wire::ActorSpec& spec, wire::Bytes arguments);
  // Objects that the arguments refer to, which its processes take when they start.
  void keep(ActorId actor_id, std::vector<std::shared_ptr<const void>> objects);
  // The head has accepted the actor: its processes will come. Nothing for actors without.
  void begin(ActorId actor_id);
  // There will be no such actor.
  void forget(ActorId actor_id);
  // Ends the threads; what is being sent breaks off. Not on the loop's thread.
  void close();

 private:
  struct Kept {
    std::shared_ptr<const memory::Segment> arguments;  // may be null
    std::vector<std::shared_ptr<const void>> objects;
    Directory::WatchId watch = 0;
    wire::ActorInfo actor;
    std::uint64_t sent_to = 0;  // the newest process that has them
    bool queued = false;        // or being sent
  };

  void on_actor(ActorId actor_id, const Result<wire::ActorInfo>& info);
  void queue_locked(ActorId actor_id, Kept& kept) TROUPE_REQUIRES(mutex_);
  // Queues it again after a while.
  void try_later(ActorId actor_id);
  void run();
  Status send(const memory::Segment& arguments, const wire::ActorInfo& actor);

  const std::shared_ptr<const ChannelEnvironment> environment_;
  Mutex mutex_;
  CondVar changed_;
  std::map<ActorId, Kept> kept_ TROUPE_GUARDED_BY(mutex_);
  std::deque<ActorId> queue_ TROUPE_GUARDED_BY(mutex_);
  std::size_t idle_ TROUPE_GUARDED_BY(mutex_) = 0;  // of the threads
  std::vector<std::thread> threads_ TROUPE_GUARDED_BY(mutex_);
  std::set<int> sending_ TROUPE_GUARDED_BY(mutex_);  // the descriptors of streams
  bool closed_ TROUPE_GUARDED_BY(mutex_) = false;
};

}  // namespace troupe::detail
