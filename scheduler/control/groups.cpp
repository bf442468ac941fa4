// Placement groups: asked for, reserved in two phases, lost with a node and reserved again,
// removed.

#include <algorithm>

#include "runtime/base/check.h"
#include "scheduler/control/head_state.h"
#include "scheduler/control/journal_bytes.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {

std::string HeadState::describe(const GroupRecord& group) {
  return group.spec.name.empty() ? fmt::format("placement group {}", group.spec.group_id.brief())
                                 : fmt::format("placement group '{}'", group.spec.name);
}

void HeadState::changed(GroupRecord& group) { changed_groups_.insert(group.spec.group_id); }

wire::PlacementGroupInfo HeadState::visible(const GroupRecord& group) const {
  wire::PlacementGroupInfo info = group.info;
  info.why = why_pending(group);
  if (!group.created()) return info;
  for (std::size_t i = 0; i < info.bundles.size(); ++i) {
    const NodeRecord& node = nodes_.at(info.bundles[i].node_id);
    info.bundles[i].available =
        node.bundles.at({group.spec.group_id, static_cast<std::int32_t>(i)}).available;
  }
  return info;
}

// --- asked for -----------------------------------------------------------------------------------

Status HeadState::check_group(const wire::PlacementGroupSpec& spec) const {
  if (stopping()) return Status(Code::kFailedPrecondition, "the cluster is stopping");
  if (spec.group_id.empty() || groups_.contains(spec.group_id)) {
    return error(Code::kInvalidArgument, "placement group id {} is empty or used twice",
                 spec.group_id.to_string());
  }
  if (spec.bundles.empty()) {
    return Status(Code::kInvalidArgument, "a placement group needs at least one bundle");
  }
  if (spec.bundles.size() > config_.bundles_max) {
    return error(Code::kInvalidArgument, "a placement group of {} bundles; at most {} are taken",
                 spec.bundles.size(), config_.bundles_max);
  }
  for (std::size_t i = 0; i < spec.bundles.size(); ++i) {
    const wire::BundleSpec& bundle = spec.bundles[i];
    TROUPE_RETURN_IF_ERROR(validate(bundle.resources).with("bundle", i));
    TROUPE_RETURN_IF_ERROR(validate(bundle.label_selector).with("bundle", i));
    const bool any = std::any_of(bundle.resources.begin(), bundle.resources.end(),
                                 [](const auto& resource) { return resource.second > 0; });
    if (!any) return error(Code::kInvalidArgument, "bundle {} asks for nothing", i);
  }
  if (!spec.name.empty() && group_names_.contains(spec.name)) {
    return error(Code::kAlreadyExists,
                 "there is a placement group named '{}': take another name, or get that one",
                 spec.name);
  }
  if (living_groups_ >= config_.groups_max) {
    return error(Code::kOverloaded, "the cluster has {} placement groups, which is its limit",
                 living_groups_);
  }
  return {};
}

// What does not fit waits, also where the present nodes never could: others may join.
void HeadState::on(PeerId peer, wire::CreatePlacementGroup& message) {
  const ClientRecord* client = client_of(peer);
  if (client == nullptr) {
    return reply(peer, message.request_id,
                 Status(Code::kFailedPrecondition, "only a client creates placement groups"));
  }
  wire::PlacementGroupSpec& spec = message.spec;
  // The same request again, after a reconnection: it is done.
  const auto known = groups_.find(spec.group_id);
  if (known != groups_.end() && known->second.spec.bundles == spec.bundles &&
      known->second.spec.name == spec.name) {
    return reply(peer, message.request_id, {});
  }
  Status status = join_job(*client, spec.job_id, spec.priority);
  if (status.ok()) status = check_group(spec);
  if (status.ok()) status = check_room(kept_by(spec));
  const bool good = status.ok();
  reply(peer, message.request_id, std::move(status));
  if (!good) return;
  if (!clients_.contains(spec.owner)) spec.owner = client->client_id;
  if (spec.job_id.empty()) spec.job_id = client->job_id;
  GroupRecord& group = groups_[spec.group_id];
  group.info.group_id = spec.group_id;
  group.info.name = spec.name;
  group.info.strategy = spec.strategy;
  group.info.job_id = spec.job_id;
  group.info.priority = spec.priority;
  for (const wire::BundleSpec& bundle : spec.bundles) {
    group.info.bundles.push_back({bundle.resources, {}, bundle.label_selector, {}});
  }
  group.spec = std::move(spec);
  if (!group.spec.name.empty()) group_names_[group.spec.name] = group.spec.group_id;
  ++living_groups_;
  kept_bytes_ += kept_by(group.spec);
  deltas_.push_back(GroupCreated{group.spec});
  log_event(
      "group_requested", {}, {}, 0,
      fmt::format("{} of {} bundles, {}, was asked for", describe(group), group.spec.bundles.size(),
                  wire::placement_strategy_name(group.spec.strategy)));
  enqueue(group);
}

// --- reserved ------------------------------------------------------------------------------------

// Each with its place before, and what of it its actors hold there still.
std::vector<Bundle> HeadState::bundles_of(const GroupRecord& group) const {
  std::vector<Bundle> bundles(group.spec.bundles.size());
  for (std::size_t i = 0; i < bundles.size(); ++i) {
    bundles[i].need = group.spec.bundles[i].resources;
    bundles[i].selector = group.spec.bundles[i].label_selector;
    const NodeId& before = group.info.bundles[i].node_id;
    if (!before.empty()) bundles[i].preferred = before;
  }
  for (const ActorId& id : group.actors) {
    const ActorRecord& actor = actors_.at(id);
    if (actor.lease_generation == 0 || actor.info.bundle_index < 0) continue;
    Bundle& bundle = bundles[static_cast<std::size_t>(actor.info.bundle_index)];
    if (bundle.preferred != actor.info.node_id) continue;
    const NodeRecord& node = nodes_.at(actor.info.node_id);
    add(bundle.held, node.leases.at({id, actor.lease_generation}));
  }
  return bundles;
}

wire::Resources HeadState::on_node(const GroupRecord& group, NodeId node_id) {
  wire::Resources sum;
  for (const wire::BundleInfo& bundle : group.info.bundles) {
    if (bundle.node_id == node_id) add(sum, bundle.resources);
  }
  return sum;
}

// First phase: the room is taken here at once, and the nodes are asked.
void HeadState::prepare(GroupRecord& group, const std::vector<NodeId>& nodes) {
  for (std::size_t i = 0; i < nodes.size(); ++i) group.info.bundles[i].node_id = nodes[i];
  group.info.generation += 1;
  group.info.state = wire::PlacementGroupState::kPreparing;
  group.info.why.clear();
  reserve(group);
  group.awaited = {nodes.begin(), nodes.end()};
  group.answer_by = now_.steady + config_.prepare_timeout;
  const GroupId id = group.spec.group_id;
  arm(*group.answer_by, TimerKind::kGroup, id.high, id.low);
  for (const NodeId& node_id : group.awaited) {
    send(nodes_.at(node_id).peer,
         wire::PrepareBundles{{id, group.info.generation, on_node(group, node_id)}});
  }
  changed(group);
}

void HeadState::on(PeerId peer, wire::BundlesPrepared& message) {
  const NodeRecord* node = node_of(peer);
  const auto found = groups_.find(message.group_id);
  if (node == nullptr || found == groups_.end()) return;
  GroupRecord& group = found->second;
  if (group.info.state != wire::PlacementGroupState::kPreparing ||
      group.info.generation != message.generation || !group.awaited.contains(node->info.node_id)) {
    return;
  }
  if (!message.status.ok()) {
    return unreserve(
        group, "group_refused",
        fmt::format("node {} could not hold it: {}", node->info.name, message.status.to_string()),
        config_.prepare_retry);
  }
  group.awaited.erase(node->info.node_id);
  if (group.awaited.empty()) commit(group);
}

// Second phase: all have agreed.
void HeadState::commit(GroupRecord& group) {
  const GroupId id = group.spec.group_id;
  group.answer_by.reset();
  group.info.state = wire::PlacementGroupState::kCreated;
  group.was_created = true;
  std::set<NodeId> nodes;
  for (const wire::BundleInfo& bundle : group.info.bundles) nodes.insert(bundle.node_id);
  for (const NodeId& node_id : nodes) {
    send(nodes_.at(node_id).peer, wire::CommitBundles{id, group.info.generation});
  }
  log_event("group_created", {}, {}, group.info.generation,
            fmt::format("{} is reserved on {} nodes", describe(group), nodes.size()));
  changed(group);
  came_room();  // in its bundles
  // Actors that ran on where their bundle is no more go where it is.
  const std::set<ActorId> members = group.actors;
  for (const ActorId& actor_id : members) {
    ActorRecord& actor = actors_.at(actor_id);
    if (actor.lease_generation == 0) continue;
    const auto node = nodes_.find(actor.info.node_id);
    if (node != nodes_.end() && node->second.inside.contains({actor_id, actor.lease_generation})) {
      continue;
    }
    if (actor.has_process()) {
      if (actor.moving && actor.stopping) continue;  // it is on its way, with its time
      end_actor(actor, true, 0, "its placement group was reserved anew on another node");
    } else {
      free_lease_of(actor);
    }
  }
}

// Takes the room of every bundle on its node. Actors that ran on there since the group lost its
// reservation are inside again.
void HeadState::reserve(GroupRecord& group) {
  const GroupId id = group.spec.group_id;
  for (std::size_t i = 0; i < group.info.bundles.size(); ++i) {
    const wire::BundleInfo& bundle = group.info.bundles[i];
    const BundleKey key{id, static_cast<std::int32_t>(i)};
    NodeRecord& node = nodes_.at(bundle.node_id);
    BundleLease lease{bundle.resources, bundle.resources};
    for (const ActorId& actor_id : group.actors) {
      const ActorRecord& actor = actors_.at(actor_id);
      const auto held = node.leases.find({actor_id, actor.lease_generation});
      if (actor.info.bundle_index != key.second || held == node.leases.end()) continue;
      subtract(lease.available, held->second);
      add(node.info.available, held->second);
      node.inside.emplace(held->first, key);
    }
    TROUPE_CHECK(fits(bundle.resources, node.info.available));
    subtract(node.info.available, bundle.resources);
    TROUPE_CHECK(node.bundles.emplace(key, std::move(lease)).second);
    resized_nodes_.insert(bundle.node_id);
    refresh(node);
  }
}

// Gives every bundle back to its node. What its actors hold is theirs until their processes are
// gone.
void HeadState::release(GroupRecord& group) {
  const GroupId id = group.spec.group_id;
  std::set<NodeId> nodes;
  for (std::size_t i = 0; i < group.info.bundles.size(); ++i) {
    const BundleKey key{id, static_cast<std::int32_t>(i)};
    NodeRecord& node = nodes_.at(group.info.bundles[i].node_id);
    const auto bundle = node.bundles.find(key);
    TROUPE_CHECK(bundle != node.bundles.end());
    add(node.info.available, bundle->second.total);
    node.bundles.erase(bundle);
    for (auto inside = node.inside.begin(); inside != node.inside.end();) {
      if (inside->second != key) {
        ++inside;
        continue;
      }
      subtract(node.info.available, node.leases.at(inside->first));
      inside = node.inside.erase(inside);
    }
    resized_nodes_.insert(node.info.node_id);
    refresh(node);
    if (node.peer != 0 && nodes.insert(node.info.node_id).second) {
      send(node.peer, wire::ReleaseBundles{id, group.info.generation});
    }
  }
  group.awaited.clear();
  group.answer_by.reset();
  came_room();
}

// The group is absent as a whole, and waits to be reserved again: after `wait`, in its old place in
// line.
void HeadState::unreserve(GroupRecord& group, const char* event, const std::string& why,
                          Duration wait) {
  release(group);
  group.info.state = group.was_created ? wire::PlacementGroupState::kRescheduling
                                       : wire::PlacementGroupState::kPending;
  group.info.why = clipped(why, kLivingTextBytes);
  log_event(event, {}, {}, group.info.generation, fmt::format("{}: {}", describe(group), why));
  changed(group);
  if (wait == Duration::zero()) return enqueue(group);
  group.retry_at = now_.steady + wait;
  arm(*group.retry_at, TimerKind::kGroup, group.spec.group_id.high, group.spec.group_id.low);
}

// The groups that are being reserved on a node, or those that are reserved there, too.
void HeadState::unreserve_on(NodeRecord& node, bool created_too, const std::string& why) {
  std::set<GroupId> ids;
  for (const auto& [key, bundle] : node.bundles) ids.insert(key.first);
  for (const GroupId& id : ids) {
    GroupRecord& group = groups_.at(id);
    if (group.created() && !created_too) continue;
    unreserve(group, group.created() ? "group_rescheduling" : "group_refused", why,
              Duration::zero());
  }
}

void HeadState::group_timer(GroupRecord& group, const Timer& timer) {
  if (group.answer_by && *group.answer_by <= now_.steady) {
    if (!looked_twice(timer)) return;
    std::string names;
    for (const NodeId& id : group.awaited) {
      names += (names.empty() ? "" : ", ") + nodes_.at(id).info.name;
    }
    return unreserve(group, "group_refused", fmt::format("no answer from {}", names),
                     config_.prepare_retry);
  }
  if (group.retry_at && *group.retry_at <= now_.steady) enqueue(group);
}

// --- used ----------------------------------------------------------------------------------------

// The bundle that has room for the actor besides what `used` takes, which it then takes, too;
// `whole`: as if nothing ran in the group. The one it was in before (`last`) is preferred.
std::optional<std::int32_t> HeadState::bundle_for(const wire::ActorSpec& spec, std::int32_t last,
                                                  const GroupRecord& group, BundleUse& used,
                                                  bool whole) const {
  if (!whole && !group.created()) return std::nullopt;
  const auto count = static_cast<std::int32_t>(group.info.bundles.size());
  const auto try_one = [&](std::int32_t index) {
    const wire::BundleInfo& bundle = group.info.bundles[static_cast<std::size_t>(index)];
    const BundleKey key{group.spec.group_id, index};
    wire::Resources free = bundle.resources;
    if (!whole) {
      const NodeRecord& node = nodes_.at(bundle.node_id);
      const bool wanted =
          spec.node_affinity_soft || !spec.node_affinity || *spec.node_affinity == bundle.node_id;
      if (!node.usable() || !wanted || !matches(spec.label_selector, node.info.labels)) {
        return false;
      }
      free = node.bundles.at(key).available;
    }
    wire::Resources& taken = used[key];
    subtract(free, taken);
    if (!fits(spec.resources, free)) return false;
    add(taken, spec.resources);
    return true;
  };
  if (spec.bundle_index >= 0) {
    if (spec.bundle_index < count && try_one(spec.bundle_index)) return spec.bundle_index;
    return std::nullopt;
  }
  if (last >= 0 && last < count && try_one(last)) return last;
  for (std::int32_t index = 0; index < count; ++index) {
    if (index != last && try_one(index)) return index;
  }
  return std::nullopt;
}

// --- removed -------------------------------------------------------------------------------------

void HeadState::remove_group(GroupRecord& group, const std::string& reason) {
  if (group.removed()) return;
  const GroupId id = group.spec.group_id;
  if (group.reserved()) release(group);
  dequeue(group);
  group.retry_at.reset();
  group.info.state = wire::PlacementGroupState::kRemoved;
  group.info.why = clipped(reason, kLivingTextBytes);
  const auto named = group_names_.find(group.spec.name);
  if (named != group_names_.end() && named->second == id) group_names_.erase(named);
  --living_groups_;
  let_go(kept_by(group.spec));
  remember(group);
  log_event("group_removed", {}, {}, group.info.generation,
            fmt::format("{} was removed: {}", describe(group), reason));
  changed(group);
  came_room();
  const std::vector<ActorId> actors(group.actors.begin(), group.actors.end());
  end_actors(actors, fmt::format("its placement group was removed ({})", reason));
}

void HeadState::remove_groups(const std::vector<GroupId>& ids, const std::string& reason) {
  for (const GroupId& id : ids) remove_group(groups_.at(id), reason);
}

void HeadState::forget_old_groups() {
  while (removed_groups_.too_many(config_.removed_groups_max, config_.ended_bytes_max)) {
    const GroupId oldest = removed_groups_.oldest();
    const auto found = groups_.find(oldest);
    if (!found->second.actors.empty()) break;  // they are being stopped
    removed_groups_.erase(oldest);
    groups_.erase(found);
    deltas_.push_back(GroupForgotten{oldest});
  }
}

// --- asked about ---------------------------------------------------------------------------------

void HeadState::on(PeerId peer, wire::RemovePlacementGroup& message) {
  const auto found = groups_.find(message.group_id);
  if (found == groups_.end()) {
    return reply(
        peer, message.request_id,
        error(Code::kNotFound, "there is no placement group {}", message.group_id.to_string()));
  }
  reply(peer, message.request_id, {});
  remove_group(found->second, message.reason.empty() ? "on request" : message.reason);
}

void HeadState::on(PeerId peer, wire::WatchPlacementGroup& message) {
  GroupId id = message.group_id;
  if (id.empty()) {
    const auto named = group_names_.find(message.name);
    if (named == group_names_.end()) {
      return reply(peer, message.request_id,
                   error(Code::kNotFound, "no placement group is named '{}'", message.name));
    }
    id = named->second;
  }
  const auto found = groups_.find(id);
  if (found == groups_.end()) {
    return reply(peer, message.request_id,
                 error(Code::kNotFound, "there is no placement group {}", id.to_string()));
  }
  reply(peer, message.request_id, {});
  if (message.stop) {
    found->second.watchers.erase(peer);
    peers_[peer].watched_groups.erase(id);
    return;
  }
  if (!found->second.removed()) {
    found->second.watchers.insert(peer);
    peers_[peer].watched_groups.insert(id);
  }
  send(peer, wire::PlacementGroupUpdate{visible(found->second)});
}

void HeadState::on(PeerId peer, wire::ListPlacementGroups& message) {
  wire::PlacementGroupList list{message.request_id, {}};
  for (const auto& [id, group] : groups_) {
    if (message.include_removed || !group.removed()) list.groups.push_back(visible(group));
  }
  send(peer, std::move(list));
}

}  // namespace troupe::scheduler
