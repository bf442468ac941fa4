// A head that comes back: from the journal's deltas to a state that nodes and owners rejoin.

#include <algorithm>

#include "scheduler/control/head_state.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

// Where the next numbers begin after those of a delta.
void raise(std::uint64_t& next, std::uint64_t used) { next = std::max(next, used + 1); }

}  // namespace

Status HeadState::replay(const Delta& delta) {
  if (const auto* known = std::get_if<NodeKnown>(&delta)) {
    nodes_[known->node.node_id].info = known->node;
  } else if (const auto* forgotten = std::get_if<NodeForgotten>(&delta)) {
    nodes_.erase(forgotten->node_id);
  } else if (const auto* created = std::get_if<ActorCreated>(&delta)) {
    ActorRecord& actor = actors_[created->spec.actor_id];
    actor.spec = created->spec;
    actor.gang = created->gang;
    raise(next_order_, created->gang);
  } else if (const auto* changed = std::get_if<ActorChanged>(&delta)) {
    const auto found = actors_.find(changed->info.actor_id);
    if (found == actors_.end()) {
      return error(Code::kDataLoss, "the journal changes actor {}, which it never created",
                   changed->info.actor_id.to_string());
    }
    ActorRecord& actor = found->second;
    if (changed->info.state == wire::ActorState::kDead && !actor.dead()) {
      dead_actors_.push_back(changed->info.actor_id);
    }
    actor.info = changed->info;
    actor.lease_generation = changed->lease_generation;
    actor.queue_order = changed->queue_order;
    actor.started = changed->started;
    actor.stopping = changed->stopping;
    actor.restart_after_stop = changed->restart_after_stop;
    actor.restarts_unix_us = changed->restarts_unix_us;
    raise(next_order_, changed->queue_order);
  } else if (const auto* gone = std::get_if<ActorForgotten>(&delta)) {
    actors_.erase(gone->actor_id);
    std::erase(dead_actors_, gone->actor_id);
  } else if (const auto* logged = std::get_if<EventLogged>(&delta)) {
    events_.push_back(logged->event);
    if (events_.size() > config_.events_max) events_.pop_front();
    raise(next_event_, logged->event.sequence);
  }
  return {};
}

Outcome HeadState::resume(Moment now) {
  now_ = now;
  for (auto& [id, node] : nodes_) {
    node.info.available = node.info.total;
    if (node.info.state == wire::NodeState::kDead) continue;
    node.return_by = now_.steady + config_.rejoin_grace;
    look_at(node, *node.return_by);
  }
  for (auto& [id, actor] : actors_) {
    if (!actor.dead()) resume_actor(actor);
  }
  if (!nodes_.empty() || !actors_.empty()) {
    log_event("head_restarted", {}, {}, 0,
              fmt::format("the head came back, knowing {} nodes and {} living actors",
                          nodes_.size(), living_count_));
  }
  return finish();
}

void HeadState::resume_actor(ActorRecord& actor) {
  const ActorId id = actor.spec.actor_id;
  ++living_count_;
  if (!actor.spec.name.empty()) living_names_[actor.spec.name] = id;
  if (!actor.spec.detached && !clients_.contains(actor.spec.owner)) {
    ClientRecord& owner = clients_[actor.spec.owner];
    owner.client_id = actor.spec.owner;
    owner.job_id = actor.spec.job_id;
    owner.return_by = now_.steady + config_.rejoin_grace;
    arm(*owner.return_by, TimerKind::kClient, owner.client_id.high, owner.client_id.low);
  }
  const auto node = nodes_.find(actor.info.node_id);
  const bool node_lives = node != nodes_.end() && node->second.info.state != wire::NodeState::kDead;
  if (actor.lease_generation != 0 && node_lives) {
    const LeaseKey key{id, actor.lease_generation};
    node->second.leases.emplace(key, actor.spec.resources);
    subtract(node->second.info.available, actor.spec.resources);
  } else if (actor.lease_generation != 0) {
    actor.lease_generation = 0;
  }
  if (actor.queue_order != 0) {
    queue_[actor.queue_order].push_back(id);
  } else if (actor.info.state == wire::ActorState::kRestarting) {
    // Not before its node had its chance to come back with what it knows.
    actor.restart_at = now_.steady + config_.rejoin_grace;
    arm(*actor.restart_at, TimerKind::kActor, id.high, id.low);
  }
}

std::vector<Delta> HeadState::snapshot() const {
  std::vector<Delta> deltas;
  for (const auto& [id, node] : nodes_) {
    NodeKnown known{node.info};
    known.node.available = known.node.total;  // follows from the leases
    deltas.push_back(std::move(known));
  }
  const auto put = [&](const ActorRecord& actor) {
    deltas.push_back(ActorCreated{actor.spec, actor.gang});
    deltas.push_back(ActorChanged{actor.info, actor.lease_generation, actor.queue_order,
                                  actor.started, actor.stopping, actor.restart_after_stop,
                                  actor.restarts_unix_us});
  };
  for (const ActorId& id : dead_actors_) put(actors_.at(id));
  for (const auto& [id, actor] : actors_) {
    if (!actor.dead()) put(actor);
  }
  for (const wire::EventRecord& event : events_) deltas.push_back(EventLogged{event});
  return deltas;
}

}  // namespace troupe::scheduler
