#include "scheduler/control/groups.h"

#include <algorithm>

#include "scheduler/control/journal_bytes.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {

// --- asked for -----------------------------------------------------------------------------------

Status Groups::check_new(const wire::PlacementGroupSpec& spec) const {
  if (context_.stopping()) return Status(Code::kFailedPrecondition, "the cluster is stopping");
  if (spec.group_id.empty() || contains(spec.group_id)) {
    return error(Code::kInvalidArgument, "placement group id {} is empty or used twice",
                 spec.group_id.to_string());
  }
  if (spec.bundles.empty()) {
    return Status(Code::kInvalidArgument, "a placement group needs at least one bundle");
  }
  if (spec.bundles.size() > context_.config().bundles_max) {
    return error(Code::kInvalidArgument, "a placement group of {} bundles; at most {} are taken",
                 spec.bundles.size(), context_.config().bundles_max);
  }
  for (std::size_t i = 0; i < spec.bundles.size(); ++i) {
    const wire::BundleSpec& bundle = spec.bundles[i];
    TROUPE_RETURN_IF_ERROR(validate(bundle.resources).with("bundle", i));
    TROUPE_RETURN_IF_ERROR(validate(bundle.label_selector).with("bundle", i));
    const bool any = std::any_of(bundle.resources.begin(), bundle.resources.end(),
                                 [](const auto& resource) { return resource.second > 0; });
    if (!any) return error(Code::kInvalidArgument, "bundle {} asks for nothing", i);
  }
  if (!spec.name.empty() && names_.contains(spec.name)) {
    return error(Code::kAlreadyExists,
                 "there is a placement group named '{}': take another name, or "
                 "get that one",
                 spec.name);
  }
  if (room_.living().groups >= context_.config().groups_max) {
    return error(Code::kOverloaded, "the cluster has {} placement groups, which is its limit",
                 room_.living().groups);
  }
  return {};
}

// What does not fit waits, also where the present nodes never could: others may join.
Status Groups::on(PeerId peer, wire::CreatePlacementGroup& message) {
  const ClientRecord* client = connections_.client_of(peer);
  if (client == nullptr) return not_a_client("creates placement groups");
  wire::PlacementGroupSpec& spec = message.spec;
  // The same request again, after a reconnection: it is done.
  const GroupRecord* known = find(spec.group_id);
  if (known != nullptr && known->spec.bundles == spec.bundles && known->spec.name == spec.name) {
    return {};
  }
  TROUPE_RETURN_IF_ERROR(jobs_.join(*client, spec.job_id, spec.priority));
  TROUPE_RETURN_IF_ERROR(check_new(spec));
  TROUPE_RETURN_IF_ERROR(room_.check_room(JournalRoom::kept_by(spec)));
  if (!connections_.has_client(spec.owner)) spec.owner = client->client_id;
  if (spec.job_id.empty()) spec.job_id = client->job_id;
  GroupRecord& group = records_[spec.group_id];
  group.info.group_id = spec.group_id;
  group.info.name = spec.name;
  group.info.strategy = spec.strategy;
  group.info.job_id = spec.job_id;
  group.info.priority = spec.priority;
  for (const wire::BundleSpec& bundle : spec.bundles) {
    group.info.bundles.push_back({bundle.resources, {}, bundle.label_selector, {}});
  }
  group.spec = std::move(spec);
  if (!group.spec.name.empty()) names_[group.spec.name] = group.id();
  room_.take(group.spec);
  context_.record(GroupCreated{group.spec});
  context_.log("group_requested", {}, "{} of {} bundles, {}, was asked for", describe(group),
               group.spec.bundles.size(), wire::placement_strategy_name(group.spec.strategy));
  enqueue(group);
  return {};
}

Status Groups::on(PeerId, wire::RemovePlacementGroup& message) {
  const GroupRecord* group = find(message.group_id);
  if (group == nullptr) return not_found("placement group", message.group_id);
  remove(*group, message.reason.empty() ? "on request" : message.reason);
  return {};
}

const GroupRecord* Groups::named(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? nullptr : find(found->second);
}

// In its old place where it had one: it was there before those that came since.
void Groups::enqueue(GroupRecord& group) {
  if (group.queue_order == 0) group.queue_order = context_.next_order();
  group.waiting = true;
  group.retry_at.reset();
  line_.add(group);
  changed(group);
}

// --- places --------------------------------------------------------------------------------------

std::vector<Bundle> Groups::bundles_of(const GroupRecord& group) const {
  std::vector<Bundle> bundles(group.spec.bundles.size());
  for (std::size_t i = 0; i < bundles.size(); ++i) {
    bundles[i].need = group.spec.bundles[i].resources;
    bundles[i].selector = group.spec.bundles[i].label_selector;
    const NodeId& before = group.info.bundles[i].node_id;
    if (!before.empty()) bundles[i].preferred = before;
  }
  for (const ActorId& id : actors_.in_group(group.id())) {
    const ActorRecord& actor = actors_.at(id);
    if (actor.lease_generation == 0 || actor.info.bundle_index < 0) continue;
    Bundle& bundle = bundles[static_cast<std::size_t>(actor.info.bundle_index)];
    if (bundle.preferred != actor.info.node_id) continue;
    add(bundle.held, nodes_.at(actor.info.node_id).leases.at(actor.lease()));
  }
  return bundles;
}

std::optional<std::int32_t> Groups::bundle_for(const wire::ActorSpec& spec, std::int32_t last,
                                               const GroupRecord& group, BundleUse& used,
                                               bool whole) const {
  if (!whole && !group.created()) return std::nullopt;
  const auto count = static_cast<std::int32_t>(group.info.bundles.size());
  const auto try_one = [&](std::int32_t index) {
    const wire::BundleInfo& bundle = group.info.bundles[static_cast<std::size_t>(index)];
    const BundleKey key{group.id(), index};
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

// --- reserved ------------------------------------------------------------------------------------

void Groups::prepare(const GroupRecord& record, const std::vector<NodeId>& nodes) {
  GroupRecord& group = edit(record);
  group.waiting = false;
  line_.remove(group);
  for (std::size_t i = 0; i < nodes.size(); ++i) group.info.bundles[i].node_id = nodes[i];
  group.info.generation += 1;
  group.info.state = wire::PlacementGroupState::kPreparing;
  group.info.why.clear();
  reserve(group);
  group.awaited = {nodes.begin(), nodes.end()};
  group.answer_by = context_.now() + context_.config().prepare_timeout;
  context_.arm(*group.answer_by, TimerKind::kGroup, group.id());
  for (const NodeId& node_id : group.awaited) {
    context_.send(nodes_.at(node_id).peer, wire::PrepareBundles{{group.id(), group.info.generation,
                                                                 group.on_node(node_id)}});
  }
  changed(group);
}

// Takes the room of every bundle on its node. Actors that ran on there since the group lost its
// reservation are inside again.
void Groups::reserve(const GroupRecord& group) {
  for (std::size_t i = 0; i < group.info.bundles.size(); ++i) {
    std::vector<LeaseKey> inside;
    for (const ActorId& id : actors_.in_group(group.id())) {
      const ActorRecord& actor = actors_.at(id);
      if (actor.info.bundle_index == group.bundle(i).second) inside.push_back(actor.lease());
    }
    nodes_.take_bundle(holder(group, i), group.bundle(i), group.info.bundles[i].resources, inside);
  }
}

void Groups::on(PeerId peer, wire::BundlesPrepared& message) {
  const NodeRecord* node = nodes_.of_peer(peer);
  const auto found = records_.find(message.group_id);
  if (node == nullptr || found == records_.end()) return;
  GroupRecord& group = found->second;
  if (group.info.state != wire::PlacementGroupState::kPreparing ||
      group.info.generation != message.generation || !group.awaited.contains(node->id())) {
    return;
  }
  if (!message.status.ok()) {
    return unreserve(
        group, "group_refused",
        fmt::format("node {} could not hold it: {}", node->info.name, message.status.to_string()),
        context_.config().prepare_retry);
  }
  group.awaited.erase(node->id());
  if (group.awaited.empty()) commit(group);
}

// Second phase: all have agreed.
void Groups::commit(GroupRecord& group) {
  group.answer_by.reset();
  group.info.state = wire::PlacementGroupState::kCreated;
  group.was_created = true;
  std::set<NodeId> nodes;
  for (const wire::BundleInfo& bundle : group.info.bundles) nodes.insert(bundle.node_id);
  for (const NodeId& node_id : nodes) {
    context_.send(nodes_.at(node_id).peer, wire::CommitBundles{group.id(), group.info.generation});
  }
  context_.log("group_created", {{}, {}, group.info.generation}, "{} is reserved on {} nodes",
               describe(group), nodes.size());
  changed(group);
  line_.came_room();  // in its bundles
  // Actors that ran on where their bundle is no more go where it is.
  const std::set<ActorId> members = actors_.in_group(group.id());
  for (const ActorId& actor_id : members) {
    const ActorRecord& actor = actors_.at(actor_id);
    if (actor.lease_generation == 0) continue;
    const NodeRecord* node = nodes_.find(actor.info.node_id);
    if (node != nullptr && node->inside.contains(actor.lease())) continue;
    if (!actor.has_process()) {
      actors_.free_lease_of(actor);
    } else if (!actor.moving || !actor.stopping) {  // else it is on its way, with its time
      actors_.end(actor, true, 0, "its placement group was reserved anew on another node");
    }
  }
}

void Groups::timer(const Timer& timer) {
  const auto found = records_.find(timer.id<GroupId>());
  if (found == records_.end()) return;
  GroupRecord& group = found->second;
  if (group.answer_by && *group.answer_by <= context_.now()) {
    if (!context_.looked_twice(timer)) return;
    std::string names;
    for (const NodeId& id : group.awaited) {
      names += (names.empty() ? "" : ", ") + nodes_.at(id).info.name;
    }
    return unreserve(group, "group_refused", fmt::format("no answer from {}", names),
                     context_.config().prepare_retry);
  }
  if (group.retry_at && *group.retry_at <= context_.now()) enqueue(group);
}

// --- lost ----------------------------------------------------------------------------------------

// Gives every bundle back to its node. What its actors hold is theirs until their processes are
// gone.
void Groups::release(GroupRecord& group) {
  std::set<NodeId> nodes;
  for (std::size_t i = 0; i < group.info.bundles.size(); ++i) {
    const NodeRecord& node = holder(group, i);
    nodes_.free_bundle(node, group.bundle(i));
    if (node.peer != 0 && nodes.insert(node.id()).second) {
      context_.send(node.peer, wire::ReleaseBundles{group.id(), group.info.generation});
    }
  }
  group.awaited.clear();
  group.answer_by.reset();
  line_.came_room();
}

// It is absent as a whole, and waits to be reserved again: after `wait`, in its old place in line.
void Groups::unreserve(GroupRecord& group, const char* event, const std::string& why,
                       Duration wait) {
  release(group);
  waits_again(group);
  group.info.why = clipped(why, kLivingTextBytes);
  context_.log(event, {{}, {}, group.info.generation}, "{}: {}", describe(group), why);
  changed(group);
  if (wait == Duration::zero()) return enqueue(group);
  group.retry_at = context_.now() + wait;
  context_.arm(*group.retry_at, TimerKind::kGroup, group.id());
}

void Groups::waits_again(GroupRecord& group) {
  group.info.state = group.was_created ? wire::PlacementGroupState::kRescheduling
                                       : wire::PlacementGroupState::kPending;
}

void Groups::lose(const GroupRecord& group, const std::string& why) {
  unreserve(edit(group), group.created() ? "group_rescheduling" : "group_refused", why,
            Duration::zero());
}

void Groups::lose_on(const NodeRecord& node, bool created_too, const std::string& why) {
  for (const GroupId& id : node.groups()) {
    if (created_too || !at(id).created()) lose(at(id), why);
  }
}

// --- removed -------------------------------------------------------------------------------------

void Groups::remove(const GroupRecord& record, const std::string& reason) {
  GroupRecord& group = edit(record);
  if (group.removed()) return;
  if (group.reserved()) release(group);
  if (std::exchange(group.waiting, false)) line_.remove(group);
  group.retry_at.reset();
  group.info.state = wire::PlacementGroupState::kRemoved;
  group.info.why = clipped(reason, kLivingTextBytes);
  const auto named = names_.find(group.spec.name);
  if (named != names_.end() && named->second == group.id()) names_.erase(named);
  room_.let_go(group.spec);
  ended_.add(group.id(), JournalRoom::left_by(group));
  context_.log("group_removed", {{}, {}, group.info.generation}, "{} was removed: {}",
               describe(group), reason);
  changed(group);
  line_.came_room();
  const std::set<ActorId>& actors = actors_.in_group(group.id());
  actors_.end_all({actors.begin(), actors.end()},
                  fmt::format("its placement group was removed ({})", reason));
}

void Groups::remove_all(const std::vector<GroupId>& ids, const std::string& reason) {
  for (const GroupId& id : ids) remove(at(id), reason);
}

// The actors of one that was removed are being stopped until it has none.
void Groups::end_apply() {
  forget_old(context_.config().removed_groups_max,
             [this](const GroupRecord& group) { return actors_.in_group(group.id()).empty(); });
}

// --- a head that comes back ----------------------------------------------------------------------

Status Groups::replay(const GroupCreated& delta) {
  GroupRecord& group = records_[delta.spec.group_id];
  group.spec = delta.spec;
  group.info.bundles.resize(delta.spec.bundles.size());  // until GroupChanged follows
  return {};
}

Status Groups::replay(const GroupChanged& delta) {
  const auto found = records_.find(delta.info.group_id);
  if (found == records_.end() || found->second.spec.bundles.size() != delta.info.bundles.size()) {
    return error(Code::kDataLoss, "the journal changes placement group {}, which it never created",
                 delta.info.group_id.to_string());
  }
  GroupRecord& group = found->second;
  const bool goes = delta.info.state == wire::PlacementGroupState::kRemoved && !group.removed();
  static_cast<GroupChanged&>(group) = delta;
  if (goes) ended_.add(group.id(), JournalRoom::left_by(group));
  context_.used_order(delta.queue_order);
  return {};
}

// What was whole is whole, where its nodes come back; what was being reserved waits again.
void Groups::resume() {
  // The journal ends before the first state of a group: nobody has heard of it, and it is asked for
  // again.
  std::erase_if(records_, [](const auto& entry) { return entry.second.info.group_id.empty(); });
  for (auto& [id, group] : records_) {
    if (group.removed()) continue;
    room_.take(group.spec);
    if (!group.spec.name.empty()) names_[group.spec.name] = id;
    if (!group.spec.detached) connections_.await_owner(group.spec.owner, group.spec.job_id);
    const auto& bundles = group.info.bundles;
    const bool there =
        std::all_of(bundles.begin(), bundles.end(), [&, &held = group](const auto& bundle) {
          const NodeRecord* node = nodes_.find(bundle.node_id);
          return node != nullptr && !node->dead() &&
                 fits(held.on_node(bundle.node_id), node->info.available);
        });
    if (!group.created() || !there) {
      waits_again(group);
      enqueue(group);
      continue;
    }
    for (std::size_t i = 0; i < bundles.size(); ++i) {
      nodes_.restore_bundle(holder(group, i), group.bundle(i), bundles[i].resources);
    }
  }
}

// --- what must hold ------------------------------------------------------------------------------

// A group holds all of its bundles or none, and what does not hold them waits.
std::optional<std::string> Groups::broken_invariant() const {
  for (const auto& [id, group] : all()) {
    TROUPE_HOLDS(group.info.group_id == id, "group {} was half journalled", id.brief());
    std::size_t held = 0;
    for (std::size_t i = 0; i < group.info.bundles.size(); ++i) {
      const NodeRecord* node = nodes_.find(group.info.bundles[i].node_id);
      held += node != nullptr && node->bundles.contains(group.bundle(i)) ? 1 : 0;
    }
    TROUPE_HOLDS(held == (group.reserved() ? group.info.bundles.size() : 0),
                 "group {} holds {} of its bundles", id.brief(), held);
    TROUPE_HOLDS((group.info.state == wire::PlacementGroupState::kPreparing) ==
                     (!group.awaited.empty() && group.answer_by.has_value()),
                 "group {} waits for nobody", id.brief());
    TROUPE_HOLDS(
        (group.waiting || group.retry_at.has_value()) != (group.reserved() || group.removed()),
        "group {} is forgotten, or waits for what it has", id.brief());
    const QueueEntry* entry = line_.find(key_of(group));
    TROUPE_HOLDS(!group.waiting || (entry != nullptr && entry->group == id),
                 "group {} is not where it waits", id.brief());
  }
  for (const auto& [node_id, node] : nodes_.all()) {
    for (const auto& [key, bundle] : node.bundles) {
      const GroupRecord* group = find(key.first);
      TROUPE_HOLDS(
          group != nullptr && group->reserved() &&
              group->info.bundles.at(static_cast<std::size_t>(key.second)).node_id == node_id,
          "node {} holds a bundle of nobody", node.info.name);
    }
  }
  for (const auto& [key, entry] : line_.all()) {
    if (entry.group.empty()) continue;
    const GroupRecord* group = find(entry.group);
    TROUPE_HOLDS(group != nullptr && group->waiting && key_of(*group) == key,
                 "queue entry {} names group {} wrongly", key.order, entry.group.brief());
  }
  return std::nullopt;
}

}  // namespace troupe::scheduler
