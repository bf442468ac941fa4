#pragma once
// What a program does with actors: creates, finds, watches, ends and groups them. Every verb is
// declared here once, for drivers (Cluster, cluster.h) and for actors (ActorContext, context.h).
//
//   auto counter = cluster.spawn<Counter>({.name = "counter"}, 0).value();
//   auto same = context.get_actor<Counter>("counter").value();
//
// Thread-safe. Of whom nothing can be asked any more, everything ends with kFailedPrecondition.

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troupe/detail/access.h"
#include "troupe/handle.h"
#include "troupe/info.h"
#include "troupe/light_actors.h"
#include "troupe/object.h"
#include "troupe/options.h"
#include "troupe/spawn.h"
#include "troupe/supervision.h"

namespace troupe {

struct RawConnection;  // raw_connection.h
struct TaskOptions;    // tasks.h
class Tasks;

namespace detail {
template <auto Function>
struct TaskCallOf;
}
// What a task's future has of the function's result: as that of a method; of a stream an item's.
template <auto Function>
using TaskValue = typename detail::TaskCallOf<Function>::Value;
// What submitting it gives: a Future of that; of a function that returns a Stream a StreamReader.
template <auto Function>
using TaskReturn = typename detail::TaskCallOf<Function>::Return;

class Actors {
 public:
  // --- creating ---------------------------------------------------------------------------------
  // Creates an actor. Returns at once: the process starts meanwhile and calls wait for it. What
  // goes wrong later (no such resources, a constructor that throws) ends the calls, with the
  // actor's last lines of output in the message. The arguments are those of T's `constructor`. With
  // Isolation::kShared it is a light actor, in a host that has room, or a new one.
  template <typename T, typename... A>
  Result<ActorHandle<T>> spawn(const ActorOptions& options, A&&... arguments) {
    return detail::spawn<T>(TROUPE_TRY(usable()), options, std::forward<A>(arguments)...);
  }
  // `count` light actors in as many host processes as options.light_per_host makes of them, each
  // with the resources and the restarts of the options, which ask for Isolation::kShared; all made
  // of the same arguments. Returns at once, as spawn() does. A name names the one host.
  template <typename T, typename... A>
  Result<LightActors<T>> spawn_many(std::size_t count, const ActorOptions& options,
                                    A&&... arguments) {
    return detail::spawn_many<T>(TROUPE_TRY(usable()), count, options,
                                 std::forward<A>(arguments)...);
  }
  // The same, each made of what `arguments_of(index)` returns: a tuple of its constructor's
  // arguments, or the only one.
  template <typename T, typename F>
  Result<LightActors<T>> spawn_each(std::size_t count, const ActorOptions& options,
                                    F&& arguments_of) {
    return detail::spawn_each<T>(TROUPE_TRY(usable()), count, options,
                                 std::forward<F>(arguments_of));
  }
  // All of them are placed or none is. Waits until the head has accepted them; with `no_wait` it
  // refuses (kResourceExhausted) what does not fit now.
  template <typename T>
  Result<std::vector<ActorHandle<T>>> spawn_gang(std::vector<GangMember<T>> members,
                                                 bool no_wait = false) {
    return detail::spawn_gang<T>(TROUPE_TRY(usable()), std::move(members), no_wait);
  }
  // The living actor of options.name, or a new one where there is none: of all that ask at the same
  // time one creates it. Waits for the head. kInvalidArgument where the living one is of another
  // class, or was created with other constructor arguments; its other options are its own.
  template <typename T, typename... A>
  Result<ActorHandle<T>> get_or_create(const ActorOptions& options, A&&... arguments) {
    return detail::get_or_create<T>(TROUPE_TRY(usable()), options, std::forward<A>(arguments)...);
  }
  // A group of actors that is restarted together (supervision.h). Waits for the head.
  Result<Supervisor> supervise(const SupervisorOptions& options,
                               Duration timeout = kControlTimeout);

  // --- tasks (tasks.h, which a program that has some includes) ----------------------------------
  // Runs a function of the program, listed in its host_main, on some node that has room.
  template <auto Function, typename... A>
  TaskReturn<Function> submit(A&&... arguments) const;
  // What submits tasks that have these options.
  Tasks tasks(const TaskOptions& options) const;
  Tasks tasks() const;

  // --- objects (object.h) -----------------------------------------------------------------------
  // Puts a value into shared memory of this node. Waits for room. kResourceExhausted: there was
  // none within the time, and what is in the way, or it can never be; kFailedPrecondition: this
  // machine is no node of the cluster. (The reference is of T; of a TensorView of a Tensor.)
  template <typename T>
  Result<ObjectRef<typename ObjectContent<T>::Type>> put(const T& value,
                                                         Duration timeout = kObjectTimeout) {
    return detail::put_object<T>(TROUPE_TRY(usable()), value, timeout);
  }
  // ObjectRef::get().
  template <typename T>
  Result<Object<T>> get(const ObjectRef<T>& ref, Duration timeout = kObjectTimeout) {
    return ref.get(timeout);
  }
  // Waits until `count` of the objects can be read on this node without waiting (or are lost), or
  // the time is over; returns which, by position, in order.
  template <typename T>
  Result<std::vector<std::size_t>> wait(const std::vector<ObjectRef<T>>& refs, std::size_t count,
                                        Duration timeout = kObjectTimeout) {
    std::vector<detail::HeldObjectPtr> objects;
    for (const auto& ref : refs) objects.push_back(detail::Access::object(ref));
    return detail::wait_for_objects(objects, count, timeout);
  }

  // What is in the store of the node on which this process runs.
  Result<ObjectStoreInfo> object_store(Duration timeout = kControlTimeout) {
    return detail::object_store_info(TROUPE_TRY(usable()), timeout);
  }

  // --- finding ----------------------------------------------------------------------------------
  // The living actor of this name. kNotFound; kInvalidArgument when it is of another class.
  template <typename T>
  Result<ActorHandle<T>> get_actor(const std::string& name, Duration timeout = kControlTimeout) {
    return get_actor<T>(name, GetOptions{.timeout = timeout});
  }
  // … or of another namespace: get_actor<T>("db", {.namespace_name = "shop"}).
  template <typename T>
  Result<ActorHandle<T>> get_actor(const std::string& name, const GetOptions& options) {
    return detail::find<T>(TROUPE_TRY(usable()), name, options);
  }
  // The living light actors whose host has this name. As get_actor().
  template <typename T>
  Result<LightActors<T>> get_light_actors(const std::string& name, const GetOptions& options = {}) {
    return detail::find_light<T>(TROUPE_TRY(usable()), name, options);
  }
  Result<std::vector<NodeInfo>> nodes(Duration timeout = kControlTimeout);
  // Calls `on_change` with the actor's state now and at each change (started, alive, restarting,
  // dead), on a thread of Troupe's: short, without waiting. Until the watch goes.
  template <typename T>
  [[nodiscard]] ActorWatch watch(const ActorHandle<T>& handle,
                                 std::function<void(const ActorInfo&)> on_change) {
    const auto client = usable();
    return client.ok() ? detail::watch(*client, handle, std::move(on_change)) : ActorWatch();
  }
  // A socket to another actor's process, for whoever accepts `purpose` there
  // (ActorContext::accept_connections); its target is "actor/ID/PURPOSE". Waits until it runs.
  Result<RawConnection> connect_to(ActorId actor_id, const std::string& purpose, Deadline deadline);

  // --- ending -----------------------------------------------------------------------------------
  template <typename T>
  Status kill(const ActorHandle<T>& handle, const KillOptions& options = {}) {
    return detail::kill(TROUPE_TRY(usable()), handle, options);
  }
  // Ends the hosts with all their light actors.
  template <typename T>
  Status kill(const LightActors<T>& actors, const KillOptions& options = {}) {
    return detail::kill(TROUPE_TRY(usable()), actors, options);
  }
  // Ends it for good when it has done what is queued, or when its time is over; waits for that. Not
  // within the actor itself. kUnsupported for a light actor.
  template <typename T>
  Result<StopReport> stop(const ActorHandle<T>& handle, const StopOptions& options = {}) {
    return detail::stop(TROUPE_TRY(usable()), handle, options);
  }

 protected:
  using Client = std::shared_ptr<detail::ActorClient>;
  Actors() = default;
  Actors(const Actors&) = default;
  Actors& operator=(const Actors&) = default;
  virtual ~Actors() = default;

 private:
  friend struct detail::Access;
  // What everything here asks through, or why nothing can be asked.
  virtual Result<Client> usable() const = 0;
};

}  // namespace troupe
