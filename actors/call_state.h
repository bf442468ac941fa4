#pragma once
// What a handle makes of a call: memory for its arguments, and its future, which decodes the
// answer, asks the actor not to begin what was cancelled, and reads answers itself in the thread
// that waits in get().

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <utility>

#include "actors/actor_channel.h"
#include "actors/call_cycles.h"
#include "actors/future.h"
#include "actors/light_actor.h"
#include "actors/options.h"
#include "actors/running_call.h"
#include "actors/serialize.h"
#include "actors/session/call_sink.h"
#include "runtime/base/short_slices.h"

namespace troupe::detail {

// Slabs of the channel's ring for arguments that are large (codec.h).
class SlabMemory final : public LargeMemory {
 public:
  explicit SlabMemory(ActorChannel& channel) : channel_(channel) {}
  std::span<std::byte> take(std::size_t bytes) override {
    // A larger one while the old one lives: the encoder copies from one into the other.
    auto lease = channel_.take_slab(bytes);
    old_ = std::move(lease_);
    lease_ = lease ? std::move(*lease) : SlabLease();
    return lease_.space();
  }
  // The slab with what `encoder` wrote; none where that is on the heap.
  std::unique_ptr<LentArguments> release(const Encoder& encoder) {
    if (!encoder.in_large_memory()) return nullptr;
    lease_.set_used(encoder.size());
    return std::make_unique<SlabLease>(std::move(lease_));
  }

 private:
  ActorChannel& channel_;
  SlabLease lease_;
  SlabLease old_;
};

// When a call that is made now must have ended: by its own timeout, and by the deadline of the call
// inside which it is made. Where that is the earlier one, `of` names it.
struct CallDeadline {
  explicit CallDeadline(const CallOptions& options) : deadline(Deadline::after(options.timeout)) {
    made = deadline.time() - options.timeout;
    const RunningCall* outer = RunningCall::current();
    if (outer == nullptr || !options.inherit || outer->deadline().time() >= deadline.time()) {
      return;
    }
    of = outer->label();
    deadline = outer->deadline();
  }
  Deadline deadline;
  MethodLabel of = {};
  TimePoint made;
};

inline constexpr Duration kDeadlineNear = std::chrono::milliseconds(20);

// Cancels a call with the one inside which it was made. State: has cancel(why).
template <typename State>
class CancelledWithOuter {
 public:
  // When the call has been sent; `state` owns this.
  void attach(const std::shared_ptr<State>& state, const CallOptions& options) {
    RunningCall* const outer = RunningCall::current();
    if (outer != nullptr && options.inherit) {
      callback_.emplace(outer->stop_token(), Cancel{state, outer->deadline()});
    }
  }

 private:
  struct Cancel {
    std::weak_ptr<State> state;
    Deadline outer;
    void operator()() const {
      // At its deadline the outer call is given up by its caller; this one has none later, ends by
      // itself, and says so.
      if (outer.remaining() < kDeadlineNear) return;
      if (const auto alive = state.lock()) {
        alive->cancel("the call inside which it was made was cancelled");
      }
    }
  };
  std::optional<std::stop_callback<Cancel>> callback_;
};

template <typename Value>  // void where the method returns nothing
class CallState final : public FutureState<NonVoid<Value>>, public CallSink, public AwaitedCall {
  using Base = FutureState<NonVoid<Value>>;

 public:
  CallState(FutureOptions options, std::weak_ptr<ActorClient> client,
            std::shared_ptr<ActorChannel> channel, std::uint32_t light_number = kNoLightNumber)
      : Base(std::move(options)),
        client_(std::move(client)),
        channel_(std::move(channel)),
        light_number_(light_number) {}

  // What ActorChannel::call said of it.
  void sent(std::uint64_t sequence) { sequence_.store(sequence, std::memory_order_release); }
  CancelledWithOuter<Base>& with_outer() { return with_outer_; }

  void answer(const Status& status, std::span<const std::byte> result,
              Continuations* later) override {
    Base::set(decode(status, result), later);
  }
  void abandon() override {
    Base::set(error(Code::kInternal, "broken promise: nobody provided a result"));
  }
  Status late() const override {
    auto status = channel_->late(sequence_.load(std::memory_order_acquire),
                                 "no result before the deadline of get()");
    return status ? of_this_actor(std::move(*status)) : Base::late();
  }

 private:
  Status of_this_actor(Status status) const {
    if (light_number_ != kNoLightNumber) status.with("light", light_number_);
    return status;
  }
  Result<NonVoid<Value>> decode(const Status& status, std::span<const std::byte> result) const {
    if (!status.ok()) return of_this_actor(status);
    if constexpr (std::is_void_v<Value>) {
      return Unit{};
    } else {
      return decode_value<Value>(result, DecodeContext{client_.lock()});
    }
  }
  void help(Deadline deadline) override {
    take_short_slices();
    if (channel_->forked()) Base::set(ProcessStamp::forked_error());
    channel_->read_answers(deadline, [this] { return Base::ready(); });
  }
  Status explained(Status why) const override {
    return of_this_actor(
        channel_->placed(sequence_.load(std::memory_order_acquire), std::move(why)));
  }
  void cancelled() override {
    if (const auto sequence = sequence_.load(std::memory_order_acquire)) {
      channel_->cancel(sequence);
    }
  }
  void begin_long_wait(const RunningCall& call) override { call.host().begin_wait(call, *this); }
  void end_long_wait(const RunningCall& call) override { call.host().end_wait(call); }
  void send_probe(wire::CallProbe probe) override {
    probe.sequence = sequence_.load(std::memory_order_acquire);
    channel_->send_probe(std::move(probe));
  }
  void give_up(Status why) override {
    if (Base::set(std::move(why))) cancelled();
  }

  const std::weak_ptr<ActorClient> client_;
  const std::shared_ptr<ActorChannel> channel_;
  const std::uint32_t light_number_;
  std::atomic<std::uint64_t> sequence_{0};
  CancelledWithOuter<Base> with_outer_;
};

}  // namespace troupe::detail
