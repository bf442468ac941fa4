// Drivers, actors' processes and tools: what they ask for, and what ends with them.

#include <algorithm>
#include <set>

#include "runtime/wire/spec_size.h"
#include "scheduler/control/head_state.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

Status no_such_actor(ActorId id) {
  return error(Code::kNotFound, "there is no actor {}", id.to_string());
}

}  // namespace

ClientRecord* HeadState::client_of(PeerId peer) {
  const auto record = peers_.find(peer);
  if (record == peers_.end() || record->second.client_id.empty()) return nullptr;
  const auto client = clients_.find(record->second.client_id);
  return client != clients_.end() ? &client->second : nullptr;
}

// Told to who came, and noted here: either side may be the one to look.
Status HeadState::check_version(const std::string& who, std::uint32_t version) {
  if (version == wire::kProtocolVersion) return {};
  Status status = error(Code::kProtocol,
                        "{} speaks protocol {}, the head speaks {}: run the same version of troupe "
                        "on both ('troupe version' shows it)",
                        who, version, wire::kProtocolVersion);
  log_event("version_refused", {}, {}, 0, status.message());
  return status;
}

void HeadState::on(PeerId peer, wire::ClientHello& message) {
  if (message.client_id.empty()) {
    reply(peer, message.request_id, Status(Code::kInvalidArgument, "a client without an id"));
    commands_.push_back(ClosePeer{peer});
    return;
  }
  Status taken = check_version(message.name, message.protocol_version);
  if (taken.ok() && message.kind == "driver") taken = check_job_runs(message.job_id, message.kind);
  if (!taken.ok()) {
    reply(peer, message.request_id, std::move(taken));
    commands_.push_back(ClosePeer{peer});
    return;
  }
  ClientRecord& client = clients_[message.client_id];
  if (client.peer != 0 && client.peer != peer) {
    const auto old = peers_.find(client.peer);
    if (old != peers_.end()) {
      drop_watches(client.peer, old->second);
      peers_.erase(old);
    }
    commands_.push_back(ClosePeer{client.peer});
  }
  client.client_id = message.client_id;
  client.job_id = message.job_id;
  client.name = message.name;
  client.kind = message.kind;
  client.namespace_name = message.namespace_name;
  client.peer = peer;
  client.return_by.reset();
  peers_[peer].client_id = message.client_id;
  // Nothing is decided by it, and one that waits for a slow disk here gives this connection up,
  // comes back ever later, and in the end too late for its actors.
  commands_.push_back(SendMessage{peer, wire::Reply{message.request_id, Status(), {}}, true});
}

void HeadState::drop_watches(PeerId peer, const PeerRecord& record) {
  for (const ActorId& id : record.watched_actors) {
    const auto actor = actors_.find(id);
    if (actor != actors_.end()) actor->second.watchers.erase(peer);
  }
  for (const GroupId& id : record.watched_groups) {
    const auto group = groups_.find(id);
    if (group != groups_.end()) group->second.watchers.erase(peer);
  }
  for (const SupervisorId& id : record.watched_supervisors) {
    const auto supervisor = supervisors_.find(id);
    if (supervisor != supervisors_.end()) supervisor->second.watchers.erase(peer);
  }
}

void HeadState::peer_closed(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  const PeerRecord record = found->second;
  drop_watches(peer, record);
  if (NodeRecord* node = node_of(peer)) node_peer_closed(*node);
  if (ClientRecord* client = client_of(peer); client != nullptr && client->peer == peer) {
    client->peer = 0;
    client->return_by = now_.steady + config_.owner_grace;
    arm(*client->return_by, TimerKind::kClient, client->client_id.high, client->client_id.low);
  }
  peers_.erase(peer);
}

void HeadState::owner_gone(const ClientRecord& client) {
  std::vector<ActorId> owned;
  for (const auto& [id, actor] : actors_) {
    if (!actor.dead() && !actor.spec.detached && actor.spec.owner == client.client_id &&
        actor.spec.owner_actor.empty()) {
      owned.push_back(id);
    }
  }
  std::vector<GroupId> groups;
  for (const auto& [id, group] : groups_) {
    if (!group.removed() && !group.spec.detached && group.spec.owner == client.client_id) {
      groups.push_back(id);
    }
  }
  std::vector<SupervisorId> supervisors;
  for (const auto& [id, supervisor] : supervisors_) {
    if (!supervisor.ended() && !supervisor.spec.detached &&
        supervisor.spec.owner == client.client_id && supervisor.spec.owner_actor.empty()) {
      supervisors.push_back(id);
    }
  }
  if (owned.empty() && groups.empty() && supervisors.empty()) return;
  const std::string who = client.name.empty() ? client.client_id.brief() : client.name;
  log_event("owner_gone", {}, {}, 0,
            fmt::format("{} is gone; its {} actors and {} placement groups end with it", who,
                        owned.size(), groups.size()));
  const std::string reason = fmt::format("its owner ({}) is gone", who);
  end_supervisors(supervisors, reason);
  end_actors(owned, reason);
  remove_groups(groups, reason);
}

void HeadState::end_actors(const std::vector<ActorId>& ids, const std::string& reason) {
  for (const ActorId& id : ids) {
    const auto actor = actors_.find(id);  // burying one may forget another
    if (actor != actors_.end()) end_actor(actor->second, false, 0, reason);
  }
}

Status HeadState::check_specs(const std::vector<wire::ActorSpec>& specs) const {
  std::set<ActorId> ids;
  std::set<Name> names;
  for (const wire::ActorSpec& spec : specs) {
    if (spec.actor_id.empty() || !ids.insert(spec.actor_id).second ||
        actors_.contains(spec.actor_id)) {
      return error(Code::kInvalidArgument, "actor id {} is empty or used twice",
                   spec.actor_id.to_string());
    }
    TROUPE_RETURN_IF_ERROR(wire::check_size(spec));
    TROUPE_RETURN_IF_ERROR(validate(spec.resources).with("actor", spec.type));
    TROUPE_RETURN_IF_ERROR(validate(spec.label_selector).with("actor", spec.type));
    TROUPE_RETURN_IF_ERROR(validate(spec.label_preference).with("actor", spec.type));
    TROUPE_RETURN_IF_ERROR(check_owner(spec.owner_actor, spec.owner_generation, spec.detached)
                               .with("actor", spec.type));
    TROUPE_RETURN_IF_ERROR(check_supervised(spec));
    if (spec.name.empty()) continue;
    if (named(name_of(spec)) != nullptr || !names.insert(name_of(spec)).second) {
      return error(Code::kAlreadyExists,
                   "an actor named {} lives already: take another name, or get that one",
                   describe(name_of(spec)));
    }
  }
  return {};
}

Status HeadState::check_new(const std::vector<wire::ActorSpec>& specs, bool gang,
                            bool no_wait) const {
  if (stopping()) return Status(Code::kFailedPrecondition, "the cluster is stopping");
  if (specs.empty()) return Status(Code::kInvalidArgument, "no actors were asked for");
  if (living_count_ + specs.size() > config_.actors_max) {
    return error(Code::kOverloaded, "the cluster holds {} actors; its limit is {}", living_count_,
                 config_.actors_max);
  }
  TROUPE_RETURN_IF_ERROR(check_specs(specs));
  TROUPE_RETURN_IF_ERROR(check_bundles(specs, no_wait));
  std::vector<Bundle> bundles;
  std::int32_t priority = specs.front().priority;
  for (const wire::ActorSpec& spec : specs) {
    if (spec.placement_group.empty()) bundles.push_back(bundle_of(spec));
    priority = std::max(priority, spec.priority);
  }
  if (bundles.empty()) return {};
  const auto possible = [&](std::span<const Bundle> wanted) -> Status {
    const PlacementRequest request{wanted};
    // Without any node yet there is nothing to judge by: they may still join, or come back.
    if (view_.size() > 0 && !place_on_empty(request, view_) && !awaits_nodes()) {
      return error(Code::kResourceExhausted, "the cluster can never hold it: {}",
                   explain_room(request, nullptr));
    }
    return {};
  };
  if (gang) {
    TROUPE_RETURN_IF_ERROR(possible(bundles));
  } else {
    for (const Bundle& bundle : bundles) TROUPE_RETURN_IF_ERROR(possible(std::span(&bundle, 1)));
  }
  const KeptFree* kept = kept_free_before({-static_cast<std::int64_t>(priority), next_order_});
  if (no_wait && !place({bundles}, view_, kept)) {
    return error(Code::kResourceExhausted, "no room now: {}", explain_room({bundles}, kept));
  }
  return {};
}

// Actors in placement groups: whether their bundles could ever hold them, or hold them now.
Status HeadState::check_bundles(const std::vector<wire::ActorSpec>& specs, bool no_wait) const {
  BundleUse now;
  for (const wire::ActorSpec& spec : specs) {
    if (spec.placement_group.empty()) {
      if (spec.bundle_index < 0) continue;
      return error(Code::kInvalidArgument, "{} asks for bundle {} of no placement group", spec.type,
                   spec.bundle_index);
    }
    const auto found = groups_.find(spec.placement_group);
    if (found == groups_.end()) {
      return error(Code::kNotFound, "there is no placement group {}",
                   spec.placement_group.to_string());
    }
    const GroupRecord& group = found->second;
    if (group.removed()) {
      return error(Code::kFailedPrecondition, "{} was removed: {}", describe(group),
                   group.info.why);
    }
    const auto count = static_cast<std::int64_t>(group.spec.bundles.size());
    if (spec.bundle_index < -1 || spec.bundle_index >= count) {
      return error(Code::kInvalidArgument, "{} has bundles 0 to {}, no bundle {}", describe(group),
                   count - 1, spec.bundle_index);
    }
    BundleUse whole;
    if (!bundle_for(spec, -1, group, whole, true)) {
      std::string bundles;
      const std::int64_t first = std::max(spec.bundle_index, 0);
      const std::int64_t last =
          spec.bundle_index < 0 ? std::min<std::int64_t>(count, 8) : first + 1;
      for (std::int64_t i = first; i < last; ++i) {
        bundles += fmt::format(
            "; bundle {} has {}", i,
            format_resources(group.spec.bundles[static_cast<std::size_t>(i)].resources));
      }
      return error(Code::kResourceExhausted, "{} can never hold it: {} needs {}{}", describe(group),
                   spec.type, format_resources(spec.resources), bundles);
    }
    if (no_wait && !bundle_for(spec, -1, group, now, false)) {
      return error(Code::kResourceExhausted, "no room now: {} needs {} in {}, which is {}",
                   spec.type, format_resources(spec.resources), describe(group),
                   wire::placement_group_state_name(group.info.state));
    }
  }
  return {};
}

void HeadState::on(PeerId peer, wire::CreateActors& message) {
  const ClientRecord* client = client_of(peer);
  if (client == nullptr) {
    return reply(peer, message.request_id,
                 Status(Code::kFailedPrecondition, "only a client creates actors"));
  }
  for (wire::ActorSpec& spec : message.specs) {
    if (spec.namespace_name.empty()) spec.namespace_name = namespace_of(*client);
  }
  // The same request again, after a reconnection: it is done.
  bool repeated = !message.specs.empty();
  for (const wire::ActorSpec& spec : message.specs) {
    const auto known = actors_.find(spec.actor_id);
    repeated = repeated && known != actors_.end() && known->second.spec.type == spec.type;
  }
  if (repeated) {
    return send(peer, wire::Reply{message.request_id, {}, message.specs.front().actor_id});
  }
  Status status;
  for (wire::ActorSpec& spec : message.specs) {
    if (status.ok()) status = join_job(*client, spec.job_id, spec.priority);
    if (status.ok() && spec.is_program()) status = check_clients_program(spec);
  }
  if (!status.ok()) return reply(peer, message.request_id, std::move(status));
  if (message.get_if_exists) {
    const Result<ActorId> there =
        message.specs.size() == 1
            ? existing(message.specs.front())
            : Status(Code::kInvalidArgument, "getting or creating takes one actor");
    if (!there.ok()) return reply(peer, message.request_id, there.status());
    if (!there->empty()) return send(peer, wire::Reply{message.request_id, {}, *there});
  }
  status = check_new(message.specs, message.gang, message.no_wait);
  if (status.ok()) {
    std::uint64_t bytes = 0;
    for (const wire::ActorSpec& spec : message.specs) bytes += kept_by(spec);
    status = check_room(bytes);
  }
  if (!status.ok()) return reply(peer, message.request_id, std::move(status));
  send(peer, wire::Reply{message.request_id, {}, message.specs.front().actor_id});
  const std::uint64_t gang = message.gang ? next_order_++ : 0;
  if (message.gang) {
    // It stands in line as one.
    std::int32_t priority = message.specs.front().priority;
    for (const wire::ActorSpec& spec : message.specs) priority = std::max(priority, spec.priority);
    for (wire::ActorSpec& spec : message.specs) spec.priority = priority;
  }
  for (wire::ActorSpec& spec : message.specs) {
    // What an actor creates belongs to the actor's owner: it stays when the actor's process is
    // replaced by another one, which is another client.
    if (!clients_.contains(spec.owner)) spec.owner = client->client_id;
    if (spec.job_id.empty()) spec.job_id = client->job_id;
    const ActorId id = spec.actor_id;
    create(std::move(spec), gang);
    enqueue(actors_.at(id), gang != 0 ? gang : next_order_++);
    meet_expectations(actors_.at(id));
  }
}

void HeadState::on(PeerId peer, wire::KillActor& message) {
  const auto found = actors_.find(message.actor_id);
  if (found == actors_.end()) {
    return reply(peer, message.request_id, no_such_actor(message.actor_id));
  }
  reply(peer, message.request_id, {});
  end_actor(found->second, message.allow_restart, message.grace_ms,
            message.reason.empty() ? "it was killed on request" : message.reason, message.drain);
}

void HeadState::on(PeerId peer, wire::WatchActor& message) {
  ActorId id = message.actor_id;
  if (id.empty()) {
    const ClientRecord* client = client_of(peer);
    Name name{message.namespace_name, message.name};
    if (name.first.empty() && client != nullptr) name.first = namespace_of(*client);
    const ActorRecord* actor = named(name);
    if (actor == nullptr) {
      return reply(peer, message.request_id,
                   error(Code::kNotFound, "no living actor is named {}", describe(name)));
    }
    id = actor->spec.actor_id;
  }
  const auto found = actors_.find(id);
  if (found == actors_.end()) {
    if (!message.stop) return expect(peer, message.request_id, id);
    // What is given up has its answer, too.
    for (Expectation& e : expected_[id]) {
      if (e.peer == peer) e.until = now_.steady;
    }
    end_expectations(id);
    return reply(peer, message.request_id, {});
  }
  if (message.stop) {
    reply(peer, message.request_id, {});
    found->second.watchers.erase(peer);
    peers_[peer].watched_actors.erase(id);
    return;
  }
  begin_watch(peer, message.request_id, found->second);
}

void HeadState::begin_watch(PeerId peer, std::uint64_t request_id, ActorRecord& actor) {
  reply(peer, request_id, {});
  if (!actor.dead()) {
    actor.watchers.insert(peer);
    peers_[peer].watched_actors.insert(actor.spec.actor_id);
  }
  send(peer, wire::ActorUpdate{visible(actor)});
}

// Whoever has a handle may have got it before its maker's request came here.
void HeadState::expect(PeerId peer, std::uint64_t request_id, ActorId id) {
  if (!expected_.contains(id) && expected_.size() >= config_.expected_actors_max) {
    return reply(peer, request_id, no_such_actor(id));
  }
  const TimePoint until = now_.steady + config_.expect_timeout;
  expected_[id].push_back({peer, request_id, until});
  arm(until, TimerKind::kExpected, id.high, id.low);
}

void HeadState::meet_expectations(ActorRecord& actor) {
  const auto expected = expected_.extract(actor.spec.actor_id);
  if (expected.empty()) return;
  for (const Expectation& e : expected.mapped()) {
    if (peers_.contains(e.peer)) begin_watch(e.peer, e.request_id, actor);
  }
}

// Those whose time has passed.
void HeadState::end_expectations(ActorId id) {
  const auto expected = expected_.find(id);
  if (expected == expected_.end()) return;
  std::erase_if(expected->second, [&](const Expectation& e) {
    if (e.until > now_.steady) return false;
    reply(e.peer, e.request_id, no_such_actor(id));
    return true;
  });
  if (expected->second.empty()) expected_.erase(expected);
}

void HeadState::on(PeerId peer, wire::WatchNodes& message) {
  reply(peer, message.request_id, {});
  peers_[peer].watches_nodes = true;
  peers_[peer].watches_amounts = !message.without_amounts;
  for (const auto& [id, node] : nodes_) send(peer, wire::NodeUpdate{visible(node)});
}

void HeadState::on(PeerId peer, wire::EndJob& message) {
  reply(peer, message.request_id, {});
  // A driver inside a job that was submitted: others may be there, and more may come.
  const ClientRecord* client = client_of(peer);
  if (jobs_.contains(message.job_id) && client != nullptr && client->job_id == message.job_id) {
    return owner_gone(*client);
  }
  end_job(message.job_id, message.reason.empty() ? "its job ended" : message.reason);
}

}  // namespace troupe::scheduler
