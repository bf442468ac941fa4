#include "troupe/detail/call_line.h"

#include <utility>

#include "actors/actor_channel.h"
#include "actors/call_cycles.h"
#include "actors/client.h"
#include "actors/objects/object_client.h"
#include "runtime/base/check.h"
#include "runtime/base/process_stamp.h"
#include "runtime/base/short_slices.h"
#include "runtime/base/status.h"
#include "troupe/detail/running_call.h"
#include "troupe/stream_reader.h"

namespace troupe::detail {
namespace {

// When a call that is made now must have ended: by its own timeout, and by the deadline of the call
// inside which it is made. Where that is the earlier one, `of` names it.
struct CallDeadline {
  CallDeadline(const CallOptions& options, const RunningCall* outer)
      : deadline(Deadline::after(options.timeout)) {
    made = deadline.time() - options.timeout;
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

constexpr Duration kDeadlineNear = std::chrono::milliseconds(20);

}  // namespace

ActorId actor_id_of(const ActorChannel& channel) { return channel.actor_id(); }

std::shared_ptr<ActorChannel> channel_to(ActorClient& client, ActorId actor_id,
                                         const ActorInterface& interface) {
  return client.channel(actor_id, interface);
}

FutureOptions future_options(const ActorClient& client, const ActorChannel& channel) {
  return client.future_options(channel.actor_id());
}

Status empty_handle_error(const char* what, std::string_view type) {
  return error(Code::kFailedPrecondition, "{} an empty ActorHandle<{}>", what, type);
}

Status check_stream(const CallOptions& options, bool light, std::string_view type) {
  if (options.retry || options.stream_window == 0) {
    return Status(Code::kInvalidArgument,
                  "a stream is not sent again, and has a window: CallOptions::retry is for calls "
                  "with one result, and stream_window is at least 1");
  }
  if (!light) return {};
  return error(Code::kUnsupported, "light actors of {} have no streams: they share one thread",
               type);
}

Status check_may_wait_for_item() {
  const RunningCall* const call = RunningCall::current();
  if (call == nullptr || !call->asynchronous()) return {};
  return error(Code::kFailedPrecondition,
               "next(timeout) in the asynchronous method {} would stop its actor: co_await next()",
               call->label().to_string());
}

Status wrong_item_error(std::uint64_t index, std::uint64_t expected, std::uint64_t allowed) {
  return error(Code::kProtocol, "item {} of a stream came in place of {}, of {} allowed", index,
               expected, allowed);
}

bool wait_for_item(Mutex& mutex, CondVar& changed, Deadline deadline,
                   const std::function<bool()>& there) TROUPE_NO_ANALYSIS {
  if (changed.wait_until(mutex, earlier(deadline, Deadline::after(kLongWait)), there)) return true;
  const auto lent = begin_wait_of_task();
  return changed.wait_until(mutex, deadline, there);
}

void check_one_reader(bool waiting) { TROUPE_CHECK(!waiting, "a stream has one reader"); }

// --- arguments -----------------------------------------------------------------------------------

// Slabs of the channel's ring.
struct OutgoingArguments::Slabs {
  SlabLease lease;
  SlabLease old;
};

OutgoingArguments::OutgoingArguments(ActorChannel& channel, std::uint32_t light_number, bool lends)
    : channel_(channel), encoder_(lends ? this : nullptr) {
  if (light_number != kNoLightNumber) encoder_.put(light_number);
}

OutgoingArguments::~OutgoingArguments() = default;

std::span<std::byte> OutgoingArguments::take(std::size_t bytes) {
  if (!slabs_) slabs_ = std::make_unique<Slabs>();
  // A larger one while the old one lives: the encoder copies from one into the other.
  auto lease = channel_.take_slab(bytes);
  slabs_->old = std::move(slabs_->lease);
  slabs_->lease = lease ? std::move(*lease) : SlabLease();
  return slabs_->lease.space();
}

// --- the call ------------------------------------------------------------------------------------

// A probe that looks for a cycle of waits goes along the call.
struct CallLine::Awaited final : AwaitedCall {
  Awaited(CallLine& call, FutureCore& of, const RunningCall& from)
      : line(call), future(of), waiting(from) {
    waiting.host().begin_wait(waiting, *this);
  }
  ~Awaited() { waiting.host().end_wait(waiting); }
  Awaited(const Awaited&) = delete;
  Awaited& operator=(const Awaited&) = delete;
  void send_probe(wire::CallProbe probe) override {
    probe.sequence = line.sequence_.load(std::memory_order_acquire);
    line.channel_->send_probe(std::move(probe));
  }
  void give_up(Status why) override {
    if (future.end_with(std::move(why))) line.cancel();
  }
  CallLine& line;
  FutureCore& future;
  const RunningCall& waiting;
};

CallLine::CallLine(std::weak_ptr<ActorClient> client, std::shared_ptr<ActorChannel> channel,
                   std::uint32_t light_number)
    : client_(std::move(client)), channel_(std::move(channel)), light_number_(light_number) {}

CallLine::~CallLine() = default;

void CallLine::send(std::uint32_t method, OutgoingArguments& arguments, const CallOptions& options,
                    std::shared_ptr<CallSink> sink, Cancellable& whole, FutureCore* future,
                    std::uint64_t stream_items) {
  RunningCall* const outer = RunningCall::current();
  std::shared_ptr<Cancellable> nested;
  if (outer != nullptr && options.inherit) nested = std::shared_ptr<Cancellable>(sink, &whole);
  const CallDeadline deadline(options, outer);
  ends_by_ = deadline.deadline;
  if (future != nullptr) future->set_ends_by(deadline.deadline);
  Encoder& encoder = arguments.encoder_;
  kept_ = std::move(encoder.kept());
  if (const auto client = kept_.empty() ? nullptr : client_.lock()) {
    const Status own = client->objects()->check_own(kept_);
    if (!own.ok()) return sink->answer(own, {}, nullptr);
  }
  std::unique_ptr<LentArguments> lent;
  if (encoder.in_large_memory()) {
    arguments.slabs_->lease.set_used(encoder.size());
    lent = std::make_unique<SlabLease>(std::move(arguments.slabs_->lease));
  }
  sent(channel_->call({.method = method,
                       .arguments = encoder.take(),
                       .deadline = deadline.deadline,
                       .retry = options.retry,
                       .despite_state_loss = options.despite_state_loss,
                       .sink = CallSinkRef(std::move(sink)),
                       .lent = std::move(lent),
                       .deadline_of = deadline.of,
                       .stream_items = stream_items,
                       .made = deadline.made}));
  if (nested) {
    with_outer_.emplace(outer->stop_token(), CancelWithOuter{nested, outer->deadline()});
  }
}

void CallLine::take_references(std::shared_ptr<ObjectIntake> references, std::uint64_t item) const {
  const auto client = client_.lock();
  if (!client) return;
  const std::uint64_t sequence = references->lent_with;
  client->objects()->hold_all_later(std::move(*references), [channel = channel_, sequence, item] {
    channel->references_taken(sequence, item);
  });
}

void CallLine::CancelWithOuter::operator()() const {
  // At its deadline the outer call is given up by its caller; this one has none later, ends by
  // itself, and says so.
  if (outer.remaining() < kDeadlineNear) return;
  if (const auto alive = call.lock()) {
    alive->cancel("the call inside which it was made was cancelled");
  }
}

void CallLine::cancel() {
  if (const auto sequence = sequence_.load(std::memory_order_acquire)) channel_->cancel(sequence);
}

void CallLine::allow_items(std::uint64_t items) {
  channel_->allow_items(sequence_.load(std::memory_order_acquire), items);
}

std::optional<Status> CallLine::late(const char* what) const {
  return channel_->late(sequence_.load(std::memory_order_acquire), what);
}

Status CallLine::placed(Status why) const {
  return of_this_actor(channel_->placed(sequence_.load(std::memory_order_acquire), std::move(why)));
}

Status CallLine::of_this_actor(Status status) const {
  if (light_number_ != kNoLightNumber) status.with("light", light_number_);
  return status;
}

bool CallLine::forked() const { return channel_->forked(); }

void CallLine::help(FutureCore& future, Deadline deadline) {
  take_short_slices();
  if (channel_->forked()) future.end_with(ProcessStamp::forked_error());
  channel_->read_answers(deadline, [&future] { return future.ready(); });
}

std::shared_ptr<void> CallLine::begin_long_wait(FutureCore& future, const RunningCall& call) {
  return std::make_shared<Awaited>(*this, future, call);
}

}  // namespace troupe::detail
