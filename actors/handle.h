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
// How much may be under way between a process and an actor (runtime/base/limits.h):
// - The arguments of a call, and its result, are of any size up to half of the memory that the
//   process which receives them may use; what is larger ends its call with kResourceExhausted.
// - Arguments that the actor's process has not read wait here: beyond 64 MiB on its connection
//   further calls wait behind them, until their deadline, and go when there is room again.
// - Results that this process has not read wait there: while they are more than 64 MiB the actor
//   begins no further call of this process; those of others go on. Any number of calls with large
//   results may so be outstanding, as far as their deadlines reach.
// - Results are this process's memory from when they have arrived until they are taken.

#include <memory>
#include <string>
#include <utility>

#include "actors/access.h"
#include "actors/actor_class.h"
#include "actors/call_state.h"
#include "actors/client.h"
#include "actors/future.h"
#include "actors/light_actor.h"
#include "actors/method_table.h"
#include "actors/options.h"
#include "actors/serialize.h"
#include "actors/stream_reader.h"

namespace troupe {

template <typename T>
class ActorHandle {
 public:
  // No actor, as a handle that was moved from: every call ends with kFailedPrecondition.
  ActorHandle() = default;

  // The same actor, called with these options.
  ActorHandle with(CallOptions options) const {
    ActorHandle copy = *this;
    copy.options_ = options;
    return copy;
  }

  // Calls a method of T's list; returns at once: a Future of its result, or a StreamReader
  // (stream_reader.h) where it returns a Stream. The arguments are converted to the method's
  // parameter types and copied before it returns.
  template <auto Method, typename... A>
  auto call(A&&... arguments) const {
    using Traits = detail::MethodTraits<Method>;
    using Value = typename Traits::Value;
    using List = std::remove_cvref_t<decltype(T::methods)>;
    constexpr std::size_t kIndex = detail::method_index<Method>(List{});
    static_assert(kIndex < List::kCount,
                  "this method is not in the actor class's `methods`: add it there");
    using Check = detail::CallArguments<Method, typename Traits::Parameters, A&&...>;
    if constexpr (Check::kGood) {
      typename Traits::Stored stored(std::forward<A>(arguments)...);
      if constexpr (Traits::kKind == detail::MethodKind::kStream) {
        return send_stream<Value>(static_cast<std::uint32_t>(kIndex), stored);
      } else {
        return send<Value>(static_cast<std::uint32_t>(kIndex), stored);
      }
    } else {
      return Future<Value>(make_ready_future<Value>(Status(Code::kInternal, "does not compile")));
    }
  }

  bool empty() const { return channel_ == nullptr; }
  ActorId id() const {
    return light() ? detail::light_actor_id(host_id(), light_number_) : host_id();
  }
  // Whether it is a light actor (light_actors.h), and the actor that the head knows: its host. Of
  // other actors: the actor itself.
  bool light() const { return light_number_ != kNoLightNumber; }
  ActorId host_id() const { return channel_ ? channel_->actor_id() : ActorId{}; }
  std::uint32_t light_number() const { return light_number_; }
  friend bool operator==(const ActorHandle& a, const ActorHandle& b) { return a.id() == b.id(); }

 private:
  friend struct detail::Access;
  ActorHandle(std::shared_ptr<detail::ActorClient> client,
              std::shared_ptr<detail::ActorChannel> channel,
              std::uint32_t light_number = kNoLightNumber)
      : client_(std::move(client)), channel_(std::move(channel)), light_number_(light_number) {}
  const std::shared_ptr<detail::ActorClient>& client() const { return client_; }

  template <typename Value, typename Stored>
  Future<Value> send(std::uint32_t method, const Stored& arguments) const {
    if (!channel_) return make_ready_future<Value>(empty_error());
    detail::SlabMemory slabs(*channel_);
    Encoder encoder(&slabs);
    if (light()) encoder.put(light_number_);
    detail::encode_arguments(encoder, arguments);
    auto state = std::make_shared<detail::CallState<Value>>(
        client_->future_options(channel_->actor_id()), client_, channel_, light_number_);
    Future<Value> future(state);
    detail::CallState<Value>& call = *state;
    // Only a call that is made inside another one.
    const auto nested = detail::RunningCall::current() != nullptr ? state : nullptr;
    const detail::CallDeadline deadline(options_);
    call.sent(channel_->call({.method = method,
                              .arguments = encoder.take(),
                              .deadline = deadline.deadline,
                              .retry = options_.retry,
                              .despite_state_loss = options_.despite_state_loss,
                              .sink = detail::CallSinkRef(std::move(state)),
                              .lent = slabs.release(encoder),
                              .deadline_of = deadline.of,
                              .made = deadline.made}));
    if (nested) call.with_outer().attach(nested, options_);
    return future;
  }

  template <typename Item, typename Stored>
  StreamReader<Item> send_stream(std::uint32_t method, const Stored& arguments) const {
    if (!channel_) return StreamReader<Item>(empty_error());
    if (options_.retry || options_.stream_window == 0) {
      return StreamReader<Item>(
          Status(Code::kInvalidArgument,
                 "a stream is not sent again, and has a window: CallOptions::retry is for calls "
                 "with one result, and stream_window is at least 1"));
    }
    if (light()) {
      return StreamReader<Item>(error(Code::kUnsupported,
                                      "light actors of {} have no streams: they share one thread",
                                      detail::kActorInterface<T>.type));
    }
    Encoder encoder;
    detail::encode_arguments(encoder, arguments);
    auto state = std::make_shared<detail::StreamState<Item>>(
        client_->future_options(channel_->actor_id()), client_, channel_, options_.stream_window);
    const detail::CallDeadline deadline(options_);
    state->sent(channel_->call({.method = method,
                                .arguments = encoder.take(),
                                .deadline = deadline.deadline,
                                .retry = false,
                                .despite_state_loss = options_.despite_state_loss,
                                .sink = detail::CallSinkRef(state),
                                .deadline_of = deadline.of,
                                .stream_items = options_.stream_window,
                                .made = deadline.made}));
    state->with_outer().attach(state, options_);
    return StreamReader<Item>(std::move(state));
  }

  static Status empty_error() {
    return error(Code::kFailedPrecondition, "a call through an empty ActorHandle<{}>",
                 detail::kActorInterface<T>.type);
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
          client->channel(id, light ? detail::kLightInterface<T> : detail::kActorInterface<T>),
          number);
    }
    return true;
  }
};

namespace detail {

template <typename T>
ActorHandle<T> handle_to(const std::shared_ptr<ActorClient>& client, ActorId id) {
  return Access::make<ActorHandle<T>>(client, client->channel(id, kActorInterface<T>));
}

// The constructor's arguments as they travel: the signature's hash, then the arguments.
template <typename T, typename... A>
wire::Bytes encode_constructor(A&&... arguments) {
  using Traits = ConstructorTraits<T>;
  static_assert(Traits::kGoodArguments && Traits::check());
  static_assert(std::is_constructible_v<typename Traits::Stored, A&&...> &&
                    sizeof...(A) == std::tuple_size_v<typename Traits::Stored>,
                "the arguments do not fit the actor class's `static constexpr auto constructor = "
                "troupe::constructor<…>` (none listed: no arguments)");
  typename Traits::Stored stored(std::forward<A>(arguments)...);
  Encoder out;
  out.put(Traits::kHash);
  const wire::Bytes bytes = encode_arguments(stored);
  out.append(bytes.data(), bytes.size());
  return out.take();
}

}  // namespace detail
}  // namespace troupe
