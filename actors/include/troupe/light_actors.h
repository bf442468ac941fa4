#pragma once
// Light actors: thousands of actors of one class in a host process, run by its one thread.
//
//   auto cells = cluster.spawn_many<Cell>(10'000, {.isolation = troupe::Isolation::kShared}, 0);
//   troupe::Result<int> n = cells->at(17).call<&Cell::add>(3).get(std::chrono::seconds(5));
//   auto one = cluster.spawn<Cell>({.isolation = troupe::Isolation::kShared}, 7);
//
// The class is written as any other, and its handles are used, passed on and watched as others.
// What is different:
// - The calls of a host's light actors run one after the other. One that waits lets all of them
//   wait; a get() for an actor of the same host is refused.
// - One that throws, or is killed alone, harms no other. A crash of the process restarts all of its
//   light actors, by the host's max_restarts, and no others: those that had ended stay dead, the
//   states of those with save() and load() come back.
// - One that was killed alone is dead for good. A host that nobody lives in any more ends.
// - Resources, placement and output are the host's. To the head it is one actor, of type "T[]".
// - Those that were spawned one by one do not survive their node; those of spawn_many do.
// - They accept no raw connections.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "troupe/detail/constructor.h"
#include "troupe/detail/light_actor.h"
#include "troupe/detail/verbs.h"
#include "troupe/handle.h"
#include "troupe/options.h"

namespace troupe {

// The handles of light actors that were spawned together. A value, as a handle is.
template <typename T>
class LightActors {
 public:
  LightActors() = default;

  // None where it was moved from.
  std::size_t size() const { return hosts_.empty() ? 0 : count_; }
  bool empty() const { return size() == 0; }
  // Requires index < size().
  ActorHandle<T> operator[](std::size_t index) const {
    detail::check_light_index(index, size());
    return detail::Access::make<ActorHandle<T>>(client_, hosts_[index / per_host_],
                                                static_cast<std::uint32_t>(index % per_host_));
  }
  ActorHandle<T> at(std::size_t index) const { return (*this)[index]; }
  // The processes, as the head knows them.
  std::vector<ActorId> hosts() const {
    std::vector<ActorId> ids;
    for (const auto& host : hosts_) ids.push_back(detail::actor_id_of(*host));
    return ids;
  }

  class Iterator {
   public:
    Iterator(const LightActors* actors, std::size_t index) : actors_(actors), index_(index) {}
    ActorHandle<T> operator*() const { return (*actors_)[index_]; }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.index_ == b.index_; }

   private:
    const LightActors* actors_;
    std::size_t index_;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

 private:
  friend struct Codec<LightActors<T>>;
  friend struct detail::Access;
  // `per_host` in each host but the last, which may have fewer.
  LightActors(std::shared_ptr<detail::ActorClient> client,
              std::vector<std::shared_ptr<detail::ActorChannel>> hosts, std::size_t count,
              std::size_t per_host)
      : client_(std::move(client)), hosts_(std::move(hosts)), count_(count), per_host_(per_host) {}

  std::shared_ptr<detail::ActorClient> client_;
  std::vector<std::shared_ptr<detail::ActorChannel>> hosts_;
  std::size_t count_ = 0;
  std::size_t per_host_ = 1;
};

// They travel as the hosts' ids and how they are divided among them.
template <typename T>
struct Codec<LightActors<T>> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 20;
  static constexpr std::uint64_t kHash =
      TypeHash::mix(TypeHash::of("light actors"), TypeHash::of(detail::kTypeName<T>));
  static void encode(Encoder& out, const LightActors<T>& value) {
    out.put(static_cast<std::uint64_t>(value.size()));
    out.put(static_cast<std::uint64_t>(value.per_host_));
    Codec<std::vector<ActorId>>::encode(out, value.hosts());
  }
  static bool decode(Decoder& in, LightActors<T>& value) {
    std::uint64_t count = 0, per_host = 0;
    std::vector<ActorId> ids;
    if (!in.get(count) || !in.get(per_host) || !Codec<std::vector<ActorId>>::decode(in, ids)) {
      return false;
    }
    if (!detail::is_light_division(count, per_host, ids.size())) {
      return in.fail("light actors that do not fit their hosts");
    }
    const auto& client = in.context().client;
    if (!client && count > 0) return in.fail("light actors where no handles can be used");
    std::vector<std::shared_ptr<detail::ActorChannel>> hosts;
    for (const ActorId& id : ids) {
      hosts.push_back(detail::channel_to(*client, id, detail::kLightInterface<T>));
    }
    value = LightActors<T>(client, std::move(hosts), count, per_host);
    return true;
  }
};

namespace detail {

// Without the hash before them; nothing of none.
inline std::span<const std::byte> own_bytes(const PackedArguments& arguments) {
  const std::span all(arguments.bytes);
  constexpr std::size_t kHashBytes = sizeof(std::uint64_t);
  return all.subspan(all.size() < kHashBytes ? all.size() : kHashBytes);
}

// A batch's hosts; `add(encoder, index)` appends the arguments that one of them alone has.
template <typename T, typename Add>
Result<LightActors<T>> spawn_light_hosts(const ClientPtr& client, std::size_t count,
                                         const ActorOptions& options, LightStart start,
                                         const PackedArguments& alike, Add add) {
  const LightDivision division = TROUPE_TRY(divide_light(count, options));
  auto hosts =
      TROUPE_TRY(place_light_hosts(client, count, division.per_host, options, kLightInterface<T>,
                                   [&](std::size_t first, std::size_t end) {
                                     Encoder out;
                                     out.put(ConstructorTraits<T>::kHash);
                                     out.put(static_cast<std::uint8_t>(start));
                                     out.put(static_cast<std::uint64_t>(first));
                                     out.append(own_bytes(alike).data(), own_bytes(alike).size());
                                     alike.keep_in(out);
                                     for (std::size_t i = first; i < end; ++i) add(out, i);
                                     return PackedArguments::of(out);
                                   }));
  return Access::make<LightActors<T>>(client, std::move(hosts), count, division.per_host);
}

template <typename T, typename... A>
Result<LightActors<T>> spawn_many(const ClientPtr& client, std::size_t count,
                                  const ActorOptions& options, A&&... arguments) {
  return spawn_light_hosts<T>(client, count, options, LightStart::kAlike,
                              encode_constructor<T>(std::forward<A>(arguments)...),
                              [](Encoder&, std::size_t) {});
}

template <typename>
inline constexpr bool kIsTuple = false;
template <typename... T>
inline constexpr bool kIsTuple<std::tuple<T...>> = true;

template <typename T, typename F>
Result<LightActors<T>> spawn_each(const ClientPtr& client, std::size_t count,
                                  const ActorOptions& options, F&& arguments_of) {
  const auto add = [&](Encoder& out, std::size_t index) {
    auto arguments = arguments_of(index);
    const PackedArguments made_of = [&] {
      if constexpr (kIsTuple<decltype(arguments)>) {
        return std::apply(
            [](auto&&... a) { return encode_constructor<T>(std::forward<decltype(a)>(a)...); },
            std::move(arguments));
      } else {
        return encode_constructor<T>(std::move(arguments));
      }
    }();
    const std::span<const std::byte> own = own_bytes(made_of);
    out.put_count(own.size());
    out.append(own.data(), own.size());
    made_of.keep_in(out);
  };
  return spawn_light_hosts<T>(client, count, options, LightStart::kOneEach, {}, add);
}

template <typename T, typename... A>
Result<ActorHandle<T>> spawn_light(const ClientPtr& client, const ActorOptions& options,
                                   A&&... arguments) {
  auto place = TROUPE_TRY(place_light(client, options, kLightInterface<T>,
                                      encode_constructor<T>(std::forward<A>(arguments)...)));
  return Access::make<ActorHandle<T>>(client, std::move(place.host), place.number);
}

template <typename T>
Result<LightActors<T>> find_light(const ClientPtr& client, const std::string& name,
                                  const GetOptions& options) {
  auto host = TROUPE_TRY(find_light_host(client, name, options, kLightInterface<T>));
  return Access::make<LightActors<T>>(client, std::vector{std::move(host.channel)}, host.count,
                                      host.count > 0 ? host.count : 1);
}

}  // namespace detail
}  // namespace troupe
