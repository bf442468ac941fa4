#pragma once
// What the verbs of actors.h are given and return, and how they are done.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "actors/access.h"
#include "actors/client.h"
#include "actors/handle.h"
#include "actors/info.h"
#include "actors/light_actors.h"
#include "actors/light_client.h"
#include "actors/options.h"

namespace troupe {

// How an actor is ended. Without grace it is killed at once, and kill() returns when the process is
// gone: no later call is answered by it. (Where its node cannot be reached that is
// kDeadlineExceeded: the head remembers, and ends it when the node is back.)
struct KillOptions {
  // The actor's restart policy applies, as if it had died by itself.
  bool allow_restart = false;
  // The method that runs may finish within this time, and the actor's destructor runs.
  std::chrono::milliseconds grace{0};
  std::string reason = "killed by its user";
};

// How an actor is ended when it has done what it was asked to. At once it takes no new calls: they
// end with kActorDied.
struct StopOptions {
  // Calls that are queued run, too; without it, only the one that runs.
  bool drain = true;
  // After this the process is ended, whatever it still had to do; calls that it did not begin end
  // with kActorDied, the one that ran with kUnavailable.
  std::chrono::milliseconds timeout{10'000};
  std::string reason = "stopped by its user";
};
struct StopReport {
  // Calls that were accepted and not finished. Nothing where its process could not say.
  std::optional<std::size_t> calls_dropped;
};

// Ends a watch when it goes.
class ActorWatch {
 public:
  ActorWatch() = default;
  ActorWatch(ActorWatch&& other) noexcept = default;
  ActorWatch& operator=(ActorWatch&& other) noexcept {
    stop();
    client_ = std::move(other.client_);
    id_ = other.id_;
    light_ = std::move(other.light_);
    return *this;
  }
  ~ActorWatch() { stop(); }
  void stop() {
    if (client_) std::exchange(client_, nullptr)->unwatch(id_);
    if (auto light = std::exchange(light_, nullptr)) light->stop();
  }

 private:
  friend struct detail::Access;
  ActorWatch(std::shared_ptr<detail::ActorClient> client, detail::Directory::WatchId id)
      : client_(std::move(client)), id_(id) {}
  explicit ActorWatch(std::shared_ptr<detail::LightWatch> light) : light_(std::move(light)) {}

  std::shared_ptr<detail::ActorClient> client_;
  detail::Directory::WatchId id_ = 0;
  std::shared_ptr<detail::LightWatch> light_;
};

// An actor of a gang: its options and the arguments of its constructor.
template <typename T>
struct GangMember {
  template <typename... A>
  explicit GangMember(ActorOptions o, A&&... arguments)
      : options(std::move(o)),
        constructor_arguments(detail::encode_constructor<T>(std::forward<A>(arguments)...)) {}
  ActorOptions options;
  std::vector<std::byte> constructor_arguments;  // as they travel
};

namespace detail {

template <typename T, typename... A>
Result<ActorHandle<T>> spawn(const std::shared_ptr<ActorClient>& client,
                             const ActorOptions& options, A&&... arguments) {
  if (options.isolation == Isolation::kShared) {
    return spawn_light<T>(client, options, std::forward<A>(arguments)...);
  }
  auto channel = TROUPE_TRY(client->create(options, kActorInterface<T>,
                                           encode_constructor<T>(std::forward<A>(arguments)...)));
  return Access::make<ActorHandle<T>>(client, std::move(channel));
}

template <typename T>
Result<std::vector<ActorHandle<T>>> spawn_gang(const std::shared_ptr<ActorClient>& client,
                                               std::vector<GangMember<T>> members, bool no_wait) {
  std::vector<ActorClient::Member> plain;
  for (auto& member : members) {
    plain.push_back({std::move(member.options), std::move(member.constructor_arguments)});
  }
  auto channels = TROUPE_TRY(client->create_gang(std::move(plain), kActorInterface<T>, no_wait,
                                                 Deadline::after(kControlTimeout)));
  std::vector<ActorHandle<T>> handles;
  for (auto& channel : channels) {
    handles.push_back(Access::make<ActorHandle<T>>(client, std::move(channel)));
  }
  return handles;
}

template <typename T>
Result<ActorHandle<T>> find(const std::shared_ptr<ActorClient>& client, const std::string& name,
                            const GetOptions& options) {
  auto channel = TROUPE_TRY(client->find(name, options.namespace_name, kActorInterface<T>,
                                         Deadline::after(options.timeout)));
  return Access::make<ActorHandle<T>>(client, std::move(channel));
}

template <typename T, typename... A>
Result<ActorHandle<T>> get_or_create(const std::shared_ptr<ActorClient>& client,
                                     const ActorOptions& options, A&&... arguments) {
  if (options.isolation == Isolation::kShared) {
    return Status(Code::kInvalidArgument,
                  "get_or_create of a light actor: one alone has no name. Name the host of several "
                  "(spawn_many), or give it a process of its own (Isolation::kProcess)");
  }
  auto channel = TROUPE_TRY(client->get_or_create(
      options, kActorInterface<T>, encode_constructor<T>(std::forward<A>(arguments)...),
      Deadline::after(kControlTimeout)));
  return Access::make<ActorHandle<T>>(client, std::move(channel));
}

inline Result<StopReport> stop(const std::shared_ptr<ActorClient>& client, ActorId actor_id,
                               const StopOptions& options) {
  // After its time the process has a moment to say what is left, and the head to hear it.
  const Deadline deadline = Deadline::after(options.timeout + kControlTimeout);
  if (options.drain) {
    return StopReport{
        TROUPE_TRY(client->drain(actor_id, options.timeout, options.reason, deadline))};
  }
  TROUPE_RETURN_IF_ERROR(
      client->kill(actor_id, false, options.timeout.count(), options.reason, deadline));
  TROUPE_RETURN_IF_ERROR(client->wait_for_death(actor_id, deadline));
  return StopReport{};
}

inline Status kill(const std::shared_ptr<ActorClient>& client, ActorId actor_id,
                   const KillOptions& options) {
  return client->kill(actor_id, options.allow_restart, options.grace.count(), options.reason,
                      Deadline::after(kControlTimeout));
}

template <typename T>
Status kill(const std::shared_ptr<ActorClient>& client, const LightActors<T>& actors,
            const KillOptions& options) {
  Status first;
  for (const ActorId& host : actors.hosts()) {
    if (Status killed = kill(client, host, options); first.ok()) first = std::move(killed);
  }
  return first;
}

template <typename T>
Status check_handle(const ActorHandle<T>& handle, const char* what) {
  if (!handle.empty()) return {};
  return error(Code::kFailedPrecondition, "{} of an empty ActorHandle<{}>", what,
               kActorInterface<T>.type);
}

template <typename T>
Result<StopReport> stop(const std::shared_ptr<ActorClient>& client, const ActorHandle<T>& handle,
                        const StopOptions& options) {
  if (handle.light()) {
    return Status(Code::kUnsupported, "stop() of a light actor: kill() ends one between two calls");
  }
  TROUPE_RETURN_IF_ERROR(check_handle(handle, "stop()"));
  return stop(client, handle.id(), options);
}

// Of a light actor: ends it alone.
template <typename T>
Status kill(const std::shared_ptr<ActorClient>& client, const ActorHandle<T>& handle,
            const KillOptions& options) {
  TROUPE_RETURN_IF_ERROR(check_handle(handle, "kill()"));
  if (!handle.light()) return kill(client, handle.id(), options);
  if (options.allow_restart) {
    return error(Code::kUnsupported,
                 "kill() of a light actor with allow_restart: one alone is not restarted. Kill its "
                 "host (LightActors::hosts, ActorHandle::host_id), which restarts all of its");
  }
  return end_light(client, Access::channel(handle), handle.light_number(), options.reason,
                   Deadline::after(kControlTimeout));
}

template <typename T>
ActorWatch watch(const std::shared_ptr<ActorClient>& client, const ActorHandle<T>& handle,
                 std::function<void(const wire::ActorInfo&)> on_change) {
  if (handle.empty()) return {};
  if (!handle.light()) {
    return Access::make<ActorWatch>(client, client->watch(handle.id(), std::move(on_change)));
  }
  return Access::make<ActorWatch>(LightWatch::start(client, Access::channel(handle),
                                                    handle.light_number(), std::move(on_change)));
}

}  // namespace detail
}  // namespace troupe
