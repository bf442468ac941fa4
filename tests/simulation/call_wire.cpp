#include "call_wire.h"

#include <utility>

#include "runtime/wire/call_messages.h"

namespace troupe::simulation {
namespace {

using namespace troupe::detail;

// Messages that may be under way in one direction before its sender has to wait.
constexpr std::size_t kRoom = 12;

}  // namespace

class CallWire::CallerEnd final : public CallLink {
 public:
  CallerEnd(World& world, std::shared_ptr<CallWire> wire) : world_(world), wire_(std::move(wire)) {}
  SendOutcome send_call(std::uint64_t sequence, CallRequest& request, std::size_t) override {
    if (wire_->over_) return {Sent::kEnded};
    if (wire_->full(kToCallee)) return {Sent::kFull};
    wire::Call call;
    call.sequence = sequence;
    call.method = request.method;
    const Duration left = request.deadline.remaining(world_.timeline.now());
    call.timeout_us = std::chrono::duration_cast<std::chrono::microseconds>(left).count();
    const auto bytes = request.argument_bytes();
    call.arguments.assign(bytes.begin(), bytes.end());
    wire_->ways_[kToCaller].to.on_sent(bytes);
    const Status sent = wire_->send(kToCallee, wire::encode_attached(std::move(call)));
    return {sent.ok() ? Sent::kSent : Sent::kEnded};
  }
  Status send(const wire::CallMessage& message) override {
    return wire_->send(kToCallee, {wire::encode(message), nullptr});
  }
  void end(const Status&) override { wire_->cut(); }
  void close() override { wire_->close(false); }

 private:
  World& world_;
  const std::shared_ptr<CallWire> wire_;
};

class CallWire::CalleeEnd final : public CalleeLink {
 public:
  explicit CalleeEnd(std::shared_ptr<CallWire> wire) : wire_(std::move(wire)) {}
  Status send(wire::EncodedCall message, bool) override {
    return wire_->send(kToCaller, std::move(message));
  }
  bool unread() const override { return wire_->full(kToCaller); }
  void end() override { wire_->cut(); }

 private:
  const std::shared_ptr<CallWire> wire_;
};

std::shared_ptr<CallLink> CallWire::begin(Holder caller) {
  ways_[kToCaller].to = std::move(caller);
  return std::make_shared<CallerEnd>(world_, shared_from_this());
}

std::shared_ptr<CalleeLink> CallWire::accept(Holder callee) {
  Way& way = ways_[kToCallee];
  way.to = std::move(callee);
  for (auto& what : std::exchange(way.early, {})) way.to.run(std::move(what));
  return std::make_shared<CalleeEnd>(shared_from_this());
}

bool CallWire::full(Direction direction) {
  Way& way = ways_[direction];
  if (way.under_way < kRoom) return false;
  way.waits_for_room = true;
  return true;
}

Status CallWire::send(Direction direction, wire::EncodedCall message) {
  if (over_) return Status(Code::kUnavailable, "the connection is over");
  Way& way = ways_[direction];
  ++way.under_way;
  const TimePoint now = world_.timeline.now();
  const auto delay = std::chrono::duration_cast<Duration>(world_.delay() * slowness_);
  way.last = std::max(way.last, now + delay);
  world_.timeline.after(way.last - now,
                        [self = shared_from_this(), direction, message = std::move(message)] {
                          self->arrive(direction, message);
                        });
  return {};
}

void CallWire::arrive(Direction direction, const wire::EncodedCall& message) {
  Way& way = ways_[direction];
  if (!way.open || world_.timeline.now() >= way.lost_from) return;
  auto decoded =
      wire::decode_call(message.frame, message.attachment ? *message.attachment : wire::Bytes());
  require(decoded.ok(), "a message of calls cannot be read: {}", decoded.status().to_string());
  give(direction, [self = shared_from_this(), direction, what = std::move(*decoded)] {
    Way& here = self->ways_[direction];
    if (!here.open) return;
    --here.under_way;
    here.to.on_message(what);
    if (!here.waits_for_room || here.under_way > kRoom / 2) return;
    here.waits_for_room = false;
    const Direction back = direction == kToCallee ? kToCaller : kToCallee;
    const Holder& sender = self->ways_[back].to;
    if (sender.run)
      sender.run([self, back] {
        if (!self->over_ && self->ways_[back].open) self->ways_[back].to.on_room();
      });
  });
}

// As a socket keeps it for whoever takes it: the actor's end. The caller has its own from the
// beginning, or not at all.
void CallWire::give(Direction direction, std::function<void()> what) {
  Way& way = ways_[direction];
  if (way.to.run) {
    way.to.run(std::move(what));
  } else if (direction == kToCallee && way.open) {
    way.early.push_back(std::move(what));
  }
}

// After what is under way, or in place of it.
void CallWire::tell_end(Direction direction, bool may_lose) {
  Way& way = ways_[direction];
  if (!way.open || std::exchange(way.told_end, true)) return;
  const TimePoint now = world_.timeline.now();
  if (may_lose && way.last > now && world_.chance(2)) {
    // The tail of what is under way: all of it, some, or nearly nothing.
    const auto left = static_cast<std::uint64_t>((way.last - now).count());
    way.last = way.lost_from = now + Duration(world_.random.below(left));
  }
  way.last = std::max(way.last, now + world_.delay());
  world_.timeline.after(way.last - now, [self = shared_from_this(), direction] {
    self->give(direction, [self, direction] {
      Way& here = self->ways_[direction];
      if (std::exchange(here.open, false)) here.to.on_ended();
    });
  });
}

void CallWire::close(bool callees_end) {
  over_ = true;
  tell_end(callees_end ? kToCaller : kToCallee, true);
}

void CallWire::die(bool callees_end, bool told) {
  Way& way = ways_[callees_end ? kToCallee : kToCaller];
  way.open = false;
  way.early.clear();  // nobody takes it, and it owns this wire
  if (told) return close(callees_end);
  world_.timeline.after(world_.between(15'000, 30'000),
                        [self = shared_from_this(), callees_end] { self->close(callees_end); });
}

void CallWire::cut() {
  over_ = true;
  tell_end(kToCallee, true);
  tell_end(kToCaller, true);
}

}  // namespace troupe::simulation
