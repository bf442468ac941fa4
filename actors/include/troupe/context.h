#pragma once
// What an actor may ask of the process that hosts it. An actor that wants it takes it as the first
// parameter of its constructor and keeps the reference: it lives longer than the actor.
//
//   Pinger(troupe::ActorContext& context, int n) : context_(context) {}
//
// Threads: everything may be called from any thread of the process, except save_now() (the actor's
// own thread: its constructor and its methods).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "troupe/actors.h"

namespace troupe {

class ByteStream;  // byte_stream.h
class Logger;      // log.h
class UniqueFd;    // unique_fd.h

namespace detail {
struct ContextState;
}

// What it does with other actors is declared in actors.h; what it creates ends with the actor
// (ActorOptions::owner).
class ActorContext : public Actors {
 public:
  ActorContext(const ActorContext&) = delete;
  ActorContext& operator=(const ActorContext&) = delete;

  // --- who the actor is ---
  ActorId id() const;
  // Whether it shares its process and thread with others (light_actors.h): what waits, waits for
  // all of them. name(), rank() and run() are then those of the host.
  bool light() const;
  // Of a light actor: its position among those that were spawned together.
  std::uint64_t light_index() const;
  const std::string& name() const;
  // Where its name is, and those that it gives and asks for.
  const std::string& namespace_name() const;
  int rank() const;
  const std::string& run() const;
  // The number of this process of the actor, from 1.
  std::uint64_t generation() const;
  NodeId node_id() const;
  // The node's labels, as it was started with them.
  const std::map<std::string, std::string>& node_labels() const;
  // The placement group whose bundle it runs in; empty, and -1, where it runs in none.
  GroupId placement_group() const;
  int bundle_index() const;
  // Writes to the process's standard error, which the node keeps. Include log.h to use it.
  const Logger& log() const;
  // A handle to the actor itself, to give to others.
  template <typename T>
  ActorHandle<T> self() const {
    return detail::Access::make<ActorHandle<T>>(
        client(), own_channel(light() ? detail::kLightInterface<T> : detail::kActorInterface<T>),
        light_number());
  }

  // --- the call that this thread runs; a thread that a method starts has none ---
  // When its caller gives it up. Calls that it makes end then too (CallOptions::inherit). Nothing
  // outside of calls.
  std::optional<Deadline> deadline() const;
  // Requested when its caller has cancelled it, or ended it at its deadline: what it returns then,
  // nobody sees. Never requested outside of calls.
  std::stop_token call_stop_token() const;

  // --- raw sockets between actor processes ---
  // `on_connection` gets each authenticated stream whose target is "actor/ID/PURPOSE" or begins
  // with that and a slash, also those that came before; on the loop's thread, without waiting
  // there.
  void accept_connections(
      const std::string& purpose,
      std::function<void(ByteStream, std::string target, bool same_node)> on_connection);

  // --- the process ---
  // Requested when the actor, or the host of a light one, is to end: a method that runs long looks
  // at it.
  std::stop_token stop_token() const;
  // Ends the actor's process with exit code 0 after the method that runs now has been answered. A
  // light actor ends alone.
  void request_exit();
  // Saves the state now (actors with save() and load()), whatever the policy. Actor's thread.
  Status save_now();

  // --- memory that outlives the process: segments that the node keeps for the job ---
  // Puts a shared-memory segment (a memfd) under a name that is the job's on this node; this
  // process owns it, and the descriptor stays the caller's. A later one of the same name replaces
  // it; fd -1 forgets it. What another process that runs owns stays as it is. The node drops a
  // job's segments when no actor of the job runs on it or may come back.
  Status keep_segment(const std::string& name, int fd);
  // Takes over the job's segment of this name, whichever actor's process put it. While the process
  // group of the owner before is ending it waits, so memory goes on only when nothing of that runs
  // any more. kNotFound: there is none on this node (dropped, or the node's memory was lost).
  // kFailedPrecondition: the owner runs and is not ending; end it first. kDeadlineExceeded: it has
  // not ended in time. Any thread but the loop's; waits.
  Result<UniqueFd> attach_segment(const std::string& name, Deadline deadline);
  // At most `bytes_max` bytes (64 KiB at most) from `offset` of a segment that this job has on the
  // node where `actor_id` runs, or ran last. Whoever owns it, and whether the owner runs, is
  // stopped or has died; torn where the owner writes meanwhile. kNotFound: none of this name there.
  // Any thread but the loop's; waits.
  Result<std::vector<std::byte>> read_segment(ActorId actor_id, const std::string& name,
                                              std::size_t bytes_max, Deadline deadline,
                                              std::uint64_t offset = 0);

  // --- the actor's thread ---
  // Work for the actor's own thread, between its calls.
  Executor& executor();

  ~ActorContext() override;

 private:
  friend struct detail::Access;
  explicit ActorContext(detail::ContextState state);
  Result<Client> usable() const override;
  const Client& client() const;
  std::uint32_t light_number() const;
  detail::ChannelPtr own_channel(const detail::ActorInterface& interface) const;

  const std::unique_ptr<detail::ContextState> state_;
};

}  // namespace troupe
