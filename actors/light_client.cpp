#include "actors/light_client.h"
#include "actors/actor_spec.h"

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

#include "runtime/base/limits.h"
#include "troupe/detail/call_state.h"
#include "troupe/detail/light_actor.h"

namespace troupe::detail {
namespace {

// The making of a light actor waits as long for its host as anybody may wait for the light actor.
constexpr Duration kMakeTimeout = std::chrono::hours(24);
// Before a host whose mailbox is full is asked again.
constexpr Duration kAgainAfter = std::chrono::milliseconds(20);
// A watch is renewed so often: what a host keeps of callers that are gone is bounded by it.
constexpr Duration kWatchTimeout = std::chrono::minutes(10);

// A call of one of a host's own methods. It is sent again when its connection or process is lost:
// all of them may run twice.
template <typename Value, typename... A>
Future<Value> call_host(const std::shared_ptr<ActorClient>& client,
                        const std::shared_ptr<ActorChannel>& host, LightMethod method,
                        Deadline deadline, FutureOptions options, const A&... arguments) {
  auto state = std::make_shared<CallState<Value>>(std::move(options), client, host);
  Future<Value> future(state);
  CallState<Value>& call = *state;
  call.line().sent(host->call({.method = light_method(host->interface(), method),
                               .arguments = encode_arguments(std::tuple<A...>(arguments...)),
                               .deadline = deadline,
                               .retry = true,
                               .despite_state_loss = true,
                               .sink = CallSinkRef(std::move(state))}));
  return future;
}

}  // namespace

// --- creating

Result<std::shared_ptr<ActorChannel>> ActorClient::create_light_host(const ActorOptions& options,
                                                                     const ActorInterface& hosts,
                                                                     PackedArguments start,
                                                                     std::uint32_t count) {
  auto spec = TROUPE_TRY(spec_for(options, hosts, std::move(start.bytes)));
  spec.actor_id.low &= ~kLightIdBits;
  sender_->keep(spec.actor_id, std::move(start.kept));
  spec.light_count = count;
  auto channel = this->channel(spec.actor_id, hosts);
  place(std::make_shared<const wire::ActorSpec>(std::move(spec)), channel);
  return channel;
}

Result<LightPlace> ActorClient::create_light(const ActorOptions& options,
                                             const ActorInterface& hosts,
                                             PackedArguments constructor_arguments) {
  if (!options.name.empty()) {
    return error(Code::kInvalidArgument,
                 "a light actor called '{}': one alone has no name. Name the host of several "
                 "(spawn_many), or give it a process of its own (Isolation::kProcess)",
                 options.name);
  }
  if (constructor_arguments.bytes.size() > limits::kActorSpecBytesMax) {
    return error(Code::kInvalidArgument,
                 "the constructor arguments of a light {} are {} bytes; at most {} are taken. Put "
                 "large data into the actor's first call",
                 hosts.type.substr(0, hosts.type.size() - kLightSuffix.size()),
                 constructor_arguments.bytes.size(), limits::kActorSpecBytesMax);
  }
  wire::ActorSpec like = TROUPE_TRY(spec_for(options, hosts, {}));
  like.actor_id = {};
  like.light_count = options.light_per_host;
  LightPlace place;
  {
    MutexLock lock(light_mutex_);
    std::erase_if(light_rooms_, [](const LightRoom& room) {
      return room.taken == room.like.light_count || room.host->ended();
    });
    auto room = std::find_if(light_rooms_.begin(), light_rooms_.end(),
                             [&](const LightRoom& r) { return r.like == like; });
    if (room == light_rooms_.end()) {
      PackedArguments start{constructor_arguments.bytes, {}};
      start.bytes.resize(sizeof(std::uint64_t));  // the hash
      start.bytes.push_back(static_cast<std::byte>(LightStart::kLater));
      start.bytes.resize(start.bytes.size() + sizeof(std::uint64_t));
      auto host =
          TROUPE_TRY(create_light_host(options, hosts, std::move(start), options.light_per_host));
      light_rooms_.push_back({std::move(like), std::move(host), 0});
      room = std::prev(light_rooms_.end());
    }
    place = {room->host, room->taken++};
  }
  make_light(place.host, place.number,
             std::make_shared<const PackedArguments>(std::move(constructor_arguments)));
  return place;
}

// The call goes before every call of this process to the light actor; what comes earlier from
// others waits at the host. Where the host's mailbox is full, or the head is away, it is tried
// again. What the arguments refer to is kept until the light actor is made.
void ActorClient::make_light(const std::shared_ptr<ActorChannel>& host, std::uint32_t number,
                             std::shared_ptr<const PackedArguments> constructor_arguments) {
  (void)call_host<void>(shared_from_this(), host, LightMethod::kCreate,
                        Deadline::after(kMakeTimeout), FutureOptions{}, number,
                        constructor_arguments->bytes)
      .then([weak = weak_from_this(), host, number, constructor_arguments](const Status& status) {
        const bool again = status.code() == Code::kOverloaded || head_is_away(status);
        const auto client = again ? weak.lock() : nullptr;
        if (!client) return;
        client->loop().call_after(kAgainAfter, [weak, host, number, constructor_arguments] {
          if (auto self = weak.lock()) self->make_light(host, number, constructor_arguments);
        });
      });
}

Result<LightHost> ActorClient::find_light_host(const std::string& name,
                                               const std::string& namespace_name,
                                               const ActorInterface& hosts, Deadline deadline) {
  const auto info = TROUPE_TRY(find_living(name, namespace_name, hosts, deadline));
  return LightHost{channel(info.actor_id, hosts), info.light_count};
}

// --- ending

Status end_light(const std::shared_ptr<ActorClient>& client,
                 const std::shared_ptr<ActorChannel>& host, std::uint32_t number,
                 const std::string& reason, Deadline deadline) {
  const FutureOptions options = client->future_options(host->actor_id());
  const bool neighbour = options.fulfilled_by && options.fulfilled_by->in_thread();
  auto ended =
      call_host<void>(client, host, LightMethod::kEnd, deadline, FutureOptions{}, number, reason);
  if (neighbour) return {};
  Status status = ended.get(deadline);
  // The host leaves after its last one.
  return status.code() == Code::kActorDied ? Status() : status;
}

// --- watching

std::shared_ptr<LightWatch> LightWatch::start(const std::shared_ptr<ActorClient>& client,
                                              std::shared_ptr<ActorChannel> host,
                                              std::uint32_t number, OnChange on_change) {
  std::shared_ptr<LightWatch> self(
      new LightWatch(client, std::move(host), number, std::move(on_change)));
  const auto watch = client->watch(self->host_->actor_id(),
                                   [weak = std::weak_ptr(self)](const wire::ActorInfo& info) {
                                     if (auto alive = weak.lock()) alive->on_host(info);
                                   });
  {
    MutexLock lock(self->mutex_);
    self->watch_ = watch;
  }
  self->ask(client);
  return self;
}

void LightWatch::ask(const std::shared_ptr<ActorClient>& client) {
  auto asked = call_host<std::string>(client, host_, LightMethod::kWatch,
                                      Deadline::after(kWatchTimeout), FutureOptions{}, number_)
                   .then([weak = weak_from_this()](Result<std::string> why) {
                     if (auto self = weak.lock()) self->on_end(std::move(why));
                   });
  MutexLock lock(mutex_);
  if (!ended_) asked_.emplace(std::move(asked));
}

void LightWatch::ask_again(const std::shared_ptr<LightWatch>& self) {
  if (!self) return;
  {
    MutexLock lock(self->mutex_);
    if (self->ended_) return;
  }
  if (const auto client = self->client_.lock()) self->ask(client);
}

void LightWatch::on_host(const wire::ActorInfo& info) {
  wire::ActorInfo own = info;
  own.actor_id = light_actor_id(info.actor_id, number_);
  own.light_count = 0;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = info.state == wire::ActorState::kDead;
    last_ = own;
  }
  on_change_(own);
}

void LightWatch::on_end(Result<std::string> why) {
  if (!why.ok()) {
    const Code code = why.status().code();
    // Of its host's end the head tells.
    if (code != Code::kDeadlineExceeded && code != Code::kOverloaded &&
        !head_is_away(why.status())) {
      return;
    }
    const auto client = client_.lock();
    if (!client) return;
    client->loop().call_after(kAgainAfter, [weak = weak_from_this()] { ask_again(weak.lock()); });
    return;
  }
  wire::ActorInfo last;
  {
    MutexLock lock(mutex_);
    if (std::exchange(ended_, true)) return;
    last = last_;
  }
  last.actor_id = light_actor_id(host_->actor_id(), number_);
  last.state = wire::ActorState::kDead;
  last.death = Status(Code::kActorDied, *why);
  on_change_(last);
}

void LightWatch::stop() {
  Directory::WatchId watch = 0;
  std::optional<Future<void>> asked;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    watch = std::exchange(watch_, 0);
    asked.swap(asked_);
  }
  if (asked) asked->cancel();
  if (const auto client = client_.lock(); client && watch != 0) client->unwatch(watch);
}

}  // namespace troupe::detail
