// A head that comes back: from the journal's deltas to a state that nodes and owners rejoin.

#include <algorithm>

#include "scheduler/control/head_state.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

// Where the next numbers begin after those of a delta.
void raise(std::uint64_t& next, std::uint64_t used) { next = std::max(next, used + 1); }

}  // namespace

Status HeadState::replay(Delta delta) {
  if (const auto* known = get_if<NodeKnown>(&delta)) {
    nodes_[known->node.node_id].info = known->node;
  } else if (const auto* forgotten = get_if<NodeForgotten>(&delta)) {
    nodes_.erase(forgotten->node_id);
  } else if (auto* created = get_if<ActorCreated>(&delta)) {
    ActorRecord& actor = actors_[created->spec.actor_id];
    raise(next_order_, created->gang);
    raise(next_order_, created->spec.supervisor_order);
    actor.gang = created->gang;
    actor.spec = std::move(created->spec);
  } else if (const auto* changed = get_if<ActorChanged>(&delta)) {
    const auto found = actors_.find(changed->info.actor_id);
    if (found == actors_.end()) {
      return error(Code::kDataLoss, "the journal changes actor {}, which it never created",
                   changed->info.actor_id.to_string());
    }
    ActorRecord& actor = found->second;
    if (changed->queue_order != 0 && (changed->info.state == wire::ActorState::kStarting ||
                                      changed->info.state == wire::ActorState::kAlive)) {
      return error(Code::kDataLoss,
                   "the journal says of actor {} that it has a process and waits for a place",
                   changed->info.actor_id.to_string());
    }
    const bool dies = changed->info.state == wire::ActorState::kDead && !actor.dead();
    actor.info = changed->info;
    if (dies) {
      actor.spec = remembered(actor.spec);
      remember(actor);
    }
    actor.lease_generation = changed->lease_generation;
    actor.queue_order = changed->queue_order;
    actor.started = changed->started;
    actor.stopping = changed->stopping;
    actor.restart_after_stop = changed->restart_after_stop;
    actor.restarts_unix_us = changed->restarts_unix_us;
    actor.moving = changed->moving;
    actor.barrier = changed->barrier;
    actor.state_lost = changed->state_lost;
    raise(next_order_, changed->queue_order);
  } else if (const auto* gone = get_if<ActorForgotten>(&delta)) {
    actors_.erase(gone->actor_id);
    dead_actors_.erase(gone->actor_id);
  } else if (const auto* group = get_if<GroupCreated>(&delta)) {
    GroupRecord& record = groups_[group->spec.group_id];
    record.spec = group->spec;
    record.info.bundles.resize(group->spec.bundles.size());  // until GroupChanged follows
  } else if (const auto* moved = get_if<GroupChanged>(&delta)) {
    const auto found = groups_.find(moved->info.group_id);
    if (found == groups_.end() || found->second.spec.bundles.size() != moved->info.bundles.size()) {
      return error(Code::kDataLoss,
                   "the journal changes placement group {}, which it never created",
                   moved->info.group_id.to_string());
    }
    GroupRecord& record = found->second;
    const bool goes = moved->info.state == wire::PlacementGroupState::kRemoved && !record.removed();
    record.info = moved->info;
    if (goes) remember(record);
    record.queue_order = moved->queue_order;
    record.was_created = moved->was_created;
    raise(next_order_, moved->queue_order);
  } else if (const auto* dropped = get_if<GroupForgotten>(&delta)) {
    groups_.erase(dropped->group_id);
    removed_groups_.erase(dropped->group_id);
  } else if (const auto* job = get_if<JobKnown>(&delta)) {
    replay_job(job->job);
  } else if (const auto* past = get_if<JobForgotten>(&delta)) {
    jobs_.erase(past->job_id);
    ended_jobs_.erase(past->job_id);
  } else if (const auto* supervisor = get_if<SupervisorCreated>(&delta)) {
    supervisors_[supervisor->spec.supervisor_id].spec = supervisor->spec;
    raise(next_order_, supervisor->spec.order);
  } else if (const auto* now = get_if<SupervisorChanged>(&delta)) {
    const auto found = supervisors_.find(now->info.supervisor_id);
    if (found == supervisors_.end()) {
      return error(Code::kDataLoss, "the journal changes supervisor {}, which it never created",
                   now->info.supervisor_id.to_string());
    }
    SupervisorRecord& record = found->second;
    const bool ends = now->info.state == wire::SupervisorState::kEnded && !record.ended();
    record.info = now->info;
    if (ends) remember(record);
    record.restarts_unix_us = now->restarts_unix_us;
  } else if (const auto* removed = get_if<SupervisorForgotten>(&delta)) {
    supervisors_.erase(removed->supervisor_id);
    ended_supervisors_.erase(removed->supervisor_id);
  } else if (const auto* logged = get_if<EventLogged>(&delta)) {
    remember(logged->event);
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
  // The journal ends before the first state of a group: nobody has heard of it, and it is asked for
  // again.
  std::erase_if(groups_, [](const auto& entry) { return entry.second.info.group_id.empty(); });
  for (auto& [id, group] : groups_) {
    if (!group.removed()) resume_group(group);
  }
  std::vector<ActorId> homeless;
  for (auto& [id, actor] : actors_) {
    if (actor.dead()) continue;
    resume_actor(actor);
    const auto group = groups_.find(actor.spec.placement_group);
    if (actor.in_group() && (group == groups_.end() || group->second.removed())) {
      homeless.push_back(id);
    }
  }
  resume_supervisors();
  // The journal ends in the middle of a group's removal, or of an owner's end.
  end_actors(homeless, "its placement group was removed");
  resume_jobs();
  std::vector<ActorId> orphans;
  for (const auto& [id, actor] : actors_) {
    if (!actor.dead() && lost_owner(actor)) orphans.push_back(id);
  }
  end_actors(orphans, "its owner is gone");
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
  kept_bytes_ += kept_by(actor.spec);
  if (!actor.spec.name.empty() && !actor.ending()) living_names_[name_of(actor.spec)] = id;
  own(actor);
  if (!actor.spec.detached && actor.spec.owner_actor.empty()) {
    resume_owner(actor.spec.owner, actor.spec.job_id);
  }
  if (const auto group = groups_.find(actor.spec.placement_group); group != groups_.end()) {
    group->second.actors.insert(id);
  }
  const auto node = nodes_.find(actor.info.node_id);
  const bool node_lives = node != nodes_.end() && node->second.info.state != wire::NodeState::kDead;
  if (actor.lease_generation != 0 && node_lives) {
    const LeaseKey key{id, actor.lease_generation};
    const BundleKey bundle{actor.spec.placement_group, actor.info.bundle_index};
    if (!keep_lease(node->second, key, actor.spec.resources, &bundle) &&
        !keep_lease(node->second, key, actor.spec.resources, nullptr)) {
      actor.lease_generation = 0;
    }
  } else if (actor.lease_generation != 0) {
    actor.lease_generation = 0;
  }
  if (actor.queue_order != 0) {
    line_up(key_of(actor)).members.push_back(id);
  } else if (actor.info.state == wire::ActorState::kRestarting && actor.barrier.empty()) {
    // Not before its node had its chance to come back with what it knows.
    actor.restart_at = now_.steady + config_.rejoin_grace;
    arm(*actor.restart_at, TimerKind::kActor, id.high, id.low);
  }
}

void HeadState::resume_owner(ClientId owner, JobId job_id) {
  if (clients_.contains(owner)) return;
  ClientRecord& client = clients_[owner];
  client.client_id = owner;
  client.job_id = job_id;
  client.return_by = now_.steady + config_.rejoin_grace;
  arm(*client.return_by, TimerKind::kClient, owner.high, owner.low);
}

// What was whole is whole, where its nodes come back; what was being reserved waits again.
void HeadState::resume_group(GroupRecord& group) {
  ++living_groups_;
  kept_bytes_ += kept_by(group.spec);
  if (!group.spec.name.empty()) group_names_[group.spec.name] = group.spec.group_id;
  if (!group.spec.detached) resume_owner(group.spec.owner, group.spec.job_id);
  const auto& bundles = group.info.bundles;
  const bool there = std::all_of(bundles.begin(), bundles.end(), [&](const wire::BundleInfo& b) {
    const auto node = nodes_.find(b.node_id);
    return node != nodes_.end() && node->second.info.state != wire::NodeState::kDead &&
           fits(on_node(group, b.node_id), node->second.info.available);
  });
  if (group.created() && there) {
    for (std::size_t i = 0; i < bundles.size(); ++i) {
      const wire::BundleInfo& bundle = bundles[i];
      NodeRecord& node = nodes_.at(bundle.node_id);
      node.bundles.emplace(BundleKey{group.spec.group_id, static_cast<std::int32_t>(i)},
                           BundleLease{bundle.resources, bundle.resources});
      subtract(node.info.available, bundle.resources);
    }
    return;
  }
  group.info.state = group.was_created ? wire::PlacementGroupState::kRescheduling
                                       : wire::PlacementGroupState::kPending;
  enqueue(group);
}

std::vector<Delta> HeadState::snapshot() const {
  std::vector<Delta> deltas;
  for (const auto& [id, node] : nodes_) {
    NodeKnown known{node.info};
    known.node.available = known.node.total;  // follows from the leases
    deltas.push_back(std::move(known));
  }
  const auto put_group = [&](const GroupRecord& group) {
    deltas.push_back(GroupCreated{group.spec});
    deltas.push_back(GroupChanged{group.info, group.queue_order, group.was_created});
  };
  for (const auto& ended : removed_groups_) put_group(groups_.at(ended.id));
  for (const auto& [id, group] : groups_) {
    if (!group.removed()) put_group(group);
  }
  for (const auto& ended : ended_jobs_) deltas.push_back(JobKnown{jobs_.at(ended.id).info});
  for (const auto& [id, job] : jobs_) {
    if (!job.info.ended()) deltas.push_back(JobKnown{job.info});
  }
  const auto put_supervisor = [&](const SupervisorRecord& supervisor) {
    deltas.push_back(SupervisorCreated{supervisor.spec});
    deltas.push_back(SupervisorChanged{supervisor.info, supervisor.restarts_unix_us});
  };
  for (const auto& ended : ended_supervisors_) put_supervisor(supervisors_.at(ended.id));
  for (const auto& [id, supervisor] : supervisors_) {
    if (!supervisor.ended()) put_supervisor(supervisor);
  }
  const auto put = [&](const ActorRecord& actor) {
    deltas.push_back(ActorCreated{actor.spec, actor.gang});
    deltas.push_back(ActorChanged{actor.info, actor.lease_generation, actor.queue_order,
                                  actor.started, actor.stopping, actor.restart_after_stop,
                                  actor.restarts_unix_us, actor.moving, actor.barrier,
                                  actor.state_lost});
  };
  for (const auto& ended : dead_actors_) put(actors_.at(ended.id));
  for (const auto& [id, actor] : actors_) {
    if (!actor.dead()) put(actor);
  }
  for (const wire::EventRecord& event : events_) deltas.push_back(EventLogged{event});
  return deltas;
}

}  // namespace troupe::scheduler
