#pragma once
// A node's state machine under a test's hand, with a clock of its own and account of every process
// and descriptor.

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "scheduler/node/kept_keys.h"
#include "scheduler/node/node_state.h"

namespace troupe::scheduler::tests {

// Drives a state with a clock of its own and keeps account of what it was told.
struct NodeDriver {
  ManualClock clock;
  NodeConfig config = [] {
    NodeConfig c;
    c.node.node_id = NodeId{1, 2};
    c.node.name = "n";
    return c;
  }();
  NodeState state{config, clock.now()};
  std::set<FdHandle> open;
  FdHandle next_fd = 1;
  std::vector<NodeCommand> last;
  std::set<HostId> spawning, running, being_killed, ended;
  // What lies with the keeper.
  struct Held {
    wire::KeeperMessage record;
    bool has_fd = false;
    std::optional<wire::StartActor> start;
  };
  std::map<std::string, Held> kept;

  void apply(NodeEvent event) {
    last = state.apply(std::move(event), clock.now());
    for (const auto& command : last) account(command);
    const auto broken = state.broken_invariant();
    REQUIRE_MESSAGE(!broken, *broken);
    const auto due = state.next_deadline();
    REQUIRE((!due || *due > clock.now()));
  }
  void account(const NodeCommand& command) {
    if (const auto* c = get_if<node_command::CloseFd>(&command)) {
      REQUIRE(open.erase(c->fd) == 1);
    } else if (const auto* s = get_if<node_command::SpawnHost>(&command)) {
      REQUIRE(spawning.insert(s->host).second);
    } else if (const auto* t = get_if<node_command::TellHost>(&command)) {
      REQUIRE((t->fd == kNoFd || open.contains(t->fd)));
      REQUIRE(running.contains(t->host));
    } else if (const auto* k = get_if<node_command::KillGroup>(&command)) {
      REQUIRE((running.contains(k->host) || ended.contains(k->host)));
      being_killed.insert(k->host);
    } else if (const auto* keep = get_if<node_command::Keep>(&command)) {
      REQUIRE((keep->fd == kNoFd || open.contains(keep->fd)));
      Held& held = kept[keep->key];
      held.record = keep->record;
      held.has_fd = held.has_fd || keep->fd != kNoFd;
      if (keep->start) held.start = keep->start;
    } else if (const auto* unkeep = get_if<node_command::Unkeep>(&command)) {
      kept.erase(unkeep->key);
    } else if (const auto* r = get_if<node_command::ReportExit>(&command)) {
      REQUIRE(!running.contains(r->log));
      REQUIRE(!ended.contains(r->log));
    }
  }
  // The daemon is killed; another one takes over what the keeper has.
  void restart() {
    std::destroy_at(&state);
    std::construct_at(&state, config, clock.now());
    open.clear();
    if (!kept.contains(kNodeKey)) return;
    node_event::Adopt adopt;
    adopt.node = get<wire::KeptNode>(kept.at(kNodeKey).record);
    std::vector<HostId> lost;
    std::vector<HostId> ended_before;
    for (const auto& [key, held] : kept) {
      if (key.starts_with(kActorKeys)) {
        node_event::Adopt::Actor actor{get<wire::KeptActor>(held.record), {}, 0, false, kNoFd};
        REQUIRE(held.start);
        actor.spec = held.start->spec;
        actor.state_lost_with = held.start->state_lost_with;
        const HostId host = actor.kept.host;
        actor.ended = ended.contains(host);
        if (running.contains(host) || actor.ended) {
          actor.pid = 100 + static_cast<std::int64_t>(host);
        } else if (host != 0) {
          lost.push_back(host);
        }
        if (actor.ended) ended_before.push_back(host);
        if (kept.contains(saved_state_key(actor.kept.actor_id))) actor.saved_state = fd();
        adopt.actors.push_back(std::move(actor));
      } else if (key.starts_with(kSegmentKeys)) {
        REQUIRE(held.has_fd);
        adopt.segments.push_back({get<wire::KeptSegment>(held.record), fd()});
      } else if (key == kGpusKey) {
        adopt.gpus = get<wire::KeptGpus>(held.record);
      }
    }
    spawning.clear();
    const std::size_t processes = running.size() + ended.size();
    apply(std::move(adopt));
    for (const HostId host : lost)
      apply(node_event::SpawnFailed{host, error(Code::kUnavailable, "x")});
    CHECK(state.process_count() == processes);
    for (const HostId host : ended_before) {
      apply(node_event::LeaderEnded{host, {.exit_code = 0, .signal = 9}});
    }
  }
  FdHandle fd() {
    open.insert(next_fd);
    return next_fd++;
  }
  void advance(Duration by) {
    clock.advance(by);
    apply(node_event::Tick{});
  }
  template <typename T>
  const T* said() const {
    for (const auto& command : last) {
      const auto* send = get_if<node_command::SendHead>(&command);
      if (send == nullptr) continue;
      if (const auto* message = get_if<T>(&send->message)) return message;
    }
    return nullptr;
  }
  template <typename T>
  const T* told() const {
    for (const auto& command : last) {
      const auto* tell = get_if<node_command::TellHost>(&command);
      if (tell == nullptr) continue;
      if (const auto* message = get_if<T>(&tell->message)) return message;
    }
    return nullptr;
  }
  template <typename T>
  const T* did() const {
    for (const auto& command : last) {
      if (const auto* c = get_if<T>(&command)) return c;
    }
    return nullptr;
  }
  void join(std::int64_t interval_ms = 0, std::int64_t timeout_ms = 0) {
    apply(node_event::HeadUp{});
    REQUIRE(said<wire::RegisterNode>());
    wire::RegisterNodeReply reply;
    reply.heartbeat_interval_ms = interval_ms;
    reply.heartbeat_timeout_ms = timeout_ms;
    apply(node_event::FromHead{reply});
    REQUIRE(state.registered());
  }
  wire::StartActor start_message(std::uint64_t n, std::uint64_t generation) const {
    wire::StartActor start;
    start.spec.actor_id = ActorId{1, n};
    start.spec.restart.max_restarts = 1;
    start.generation = generation;
    return start;
  }
  HostId spawned() {
    REQUIRE(!spawning.empty());
    const HostId host = *spawning.begin();
    spawning.erase(host);
    running.insert(host);
    apply(node_event::Spawned{host, 100 + static_cast<std::int64_t>(host)});
    return host;
  }
  HostId run(std::uint64_t n, std::uint64_t generation = 1) {
    return run(start_message(n, generation));
  }
  // The head says that the actor, which has no process any more, does not come back.
  void is_over(ActorId id, std::uint64_t generation) {
    apply(node_event::FromHead{wire::StopActor{id, generation + 1, 0, "it has ended", false}});
  }
  // One that must not run twice.
  HostId run_fenced(std::uint64_t n) {
    wire::StartActor start = start_message(n, 1);
    start.spec.on_head_loss = wire::OnHeadLoss::kFence;
    return run(start);
  }
  HostId run(const wire::StartActor& start) {
    apply(node_event::FromHead{start});
    REQUIRE(did<node_command::SpawnHost>());
    const HostId host = spawned();
    CHECK(said<wire::ActorStarted>());
    CHECK(told<wire::HostStart>());
    apply(node_event::FromHost{host, wire::HostReady{}});
    CHECK(said<wire::ActorReady>());
    return host;
  }
  void leader_ends(HostId host) {
    running.erase(host);
    ended.insert(host);
    apply(node_event::LeaderEnded{host, {.exit_code = 0, .signal = 9}});
  }
  void group_goes(HostId host) {
    ended.erase(host);
    being_killed.erase(host);
    apply(node_event::GroupGone{host});
  }
  void end(HostId host) {
    leader_ends(host);
    group_goes(host);
  }
};

}  // namespace troupe::scheduler::tests
