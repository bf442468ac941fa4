#pragma once
// A client's conversation with the head: introduction, requests, watches, and what becomes of them
// while the head is away.
//
// Pure: equal events at equal times give equal commands. There is no socket, thread, clock or lock
// here; whoever drives the session (head_client.cpp, the simulator) calls next() after each event
// until nothing is left to do, does what it says, and calls tick() at next_deadline(). Not
// thread-safe.
//
// What holds whatever happens, until close():
// - Every request has one answer: the head's, or why there is none. While the head is away, that is
//   kUnavailable when the request has waited for `reconnect_timeout`.
// - Requests reach the head in the order in which they were asked. What is unanswered is repeated
//   on the next connection with the same number, so each must be one that may be repeated.
// - A watch ends with the last update or with an error that is said to be the last. Until then it
//   is renewed on each connection, and never told of an earlier generation than before.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/base/timing.h"
#include "runtime/base/variant.h"
#include "runtime/wire/control_messages.h"
#include "scheduler/client/watch_table.h"

namespace troupe::scheduler {

struct HeadClientOptions {
  // How long the head may be away before requests end with kUnavailable.
  Duration reconnect_timeout = kTiming.reconnect_timeout;
  // How long one attempt to come back may take to connect, and then to be answered.
  Duration attempt_timeout = kTiming.client_attempt_timeout;
};

// Of a request; never used twice, never 0.
using HeadRequestId = std::uint64_t;

namespace head_command {

// Answered by connected(), or by disconnected() after `timeout` at the latest.
struct Connect {
  Duration timeout{};
};
// Closes the connection, or gives up making it; neither disconnected() nor received() follow.
struct Disconnect {};
// Its result is given to sent() before anything else is told to the session.
struct Send {
  wire::Bytes frame;
};
// An attempt to connect has ended: the head has taken the client in, or why not.
struct Attempted {
  Status status;
};
struct Answer {
  HeadRequestId request = 0;
  Result<wire::ControlMessage> answer;
};
// What the head tells of an actor, a placement group, a supervisor or a node, and which watches
// want to know it: none where the head tells it unasked, and of a node.
struct Update {
  wire::ControlMessage update;
  std::vector<WatchId> watches;
  bool last = false;  // the watches have ended with it
};
// The head is away, or it is another one; or the watch has ended with it (`last`).
struct WatchFailed {
  WatchId watch = 0;
  Status why;
  bool last = false;
};

}  // namespace head_command

struct HeadCommands
    : Alternatives<head_command::Connect, head_command::Disconnect, head_command::Send,
                   head_command::Attempted, head_command::Answer, head_command::Update,
                   head_command::WatchFailed> {};
using HeadCommand = Variant<HeadCommands>;

class HeadSession {
 public:
  // `head`: its address, for messages to people.
  HeadSession(wire::ClientHello hello, std::string head, const HeadClientOptions& options);

  // --- what the user wants
  // Makes an attempt that may take `timeout` to connect and then to be answered, where nothing is
  // under way. What is asked does that by itself, with `attempt_timeout`.
  void connect(Duration timeout, TimePoint now);
  // Only what may be repeated. The answer to one that fits into no message (kInvalidArgument) is
  // the next command.
  [[nodiscard]] HeadRequestId ask(wire::ControlMessage message, TimePoint now);
  // By the id; where that is empty, by the name: an actor's in that namespace (empty: the client's
  // own), or a group's.
  void watch(WatchId watch, WatchedId id, WatchedName name, TimePoint now);
  // No effect on one that has ended.
  void unwatch(WatchId watch, TimePoint now);
  // Every node is told now, when it changes, and again on each connection. Said again: all of them
  // are told once more.
  void watch_nodes(TimePoint now);
  // What this process has under way, instead of what it said before: told now, and on each
  // connection.
  void report(wire::Work work, TimePoint now);
  // Whether this process, an actor's, does without its CPUs now: told now, and on each connection.
  void lend(wire::LendCpus lends, TimePoint now);
  // Ends everything: nothing is answered or told any more.
  void close();

  // --- what becomes of the connection
  void connected(TimePoint now);
  // It could not be made, or it ended.
  void disconnected(const Status& why, TimePoint now);
  void received(wire::ControlMessage message, TimePoint now);
  // What became of Send. kOverloaded: it and what follows are sent after drained(). kUnavailable:
  // disconnected() will follow.
  void sent(const Status& status, TimePoint now);
  void drained() { blocked_ = false; }
  void tick(TimePoint now);

  // --- what is to be done
  // Nothing: wait for an event.
  [[nodiscard]] std::optional<HeadCommand> next();
  // When tick() is due. Nothing: no timer runs.
  std::optional<TimePoint> next_deadline() const;

  bool closed() const { return phase_ == Phase::kClosed; }
  // Whether the head has taken the client in, and the connection stands.
  bool introduced() const { return phase_ == Phase::kIntroduced; }

 private:
  // kIdle: no connection, and none is wanted. kPausing: until the next attempt.
  enum class Phase : std::uint8_t {
    kIdle,
    kPausing,
    kConnecting,
    kIntroducing,
    kIntroduced,
    kClosed
  };
  struct Request {
    wire::Bytes frame;
    bool is_users = false;  // else the session's own
    WatchId watch = 0;      // that it begins
    TimePoint until{};      // where the head is away, it ends then
  };

  bool away() const {
    return phase_ == Phase::kPausing || phase_ == Phase::kConnecting ||
           phase_ == Phase::kIntroducing;
  }
  bool wanted() const;
  void attempt(Duration timeout);
  void attempt_failed(const Status& why, TimePoint now);
  void pause(Duration pause, TimePoint now);
  void introduced(const Status& status, TimePoint now);
  void give_up(const Status& why);
  TimePoint patience_end(TimePoint now) const;
  void end_late(TimePoint now);

  HeadRequestId add_request(wire::ControlMessage message, bool is_users, WatchId watch,
                            TimePoint now);
  void finish(HeadRequestId id, Result<wire::ControlMessage> answer);
  void finish_all(const Status& why);
  void ask_watch(WatchId id, TimePoint now);
  void watch_answered(WatchId id, const Result<wire::ControlMessage>& answer);
  void fail_watches(const std::vector<WatchId>& watches, const Status& why, bool last = false);
  void updated(wire::ControlMessage update);
  void ask_node_watch(TimePoint now);

  wire::ClientHello hello_;
  const std::string head_;
  const HeadClientOptions options_;
  Phase phase_ = Phase::kIdle;
  std::deque<HeadCommand> commands_;

  Duration timeout_{};     // of the attempt that is made
  TimePoint answer_by_{};  // by the head, to the introduction
  Duration pause_{};       // before the next attempt
  TimePoint retry_at_{};
  TimePoint away_since_{};
  Status failure_;  // of the last attempt, or of the connection

  HeadRequestId next_request_ = 1;
  std::map<HeadRequestId, Request> requests_;  // unanswered, in order
  HeadRequestId unsent_from_ = 0;  // those from here on were not sent on this connection
  HeadRequestId sending_ = 0;      // its result is awaited; 0: none is
  bool blocked_ = false;           // the connection takes nothing now

  WatchTable watches_;
  bool watches_nodes_ = false;
  HeadRequestId node_watch_ = 0;  // the last request for it
  std::optional<wire::Work> work_;
  HeadRequestId report_ = 0;  // the last request with it
  std::optional<wire::LendCpus> lends_;
  HeadRequestId lend_ = 0;  // the last request with it
};

// The status in an answer that carries nothing else.
Status answer_status(const Result<wire::ControlMessage>& answer);
// kProtocol.
Status answer_of_another_kind();

}  // namespace troupe::scheduler

namespace troupe {
extern template class Variant<scheduler::HeadCommands>;
}  // namespace troupe
