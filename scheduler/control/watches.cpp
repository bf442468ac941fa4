#include "scheduler/control/clients.h"

#include <algorithm>

#include "runtime/base/sort_by.h"
#include "scheduler/control/list_piece.h"
#include "scheduler/policy/program_kind.h"

namespace troupe::scheduler {

// --- as others see it ----------------------------------------------------------------------------

wire::ActorInfo Clients::visible(const ActorRecord& actor) const {
  wire::ActorInfo info = actor.info;
  if (actor.queue_order != 0) {
    info.pending_why = placement_.why_pending(actor);
  } else if (info.state == wire::ActorState::kStarting && info.pid == 0) {
    info.pending_why = nodes_.why_package_is_awaited(info.node_id, actor.spec.package);
  }
  return info;
}

wire::PlacementGroupInfo Clients::visible(const GroupRecord& group) const {
  wire::PlacementGroupInfo info = group.info;
  info.why = placement_.why_pending(group);
  if (!group.created()) return info;
  for (std::size_t i = 0; i < info.bundles.size(); ++i) {
    info.bundles[i].available = groups_.holder(group, i).bundles.at(group.bundle(i)).available;
  }
  return info;
}

wire::SupervisorInfo Clients::visible(const SupervisorRecord& supervisor) {
  wire::SupervisorInfo info = supervisor.info;
  for (const auto& [order, member] : supervisor.members) info.members.push_back(member);
  return info;
}

wire::JobInfo Clients::visible(const JobRecord& job) const {
  wire::JobInfo info = job.info;
  const ActorRecord* driver = actors_.find(info.driver);
  if (info.state == wire::JobState::kPending && driver != nullptr) {
    if (!info.stopping) info.why = visible(*driver).pending_why;
    info.node_id = driver->info.node_id;
  }
  return info;
}

// --- lists ---------------------------------------------------------------------------------------

void Clients::on(PeerId peer, wire::ListNodes& message) {
  wire::NodeList list{message.request_id, {}};
  for (const auto& [id, node] : nodes_.all()) list.nodes.push_back(Nodes::visible(node));
  stable_sort_by(list.nodes,
                 [](const auto& a, const auto& b) { return a.joined_unix_us < b.joined_unix_us; });
  context_.send(peer, std::move(list));
}

void Clients::on(PeerId peer, wire::ListActors& message) {
  wire::ActorList list{message.request_id, {}};
  // Those that ask for the same wait for the same: thousands of explanations are few.
  std::map<std::pair<const Demand*, bool>, std::string> told;
  const auto add = [&](const ActorRecord& actor) -> std::uint64_t {
    if (!message.include_dead && actor.dead()) return 0;
    const QueueKey key = key_of(actor);
    const QueueEntry* entry = line_.find(key);
    if (actor.queue_order == 0 || entry == nullptr || !entry->demand || line_.turn() == key) {
      list.actors.push_back(visible(actor));
      return journal_bytes(list.actors.back());
    }
    const auto [why, added] =
        told.try_emplace({&(*entry->demand)->first, line_.kept_free_before(key) != nullptr});
    if (added) why->second = placement_.why_pending(actor);
    list.actors.push_back(actor.info);
    list.actors.back().pending_why = why->second;
    return journal_bytes(list.actors.back());
  };
  list.more = add_piece(actors_.all(), message.after, add);
  context_.send(peer, std::move(list));
}

void Clients::on(PeerId peer, wire::ListPlacementGroups& message) {
  wire::PlacementGroupList list{message.request_id, {}};
  const auto add = [&](const GroupRecord& group) -> std::uint64_t {
    if (!message.include_removed && group.removed()) return 0;
    list.groups.push_back(visible(group));
    return journal_bytes(list.groups.back());
  };
  list.more = add_piece(groups_.all(), message.after, add);
  context_.send(peer, std::move(list));
}

void Clients::on(PeerId peer, wire::ListSupervisors& message) {
  wire::SupervisorList list{message.request_id, {}};
  const auto add = [&](const SupervisorRecord& supervisor) -> std::uint64_t {
    if (!message.include_ended && supervisor.ended()) return 0;
    list.supervisors.push_back(visible(supervisor));
    return journal_bytes(list.supervisors.back());
  };
  list.more = add_piece(supervisors_.all(), message.after, add);
  context_.send(peer, std::move(list));
}

// Those that were submitted, in that order, then drivers that connected by themselves.
void Clients::on(PeerId peer, wire::ListJobs& message) {
  wire::JobList list{message.request_id, {}};
  std::map<JobId, std::uint32_t> alive;
  // What of a job waits for room: how many, and the one whose turn comes first.
  struct Waiting {
    std::uint32_t count = 0;
    QueueKey key;
    const ActorRecord* actor = nullptr;
    const GroupRecord* group = nullptr;
  };
  std::map<JobId, Waiting> waiting;
  const auto add_waiting = [&](JobId job, QueueKey key, const ActorRecord* actor,
                               const GroupRecord* group) {
    Waiting& of_job = waiting[job];
    if (of_job.count++ == 0 || key < of_job.key)
      of_job = {.count = of_job.count, .key = key, .actor = actor, .group = group};
  };
  for (const auto& [id, group] : groups_.all()) {
    if (group.waiting) add_waiting(group.spec.job_id, key_of(group), nullptr, &group);
  }
  for (const auto& [id, actor] : actors_.all()) {
    if (actor.dead() || is_job_program(actor.spec)) continue;
    ++alive[actor.spec.job_id];
    if (actor.queue_order != 0) add_waiting(actor.spec.job_id, key_of(actor), &actor, nullptr);
  }
  for (const auto& [id, job] : jobs_.all()) {
    if (message.include_ended || !job.ended()) list.jobs.push_back(visible(job));
  }
  stable_sort_by(list.jobs, [](const auto& a, const auto& b) {
    return a.submitted_unix_us < b.submitted_unix_us;
  });
  std::set<JobId> others;
  for (const auto& [id, client] : connections_.clients()) {
    const bool outside = client.kind == "driver" && !client.job_id.empty();
    if (!outside || jobs_.contains(client.job_id) || !others.insert(client.job_id).second) continue;
    wire::JobInfo& info = list.jobs.emplace_back();
    info.job_id = client.job_id;
    info.name = client.name;
    info.state = wire::JobState::kRunning;
  }
  const auto why_of = [&](const auto& record) {
    return fmt::format("{} waits: {}", describe(record), placement_.why_pending(record));
  };
  for (wire::JobInfo& info : list.jobs) {
    info.actors_alive = alive[info.job_id];
    const auto found = waiting.find(info.job_id);
    if (found == waiting.end() || info.state != wire::JobState::kRunning || info.stopping) continue;
    const Waiting& of_job = found->second;
    info.why = of_job.actor != nullptr ? why_of(*of_job.actor) : why_of(*of_job.group);
    if (of_job.count > 1) info.why += fmt::format("; {} more wait", of_job.count - 1);
  }
  context_.send(peer, std::move(list));
}

void Clients::on(PeerId peer, wire::ListEvents& message) {
  wire::EventList list{message.request_id, {}};
  const auto& events = context_.events();
  const auto first = std::upper_bound(
      events.begin(), events.end(), message.after_sequence,
      [](std::uint64_t after, const wire::EventRecord& e) { return after < e.sequence; });
  const auto left = static_cast<std::uint64_t>(events.end() - first);
  const auto count = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(left, message.count_max));
  // Without a starting point: the newest.
  const auto from = message.after_sequence == 0 ? events.end() - count : first;
  list.events.assign(from, from + count);
  context_.send(peer, std::move(list));
}

// --- what clients have under way -----------------------------------------------------------------

Status Clients::on(PeerId peer, wire::ReportWork& message) {
  const ClientRecord* client = connections_.client_of(peer);
  if (client == nullptr) return not_a_client("says what it has under way");
  if (const auto bytes = wire::size_in_memory(message.work); bytes > limits::kWorkBytesMax) {
    return error(Code::kInvalidArgument, "what is under way takes {} bytes to tell, above {}",
                 bytes, limits::kWorkBytesMax);
  }
  connections_.report(client->client_id, std::move(message.work));
  return {};
}

void Clients::on(PeerId peer, wire::ListWork& message) {
  wire::WorkList list{message.request_id, {}};
  list.more = add_piece(
      connections_.clients(), message.after, [&](const ClientRecord& client) -> std::uint64_t {
        if (client.peer == 0 || client.work.empty()) return 0;
        list.clients.push_back({client.client_id, client.job_id, client.name, client.work});
        return wire::size_in_memory(client.work);
      });
  context_.send(peer, std::move(list));
}

// --- watches -------------------------------------------------------------------------------------

template <typename Update, typename Message, typename Record, typename Id>
Status Clients::watch(PeerId peer, const Message& message, const Record& record,
                      Watches<Id>& watches) {
  if (message.stop) {
    watches.end(peer, record.id());
    return {};
  }
  if (!record.ended()) watches.begin(peer, record.id());
  context_.send(peer, Update{visible(record)});
  return {};
}

Status Clients::on(PeerId peer, wire::WatchNodes& message) {
  connections_.watch_nodes(peer, !message.without_amounts);
  for (const auto& [id, node] : nodes_.all()) {
    context_.send(peer, wire::NodeUpdate{Nodes::visible(node)});
  }
  return {};
}

Status Clients::on(PeerId peer, wire::WatchPlacementGroup& message) {
  const bool by_name = message.group_id.empty();
  const GroupRecord* group = by_name ? groups_.named(message.name) : groups_.find(message.group_id);
  if (group != nullptr) {
    return watch<wire::PlacementGroupUpdate>(peer, message, *group, watched_groups_);
  }
  return by_name ? error(Code::kNotFound, "no placement group is named '{}'", message.name)
                 : not_found("placement group", message.group_id);
}

Status Clients::on(PeerId peer, wire::WatchSupervisor& message) {
  const SupervisorRecord* supervisor = supervisors_.find(message.supervisor_id);
  if (supervisor == nullptr) return not_found("supervisor", message.supervisor_id);
  return watch<wire::SupervisorUpdate>(peer, message, *supervisor, watched_supervisors_);
}

void Clients::on(PeerId peer, wire::WatchActor& message) {
  const ActorRecord* actor = actors_.find(message.actor_id);
  if (message.actor_id.empty()) {
    const ClientRecord* client = connections_.client_of(peer);
    Actors::Name name{message.namespace_name, message.name};
    if (name.first.empty() && client != nullptr) name.first = Connections::namespace_of(*client);
    actor = actors_.named(name);
    if (actor == nullptr) {
      return context_.reply(
          peer, message.request_id,
          error(Code::kNotFound, "no living actor is named {}", Actors::describe_name(name)));
    }
  }
  if (actor == nullptr && !message.stop) return expect(peer, message.request_id, message.actor_id);
  if (actor == nullptr) {
    // What is given up has its answer, too.
    for (Expectation& e : expected_[message.actor_id]) {
      if (e.peer == peer) e.until = context_.now();
    }
    end_expectations(message.actor_id);
  } else if (message.stop) {
    watched_actors_.end(peer, actor->id());
  } else {
    return begin_watch(peer, message.request_id, *actor);
  }
  context_.reply(peer, message.request_id);
}

void Clients::begin_watch(PeerId peer, std::uint64_t request_id, const ActorRecord& actor) {
  context_.reply(peer, request_id);
  if (!actor.dead()) watched_actors_.begin(peer, actor.id());
  context_.send(peer, wire::ActorUpdate{visible(actor)});
}

void Clients::peer_closed(PeerId peer) {
  watched_actors_.drop(peer);
  watched_groups_.drop(peer);
  watched_supervisors_.drop(peer);
}

// --- watches of actors that are not created yet --------------------------------------------------

void Clients::expect(PeerId peer, std::uint64_t request_id, ActorId id) {
  if (!expected_.contains(id) && expected_.size() >= context_.config().expected_actors_max) {
    return context_.reply(peer, request_id, not_found("actor", id));
  }
  const TimePoint until = context_.now() + context_.config().expect_timeout;
  expected_[id].push_back({peer, request_id, until});
  context_.arm(until, TimerKind::kExpected, id);
}

void Clients::meet_expectations(const ActorRecord& actor) {
  const auto expected = expected_.extract(actor.id());
  if (expected.empty()) return;
  for (const Expectation& e : expected.mapped()) {
    if (connections_.find(e.peer) != nullptr) begin_watch(e.peer, e.request_id, actor);
  }
}

void Clients::expectation_timer(const Timer& timer) {
  if (context_.looked_twice(timer)) end_expectations(timer.id<ActorId>());
}

// Those whose time has passed.
void Clients::end_expectations(ActorId id) {
  const auto expected = expected_.find(id);
  if (expected == expected_.end()) return;
  std::erase_if(expected->second, [&](const Expectation& e) {
    if (e.until > context_.now()) return false;
    context_.reply(e.peer, e.request_id, not_found("actor", id));
    return true;
  });
  if (expected->second.empty()) expected_.erase(expected);
}

// --- updates -------------------------------------------------------------------------------------

// With the last update its watches are over, here and at the clients.
template <typename Update, typename Record, typename Id>
void Clients::tell_watchers(const Record& record, Watches<Id>& watches) {
  const std::set<PeerId>* watchers = watches.of(record.id());
  if (watchers == nullptr) return;
  const Update update{visible(record)};
  for (PeerId watcher : std::set<PeerId>(*watchers)) {
    context_.send(watcher, update);
    if (record.ended()) watches.end(watcher, record.id());
  }
}

// An owner that does not watch its actor hears, once, that it has to wait. Not what for: that costs
// a look at every node, and thousands may begin to wait at once.
void Clients::tell_owner_of_wait(const ActorRecord& actor) {
  if (actor.queue_order == 0 || actor.spec.is_program()) return;
  const ClientRecord* owner = connections_.client(actor.spec.owner);
  if (owner == nullptr || owner->peer == 0) return;
  const std::set<PeerId>* watchers = watched_actors_.of(actor.id());
  if (watchers != nullptr && watchers->contains(owner->peer)) return;
  context_.send(owner->peer, wire::ActorUpdate{actor.info});
}

void Clients::push_updates() {
  actors_.journal_changes([this](const ActorRecord& actor) {
    if (actors_.has_lined_up(actor)) tell_owner_of_wait(actor);
    tell_watchers<wire::ActorUpdate>(actor, watched_actors_);
  });
  groups_.journal_changes([this](const GroupRecord& group) {
    tell_watchers<wire::PlacementGroupUpdate>(group, watched_groups_);
  });
  supervisors_.journal_changes([this](const SupervisorRecord& supervisor) {
    tell_watchers<wire::SupervisorUpdate>(supervisor, watched_supervisors_);
  });
  push_nodes();
}

void Clients::push_nodes() {
  std::set<NodeId> changed;
  nodes_.journal_changes([&](const NodeRecord& node) { changed.insert(node.id()); });
  std::set<NodeId> resized = nodes_.take_resized();
  resized.insert(changed.begin(), changed.end());
  // A heartbeat, which changes nothing, must not cost a look at all peers.
  if (resized.empty()) return;
  for (const auto& [peer, record] : connections_.peers()) {
    if (!record.watches_nodes) continue;
    for (const NodeId& id : record.watches_amounts ? resized : changed) {
      const NodeRecord* node = nodes_.find(id);
      if (node != nullptr) context_.send(peer, wire::NodeUpdate{Nodes::visible(*node)});
    }
  }
}

}  // namespace troupe::scheduler
