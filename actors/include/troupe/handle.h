#pragma once
// ActorHandle<T>: calls an actor. A value: copied, passed to other actors as an argument, kept as
// long as needed. It does not keep the actor alive, and stays valid over the actor's restarts.
//
//   auto sum = counter.call<&Counter::add>(3).get(std::chrono::seconds(1));   // Result<int>
//   auto later = counter.with({.timeout = std::chrono::hours(1)}).call<&Counter::slow>();
//
// Calls of one process to one actor run in the order in which they were made. Errors carry the
// actor, the method and the node. Thread-safe.
//
// How much may be under way between a process and an actor:
// - The arguments of a call, and its result, are of any size up to half of the memory that the
//   process which receives them may use; what is larger ends its call with kResourceExhausted.
// - Arguments that the actor's process has not read wait here: beyond 64 MiB on its connection
//   further calls wait behind them, until their deadline, and go when there is room again.
// - Results that this process has not read wait there: while they are more than 64 MiB the actor
//   begins no further call of this process; those of others go on. Any number of calls with large
//   results may so be outstanding, as far as their deadlines reach.
// - Results are this process's memory from when they have arrived until they are taken.

#include <cstdint>
#include <memory>
#include <utility>

#include "troupe/detail/access.h"
#include "troupe/detail/call_line.h"
#include "troupe/detail/call_state.h"
#include "troupe/detail/future_arguments.h"
#include "troupe/detail/light_actor.h"
#include "troupe/detail/method_table.h"
#include "troupe/future.h"
#include "troupe/options.h"
#include "troupe/serialize.h"
#include "troupe/stream_reader.h"

namespace troupe {

template <typename T>
class ActorHandle {
 public:
  // No actor, as a handle that was moved from: every call ends with kFailedPrecondition.
  ActorHandle() = default;
  // The same actor, called through the class that its own says it acts as (`using ActsAs = T;`): an
  // abstract one, perhaps, which is all that its callers include.
  template <ActsAs<T> U>
  ActorHandle(const ActorHandle<U>& other)  // NOLINT: as a pointer to a derived class does
      : client_(other.client_),
        channel_(other.channel_),
        options_(other.options_),
        light_number_(other.light_number_) {}

  // The same actor, called with these options.
  ActorHandle with(CallOptions options) const {
    ActorHandle copy = *this;
    copy.options_ = options;
    return copy;
  }

  // Calls a method of T's list; returns at once: a Future of its result, or a StreamReader
  // (stream_reader.h) where it returns a Stream. The arguments are converted to the method's
  // parameter types and copied before it returns. An argument may be a Future of the parameter's
  // type (std::move(future)): then the call is made when its result is there, behind those that
  // were made meanwhile, and ends as that future does where it fails. It is a call of nobody's: not
  // cancelled with a call inside which it was made. A result that is an ObjectRef goes on as a
  // reference.
  template <auto Method, typename... A>
  auto call(A&&... arguments) const {
    using Traits = detail::MethodTraits<Method>;
    using Value = typename Traits::Value;
    using List = std::remove_cvref_t<decltype(T::methods)>;
    constexpr std::size_t kIndex = detail::method_index<Method>(List{});
    static_assert(kIndex < List::kCount,
                  "this method is not in the actor class's `methods`: add it there");
    using Check = detail::CallArguments<Method, typename Traits::Parameters,
                                        typename detail::ArgumentOf<A&&>::Type...>;
    if constexpr (!Check::kGood || !detail::check_method<Method>()) {
      return make_ready_future<Value>(Status(Code::kInternal, "does not compile"));
    } else if constexpr ((detail::kIsFuture<std::remove_cvref_t<A>> || ...)) {
      static_assert(Traits::kKind != detail::MethodKind::kStream,
                    "a method that returns a Stream takes no futures: its reader is returned at "
                    "once. Wait for them before");
      return call_later<Method>(std::index_sequence_for<A...>{}, std::forward<A>(arguments)...);
    } else {
      typename Traits::Stored stored(std::forward<A>(arguments)...);
      if constexpr (Traits::kKind == detail::MethodKind::kStream) {
        return send_stream<Value>(static_cast<std::uint32_t>(kIndex), stored);
      } else {
        return send<Value>(static_cast<std::uint32_t>(kIndex), stored);
      }
    }
  }

  bool empty() const { return channel_ == nullptr; }
  ActorId id() const {
    return light() ? detail::light_actor_id(host_id(), light_number_) : host_id();
  }
  // Whether it is a light actor (light_actors.h), and the actor that the head knows: its host. Of
  // other actors: the actor itself.
  bool light() const { return light_number_ != kNoLightNumber; }
  ActorId host_id() const { return channel_ ? detail::actor_id_of(*channel_) : ActorId{}; }
  std::uint32_t light_number() const { return light_number_; }
  friend bool operator==(const ActorHandle& a, const ActorHandle& b) { return a.id() == b.id(); }

 private:
  friend struct detail::Access;
  template <typename U>
  friend class ActorHandle;
  ActorHandle(std::shared_ptr<detail::ActorClient> client,
              std::shared_ptr<detail::ActorChannel> channel,
              std::uint32_t light_number = kNoLightNumber)
      : client_(std::move(client)), channel_(std::move(channel)), light_number_(light_number) {}
  const std::shared_ptr<detail::ActorClient>& client() const { return client_; }

  template <typename Value, typename Stored>
  Future<Value> send(std::uint32_t method, const Stored& stored) const {
    if (!channel_) return make_ready_future<Value>(empty_error());
    detail::OutgoingArguments arguments(*channel_, light_number_, /*lends=*/true);
    detail::encode_arguments(arguments.encoder(), stored);
    auto state = std::make_shared<detail::CallState<Value>>(
        detail::future_options(*client_, *channel_), client_, channel_, light_number_);
    Future<Value> future(state);
    detail::CallState<Value>& call = *state;
    call.line().send(method, arguments, options_, std::move(state), call, &call);
    return future;
  }

  template <auto Method, std::size_t... I, typename... A>
  auto call_later(std::index_sequence<I...>, A&&... arguments) const {
    using Traits = detail::MethodTraits<Method>;
    using Value = typename Traits::Value;
    if (!channel_) return make_ready_future<Value>(empty_error());
    return detail::call_when_ready<Value>(
        when_all(detail::future_of_argument<std::tuple_element_t<I, typename Traits::Stored>>(
            std::forward<A>(arguments))...),
        detail::future_options(*client_, *channel_), options_.timeout,
        [handle = *this](auto values) {
          return handle.template call<Method>(std::move(std::get<I>(values))...);
        });
  }

  template <typename Item, typename Stored>
  StreamReader<Item> send_stream(std::uint32_t method, const Stored& stored) const {
    if (!channel_) return StreamReader<Item>(empty_error());
    if (Status sense = detail::check_stream(options_, light(), detail::kActorInterface<T>.type);
        !sense.ok()) {
      return StreamReader<Item>(std::move(sense));
    }
    detail::OutgoingArguments arguments(*channel_, light_number_, /*lends=*/false);
    detail::encode_arguments(arguments.encoder(), stored);
    auto state = std::make_shared<detail::CallStreamState<Item>>(
        detail::future_options(*client_, *channel_), client_, channel_, options_.stream_window);
    state->line().send(method, arguments, options_, state, *state, nullptr, options_.stream_window);
    return StreamReader<Item>(std::move(state));
  }

  static Status empty_error() {
    return detail::empty_handle_error("a call through", detail::kActorInterface<T>.type);
  }

  std::shared_ptr<detail::ActorClient> client_;
  std::shared_ptr<detail::ActorChannel> channel_;
  CallOptions options_;
  std::uint32_t light_number_ = kNoLightNumber;
};

// A handle travels as the actor's id (a light one's as that of its host, and its number); where it
// arrives, calls go straight from there to the actor.
template <typename T>
struct Codec<ActorHandle<T>> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 20;
  static constexpr std::uint64_t kHash =
      TypeHash::mix(TypeHash::of("handle"), TypeHash::of(detail::kTypeName<T>));
  static void encode(Encoder& out, const ActorHandle<T>& value) {
    Codec<ActorId>::encode(out, value.host_id());
    out.put(value.light_number());
  }
  static bool decode(Decoder& in, ActorHandle<T>& value) {
    ActorId id;
    std::uint32_t number = kNoLightNumber;
    if (!Codec<ActorId>::decode(in, id) || !in.get(number)) return false;
    const auto& client = in.context().client;
    if (id.empty()) {
      value = {};
    } else if (!client) {
      return in.fail("an actor handle where no handles can be used");
    } else {
      const bool light = number != kNoLightNumber;
      value = detail::Access::make<ActorHandle<T>>(
          client,
          detail::channel_to(*client, id,
                             light ? detail::kLightInterface<T> : detail::kActorInterface<T>),
          number);
    }
    return true;
  }
};

namespace detail {

template <typename T>
ActorHandle<T> handle_to(const std::shared_ptr<ActorClient>& client, ActorId id) {
  return Access::make<ActorHandle<T>>(client, channel_to(*client, id, kActorInterface<T>));
}

}  // namespace detail
}  // namespace troupe
