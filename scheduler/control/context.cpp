#include "scheduler/control/context.h"

#include <algorithm>

#include "scheduler/control/journal_bytes.h"

namespace troupe::scheduler {
namespace {

// A timer that comes so late says that this process, or its machine, stood still: then what others
// said meanwhile needs longer to be read.
constexpr Duration kPause = std::chrono::milliseconds(200);
constexpr Duration kAfterPause = std::chrono::milliseconds(200);
constexpr Duration kBetweenLooks = std::chrono::milliseconds(20);
// No timer of a head that is merely busy comes so late.
constexpr Duration kLongPause = std::chrono::seconds(1);
// So much of a pause may go unseen.
constexpr Duration kPulse = std::chrono::milliseconds(250);

}  // namespace

void Context::reply_at(std::size_t position, PeerId peer, std::uint64_t request_id, Status status) {
  commands_.insert(commands_.begin() + static_cast<std::ptrdiff_t>(position),
                   SendMessage{peer, wire::Reply{request_id, std::move(status)}});
}

void Context::log(std::string kind, std::string text, const EventSubject& subject) {
  wire::EventRecord event;
  event.sequence = next_event_++;
  event.unix_time_us = now_.unix_us;
  event.kind = std::move(kind);
  event.node_id = subject.node_id;
  event.actor_id = subject.actor_id;
  event.generation = subject.generation;
  event.text = clipped(std::move(text), kEventTextBytes);
  remember(event);
  deltas_.push_back(EventLogged{std::move(event)});
}

Status Context::replay(const EventLogged& delta) {
  next_event_ = std::max(next_event_, delta.event.sequence + 1);
  remember(delta.event);
  return {};
}

void Context::remember(wire::EventRecord event) {
  event_bytes_ += journal_bytes(event);
  events_.push_back(std::move(event));
  while (events_.size() > config_.events_max || event_bytes_ > config_.event_bytes_max) {
    event_bytes_ -= journal_bytes(events_.front());
    events_.pop_front();
  }
}

std::optional<TimePoint> Context::next_deadline() const {
  if (timers_.empty()) return std::nullopt;
  return timers_.begin()->at;
}

std::optional<Timer> Context::take_due_timer() {
  if (timers_.empty() || timers_.begin()->at > now()) return std::nullopt;
  return timers_.extract(timers_.begin()).value();
}

bool Context::stood_still(TimePoint due) const { return now() - due >= kPause; }

TimePoint Context::second_look(TimePoint due) const {
  return now() + (stood_still(due) ? kAfterPause : kBetweenLooks);
}

bool Context::looked_twice(Timer timer) {
  if (timer.second) return true;
  timer.at = second_look(timer.at);
  timer.second = true;
  timers_.insert(timer);
  return false;
}

std::optional<Duration> Context::long_pause(TimePoint before) const {
  const auto due = next_deadline();
  if (!due || now() - std::max(*due, before) < kLongPause) return std::nullopt;
  return now() - before;  // it may have begun right behind the event before
}

void Context::watch_for_pauses(TimePoint until) {
  pauses_until_ = std::max(pauses_until_, until);
  if (!pulses_) pulse();
}

void Context::pulse() {
  pulses_ = now() < pauses_until_;
  if (pulses_) arm(Timer{.at = now() + kPulse, .kind = TimerKind::kPulse});
}

}  // namespace troupe::scheduler
