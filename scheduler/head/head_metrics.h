#pragma once
// What an operator wants to know of a head, as numbers: counted beside the state machine, from what
// goes in and comes out of it, and read from its records when somebody asks.
//
// Pure: no clock, no socket, no file. Not thread-safe; the head's loop owns it. Counters begin with
// the head's process, as Prometheus expects.

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/wire/control_messages.h"
#include "scheduler/control/delta.h"
#include "scheduler/control/head_state.h"
#include "scheduler/head/prometheus_text.h"

namespace troupe::scheduler {

inline constexpr std::size_t kMessageTypes = std::variant_size_v<wire::ControlMessage>;

// A moment's figures, by value: rendering them needs neither the head nor its thread.
struct HeadFigures {
  struct Node {
    std::string name;
    bool connected = false;
    double heartbeat_age_s = 0;
    wire::Resources total;
    wire::Resources leased;
    std::optional<wire::NodeUsage> usage;
  };
  using Counts = std::map<std::string, std::uint64_t>;

  std::string version;
  std::vector<Node> nodes;  // those that are not dead
  Counts nodes_by_state;
  Counts actors_by_state;
  std::uint64_t pending_actors = 0;
  std::uint64_t pending_requests = 0;  // gangs, and actors that are asked for alone
  double pending_oldest_s = 0;
  SecondsHistogram pending_wait{long_bounds()};
  WorkDone work_done;
  wire::WorkTotals work;
  std::uint64_t restarts = 0;
  std::map<std::pair<std::string, std::string>, std::uint64_t> exits;  // cause, signal
  Counts events;                                                       // by kind
  std::array<std::uint64_t, kMessageTypes> received{};                 // messages by type
  std::array<std::uint64_t, kMessageTypes> sent{};
  std::uint64_t received_bytes = 0;
  std::uint64_t sent_bytes = 0;
  std::uint64_t connections = 0;
  std::uint64_t journal_bytes = 0;
  std::uint64_t kept_bytes = 0;  // of what lives, and at most
  std::uint64_t kept_bytes_max = 0;
  std::uint64_t journal_syncs = 0;
  std::uint64_t journal_rewrites = 0;
  std::uint64_t journal_failures = 0;
  bool journal_failing = false;
  SecondsHistogram journal_seconds{short_bounds()};
  SecondsHistogram decision_seconds{short_bounds()};
  SecondsHistogram loop_lag{short_bounds()};
};

class HeadMetrics {
 public:
  explicit HeadMetrics(std::string version) { figures_.version = std::move(version); }

  // After replay: who waits already waits from now on.
  void begin(const HeadState& state, TimePoint now);
  // A message, before it is applied to `state`.
  void received(const wire::ControlMessage& message, std::size_t bytes, const HeadState& state);
  void sent(const wire::ControlMessage& message, std::size_t bytes);
  // What an event led to, and how long that took.
  void decided(std::span<const Delta> deltas, Duration took, TimePoint now);
  // A sync or a rewrite of the journal.
  void journal(bool rewrite, bool ok, Duration took);
  // Between the wish to run on the loop and the running.
  void loop_waited(Duration waited) { figures_.loop_lag.observe(seconds(waited)); }

  HeadFigures figures(const HeadState& state, std::uint64_t connections,
                      std::uint64_t journal_bytes, TimePoint now) const;

 private:
  static double seconds(Duration duration) {
    return std::chrono::duration<double>(duration).count();
  }
  void waits(const ActorChanged& changed, TimePoint now);
  void exited(const wire::ActorExited& exited, const HeadState& state);

  HeadFigures figures_;  // the counters of it
  std::map<ActorId, TimePoint> waiting_since_;
  std::map<NodeId, wire::NodeUsage> usage_;
};

// Of the process that answers.
struct ProcessFigures {
  double cpu_s = 0;
  std::uint64_t resident_bytes = 0;
  double start_unix_s = 0;
};

// The page that Prometheus reads.
std::string prometheus_page(const HeadFigures& figures, const ProcessFigures& process);

}  // namespace troupe::scheduler
