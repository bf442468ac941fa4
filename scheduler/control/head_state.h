#pragma once
// The head's state machine: nodes, leases, actors, gangs, placement groups, owners, supervisors,
// restarts, failure detection.
//
// Pure: equal events at equal times give equal outcomes. Not thread-safe; one loop owns it.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/limits.h"
#include "runtime/base/timing.h"
#include "scheduler/control/event.h"
#include "scheduler/control/records.h"
#include "scheduler/policy/placement.h"
#include "scheduler/policy/program_kind.h"

namespace troupe::scheduler {

struct HeadConfig : Timing {
  // Off for an embedded node, whose daemon shares the head's process.
  bool heartbeats = true;
  // How unlikely a silence is at which a node is suspected (PhiAccrual): nothing new goes there
  // until it is heard again.
  double suspicion_phi = 8;
  std::size_t groups_max = 10'000;            // not removed; more are refused with kOverloaded
  std::size_t bundles_max = 1'000;            // of one group
  std::size_t removed_groups_max = 1'000;     // remembered; the oldest are dropped
  std::size_t supervisors_max = 10'000;       // not ended; more are refused with kOverloaded
  std::size_t ended_supervisors_max = 1'000;  // remembered; the oldest are dropped
  std::size_t events_max = 10'000;            // the oldest are dropped
  std::size_t dead_actors_max = 1'000;  // remembered for `troupe actors`; the oldest are dropped
  std::size_t dead_nodes_max = 100;
  std::size_t actors_max = 100'000;          // living; more are refused with kOverloaded
  std::size_t expected_actors_max = 10'000;  // watched and not created; of more it is said at once
  std::size_t jobs_max = 1'000;        // submitted and not ended; more are refused with kOverloaded
  std::size_t ended_jobs_max = 1'000;  // remembered for `troupe jobs`; the oldest are dropped
  // What the journal may hold of what lives (more is refused with kResourceExhausted), of each kind
  // of what has ended, and of events (of both the oldest are dropped).
  std::uint64_t kept_bytes_max = limits::kJournalLivingBytesMax;
  std::uint64_t ended_bytes_max = limits::kJournalEndedBytesMax;
  std::uint64_t event_bytes_max = limits::kJournalEventBytesMax;
};

class HeadState {
 public:
  explicit HeadState(const HeadConfig& config = {});
  // Moved, never copied: the line has iterators into itself.
  HeadState(HeadState&&) = default;
  HeadState& operator=(HeadState&&) = default;

  Outcome apply(Event event, Moment now);
  // When apply(Tick) is due; may be early, never late. Nothing: no timer runs.
  std::optional<TimePoint> next_deadline() const;

  // --- replay -----------------------------------------------------------------------------------
  // Takes in one journalled decision. kDataLoss when it contradicts what came before.
  Status replay(Delta delta);
  // After the last one: everything known gets its grace period, what waited waits again.
  Outcome resume(Moment now);
  // The journalled state as the shortest list of deltas that makes it: for compaction.
  std::vector<Delta> snapshot() const;

  // --- for tests, the simulator and the daemon's messages ---------------------------------------
  const std::map<NodeId, NodeRecord>& nodes() const { return nodes_; }
  const std::map<ActorId, ActorRecord>& actors() const { return actors_; }
  const std::map<GroupId, GroupRecord>& groups() const { return groups_; }
  const std::map<JobId, JobRecord>& jobs() const { return jobs_; }
  const std::map<SupervisorId, SupervisorRecord>& supervisors() const { return supervisors_; }
  // What the journal holds of what lives; at most, as journal_bytes.h counts.
  std::uint64_t kept_bytes() const { return kept_bytes_; }
  const HeadConfig& config() const { return config_; }
  bool stopping() const { return stop_by_.has_value(); }
  // What must always be true, as a sentence when it is not.
  std::optional<std::string> broken_invariant() const;

 private:
  enum class TimerKind : std::uint8_t { kNode, kClient, kActor, kStop, kGroup, kLine, kExpected };
  // When, what for, the two halves of an id, and whether it is a second look (head_state.cpp).
  using Timer = std::tuple<TimePoint, TimerKind, std::uint64_t, std::uint64_t, bool>;

  // head_state.cpp
  void dispatch(MessageArrived& arrived);
  void run_timers();
  Outcome finish();
  void send(PeerId peer, wire::ControlMessage message);
  void reply(PeerId peer, std::uint64_t request_id, Status status);
  void arm(TimePoint at, TimerKind kind, std::uint64_t high = 0, std::uint64_t low = 0,
           bool second = false);
  bool head_stood_still(TimePoint due) const;
  TimePoint second_look(TimePoint due) const;
  bool looked_twice(const Timer& timer);
  void excuse_those_away(TimePoint before);
  void log_event(std::string kind, NodeId node_id, ActorId actor_id, std::uint64_t generation,
                 std::string text);
  void changed(ActorRecord& actor);
  void changed(NodeRecord& node);
  void push_updates();
  void tell_owner_of_wait(const ActorRecord& actor);
  std::optional<std::string> broken_lease(std::map<ActorId, std::size_t>& held) const;
  std::optional<std::string> broken_bundles(const NodeRecord& node) const;
  std::optional<std::string> broken_group() const;
  std::optional<std::string> broken_line() const;
  std::optional<std::string> broken_owner() const;
  std::optional<std::string> broken_supervisor() const;
  wire::ActorInfo visible(const ActorRecord& actor) const;
  void on(PeerId peer, wire::ListNodes& message);
  void on(PeerId peer, wire::ListActors& message);
  void on(PeerId peer, wire::ListEvents& message);

  // nodes.cpp
  void on(PeerId peer, wire::RegisterNode& message);
  void on(PeerId peer, wire::NodeUpdate& message);
  void on(PeerId peer, wire::NodeNote& message);
  void reconcile(NodeRecord& node, const wire::RegisterNode& message,
                 wire::RegisterNodeReply& reply);
  void restore_bundles(NodeRecord& node, const wire::RegisterNode& message);
  static Status death_of(const ActorRecord& actor, const std::string& node,
                         const wire::ActorExited& exited);
  bool is_latest(const ActorRecord& actor, NodeId node_id, std::uint64_t generation) const;
  void note_stray(const LeaseKey& key);
  void forget_stray(const LeaseKey& key);
  void adopt(NodeRecord& node, ActorRecord& actor, const wire::RunningActor& running);
  void node_peer_closed(NodeRecord& node);
  void node_gone(const NodeGone& gone);
  void declare_dead(NodeRecord& node, const char* event, const std::string& why,
                    Duration restart_delay);
  Status check_node(const wire::RegisterNode& message);
  void forget_old_nodes();
  // Whether a node that does not take anything now may again.
  bool awaits_nodes() const;
  std::string unique_node_name(const std::string& wanted, NodeId node_id) const;
  NodeRecord* node_of(PeerId peer);

  // heartbeats.cpp
  void on(PeerId peer, wire::Heartbeat& message);
  void look_at(NodeRecord& node, TimePoint at);
  void node_silent_or_gone(NodeRecord& node, TimePoint due);
  void suspect(NodeRecord& node, bool suspected);
  void lives(PeerId peer);
  static wire::NodeInfo visible(const NodeRecord& node);

  // clients.cpp
  void on(PeerId peer, wire::ClientHello& message);
  void on(PeerId peer, wire::CreateActors& message);
  void on(PeerId peer, wire::KillActor& message);
  void on(PeerId peer, wire::WatchActor& message);
  void on(PeerId peer, wire::WatchNodes& message);
  void on(PeerId peer, wire::EndJob& message);
  void peer_closed(PeerId peer);
  void drop_watches(PeerId peer, const PeerRecord& record);
  void begin_watch(PeerId peer, std::uint64_t request_id, ActorRecord& actor);
  template <typename Update, typename Record, typename Id>
  void tell_watchers(Record& record, const Id& id, bool last, std::set<Id> PeerRecord::*watched);
  void expect(PeerId peer, std::uint64_t request_id, ActorId id);
  void meet_expectations(ActorRecord& actor);
  void end_expectations(ActorId id);
  void owner_gone(const ClientRecord& client);
  void end_actors(const std::vector<ActorId>& ids, const std::string& reason);
  Status check_specs(const std::vector<wire::ActorSpec>& specs) const;
  Status check_new(const std::vector<wire::ActorSpec>& specs, bool gang, bool no_wait) const;
  Status check_bundles(const std::vector<wire::ActorSpec>& specs, bool no_wait) const;
  Status check_version(const std::string& who, std::uint32_t version);
  ClientRecord* client_of(PeerId peer);

  // actors.cpp
  void on(PeerId peer, wire::ActorStarted& message);
  void on(PeerId peer, wire::ActorReady& message);
  void on(PeerId peer, wire::ActorExited& message);
  void create(wire::ActorSpec spec, std::uint64_t gang);
  void end_actor(ActorRecord& actor, bool allow_restart, std::int64_t grace_ms,
                 const std::string& reason, bool drain = false);
  void process_exited(NodeRecord& node, ActorRecord& actor, const wire::ActorExited& exited);
  void process_gone(ActorRecord& actor, Status cause, Duration restart_delay);
  void await_restart(ActorRecord& actor, const Status& cause, std::optional<Duration> wait,
                     const char* event = "actor_restarting");
  void forget_old_actors();
  void bury(ActorRecord& actor, Status death);
  bool may_restart(const wire::RestartPolicy& policy, std::vector<std::int64_t>& restarts) const;
  static Duration back_off(const wire::RestartPolicy& policy, std::size_t restarts);
  bool has_place(const ActorRecord& actor) const;
  void back_off_over(ActorRecord& actor);
  ActorRecord* current(PeerId peer, ActorId actor_id, std::uint64_t generation);
  static std::string describe(const ActorRecord& actor);

  // saved_state.cpp
  void on(PeerId peer, wire::ActorSaved& message);
  bool lost_its_state(const NodeRecord& node, const ActorRecord& actor,
                      const wire::ActorExited& exited) const;
  static bool refused_to_begin(const ActorRecord& actor, const wire::ActorExited& exited);
  void lose_state(ActorRecord& actor, std::uint64_t generation);
  void say_saved_state(ActorRecord& actor, wire::StartActor& start);

  // jobs.cpp
  void on(PeerId peer, wire::SubmitJob& message);
  void on(PeerId peer, wire::StopJob& message);
  void on(PeerId peer, wire::ListJobs& message);
  static Status check_program(const wire::ActorSpec& spec);
  static Status check_clients_program(const wire::ActorSpec& spec);
  Status check_job(const wire::SubmitJob& message) const;
  Status no_such_job(JobId id) const;
  Status join_job(const ClientRecord& client, JobId& job_id, std::int32_t& priority) const;
  Status check_job_runs(JobId job_id, const std::string& kind) const;
  void end_job(JobId job_id, const std::string& reason);
  void changed(const JobRecord& job);
  void settle_jobs();
  void job_ended(JobRecord& job, const ActorRecord& driver);
  void forget_old_jobs();
  void replay_job(const wire::JobInfo& info);
  void resume_jobs();
  wire::JobInfo visible(const JobRecord& job) const;
  std::optional<std::string> broken_job() const;

  // placement.cpp
  void start_on(ActorRecord& actor, NodeRecord& node);
  void take_lease(NodeRecord& node, ActorRecord& actor);
  void free_lease(NodeRecord& node, const LeaseKey& key);
  void free_lease_of(ActorRecord& actor);
  bool keep_lease(NodeRecord& node, const LeaseKey& key, const wire::Resources& amount,
                  const BundleKey* bundle);
  void refresh(NodeRecord& node);
  void resize(NodeRecord& node, const wire::Resources& total);
  static bool lost_some(const NodeRecord& node, const wire::Resources& amount);
  void shrink(NodeRecord& node);
  void came_room();
  static Bundle bundle_of(const wire::ActorSpec& spec);
  static Bundle bundle_of(const ActorRecord& actor);
  std::string why_pending(const ActorRecord& actor) const;
  std::string why_pending(const GroupRecord& group) const;
  std::string explain_room(const PlacementRequest& request, const KeptFree* kept_free) const;
  std::string explain_entry(QueueKey key, const std::vector<Bundle>& bundles,
                            wire::PlacementStrategy strategy) const;

  // waiting_line.cpp
  using Line = std::map<QueueKey, QueueEntry>;
  struct Place;  // of an actor: a node, and the bundle
  static QueueKey key_of(const ActorRecord& actor);
  static QueueKey key_of(const GroupRecord& group);
  QueueEntry& line_up(QueueKey key);
  void leave_line(Line::iterator entry);
  void enqueue(ActorRecord& actor, std::uint64_t order);
  void dequeue(ActorRecord& actor);
  void enqueue(GroupRecord& group);
  void dequeue(GroupRecord& group);
  void schedule();
  void schedule_all();
  Wish wish_of(const QueueEntry& entry) const;
  bool try_place(QueueKey key);
  bool try_place_actors(QueueKey key);
  bool try_place_group(QueueKey key);
  const KeptFree* kept_free_before(QueueKey key) const;
  bool consider_turn(QueueKey key);
  void look_again_at(TimePoint at);

  // groups.cpp
  void on(PeerId peer, wire::CreatePlacementGroup& message);
  void on(PeerId peer, wire::RemovePlacementGroup& message);
  void on(PeerId peer, wire::WatchPlacementGroup& message);
  void on(PeerId peer, wire::ListPlacementGroups& message);
  void on(PeerId peer, wire::BundlesPrepared& message);
  Status check_group(const wire::PlacementGroupSpec& spec) const;
  std::vector<Bundle> bundles_of(const GroupRecord& group) const;
  void prepare(GroupRecord& group, const std::vector<NodeId>& nodes);
  void commit(GroupRecord& group);
  void reserve(GroupRecord& group);
  void release(GroupRecord& group);
  void unreserve(GroupRecord& group, const char* event, const std::string& why, Duration wait);
  void unreserve_on(NodeRecord& node, bool created_too, const std::string& why);
  void remove_group(GroupRecord& group, const std::string& reason);
  void remove_groups(const std::vector<GroupId>& ids, const std::string& reason);
  void forget_old_groups();
  void group_timer(GroupRecord& group, const Timer& timer);
  static wire::Resources on_node(const GroupRecord& group, NodeId node_id);
  wire::PlacementGroupInfo visible(const GroupRecord& group) const;
  void changed(GroupRecord& group);
  using BundleUse = std::map<BundleKey, wire::Resources>;
  std::optional<std::int32_t> bundle_for(const wire::ActorSpec& spec, std::int32_t last,
                                         const GroupRecord& group, BundleUse& used,
                                         bool whole) const;
  static std::string describe(const GroupRecord& group);

  // names.cpp
  using Name = std::pair<std::string, std::string>;  // namespace, name
  static std::string namespace_of(const ClientRecord& client);
  static Name name_of(const wire::ActorSpec& spec);
  void release_name(const ActorRecord& actor);
  const ActorRecord* named(const Name& name) const;
  static std::string describe(const Name& name);
  Result<ActorId> existing(const wire::ActorSpec& spec) const;

  // ownership.cpp
  Status check_owner(ActorId owner, std::uint64_t generation, bool detached) const;
  std::string owner_name(ClientId owner, ActorId owner_actor) const;
  bool lost_owner(ActorId owner, std::uint64_t generation, bool detached) const;
  bool lost_owner(const ActorRecord& actor) const;
  bool outlives_job(const ActorRecord& actor) const;
  void own(const ActorRecord& actor);
  void disown(const ActorRecord& actor);
  void owner_ended(const ActorRecord& owner, bool for_good);
  void end_owned();

  // supervision.cpp
  void on(PeerId peer, wire::CreateSupervisor& message);
  void on(PeerId peer, wire::EndSupervisor& message);
  void on(PeerId peer, wire::WatchSupervisor& message);
  void on(PeerId peer, wire::ListSupervisors& message);
  Status check_supervised(const wire::ActorSpec& spec) const;
  Status check_supervisor(const wire::SupervisorSpec& spec) const;
  void join_supervisor(ActorRecord& actor);
  void leave_supervisor(ActorRecord& actor);
  void leave_barrier(ActorRecord& actor);
  void supervised_gone(ActorRecord& actor, const Status& cause, Duration restart_delay);
  void member_failed(SupervisorId id, std::uint64_t order, Status cause);
  void restart_members(SupervisorRecord& supervisor, std::uint64_t failed, const Status& cause);
  void collect_actors(const wire::SupervisorMember& member, std::vector<ActorId>& actors,
                      bool forget_restarts);
  bool is_within(SupervisorId inner, SupervisorId outer) const;
  void release_barrier(SupervisorId id);
  void end_supervisor(SupervisorRecord& supervisor, Status why);
  void end_supervisors(const std::vector<SupervisorId>& ids, const std::string& reason);
  void forget_old_supervisors();
  wire::SupervisorInfo visible(const SupervisorRecord& supervisor) const;
  void changed(SupervisorRecord& supervisor);
  static std::string describe(const SupervisorRecord& supervisor);

  // draining.cpp
  void on(PeerId peer, wire::DrainNode& message);
  void drain(NodeRecord& node, const std::string& reason, std::optional<std::int64_t> grace_ms);
  bool may_move(const ActorRecord& actor) const;

  // replay.cpp
  void resume_actor(ActorRecord& actor);
  void resume_supervisors();
  void resume_group(GroupRecord& group);
  void resume_owner(ClientId owner, JobId job_id);

  // room.cpp
  static std::uint64_t kept_by(const wire::ActorSpec& spec);
  static std::uint64_t kept_by(const wire::PlacementGroupSpec& spec);
  static std::uint64_t kept_by(const wire::SupervisorSpec& spec);
  static std::uint64_t kept_by(const wire::JobInfo& job);
  static wire::ActorSpec remembered(const wire::ActorSpec& spec);
  Status check_room(std::uint64_t bytes);
  void let_go(std::uint64_t bytes);
  void remember(const ActorRecord& actor);
  void remember(const GroupRecord& group);
  void remember(const SupervisorRecord& supervisor);
  void remember(const JobRecord& job);
  void remember(wire::EventRecord event);
  std::optional<std::string> broken_room() const;

  // stopping.cpp
  void on(PeerId peer, wire::StopCluster& message);
  void stop_progress();

  // Messages that only the head sends.
  template <typename Message>
  void on(PeerId peer, Message& message);
  void not_taken(PeerId peer, std::optional<std::uint64_t> request_id);

  HeadConfig config_;
  double suspicion_deviations_;  // what config_.suspicion_phi comes to
  Moment now_;
  std::map<NodeId, NodeRecord> nodes_;
  std::map<ActorId, ActorRecord> actors_;
  // Processes that nodes run of actors this head knows nothing of, until they are gone: the highest
  // generation of each. Their actors may be created yet, by a driver that asks once more.
  std::map<ActorId, std::uint64_t> strays_;
  // Watches of actors that nobody has created yet. Not journalled: they are asked for again.
  struct Expectation {
    PeerId peer = 0;
    std::uint64_t request_id = 0;
    TimePoint until;
  };
  std::map<ActorId, std::vector<Expectation>> expected_;
  std::map<Name, ActorId> living_names_;
  std::map<ActorId, std::set<ActorId>> owned_;  // the living ones that an actor owns, by owner
  std::map<SupervisorId, SupervisorRecord> supervisors_;
  Ended<SupervisorId> ended_supervisors_;
  std::size_t living_supervisors_ = 0;
  std::map<ClientId, ClientRecord> clients_;
  std::map<PeerId, PeerRecord> peers_;
  std::map<GroupId, GroupRecord> groups_;
  std::map<std::string, GroupId, std::less<>> group_names_;  // of those not removed
  Ended<GroupId> removed_groups_;
  std::size_t living_groups_ = 0;
  std::map<JobId, JobRecord> jobs_;  // that were submitted
  Ended<JobId> ended_jobs_;
  ClusterView view_;  // of the nodes that take actors
  Line queue_;
  Wishes wishes_;
  std::set<QueueKey> fresh_;                // lined up since the last pass
  std::optional<QueueKey> turn_;            // whose turn it is: room is kept free for it
  std::optional<TimePoint> look_again_at_;  // the next kLine timer that counts
  Ended<ActorId> dead_actors_;
  std::deque<wire::EventRecord> events_;
  std::uint64_t event_bytes_ = 0;
  std::uint64_t kept_bytes_ = 0;
  bool full_ = false;  // something was refused for want of room, and there is little still
  std::set<Timer> timers_;
  std::uint64_t next_order_ = 1;
  std::uint64_t next_event_ = 1;
  std::size_t living_count_ = 0;
  std::optional<TimePoint> stop_by_;
  std::string stop_reason_;
  bool ended_ = false;

  // Of the apply() that runs.
  std::vector<Command> commands_;
  std::vector<Delta> deltas_;
  std::set<ActorId> changed_actors_;
  std::set<ActorId> lined_up_;  // those of them that have joined the line
  std::set<NodeId> changed_nodes_;
  std::set<NodeId> resized_nodes_;  // only what is free changed: pushed, not journalled
  std::set<GroupId> changed_groups_;
  std::set<JobId> touched_jobs_;  // whose programs changed
  std::set<SupervisorId> changed_supervisors_;
  std::set<SupervisorId> counted_;  // what fails together, with its node, counts once
  std::vector<std::pair<ActorId, std::uint64_t>> ended_owners_;  // generation; 0: for good
  bool schedule_needed_ = false;
  bool room_came_ = false;  // all that waits is looked at, not only what is fresh
};

}  // namespace troupe::scheduler
