// What outlives the daemon: put down with the node's keeper, taken up by the daemon after it.

#include <algorithm>
#include <utility>

#include "scheduler/node/kept_keys.h"
#include "scheduler/node/log_pipes.h"
#include "scheduler/node/node_state.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {

void NodeState::keep(Actor& actor, bool with_start) {
  wire::KeptActor record;
  record.actor_id = actor.spec.actor_id;
  record.generation = actor.generation;
  record.host = actor.host;
  record.ready = actor.phase == Phase::kReady;
  record.constructor_failed = actor.constructor_failed;
  record.ends_for_good = actor.ends_for_good;
  record.cause = actor.cause;
  record.gpus = actor.gpus;
  node_command::Keep command{actor_key(record.actor_id), std::move(record), kNoFd, {}};
  if (std::exchange(actor.record_lost, false) || with_start)
    command.start = wire::StartActor{actor.spec, actor.generation, {}, {}, actor.state_lost_with};
  commands_.push_back(std::move(command));
}

void NodeState::note(std::string kind, std::string text) {
  wire::NodeNote note{std::move(kind), std::move(text)};
  if (registered_) {
    send(std::move(note));
  } else {
    notes_.push_back(std::move(note));
  }
}

void NodeState::on(node_event::Adopt& event) {
  for (auto& actor : event.actors) adopt(actor);
  if (event.gpus) {
    for (const wire::KeptGpu& gpu : event.gpus->gpus) gpus_.adopt(gpu, now_);
  }
  for (auto& [kept, fd] : event.segments) {
    next_host_ = std::max(next_host_, kept.owner + 1);
    segments_[{kept.job_id, kept.name}] = {fd, kept.owner};
  }
  job_may_have_ended_ = true;
  if (event.node.joined) {
    // The lease goes on where the daemon before left it: nobody fences later for its death.
    joined_once_ = true;
    if (!event.node.name.empty()) name_ = event.node.name;
    contact_ = std::min(now_, TimePoint(Duration(event.node.contact_ns)));
    heartbeat_timeout_ = std::chrono::milliseconds(event.node.heartbeat_timeout_ms);
    give_up_at_ = now_ + config_.orphan_timeout;
  }
  note("daemon_restarted", fmt::format("node {} has a new daemon, which took over {} processes",
                                       name_, by_host_.size()));
}

void NodeState::adopt(node_event::Adopt::Actor& kept) {
  const ActorId id = kept.kept.actor_id;
  Actor& actor = actors_[id];
  actor.spec = std::move(kept.spec);
  actor.generation = kept.kept.generation;
  actor.constructor_failed = kept.kept.constructor_failed;
  actor.ends_for_good = kept.kept.ends_for_good;
  actor.cause = std::move(kept.kept.cause);
  actor.saved_state = kept.saved_state;
  actor.state_lost_with = std::move(kept.state_lost_with);
  actor.gpus = std::move(kept.kept.gpus);
  if (kept.kept.host == 0) {
    return may_come_back(actor);
  }
  next_host_ = std::max(next_host_, kept.kept.host + 1);
  actor.host = actor.log = kept.kept.host;
  actor.pid = kept.pid;
  by_host_[actor.host] = id;
  gpus_.adopt({id, output_label(actor.spec), amount_of(actor.spec.resources, kGpu)},
              actor.spec.job_id, actor.gpus);
  if (amount_of(actor.spec.resources, kGpu) == 0) visit_gpus(actor.spec);
  gpus_.visitor_runs(id, actor.pid);
  if (kept.pid == 0) {
    actor.phase = Phase::kSpawning;
    return;
  }
  const bool ready = kept.kept.ready || actor.spec.is_program();
  actor.phase = ready ? Phase::kReady : Phase::kStarting;
  if (ready && !kept.ended) expect_health(actor);
  // It may have been told already; a host listens to the first only.
  if (!ready && !kept.ended) tell_start(actor);
}

void NodeState::on(node_event::KeeperLost&) {
  const std::size_t count = by_host_.size();
  // First of all: a next daemon takes up nothing where its node is not known.
  if (joined_once_) keep_node();
  for (auto& [id, actor] : actors_) {
    // Its memory is not there any more either: what the keeper held goes with it.
    const bool state_lost = actor.saved_state != kNoFd;
    close(std::exchange(actor.saved_state, kNoFd));
    actor.record_lost = true;
    if (state_lost && actor.phase == Phase::kQueued) {
      // It was to begin with that; the head is told when it is settled (settle_gpus).
      if (actor.cause.ok()) {
        actor.cause = error(Code::kDataLoss,
                            "what the actor had saved is lost with the keeper of node {}", name_);
      }
      kill(actor);
    }
    if (!actor.has_process() || actor.phase == Phase::kQueued) {
      if (actor.has_process() || actor.keep_until) keep(actor);
      continue;
    }
    if (actor.cause.ok()) {
      actor.cause = error(Code::kAborted, "it was killed with the keeper of its node {}", name_);
      actor.cause.with("keeper", "lost");
    }
    kill(actor);
  }
  while (!segments_.empty()) drop_segment(segments_.begin());
  note("keeper_lost",
       fmt::format("the keeper of node {} was killed, and with it {} processes and the memory that "
                   "was kept for their jobs",
                   name_, count));
}

}  // namespace troupe::scheduler
