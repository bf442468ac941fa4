#pragma once
// What all parts of the head's state machine share: settings, the time of the event that is being
// applied, timers, order numbers, and where decisions go: commands, journal records, events.

#include <deque>

#include "scheduler/control/head_config.h"
#include "scheduler/control/records.h"

namespace troupe::scheduler {

enum class TimerKind : std::uint8_t {
  kNode,
  kClient,
  kActor,
  kStop,
  kGroup,
  kLine,
  kExpected,
  kPulse
};

// A timer is only a reason to look: the records hold the times that count.
struct Timer {
  TimePoint at;
  TimerKind kind{};
  std::uint64_t high = 0;  // the two halves of an id
  std::uint64_t low = 0;
  bool second = false;  // a second look (Context::looked_twice)
  friend auto operator<=>(const Timer&, const Timer&) = default;

  template <typename IdType>
  IdType id() const {
    return IdType{high, low};
  }
};

class Context {
 public:
  explicit Context(const HeadConfig& config) : config_(config) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  const HeadConfig& config() const { return config_; }
  TimePoint now() const { return now_.steady; }
  std::int64_t unix_us() const { return now_.unix_us; }
  // The next event is applied. Returns when the one before was.
  TimePoint begin(Moment now) { return std::exchange(now_, now).steady; }
  // All that was decided since.
  Outcome finish() { return {std::exchange(commands_, {}), std::exchange(deltas_, {})}; }

  void send(PeerId peer, wire::ControlMessage message) {
    commands_.push_back(SendMessage{peer, std::move(message)});
  }
  // Without waiting for the journal: no decision stands behind it.
  void send_at_once(PeerId peer, wire::ControlMessage message) {
    commands_.push_back(SendMessage{peer, std::move(message), true});
  }
  void reply(PeerId peer, std::uint64_t request_id, Status status = {}) {
    send(peer, wire::Reply{request_id, std::move(status)});
  }
  // Ahead of the commands that came since command_count() was `position`.
  void reply_at(std::size_t position, PeerId peer, std::uint64_t request_id, Status status);
  std::size_t command_count() const { return commands_.size(); }
  void close(PeerId peer) { commands_.push_back(ClosePeer{peer}); }
  void command(Command command) { commands_.push_back(std::move(command)); }
  void record(Delta delta) { deltas_.push_back(std::move(delta)); }
  // An event that people see; event_kinds.h has the kinds.
  void log(std::string kind, std::string text, const EventSubject& subject = {});
  template <typename... Args>
  void log(std::string kind, const EventSubject& subject, fmt::format_string<Args...> text,
           Args&&... args) {
    log(std::move(kind), fmt::format(text, std::forward<Args>(args)...), subject);
  }

  const std::deque<wire::EventRecord>& events() const { return events_; }
  Status replay(const EventLogged& delta);

  void arm(const Timer& timer) { timers_.insert(timer); }
  template <typename IdType>
  void arm(TimePoint at, TimerKind kind, const IdType& id) {
    timers_.insert({at, kind, id.high, id.low});
  }
  std::optional<TimePoint> next_deadline() const;
  std::optional<Timer> take_due_timer();
  // Whoever is judged for a silence is looked at twice: at the first look the silence may be this
  // process's own, and what others said meanwhile is read between the two.
  bool stood_still(TimePoint due) const;
  TimePoint second_look(TimePoint due) const;
  // False at the first look, and the timer comes once more.
  bool looked_twice(Timer timer);
  // How long this process stood still until now, where that was long. `before`: the last event.
  std::optional<Duration> long_pause(TimePoint before) const;
  // Until then somebody has time to come back, of which a pause is to be no part. A pause is seen
  // by timers that come late, so that there are some until then.
  void watch_for_pauses(TimePoint until);
  void pulse();  // such a timer

  // Order numbers rise with each thing that is asked for.
  std::uint64_t next_order() { return order_++; }
  std::uint64_t order() const { return order_; }  // that next_order() would give
  void used_order(std::uint64_t order) { order_ = std::max(order_, order + 1); }

  // The cluster was told to end.
  void stop(std::string reason) { stop_reason_ = std::move(reason); }
  bool stopping() const { return stop_reason_.has_value(); }
  const std::string& stop_reason() const { return *stop_reason_; }

 private:
  void remember(wire::EventRecord event);

  const HeadConfig config_;
  Moment now_;
  std::vector<Command> commands_;
  std::vector<Delta> deltas_;
  std::deque<wire::EventRecord> events_;
  std::uint64_t event_bytes_ = 0;
  std::uint64_t next_event_ = 1;
  std::set<Timer> timers_;
  TimePoint pauses_until_{};
  bool pulses_ = false;
  std::uint64_t order_ = 1;
  std::optional<std::string> stop_reason_;
};

}  // namespace troupe::scheduler
