#pragma once
// A client of the simulated head: the real HeadSession over a simulated connection, as HeadClient
// drives it over a socket. It watches what the session does, too: how it numbers and repeats
// requests, that each has one answer in time, that watches never go backwards.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "cluster.h"
#include "scheduler/client/head_session.h"

namespace troupe::simulation {

class SimHeadClient {
 public:
  using OnAnswer = std::function<void(const troupe::Result<wire::ControlMessage>&)>;
  // `last`: nothing more comes.
  using OnActor = std::function<void(const troupe::Result<wire::ActorInfo>&, bool last)>;
  using OnGroup = std::function<void(const troupe::Result<wire::PlacementGroupInfo>&, bool last)>;
  // Runs something of the client's process after a while, unless that is dead by then.
  using After = std::function<void(Duration, std::function<void()>)>;

  // A client on this node, or kOutside. The cluster outlives it, and it outlives the timeline.
  SimHeadClient(Cluster& cluster, int node, wire::ClientHello hello,
                const scheduler::HeadClientOptions& options, After after);

  void ask(wire::ControlMessage message, OnAnswer done);
  // Tells `on_actor` never of an earlier generation, and of nothing after it was the last.
  scheduler::WatchId watch(ActorId actor, const std::string& name, OnActor on_actor);
  scheduler::WatchId watch(GroupId group, OnGroup on_group);
  void unwatch(scheduler::WatchId watch);
  void watch_nodes(std::function<void(const wire::NodeInfo&)> on_node);
  void close();

  // The connection breaks, on its way.
  void break_connection();

  // When its connection broke, or it began to connect first; nothing while the head knows it, and
  // before it wanted anything.
  std::optional<TimePoint> away_since() const { return away_since_; }
  bool introduced() const { return session_.introduced(); }
  int requests() const { return requests_; }
  int requests_repeated() const { return repeated_; }
  // Nothing, or what has no answer though the head has been there for so long.
  std::string waits_for(Duration within) const;

 private:
  struct Request {
    OnAnswer done;
    TimePoint asked;
  };
  using OnChange = std::function<void(const troupe::Result<wire::ControlMessage>&, bool last)>;
  struct Watched {
    OnChange tell;
    std::uint64_t generation = 0;
  };

  void run();
  void arm();
  void begin_absence();
  void expect_answers();
  void connect();
  void lose(const Status& why);
  void carry_out(scheduler::head_command::Connect& command);
  void carry_out(scheduler::head_command::Disconnect& command);
  void carry_out(scheduler::head_command::Send& command);
  void carry_out(scheduler::head_command::Attempted& command);
  void carry_out(scheduler::head_command::Answer& command);
  void carry_out(scheduler::head_command::Update& command);
  void carry_out(scheduler::head_command::WatchFailed& command);
  scheduler::WatchId begin_watch(scheduler::WatchedId id, const std::string& name, OnChange tell);
  void tell_watch(scheduler::WatchId watch, const troupe::Result<wire::ControlMessage>& told,
                  bool last);
  void received(const wire::ControlMessage& message);
  void check_sent(const wire::ControlMessage& message, const wire::Bytes& frame);

  Cluster& cluster_;
  World& world_;
  const int node_;
  const std::string name_;
  const scheduler::HeadClientOptions options_;
  const After after_;
  scheduler::HeadSession session_;
  bool running_ = false;
  std::optional<TimePoint> armed_for_;
  std::uint64_t links_ = 0;  // the number of the connection, or of the attempt to make it
  LinkPtr link_;
  std::optional<TimePoint> away_since_;
  TimePoint there_since_{};

  std::map<scheduler::HeadRequestId, Request> unanswered_;
  std::map<scheduler::WatchId, Watched> watches_;
  scheduler::WatchId next_watch_ = 1;
  std::function<void(const wire::NodeInfo&)> on_node_;
  // The last update of each actor or group that it watches.
  std::map<scheduler::WatchedId, wire::ControlMessage> last_updates_;

  std::map<scheduler::HeadRequestId, std::uint64_t> frames_;  // hash of what was sent, by number
  scheduler::HeadRequestId last_sent_ = 0;                    // on this connection
  std::set<scheduler::HeadRequestId> answered_;               // by the head, on this connection
  int requests_ = 0;
  int repeated_ = 0;
};

}  // namespace troupe::simulation
