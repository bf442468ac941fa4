#include "scheduler/control/clients.h"

#include <algorithm>

#include "runtime/wire/spec_size.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {

void Clients::on(PeerId peer, wire::ClientHello& message) {
  Status taken = message.client_id.empty()
                     ? Status(Code::kInvalidArgument, "a client without an id")
                     : check_version(context_, message.name, message.protocol_version);
  if (taken.ok() && message.kind == "driver") {
    taken = jobs_.check_runs(message.job_id, message.kind);
  }
  if (!taken.ok()) {
    context_.reply(peer, message.request_id, std::move(taken));
    return context_.close(peer);
  }
  const ClientRecord* known = connections_.client(message.client_id);
  if (known != nullptr && known->peer != 0 && known->peer != peer) {
    peer_closed(known->peer);
    connections_.end(known->peer);
  }
  connections_.introduce_client(peer, message);
  // Nothing is decided by it, and one that waits for a slow disk here gives this connection up,
  // comes back ever later, and in the end too late for its actors.
  context_.send_at_once(peer, wire::Reply{message.request_id, Status(), {}});
}

void Clients::client_timer(const Timer& timer) {
  if (const auto gone = connections_.take_gone(timer)) supervision_.client_gone(*gone);
}

Status Clients::check_specs(const std::vector<wire::ActorSpec>& specs) const {
  std::set<ActorId> ids;
  std::set<Actors::Name> names;
  for (const wire::ActorSpec& spec : specs) {
    if (spec.actor_id.empty() || !ids.insert(spec.actor_id).second ||
        actors_.contains(spec.actor_id)) {
      return error(Code::kInvalidArgument, "actor id {} is empty or used twice",
                   spec.actor_id.to_string());
    }
    TROUPE_RETURN_IF_ERROR(wire::check_size(spec));
    TROUPE_RETURN_IF_ERROR(wire::check(spec.package).with("actor", spec.type));
    TROUPE_RETURN_IF_ERROR(validate(spec.resources).with("actor", spec.type));
    TROUPE_RETURN_IF_ERROR(validate(spec.label_selector).with("actor", spec.type));
    TROUPE_RETURN_IF_ERROR(validate(spec.label_preference).with("actor", spec.type));
    TROUPE_RETURN_IF_ERROR(
        actors_.check_owner(spec.owner_actor, spec.owner_generation, spec.detached)
            .with("actor", spec.type));
    TROUPE_RETURN_IF_ERROR(supervisors_.check_member(spec));
    if (spec.name.empty()) continue;
    const Actors::Name name = Actors::name_of(spec);
    if (actors_.named(name) != nullptr || !names.insert(name).second) {
      return error(Code::kAlreadyExists,
                   "an actor named {} lives already: take another name, or get that one",
                   Actors::describe_name(name));
    }
  }
  return {};
}

Status Clients::check_new(const std::vector<wire::ActorSpec>& specs, bool gang,
                          bool no_wait) const {
  if (context_.stopping()) return Status(Code::kFailedPrecondition, "the cluster is stopping");
  if (specs.empty()) return Status(Code::kInvalidArgument, "no actors were asked for");
  const std::size_t living = room_.living().actors;
  if (living + specs.size() > context_.config().actors_max) {
    return error(Code::kOverloaded, "the cluster holds {} actors; its limit is {}", living,
                 context_.config().actors_max);
  }
  TROUPE_RETURN_IF_ERROR(check_specs(specs));
  TROUPE_RETURN_IF_ERROR(check_bundles(specs, no_wait));
  std::vector<Bundle> bundles;
  std::vector<Bundle> of_present_nodes;  // those that wait for no others
  std::int32_t priority = specs.front().priority;
  for (const wire::ActorSpec& spec : specs) {
    if (spec.placement_group.empty()) {
      bundles.push_back(Placement::bundle_of(spec));
      if (!spec.awaits_nodes) of_present_nodes.push_back(bundles.back());
    }
    priority = std::max(priority, spec.priority);
  }
  if (bundles.empty()) return {};
  const auto possible = [&](std::span<const Bundle> wanted) -> Status {
    const PlacementRequest request{wanted};
    // Without any node yet there is nothing to judge by: they may still join, or come back.
    if (nodes_.view().size() > 0 && !place_on_empty(request, nodes_.view()) &&
        !nodes_.awaits_nodes()) {
      return error(Code::kResourceExhausted, "the cluster can never hold it: {}",
                   placement_.explain_room(request, nullptr));
    }
    return {};
  };
  if (gang) {
    if (!of_present_nodes.empty()) TROUPE_RETURN_IF_ERROR(possible(of_present_nodes));
  } else {
    for (const Bundle& bundle : of_present_nodes)
      TROUPE_RETURN_IF_ERROR(possible(std::span(&bundle, 1)));
  }
  const KeptFree* kept =
      line_.kept_free_before({-static_cast<std::int64_t>(priority), context_.order()});
  if (no_wait && !place({bundles}, nodes_.view(), kept)) {
    return error(Code::kResourceExhausted, "no room now: {}",
                 placement_.explain_room({bundles}, kept));
  }
  return {};
}

// Actors in placement groups: whether their bundles could ever hold them, or hold them now.
Status Clients::check_bundles(const std::vector<wire::ActorSpec>& specs, bool no_wait) const {
  Groups::BundleUse now;
  for (const wire::ActorSpec& spec : specs) {
    if (spec.placement_group.empty()) {
      if (spec.bundle_index < 0) continue;
      return error(Code::kInvalidArgument, "{} asks for bundle {} of no placement group", spec.type,
                   spec.bundle_index);
    }
    const GroupRecord* found = groups_.find(spec.placement_group);
    if (found == nullptr) {
      return error(Code::kNotFound, "there is no placement group {}",
                   spec.placement_group.to_string());
    }
    const GroupRecord& group = *found;
    if (group.removed()) {
      return error(Code::kFailedPrecondition, "{} was removed: {}", describe(group),
                   group.info.why);
    }
    const auto count = static_cast<std::int64_t>(group.spec.bundles.size());
    if (spec.bundle_index < -1 || spec.bundle_index >= count) {
      return error(Code::kInvalidArgument, "{} has bundles 0 to {}, no bundle {}", describe(group),
                   count - 1, spec.bundle_index);
    }
    Groups::BundleUse whole;
    if (!groups_.bundle_for(spec, -1, group, whole, true)) {
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
    if (no_wait && !groups_.bundle_for(spec, -1, group, now, false)) {
      return error(Code::kResourceExhausted, "no room now: {} needs {} in {}, which is {}",
                   spec.type, format_resources(spec.resources), describe(group),
                   wire::placement_group_state_name(group.info.state));
    }
  }
  return {};
}

// What an actor's creator was shipped with: another actor, or the program of its job.
wire::Package Clients::package_for(const wire::ActorSpec& spec) const {
  const ActorRecord* creator = actors_.find(spec.owner_actor);
  const JobRecord* job = jobs_.find(spec.job_id);
  if (creator == nullptr && job != nullptr) creator = actors_.find(job->info.driver);
  return creator == nullptr ? wire::Package() : creator->spec.package;
}

void Clients::on(PeerId peer, wire::CreateActors& message) {
  const auto refuse = [&](Status status) {
    context_.reply(peer, message.request_id, std::move(status));
  };
  const auto accept = [&](ActorId id) {
    context_.send(peer, wire::Reply{message.request_id, {}, id});
  };
  const ClientRecord* client = connections_.client_of(peer);
  if (client == nullptr) {
    return refuse(Status(Code::kFailedPrecondition, "only a client creates actors"));
  }
  auto& specs = message.specs;
  for (wire::ActorSpec& spec : specs) {
    if (spec.namespace_name.empty()) spec.namespace_name = Connections::namespace_of(*client);
  }
  // The same request again, after a reconnection: it is done.
  const bool repeated =
      !specs.empty() && std::all_of(specs.begin(), specs.end(), [&](const auto& spec) {
        const ActorRecord* known = actors_.find(spec.actor_id);
        return known != nullptr && known->spec.type == spec.type;
      });
  if (repeated) return accept(specs.front().actor_id);
  Status status;
  for (wire::ActorSpec& spec : specs) {
    if (status.ok()) status = jobs_.join(*client, spec.job_id, spec.priority);
    spec.package = package_for(spec);
    if (status.ok() && spec.is_program()) status = Jobs::check_clients_program(spec);
  }
  if (!status.ok()) return refuse(std::move(status));
  if (message.get_if_exists) {
    if (specs.size() != 1) {
      return refuse(Status(Code::kInvalidArgument, "getting or creating takes one actor"));
    }
    const Result<const ActorRecord*> there = actors_.existing(specs.front());
    if (!there.ok()) return refuse(there.status());
    if (*there != nullptr) return accept((*there)->id());
  }
  status = check_new(specs, message.gang, message.no_wait);
  if (status.ok()) {
    std::uint64_t bytes = 0;
    for (const wire::ActorSpec& spec : specs) bytes += JournalRoom::kept_by(spec);
    status = room_.check_room(bytes);
  }
  if (!status.ok()) return refuse(std::move(status));
  accept(specs.front().actor_id);
  create(*client, std::move(specs), message.gang);
}

void Clients::create(const ClientRecord& client, std::vector<wire::ActorSpec> specs, bool gang) {
  const std::uint64_t number = gang ? context_.next_order() : 0;
  if (gang) {
    // It stands in line as one.
    std::int32_t priority = specs.front().priority;
    for (const wire::ActorSpec& spec : specs) priority = std::max(priority, spec.priority);
    for (wire::ActorSpec& spec : specs) spec.priority = priority;
  }
  for (wire::ActorSpec& spec : specs) {
    // What an actor creates belongs to the actor's owner: it stays when the actor's process is
    // replaced by another one, which is another client.
    if (!connections_.has_client(spec.owner)) spec.owner = client.client_id;
    if (spec.job_id.empty()) spec.job_id = client.job_id;
    meet_expectations(actors_.create(std::move(spec), number));
  }
}

Status Clients::on(PeerId, wire::KillActor& message) {
  const ActorRecord* actor = actors_.find(message.actor_id);
  if (actor == nullptr) return not_found("actor", message.actor_id);
  actors_.end(*actor, message.allow_restart, message.grace_ms,
              message.reason.empty() ? "it was killed on request" : message.reason, message.drain);
  return {};
}

// A message of an earlier process of the actor is out of date and is ignored.
Status Clients::on(PeerId, wire::LendCpus& message) {
  const ActorRecord* actor = actors_.find(message.actor_id);
  if (actor == nullptr) return not_found("actor", message.actor_id);
  if (!actor->spec.lends_cpus) {
    return error(Code::kInvalidArgument, "{} is no actor that lends its CPUs", describe(*actor));
  }
  if (!actor->has_process() || actor->info.generation != message.generation) return {};
  actors_.lends(*actor, !message.back);
  const NodeRecord* node = nodes_.find(actor->info.node_id);
  if (node == nullptr || actor->lease_generation != message.generation) return {};  // it comes back
  message.back ? nodes_.take_back_cpus(*node, actor->lease())
               : nodes_.lend_cpus(*node, actor->lease());
  return {};
}

Status Clients::on(PeerId peer, wire::SubmitJob& message) {
  if (connections_.client_of(peer) == nullptr) return not_a_client("submits jobs");
  wire::ActorSpec& driver = message.driver;
  // The same request again, after a reconnection: it is done.
  const JobRecord* known = jobs_.find(driver.job_id);
  if (known != nullptr && known->info.driver == driver.actor_id) return {};
  TROUPE_RETURN_IF_ERROR(jobs_.check_new(driver));
  TROUPE_RETURN_IF_ERROR(check_new({driver}, false, false));
  const wire::JobInfo info = jobs_.describe_new(message);
  TROUPE_RETURN_IF_ERROR(
      room_.check_room(JournalRoom::kept_by(driver) + JournalRoom::kept_by(info)));
  jobs_.submit(info);
  // It ends with its job, not with who asked for it.
  driver.owner = {};
  driver.owner_actor = {};
  driver.owner_generation = 0;
  driver.detached = true;
  actors_.create(std::move(driver), 0);
  return {};
}

Status Clients::on(PeerId peer, wire::EndJob& message) {
  // A driver inside a job that was submitted: others may be there, and more may come.
  const ClientRecord* client = connections_.client_of(peer);
  if (jobs_.contains(message.job_id) && client != nullptr && client->job_id == message.job_id) {
    supervision_.client_gone(*client);
  } else {
    supervision_.end_job(message.job_id, message.reason.empty() ? "its job ended" : message.reason);
  }
  return {};
}

}  // namespace troupe::scheduler
