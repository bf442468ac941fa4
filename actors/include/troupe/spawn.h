#pragma once
// How the verbs of actors.h are done for a class.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troupe/detail/access.h"
#include "troupe/detail/constructor.h"
#include "troupe/detail/verbs.h"
#include "troupe/handle.h"
#include "troupe/light_actors.h"
#include "troupe/options.h"

namespace troupe {

// Ends a watch when it goes.
class Watch {
 public:
  Watch() = default;
  void stop() { watching_ = nullptr; }

 private:
  friend struct detail::Access;
  explicit Watch(std::unique_ptr<detail::Watching> watching) : watching_(std::move(watching)) {}
  std::unique_ptr<detail::Watching> watching_;
};
using ActorWatch = Watch;

// An actor of a gang: its options and the arguments of its constructor.
template <typename T>
struct GangMember {
  template <typename... A>
  explicit GangMember(ActorOptions o, A&&... arguments) : options(std::move(o)) {
    auto packed = detail::encode_constructor<T>(std::forward<A>(arguments)...);
    constructor_arguments = std::move(packed.bytes);
    objects = std::move(packed.kept);
  }
  ActorOptions options;
  std::vector<std::byte> constructor_arguments;      // as they travel
  std::vector<std::shared_ptr<const void>> objects;  // that they refer to
};

namespace detail {

template <typename T, typename... A>
Result<ActorHandle<T>> spawn(const ClientPtr& client, const ActorOptions& options,
                             A&&... arguments) {
  if (options.isolation == Isolation::kShared) {
    return spawn_light<T>(client, options, std::forward<A>(arguments)...);
  }
  auto channel = TROUPE_TRY(place_actor(client, options, kActorInterface<T>,
                                        encode_constructor<T>(std::forward<A>(arguments)...)));
  return Access::make<ActorHandle<T>>(client, std::move(channel));
}

template <typename T>
Result<std::vector<ActorHandle<T>>> spawn_gang(const ClientPtr& client,
                                               std::vector<GangMember<T>> members, bool no_wait) {
  std::vector<PlainMember> plain;
  for (auto& member : members) {
    plain.push_back({std::move(member.options),
                     {std::move(member.constructor_arguments), std::move(member.objects)}});
  }
  auto channels = TROUPE_TRY(place_gang(client, std::move(plain), kActorInterface<T>, no_wait));
  std::vector<ActorHandle<T>> handles;
  for (auto& channel : channels) {
    handles.push_back(Access::make<ActorHandle<T>>(client, std::move(channel)));
  }
  return handles;
}

template <typename T>
Result<ActorHandle<T>> find(const ClientPtr& client, const std::string& name,
                            const GetOptions& options) {
  auto channel = TROUPE_TRY(find_actor(client, name, options, kActorInterface<T>));
  return Access::make<ActorHandle<T>>(client, std::move(channel));
}

template <typename T, typename... A>
Result<ActorHandle<T>> get_or_create(const ClientPtr& client, const ActorOptions& options,
                                     A&&... arguments) {
  auto channel = TROUPE_TRY(get_or_place_actor(
      client, options, kActorInterface<T>, encode_constructor<T>(std::forward<A>(arguments)...)));
  return Access::make<ActorHandle<T>>(client, std::move(channel));
}

template <typename T>
Status kill(const ClientPtr& client, const LightActors<T>& actors, const KillOptions& options) {
  Status first;
  for (const ActorId& host : actors.hosts()) {
    if (Status killed = kill_actor(client, host, options); first.ok()) first = std::move(killed);
  }
  return first;
}

// Of a light actor: ends it alone.
template <typename T>
Status kill(const ClientPtr& client, const ActorHandle<T>& handle, const KillOptions& options) {
  if (handle.empty()) return empty_handle_error("kill() of", kActorInterface<T>.type);
  if (!handle.light()) return kill_actor(client, handle.id(), options);
  return kill_light(client, Access::channel(handle), handle.light_number(), options);
}

template <typename T>
Result<StopReport> stop(const ClientPtr& client, const ActorHandle<T>& handle,
                        const StopOptions& options) {
  if (handle.empty()) return empty_handle_error("stop() of", kActorInterface<T>.type);
  return stop_actor(client, handle.id(), handle.light(), options);
}

template <typename T>
ActorWatch watch(const ClientPtr& client, const ActorHandle<T>& handle, OnActorChange on_change) {
  if (handle.empty()) return {};
  return Access::make<ActorWatch>(handle.light()
                                      ? watch_light(client, Access::channel(handle),
                                                    handle.light_number(), std::move(on_change))
                                      : watch_actor(client, handle.id(), std::move(on_change)));
}

}  // namespace detail
}  // namespace troupe
