#pragma once
// A call of a handle, whatever it returns: its arguments on their way, its number, its deadline and
// its cancellation. What is behind it (connections, rings, the head) is no part of the headers that
// users include.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

#include "troupe/clock.h"
#include "troupe/codec.h"
#include "troupe/detail/call_sink.h"
#include "troupe/detail/future_core.h"
#include "troupe/detail/interface.h"
#include "troupe/ids.h"
#include "troupe/options.h"
#include "troupe/status.h"

namespace troupe {

// The number of a light actor in its host; an actor with a process of its own has none.
inline constexpr std::uint32_t kNoLightNumber = ~std::uint32_t{0};

namespace detail {

class ActorClient;   // how this process reaches head and actors
class ActorChannel;  // the calls from this process to one actor
class AwaitedCall;

ActorId actor_id_of(const ActorChannel& channel);
// The channel to an actor; one per actor and interface while the actor may live.
std::shared_ptr<ActorChannel> channel_to(ActorClient& client, ActorId actor_id,
                                         const ActorInterface& interface);
// Of a handle of no actor of the class `type`: "`what` an empty ActorHandle<type>".
Status empty_handle_error(const char* what, std::string_view type);
// Whether the options, and the actor, can have streams.
Status check_stream(const CallOptions& options, bool light, std::string_view type);
// How futures of calls over the channel behave in this process.
FutureOptions future_options(const ActorClient& client, const ActorChannel& channel);

// Arguments that are encoded for one call. Large ones go straight into the memory that the caller
// shares with an actor on the same node.
class OutgoingArguments final : private LargeMemory {
 public:
  // `channel` outlives it. `light_number`: of the light actor that is called, or kNoLightNumber.
  // `lends`: in shared memory until the call is answered.
  OutgoingArguments(ActorChannel& channel, std::uint32_t light_number, bool lends);
  ~OutgoingArguments();
  Encoder& encoder() { return encoder_; }

 private:
  friend class CallLine;
  struct Slabs;
  std::span<std::byte> take(std::size_t bytes) override;

  ActorChannel& channel_;
  std::unique_ptr<Slabs> slabs_;
  Encoder encoder_;
};

// Thread-safe once it is sent.
class CallLine {
 public:
  CallLine(std::weak_ptr<ActorClient> client, std::shared_ptr<ActorChannel> channel,
           std::uint32_t light_number = kNoLightNumber);
  ~CallLine();
  CallLine(const CallLine&) = delete;
  CallLine& operator=(const CallLine&) = delete;

  // `sink` is answered, and owns `whole`, which ends with the call inside which this one is made
  // (CallOptions::inherit). `stream_items`: how many may come in all; 0: it is no stream.
  // `future`: told when the call ends at the latest; may be null.
  void send(std::uint32_t method, OutgoingArguments& arguments, const CallOptions& options,
            std::shared_ptr<CallSink> sink, Cancellable& whole, FutureCore* future,
            std::uint64_t stream_items = 0);

  // When the call ends at the latest; nothing before it is sent.
  const std::optional<Deadline>& ends_by() const { return ends_by_; }
  // The number of the call, where it was sent otherwise.
  void sent(std::uint64_t sequence) { sequence_.store(sequence, std::memory_order_release); }

  // Forgets the call and asks the actor not to begin it, or to stop it. The sink is abandoned.
  void cancel();
  // A stream may send so many items in all.
  void allow_items(std::uint64_t items);
  // What waits for the call says at its deadline, with where the call is; nothing where that is not
  // known.
  std::optional<Status> late(const char* what) const;
  // `why` with the actor, the method and where the call is; and with the actor alone.
  Status placed(Status why) const;
  Status of_this_actor(Status status) const;
  // Whether this process is a fork of the one that made the call.
  bool forked() const;
  // Before a thread sleeps for `future`: reads answers until it is ready, where it can.
  void help(FutureCore& future, Deadline deadline);
  // A method of an actor waits for `future`, and has for a while, until the result goes.
  std::shared_ptr<void> begin_long_wait(FutureCore& future, const RunningCall& call);
  // The context for decoding its result, or an item: handles in it call through this client.
  DecodeContext decode_context() const {
    return {.client = client_.lock(), .takes_references = true};
  }
  // Nobody needs the arguments any more.
  void answered() { kept_.clear(); }
  // What came with the result, or with that item of a stream: the actor may let go of it when its
  // homes know of this process.
  void take_references(std::shared_ptr<ObjectIntake> references, std::uint64_t item = 0) const;

 private:
  struct Awaited;
  // Cancels the call with the one inside which it was made.
  struct CancelWithOuter {
    std::weak_ptr<Cancellable> call;
    Deadline outer;
    void operator()() const;
  };

  const std::weak_ptr<ActorClient> client_;
  const std::shared_ptr<ActorChannel> channel_;
  const std::uint32_t light_number_;
  std::atomic<std::uint64_t> sequence_{0};
  std::optional<Deadline> ends_by_;  // written before others have the call
  std::optional<std::stop_callback<CancelWithOuter>> with_outer_;
  std::vector<std::shared_ptr<const void>> kept_;  // objects among the arguments
};

}  // namespace detail
}  // namespace troupe
