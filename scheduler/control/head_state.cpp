#include "scheduler/control/head_state.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/sort_by.h"
#include "runtime/wire/request_id.h"
#include "scheduler/control/journal_bytes.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {

HeadState::HeadState(const HeadConfig& config)
    : config_(config), suspicion_deviations_(deviations_at(config.suspicion_phi)) {}

Outcome HeadState::apply(Event event, Moment now) {
  const TimePoint before = std::exchange(now_, now).steady;
  excuse_those_away(before);
  run_timers();
  if (auto* arrived = get_if<MessageArrived>(&event)) {
    dispatch(*arrived);
  } else if (auto* closed = get_if<PeerClosed>(&event)) {
    peer_closed(closed->peer);
  } else if (const auto* gone = get_if<NodeGone>(&event)) {
    node_gone(*gone);
  } else if (auto* noted = get_if<DaemonNoted>(&event)) {
    log_event(std::move(noted->kind), {}, {}, 0, std::move(noted->text));
  }
  return finish();
}

Outcome HeadState::finish() {
  end_owned();
  settle_jobs();  // what ends with a job makes room
  end_owned();
  while (schedule_needed_) {
    schedule();
    settle_jobs();
    end_owned();
  }
  if (stopping()) stop_progress();
  push_updates();
  forget_old_actors();
  forget_old_groups();
  forget_old_jobs();
  forget_old_supervisors();
  counted_.clear();
  Outcome outcome{std::move(commands_), std::move(deltas_)};
  commands_.clear();
  deltas_.clear();
  return outcome;
}

template <typename Message>
void HeadState::on(PeerId peer, Message& message) {
  if constexpr (wire::HasRequestId<Message>) {
    not_taken(peer, message.request_id);
  } else {
    not_taken(peer, std::nullopt);
  }
}

void HeadState::not_taken(PeerId peer, std::optional<std::uint64_t> request_id) {
  if (!request_id) {
    commands_.push_back(ClosePeer{peer});
    return;
  }
  reply(peer, *request_id, Status(Code::kProtocol, "the head does not take this message"));
}

void HeadState::dispatch(MessageArrived& arrived) {
  const PeerRecord& peer = peers_[arrived.peer];
  const bool unknown = peer.client_id.empty() && peer.node_id.empty();
  const bool introduces = holds_alternative<wire::ClientHello>(arrived.message) ||
                          holds_alternative<wire::RegisterNode>(arrived.message);
  if (!introduces && unknown) {
    if (const auto request_id = wire::request_id_of(arrived.message)) {
      reply(
          arrived.peer, *request_id,
          Status(Code::kFailedPrecondition, "say who you are first (ClientHello or RegisterNode)"));
    }
    commands_.push_back(ClosePeer{arrived.peer});
    return;
  }
  if (!peer.node_id.empty()) lives(arrived.peer);
  visit([&](auto& message) { on(arrived.peer, message); }, arrived.message);
}

void HeadState::send(PeerId peer, wire::ControlMessage message) {
  commands_.push_back(SendMessage{peer, std::move(message)});
}

void HeadState::reply(PeerId peer, std::uint64_t request_id, Status status) {
  send(peer, wire::Reply{request_id, std::move(status)});
}

// --- timers --------------------------------------------------------------------------------------

// Whoever is to be judged for a silence is looked at twice. At the first look the silence may be
// this process's own, which stood still, or whose machine did: what others said meanwhile waits in
// its sockets, and is read between the two. A timer that comes very late says that it did.
constexpr Duration kHeadPause = std::chrono::milliseconds(200);
constexpr Duration kAfterPause = std::chrono::milliseconds(200);
constexpr Duration kBetweenLooks = std::chrono::milliseconds(20);
// So late comes no timer of a head that is merely busy.
constexpr Duration kLongHeadPause = std::chrono::seconds(1);

void HeadState::arm(TimePoint at, TimerKind kind, std::uint64_t high, std::uint64_t low,
                    bool second) {
  timers_.insert({at, kind, high, low, second});
}

bool HeadState::head_stood_still(TimePoint due) const { return now_.steady - due >= kHeadPause; }

TimePoint HeadState::second_look(TimePoint due) const {
  return now_.steady + (head_stood_still(due) ? kAfterPause : kBetweenLooks);
}

// False, and the timer comes once more, at the first look.
bool HeadState::looked_twice(const Timer& timer) {
  const auto& [at, kind, high, low, second] = timer;
  if (!second) arm(second_look(at), kind, high, low, true);
  return second;
}

// Who is away cannot come back to a head that stands still: that time is no part of theirs. One
// look more would not do for those that are between two attempts, nor where it stands still again.
void HeadState::excuse_those_away(TimePoint before) {
  const auto due = next_deadline();
  if (!due || now_.steady - std::max(*due, before) < kLongHeadPause) return;
  // It may have begun right behind the event before.
  const Duration pause = now_.steady - before;
  for (auto& [id, node] : nodes_) {
    if (!node.return_by) continue;
    *node.return_by += pause;
    look_at(node, *node.return_by);
  }
  for (auto& [id, client] : clients_) {
    if (!client.return_by) continue;
    *client.return_by += pause;
    arm(*client.return_by, TimerKind::kClient, id.high, id.low);
  }
}

std::optional<TimePoint> HeadState::next_deadline() const {
  if (timers_.empty()) return std::nullopt;
  return std::get<0>(*timers_.begin());
}

// A timer is only a reason to look: the records hold the times that count.
void HeadState::run_timers() {
  while (!timers_.empty() && std::get<0>(*timers_.begin()) <= now_.steady) {
    const Timer timer = *timers_.begin();
    const auto& [at, kind, high, low, second] = timer;
    timers_.erase(timers_.begin());
    switch (kind) {
      case TimerKind::kNode: {
        const auto node = nodes_.find(NodeId{high, low});
        if (node != nodes_.end()) node_silent_or_gone(node->second, at);
        break;
      }
      case TimerKind::kClient: {
        const auto client = clients_.find(ClientId{high, low});
        if (client != clients_.end() && client->second.return_by &&
            *client->second.return_by <= now_.steady && looked_twice(timer)) {
          const ClientRecord gone = client->second;
          clients_.erase(client);
          owner_gone(gone);
        }
        break;
      }
      case TimerKind::kActor: {
        const auto actor = actors_.find(ActorId{high, low});
        if (actor != actors_.end() && actor->second.restart_at &&
            *actor->second.restart_at <= now_.steady) {
          back_off_over(actor->second);
        }
        break;
      }
      case TimerKind::kGroup: {
        const auto group = groups_.find(GroupId{high, low});
        if (group != groups_.end()) group_timer(group->second, timer);
        break;
      }
      case TimerKind::kLine:
        if (look_again_at_ && *look_again_at_ <= now_.steady) {
          look_again_at_.reset();
          came_room();
        }
        break;
      case TimerKind::kExpected:
        if (looked_twice(timer)) end_expectations(ActorId{high, low});
        break;
      case TimerKind::kStop:
        break;  // stop_progress() looks at the clock
    }
  }
}

// --- what others see -----------------------------------------------------------------------------

// Kinds stand in event_kinds.h.
void HeadState::log_event(std::string kind, NodeId node_id, ActorId actor_id,
                          std::uint64_t generation, std::string text) {
  wire::EventRecord event;
  event.sequence = next_event_++;
  event.unix_time_us = now_.unix_us;
  event.kind = std::move(kind);
  event.node_id = node_id;
  event.actor_id = actor_id;
  event.generation = generation;
  event.text = clipped(std::move(text), kEventTextBytes);
  remember(event);
  deltas_.push_back(EventLogged{std::move(event)});
}

void HeadState::changed(ActorRecord& actor) {
  changed_actors_.insert(actor.spec.actor_id);
  if (is_job_program(actor.spec)) touched_jobs_.insert(actor.spec.job_id);
}
void HeadState::changed(NodeRecord& node) { changed_nodes_.insert(node.info.node_id); }

wire::ActorInfo HeadState::visible(const ActorRecord& actor) const {
  wire::ActorInfo info = actor.info;
  if (actor.queue_order != 0) info.pending_why = why_pending(actor);
  return info;
}

// An owner that does not watch its actor hears, once, that it has to wait. Not what for: that costs
// a look at every node, and thousands may begin to wait at once.
void HeadState::tell_owner_of_wait(const ActorRecord& actor) {
  if (actor.queue_order == 0 || actor.spec.is_program()) return;
  const auto owner = clients_.find(actor.spec.owner);
  if (owner == clients_.end() || owner->second.peer == 0) return;
  if (actor.watchers.contains(owner->second.peer)) return;
  send(owner->second.peer, wire::ActorUpdate{actor.info});
}

// Tells whoever watches it. With its last update the watches are over, here and at the clients.
template <typename Update, typename Record, typename Id>
void HeadState::tell_watchers(Record& record, const Id& id, bool last,
                              std::set<Id> PeerRecord::*watched) {
  if (record.watchers.empty()) return;
  const Update update{visible(record)};
  for (PeerId watcher : record.watchers) {
    send(watcher, update);
    const auto peer = peers_.find(watcher);
    if (last && peer != peers_.end()) (peer->second.*watched).erase(id);
  }
  if (last) record.watchers.clear();
}

// One delta and one update per thing that changed, whatever happened to it in between.
void HeadState::push_updates() {
  for (const ActorId& id : changed_actors_) {
    const auto found = actors_.find(id);
    if (found == actors_.end()) continue;
    ActorRecord& actor = found->second;
    deltas_.push_back(ActorChanged{actor.info, actor.lease_generation, actor.queue_order,
                                   actor.started, actor.stopping, actor.restart_after_stop,
                                   actor.restarts_unix_us, actor.moving, actor.barrier,
                                   actor.state_lost});
    if (lined_up_.contains(id)) tell_owner_of_wait(actor);
    tell_watchers<wire::ActorUpdate>(actor, id, actor.dead(), &PeerRecord::watched_actors);
  }
  lined_up_.clear();
  for (const GroupId& id : changed_groups_) {
    const auto found = groups_.find(id);
    if (found == groups_.end()) continue;
    GroupRecord& group = found->second;
    deltas_.push_back(GroupChanged{group.info, group.queue_order, group.was_created});
    tell_watchers<wire::PlacementGroupUpdate>(group, id, group.removed(),
                                              &PeerRecord::watched_groups);
  }
  for (const SupervisorId& id : changed_supervisors_) {
    SupervisorRecord& supervisor = supervisors_.at(id);
    deltas_.push_back(SupervisorChanged{supervisor.info, supervisor.restarts_unix_us});
    tell_watchers<wire::SupervisorUpdate>(supervisor, id, supervisor.ended(),
                                          &PeerRecord::watched_supervisors);
  }
  for (const NodeId& id : changed_nodes_) {
    const auto found = nodes_.find(id);
    if (found != nodes_.end()) deltas_.push_back(NodeKnown{found->second.info});
  }
  resized_nodes_.insert(changed_nodes_.begin(), changed_nodes_.end());
  // Looked for only when there is something to say: a heartbeat must not cost a look at all peers.
  for (const auto& [peer, record] : peers_) {
    if (resized_nodes_.empty()) break;
    if (!record.watches_nodes) continue;
    for (const NodeId& id : record.watches_amounts ? resized_nodes_ : changed_nodes_) {
      const auto found = nodes_.find(id);
      if (found != nodes_.end()) send(peer, wire::NodeUpdate{visible(found->second)});
    }
  }
  changed_actors_.clear();
  changed_groups_.clear();
  changed_supervisors_.clear();
  changed_nodes_.clear();
  resized_nodes_.clear();
}

void HeadState::on(PeerId peer, wire::ListNodes& message) {
  wire::NodeList list{message.request_id, {}};
  for (const auto& [id, node] : nodes_) list.nodes.push_back(visible(node));
  stable_sort_by(list.nodes,
                 [](const auto& a, const auto& b) { return a.joined_unix_us < b.joined_unix_us; });
  send(peer, std::move(list));
}

void HeadState::on(PeerId peer, wire::ListActors& message) {
  wire::ActorList list{message.request_id, {}};
  // Those that wish the same wait for the same: thousands of explanations are few.
  std::map<std::pair<const Wish*, bool>, std::string> told;
  for (const auto& [id, actor] : actors_) {
    if (!message.include_dead && actor.dead()) continue;
    const QueueKey key = key_of(actor);
    const auto entry = queue_.find(key);
    if (actor.queue_order == 0 || entry == queue_.end() || !entry->second.wish || turn_ == key) {
      list.actors.push_back(visible(actor));
      continue;
    }
    const auto [why, added] =
        told.try_emplace({&(*entry->second.wish)->first, kept_free_before(key) != nullptr});
    if (added) why->second = why_pending(actor);
    list.actors.push_back(actor.info);
    list.actors.back().pending_why = why->second;
  }
  send(peer, std::move(list));
}

void HeadState::on(PeerId peer, wire::ListEvents& message) {
  wire::EventList list{message.request_id, {}};
  const auto first = std::upper_bound(
      events_.begin(), events_.end(), message.after_sequence,
      [](std::uint64_t after, const wire::EventRecord& e) { return after < e.sequence; });
  const auto left = static_cast<std::uint64_t>(events_.end() - first);
  const auto count = static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(left, message.count_max));
  // Without a starting point: the newest.
  const auto from = message.after_sequence == 0 ? events_.end() - count : first;
  list.events.assign(from, from + count);
  send(peer, std::move(list));
}

// --- invariants ----------------------------------------------------------------------------------

std::optional<std::string> HeadState::broken_lease(std::map<ActorId, std::size_t>& held) const {
  for (const auto& [id, node] : nodes_) {
    wire::Resources free = node.info.total;
    for (const auto& [key, bundle] : node.bundles) subtract(free, bundle.total);
    for (const auto& [key, amount] : node.leases) {
      if (!node.inside.contains(key)) subtract(free, amount);
      const auto actor = actors_.find(key.first);
      if (actor == actors_.end()) continue;
      if (actor->second.lease_generation == key.second && actor->second.info.node_id == id) {
        ++held[key.first];
      }
    }
    for (const auto& [name, amount] : free) {
      if (amount < 0) return fmt::format("leases overlap on node {}: {}", node.info.name, name);
      if (amount_of(node.info.available, name) != amount) {
        return fmt::format("node {}: what is free of {} is not total minus leases", node.info.name,
                           name);
      }
      const auto* column = view_.column(name);
      if (node.usable() && (column == nullptr || view_.row_of(id) == ClusterView::kNoRow ||
                            column->available[view_.row_of(id)] != amount)) {
        return fmt::format("node {}: placement sees another amount of {} than is free",
                           node.info.name, name);
      }
    }
    if (!node.usable() && view_.row_of(id) != ClusterView::kNoRow) {
      return fmt::format("placement sees node {}, which takes nothing", node.info.name);
    }
    if (node.info.state == wire::NodeState::kDead &&
        (!node.leases.empty() || !node.bundles.empty())) {
      return fmt::format("dead node {} has leases", node.info.name);
    }
    if (auto broken = broken_bundles(node)) return broken;
  }
  return std::nullopt;
}

// What is taken from the bundles on a node.
std::optional<std::string> HeadState::broken_bundles(const NodeRecord& node) const {
  std::map<BundleKey, wire::Resources> used;
  for (const auto& [lease, bundle] : node.inside) {
    if (!node.leases.contains(lease) || !node.bundles.contains(bundle)) {
      return fmt::format("node {}: a lease is inside of nothing", node.info.name);
    }
    add(used[bundle], node.leases.at(lease));
  }
  for (const auto& [key, bundle] : node.bundles) {
    wire::Resources left = bundle.total;
    subtract(left, used[key]);
    for (const auto& [name, amount] : left) {
      if (amount < 0 || amount_of(bundle.available, name) != amount) {
        return fmt::format("node {}: leases overlap in bundle {} of {}", node.info.name, key.second,
                           key.first.brief());
      }
    }
    const auto group = groups_.find(key.first);
    const bool known =
        group != groups_.end() && group->second.reserved() &&
        group->second.info.bundles.at(static_cast<std::size_t>(key.second)).node_id ==
            node.info.node_id;
    if (!known) return fmt::format("node {} holds a bundle of nobody", node.info.name);
  }
  return std::nullopt;
}

// A group holds all of its bundles or none, and what does not hold them waits.
std::optional<std::string> HeadState::broken_group() const {
  for (const auto& [id, group] : groups_) {
    if (group.info.group_id != id) return fmt::format("group {} was half journalled", id.brief());
    std::size_t held = 0;
    for (std::size_t i = 0; i < group.info.bundles.size(); ++i) {
      const auto node = nodes_.find(group.info.bundles[i].node_id);
      if (node != nodes_.end() &&
          node->second.bundles.contains({id, static_cast<std::int32_t>(i)})) {
        ++held;
      }
    }
    if (held != (group.reserved() ? group.info.bundles.size() : 0)) {
      return fmt::format("group {} holds {} of its bundles", id.brief(), held);
    }
    const bool preparing = group.info.state == wire::PlacementGroupState::kPreparing;
    if (preparing != (!group.awaited.empty() && group.answer_by.has_value())) {
      return fmt::format("group {} waits for nobody", id.brief());
    }
    const bool waits = group.waiting || group.retry_at.has_value();
    if (waits == (group.reserved() || group.removed())) {
      return fmt::format("group {} is forgotten, or waits for what it has", id.brief());
    }
    for (const ActorId& actor : group.actors) {
      const auto found = actors_.find(actor);
      if (found == actors_.end() || found->second.dead() ||
          found->second.spec.placement_group != id) {
        return fmt::format("group {} names actor {} wrongly", id.brief(), actor.brief());
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> HeadState::broken_line() const {
  for (const auto& [key, entry] : queue_) {
    for (const ActorId& id : entry.members) {
      const auto actor = actors_.find(id);
      if (actor == actors_.end() || key_of(actor->second) != key) {
        return fmt::format("queue entry {} names actor {} wrongly", key.order, id.brief());
      }
    }
    const bool known = entry.wish ? (*entry.wish)->second.contains(key) : fresh_.contains(key);
    if (!known) return fmt::format("queue entry {} is in no line", key.order);
    if (entry.group.empty() != !entry.members.empty()) {
      return fmt::format("queue entry {} is neither actors nor a group", key.order);
    }
    if (entry.group.empty()) continue;
    const auto group = groups_.find(entry.group);
    if (group == groups_.end() || !group->second.waiting || key_of(group->second) != key) {
      return fmt::format("queue entry {} names group {} wrongly", key.order, entry.group.brief());
    }
  }
  for (const auto& [id, group] : groups_) {
    if (group.waiting && !queue_.contains(key_of(group))) {
      return fmt::format("group {} is not where it waits", id.brief());
    }
  }
  if (turn_ && !queue_.contains(*turn_)) return "the turn is nobody's";
  return std::nullopt;
}

std::optional<std::string> HeadState::broken_invariant() const {
  std::map<ActorId, std::size_t> leases;
  if (auto broken = broken_lease(leases)) return broken;
  if (auto broken = broken_group()) return broken;
  if (auto broken = broken_line()) return broken;
  if (auto broken = broken_job()) return broken;
  if (auto broken = broken_owner()) return broken;
  if (auto broken = broken_supervisor()) return broken;
  if (auto broken = broken_room()) return broken;
  for (const auto& [id, actor] : actors_) {
    const std::size_t held = leases[id];
    if (held != (actor.lease_generation != 0 ? 1u : 0u)) {
      return fmt::format("actor {} holds {} leases", id.brief(), held);
    }
    if (actor.has_process() && actor.lease_generation != actor.info.generation) {
      return fmt::format("actor {} runs without a lease of its generation", id.brief());
    }
    if (actor.state_lost &&
        (actor.info.state_lost_generation == 0 || actor.info.saved_state_node.empty())) {
      return fmt::format("actor {} has lost its state, and nobody says so", id.brief());
    }
    if (actor.dead() && (held != 0 || actor.queue_order != 0)) {
      return fmt::format("dead actor {} holds something", id.brief());
    }
    if (actor.queue_order != 0 && !queue_.contains(key_of(actor))) {
      return fmt::format("actor {} is not where it waits", id.brief());
    }
    const bool waits =
        actor.queue_order != 0 || actor.restart_at.has_value() || !actor.barrier.empty();
    if (!actor.dead() && !actor.has_process() && !waits) {
      return fmt::format("actor {} is forgotten: it neither runs nor waits", id.brief());
    }
  }
  return std::nullopt;
}

}  // namespace troupe::scheduler

namespace troupe {
template class Variant<scheduler::Events>;
template class Variant<scheduler::Commands>;
}  // namespace troupe
