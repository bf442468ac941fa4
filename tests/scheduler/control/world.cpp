#include "world.h"

#include <algorithm>

#include "runtime/base/hash.h"
#include "scheduler/control/event_kinds.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler::tests {
namespace {

using std::chrono::milliseconds;

std::vector<std::vector<std::byte>> sorted_records(const HeadState& state) {
  std::vector<std::vector<std::byte>> records;
  for (const Delta& delta : state.snapshot()) records.push_back(encode_delta(delta));
  std::sort(records.begin(), records.end());
  return records;
}

std::optional<std::uint64_t> reply_id(const wire::ControlMessage& message) {
  if (const auto* reply = get_if<wire::Reply>(&message)) return reply->request_id;
  if (const auto* list = get_if<wire::ActorList>(&message)) return list->request_id;
  if (const auto* list = get_if<wire::NodeList>(&message)) return list->request_id;
  if (const auto* list = get_if<wire::EventList>(&message)) return list->request_id;
  return std::nullopt;
}

}  // namespace

World::World(std::uint64_t seed) : random_(seed) {
  config_.dead_actors_max = 20;
  config_.dead_nodes_max = 5;
  config_.removed_groups_max = 4;
  config_.ended_supervisors_max = 3;
  config_.turn_patience = milliseconds(500);
  config_.events_max = 200;
  head_.emplace(config_);
  now_.unix_us = 1'700'000'000'000'000;
}

// --- the head's surroundings ---------------------------------------------------------------------

void World::feed(Event event) {
  take(head_->apply(std::move(event), now_));
  check();
}

void World::take(const Outcome& outcome) {
  for (const Delta& delta : outcome.deltas) {
    journal_.push_back(encode_delta(delta));
    trace_hash_ = trace_hash_ * 31 + xxh3_64(journal_.back());
    if (const auto* logged = get_if<EventLogged>(&delta)) {
      CHECK_MESSAGE(is_event_kind(logged->event.kind), logged->event.kind);
      if (logged->event.kind == "actor_restarting") {
        restarts_[logged->event.actor_id].push_back(logged->event.unix_time_us);
      }
    }
  }
  std::vector<PeerId> closed;
  for (const Command& command : outcome.commands) {
    if (const auto* send = get_if<SendMessage>(&command)) {
      if (open_peers_.contains(send->peer)) deliver(send->peer, send->message);
    } else if (const auto* close = get_if<ClosePeer>(&command)) {
      closed.push_back(close->peer);
    }
  }
  for (PeerId peer : closed) {
    open_peers_.erase(peer);
    for (auto& [id, node] : nodes_) {
      if (node.peer != peer) continue;
      node.peer = 0;
      node.back_at = now_.steady + milliseconds(random_.below(900));
    }
    for (VirtualClient& client : clients_) {
      if (client.peer == peer) client.peer = 0;
    }
  }
}

void World::deliver(PeerId peer, const wire::ControlMessage& message) {
  if (const auto id = reply_id(message)) {
    const auto expected = expected_replies_.find(*id);
    REQUIRE_MESSAGE(expected != expected_replies_.end(), "request ", *id, " answered twice");
    CHECK(expected->second == peer);
    expected_replies_.erase(expected);
    return;
  }
  for (auto& [id, node] : nodes_) {
    if (node.peer != peer || node.silent || !node.alive) continue;
    node.heard_of_head = now_.steady;
    if (const auto* start = get_if<wire::StartActor>(&message)) {
      const LeaseKey key{start->spec.actor_id, start->generation};
      REQUIRE(!node.running.contains(key));
      // What the actor has saved is somewhere, or lost with somebody, and never passed over.
      const wire::ActorInfo& info = head_->actors().at(start->spec.actor_id).info;
      const bool lost = !start->state_lost_with.empty();
      REQUIRE(start->saved_state_node == (lost ? NodeId() : info.saved_state_node));
      REQUIRE((!lost || info.state_lost_generation != 0));
      const GroupId group = start->spec.placement_group;
      REQUIRE_MESSAGE((group.empty() || node.held.contains(group)),
                      "an actor starts in a group that its node does not hold");
      node.running[key] = {start->spec, start->generation, 0, false};
      wire::Resources used;
      for (const auto& [other, running] : node.running) add(used, running.spec.resources);
      const bool needs_some = amount_of(start->spec.resources, kCpu) > 0;
      REQUIRE_MESSAGE((!needs_some || fits(used, node.total)), "placed on what has failed");
    } else if (const auto* stop = get_if<wire::StopActor>(&message)) {
      node.to_stop.push_back({stop->actor_id, stop->generation});
    } else if (const auto* reply = get_if<wire::RegisterNodeReply>(&message)) {
      CHECK(reply->status.ok());
      for (const LeaseKey& key : reply->stop) node.to_stop.push_back(key);
      node.asked.clear();
      node.held.clear();
      for (const wire::Reservation& held : reply->reservations) node.held[held.group_id] = held;
    } else if (const auto* prepare = get_if<wire::PrepareBundles>(&message)) {
      node.asked.push_back(prepare->reservation);
    } else if (const auto* commit = get_if<wire::CommitBundles>(&message)) {
      REQUIRE(node.held.contains(commit->group_id));
      REQUIRE(node.held.at(commit->group_id).generation == commit->generation);
    } else if (const auto* release = get_if<wire::ReleaseBundles>(&message)) {
      node.held.erase(release->group_id);
      std::erase_if(node.asked, [&](const wire::Reservation& asked) {
        return asked.group_id == release->group_id;
      });
    }
  }
}

void World::close(PeerId peer) {
  if (peer == 0 || open_peers_.erase(peer) == 0) return;
  // What was asked over it is never answered.
  std::erase_if(expected_replies_, [&](const auto& entry) { return entry.second == peer; });
  feed(PeerClosed{peer});
}

void World::register_node(VirtualNode& node) {
  wire::RegisterNode message;
  message.node.node_id = node.id;
  message.node.name = "node";
  // What failed and is held still counts, as a NodeState has it.
  wire::Resources held;
  for (const auto& [key, running] : node.running) {
    message.running.push_back(running);
    add(held, running.spec.resources);
  }
  message.node.total = node.total;
  for (auto& [name, amount] : message.node.total) {
    amount = std::max(amount, amount_of(held, name));
  }
  node.peer = next_peer_++;
  node.heard_of_head = now_.steady;
  open_peers_.insert(node.peer);
  const bool more = message.node.total != node.total;
  feed(MessageArrived{node.peer, std::move(message)});
  if (more) resize(node, node.total);
}

// Part of what it has fails, or comes back.
void World::resize(VirtualNode& node, wire::Resources total) {
  node.total = std::move(total);
  if (node.peer == 0 || node.silent || !node.alive) return;
  wire::NodeUpdate update;
  update.node.node_id = node.id;
  update.node.total = node.total;
  feed(MessageArrived{node.peer, std::move(update)});
}

VirtualNode& World::join_node(std::int64_t cpus) {
  const NodeId id = NodeId::make(random_);
  VirtualNode& node = nodes_[id];
  node.id = id;
  node.total = node.whole = {{std::string(kCpu), cpus * wire::kResourceUnit}};
  register_node(node);
  return node;
}

VirtualClient& World::join_client() {
  clients_.push_back({ClientId::make(random_), next_peer_++});
  VirtualClient& client = clients_.back();
  open_peers_.insert(client.peer);
  wire::ClientHello hello;
  hello.request_id = next_request_++;
  hello.client_id = client.id;
  hello.kind = "driver";
  request(client, hello, hello.request_id);
  return client;
}

void World::request(VirtualClient& client, wire::ControlMessage message, std::uint64_t id) {
  expected_replies_[id] = client.peer;
  feed(MessageArrived{client.peer, std::move(message)});
}

std::vector<ActorId> World::create(VirtualClient& client, std::size_t count, std::int64_t cpus,
                                   bool gang, wire::RestartPolicy restart) {
  wire::CreateActors message;
  message.request_id = next_request_++;
  message.gang = gang;
  std::vector<ActorId> ids;
  for (std::size_t i = 0; i < count; ++i) {
    wire::ActorSpec spec;
    spec.actor_id = ActorId::make(random_);
    spec.type = "Worker";
    spec.resources = {{std::string(kCpu), cpus * wire::kResourceUnit / 2}};
    spec.restart = restart;
    spec.detached = random_.below(4) == 0;
    spec.priority = static_cast<std::int32_t>(random_.below(2));
    if (!group_ids_.empty() && random_.below(3) == 0) {
      spec.placement_group = group_ids_[random_.below(group_ids_.size())];
      spec.bundle_index = static_cast<std::int32_t>(random_.below(3)) - 1;
    }
    if (!supervisor_ids_.empty() && random_.below(3) == 0) {
      spec.supervisor = supervisor_ids_[random_.below(supervisor_ids_.size())];
      spec.restart.max_restarts = 0;
    }
    owned_by_somebody(spec);
    ids.push_back(spec.actor_id);
    message.specs.push_back(std::move(spec));
  }
  actor_ids_.insert(actor_ids_.end(), ids.begin(), ids.end());
  request(client, std::move(message), message.request_id);
  return ids;
}

// Also by those that are dead by now: then it is refused.
template <typename Owned>
void World::owned_by_somebody(Owned& spec) {
  if (actor_ids_.empty() || random_.below(3) != 0) return;
  spec.owner_actor = actor_ids_[random_.below(actor_ids_.size())];
  const auto owner = head_->actors().find(spec.owner_actor);
  if (owner == head_->actors().end() || random_.below(2) == 0) return;
  spec.owner_generation = owner->second.info.generation;
}

void World::create_supervisor(VirtualClient& client) {
  wire::CreateSupervisor message;
  message.request_id = next_request_++;
  wire::SupervisorSpec& spec = message.spec;
  spec.supervisor_id = SupervisorId::make(random_);
  spec.strategy = static_cast<wire::RestartStrategy>(random_.below(3));
  spec.restart.max_restarts = static_cast<std::int32_t>(random_.below(4)) - 1;
  spec.restart.window_ms = 5'000;
  spec.detached = random_.below(4) == 0;
  if (!supervisor_ids_.empty() && random_.below(2) == 0) {
    spec.parent = supervisor_ids_[random_.below(supervisor_ids_.size())];
  }
  owned_by_somebody(spec);
  supervisor_ids_.push_back(spec.supervisor_id);
  request(client, std::move(message), message.request_id);
}

GroupId World::create_group(VirtualClient& client) {
  wire::CreatePlacementGroup message;
  message.request_id = next_request_++;
  wire::PlacementGroupSpec& spec = message.spec;
  spec.group_id = GroupId::make(random_);
  spec.strategy = static_cast<wire::PlacementStrategy>(random_.below(4));
  spec.detached = random_.below(4) == 0;
  spec.priority = static_cast<std::int32_t>(random_.below(2));
  const std::size_t count = 1 + random_.below(4);
  for (std::size_t i = 0; i < count; ++i) {
    const auto halves = 1 + static_cast<std::int64_t>(random_.below(4));
    spec.bundles.push_back({{{std::string(kCpu), halves * wire::kResourceUnit / 2}}, {}});
  }
  const GroupId id = spec.group_id;
  group_ids_.push_back(id);
  request(client, std::move(message), message.request_id);
  return id;
}

// --- nodes ---------------------------------------------------------------------------------------

void World::exit_of(VirtualNode& node, LeaseKey key) {
  if (node.running.erase(key) == 0 || node.peer == 0 || node.silent) return;
  wire::ActorExited exited;
  exited.actor_id = key.first;
  exited.generation = key.second;
  exited.exit.signal = 9;
  feed(MessageArrived{node.peer, std::move(exited)});
}

// Does one thing that a node does.
void World::node_acts(VirtualNode& node) {
  if (!node.alive) return;
  if (!node.to_stop.empty()) {
    const LeaseKey key = node.to_stop.back();
    node.to_stop.pop_back();
    return exit_of(node, key);
  }
  if (node.peer == 0 || node.silent) return;
  if (!node.asked.empty()) return answer_asked(node);
  for (auto& [key, running] : node.running) {
    if (running.ready) continue;
    running.ready = true;
    running.pid = 100;
    const auto [actor, generation] = key;  // what is fed may be its end
    feed(MessageArrived{node.peer, wire::ActorStarted{actor, generation, running.pid}});
    if (node.peer != 0) feed(MessageArrived{node.peer, wire::ActorReady{actor, generation}});
    if (node.peer != 0 && random_.below(2) == 0) {
      feed(MessageArrived{node.peer, wire::ActorSaved{actor, generation}});
    }
    return;
  }
}

// By its own account, as NodeState does; now and then it refuses for no reason.
void World::answer_asked(VirtualNode& node) {
  const wire::Reservation asked = node.asked.front();
  node.asked.erase(node.asked.begin());
  wire::BundlesPrepared answer{asked.group_id, asked.generation, {}};
  if (random_.below(8) == 0) {
    answer.status = Status(Code::kResourceExhausted, "not now");
  } else {
    node.held[asked.group_id] = asked;
  }
  feed(MessageArrived{node.peer, std::move(answer)});
}

// A node that hears nothing stops its actors: the head will start them elsewhere.
void World::fence(VirtualNode& node) const {
  const TimePoint due = node.heard_of_head + config_.heartbeat_timeout + node.slowness;
  if (!node.silent || now_.steady < due) return;
  node.running.clear();
  node.to_stop.clear();
}

void World::heartbeats() {
  for (auto& [id, node] : nodes_) {
    if (!node.alive) continue;
    fence(node);
    if (node.silent) continue;
    if (node.peer == 0 && now_.steady >= node.back_at) register_node(node);
    if (node.peer != 0) feed(MessageArrived{node.peer, wire::Heartbeat{id, 1}});
  }
}

void World::advance(Duration by) {
  const TimePoint until = now_.steady + by;
  while (now_.steady < until) {
    const Duration slice = std::min<Duration>(milliseconds(100), until - now_.steady);
    now_.steady += slice;
    now_.unix_us += std::chrono::duration_cast<std::chrono::microseconds>(slice).count();
    heartbeats();
    const auto due = head_->next_deadline();
    if (due && *due <= now_.steady) feed(Tick{});
    const auto next = head_->next_deadline();
    CHECK((!next || *next > now_.steady));
  }
}

// --- what happens --------------------------------------------------------------------------------

VirtualNode* World::any_node() {
  if (nodes_.empty()) return nullptr;
  return &std::next(nodes_.begin(), static_cast<std::ptrdiff_t>(random_.below(nodes_.size())))
              ->second;
}

VirtualClient* World::any_client() {
  if (clients_.empty()) return nullptr;
  VirtualClient& client = clients_[random_.below(clients_.size())];
  return client.peer != 0 ? &client : nullptr;
}

void World::step() {
  const std::uint64_t dice = random_.below(116);
  VirtualNode* node = any_node();
  if (dice < 40) {
    if (node != nullptr) node_acts(*node);
  } else if (dice < 58) {
    advance(milliseconds(random_.below(700)));
  } else if (dice < 70) {
    if (VirtualClient* client = any_client()) {
      wire::RestartPolicy restart;
      restart.max_restarts = static_cast<std::int32_t>(random_.below(4)) - 1;
      restart.window_ms = 5'000;
      create(*client, 1 + random_.below(4), static_cast<std::int64_t>(random_.below(4)),
             random_.below(2) == 0, restart);
    }
  } else if (dice < 76) {
    if (node != nullptr && node->alive && !node->running.empty()) {
      exit_of(*node, node->running.begin()->first);  // killed from outside
    }
  } else if (dice < 81) {
    VirtualClient* client = any_client();
    if (client != nullptr && !actor_ids_.empty()) {
      wire::KillActor kill;
      kill.request_id = next_request_++;
      kill.actor_id = actor_ids_[random_.below(actor_ids_.size())];
      kill.allow_restart = random_.below(2) == 0;
      request(*client, kill, kill.request_id);
    }
  } else if (dice < 84) {
    if (nodes_.size() < 8) join_node(1 + static_cast<std::int64_t>(random_.below(4)));
  } else if (dice < 87) {
    if (clients_.size() < 6) join_client();
  } else if (dice < 89) {
    if (VirtualClient* client = any_client()) {
      const PeerId peer = client->peer;
      client->peer = 0;
      close(peer);
    }
  } else if (dice < 91) {
    // The connection breaks; the node comes back within its grace.
    if (node != nullptr && node->alive && !node->silent && node->peer != 0) {
      const PeerId peer = std::exchange(node->peer, 0);
      node->back_at = now_.steady + milliseconds(random_.below(800));
      close(peer);
    }
  } else if (dice < 93) {
    // The whole machine dies.
    if (node != nullptr && node->alive) {
      const PeerId peer = std::exchange(node->peer, 0);
      const bool noticed = !node->silent;
      nodes_.erase(node->id);
      if (noticed) close(peer);
    }
  } else if (dice < 95) {
    if (node != nullptr && node->peer != 0 && !node->silent) {
      node->silent = true;
      node->slowness = milliseconds(random_.below(700));
    }
  } else if (dice < 97) {
    // Its link is mended.
    if (node != nullptr && node->silent) {
      fence(*node);
      node->silent = false;
      const PeerId peer = std::exchange(node->peer, 0);
      node->back_at = now_.steady;
      close(peer);
    }
  } else if (dice < 99) {
    if (VirtualClient* client = any_client()) {
      const std::uint64_t id = next_request_++;
      request(*client, wire::ListActors{id, true}, id);
    }
  } else if (dice < 100) {
    restart_head();
  } else if (dice < 105) {
    if (VirtualClient* client = any_client()) create_group(*client);
  } else if (dice < 108) {
    if (VirtualClient* client = any_client()) create_supervisor(*client);
  } else if (dice < 109) {
    VirtualClient* client = any_client();
    if (client != nullptr && !supervisor_ids_.empty()) {
      wire::EndSupervisor end;
      end.request_id = next_request_++;
      end.supervisor_id = supervisor_ids_[random_.below(supervisor_ids_.size())];
      request(*client, end, end.request_id);
    }
  } else if (dice < 110) {
    VirtualClient* client = any_client();
    if (client != nullptr && node != nullptr && nodes_.size() > 2) {
      wire::DrainNode drain;
      drain.request_id = next_request_++;
      drain.node_id = node->id;
      drain.grace_ms = 1'000;
      request(*client, drain, drain.request_id);
    }
  } else if (dice < 112) {
    if (node != nullptr) {
      const auto halves = amount_of(node->whole, kCpu) / (wire::kResourceUnit / 2);
      const auto left =
          static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(halves) + 1));
      resize(*node, {{std::string(kCpu), left * wire::kResourceUnit / 2}});
    }
  } else {
    VirtualClient* client = any_client();
    if (client != nullptr && !group_ids_.empty()) {
      wire::RemovePlacementGroup remove;
      remove.request_id = next_request_++;
      remove.group_id = group_ids_[random_.below(group_ids_.size())];
      request(*client, remove, remove.request_id);
    }
  }
}

void World::restart_head() {
  const auto before = sorted_records(*head_);
  head_.emplace(config_);
  for (const auto& record : journal_) {
    const auto delta = decode_delta(record);
    REQUIRE(delta.ok());
    REQUIRE(head_->replay(*delta).ok());
  }
  CHECK(sorted_records(*head_) == before);
  open_peers_.clear();
  expected_replies_.clear();
  for (auto& [id, node] : nodes_) {
    node.peer = 0;
    node.back_at = now_.steady + milliseconds(random_.below(3'000));
  }
  for (VirtualClient& client : clients_) client.peer = 0;
  take(head_->resume(now_));
  check();
}

void World::settle() {
  for (auto& [id, node] : nodes_) {
    if (!node.silent) continue;
    node.running.clear();
    node.to_stop.clear();
    node.silent = false;
    const PeerId peer = std::exchange(node.peer, 0);
    node.back_at = now_.steady;
    close(peer);
  }
  for (auto& [id, node] : nodes_) resize(node, node.whole);
  for (int round = 0; round < 60; ++round) {
    advance(milliseconds(500));
    for (auto& [id, node] : nodes_) {
      const std::size_t acts =
          2 * node.running.size() + node.to_stop.size() + node.asked.size() + 2;
      for (std::size_t i = 0; i < acts; ++i) {
        node_acts(node);
      }
    }
  }
}

// --- what must hold ------------------------------------------------------------------------------

void World::check() {
  const auto broken = head_->broken_invariant();
  REQUIRE_MESSAGE(!broken.has_value(), broken.value_or(""));
  check_processes();
  check_gangs();
  check_groups();
  check_budgets();
}

// However the head and the nodes see it: an actor has one process, but where the node of the older
// one is cut off and the actor may run twice; and no node runs more than it has.
void World::check_processes() const {
  std::map<ActorId, int> processes;
  for (const auto& [id, node] : nodes_) {
    wire::Resources used;
    if (!node.alive) continue;
    for (const auto& [key, running] : node.running) {
      const bool may_run_twice = running.spec.on_head_loss == wire::OnHeadLoss::kKeep;
      if (!node.silent || !may_run_twice) ++processes[key.first];
      add(used, running.spec.resources);
    }
    REQUIRE_MESSAGE(fits(used, node.whole), "node runs more than it has");
  }
  for (const auto& [id, count] : processes) {
    REQUIRE_MESSAGE(count == 1, "actor ", id.brief(), " has ", count, " processes");
  }
}

void World::check_gangs() const {
  std::map<std::uint64_t, std::pair<int, int>> gangs;  // never placed, placed
  for (const auto& [id, actor] : head_->actors()) {
    if (actor.gang == 0 || (actor.dead() && actor.info.generation == 0)) continue;
    auto& [waiting, placed] = gangs[actor.gang];
    ++(actor.info.generation == 0 ? waiting : placed);
  }
  for (const auto& [gang, counts] : gangs) {
    REQUIRE_MESSAGE((counts.first == 0 || counts.second == 0), "gang ", gang, " is placed in part");
  }
}

// What the nodes hold for groups and run outside of them is theirs to give; and a group that counts
// as reserved is held by all of its nodes that can be reached.
void World::check_groups() const {
  for (const auto& [id, node] : nodes_) {
    wire::Resources used;
    for (const auto& [group, held] : node.held) add(used, held.resources);
    for (const auto& [key, running] : node.running) {
      if (!node.held.contains(running.spec.placement_group)) add(used, running.spec.resources);
    }
    // A node that is cut off may hold what was released since.
    if (node.peer != 0 && !node.silent) {
      REQUIRE_MESSAGE(fits(used, node.whole), "node holds more than it has");
    }
  }
  for (const auto& [id, group] : head_->groups()) {
    if (!group.created()) continue;
    for (const wire::BundleInfo& bundle : group.info.bundles) {
      const auto node = nodes_.find(bundle.node_id);
      if (node == nodes_.end() || node->second.peer == 0 || node->second.silent) continue;
      REQUIRE_MESSAGE(node->second.held.contains(id), "group ", id.brief(), " is held in part");
    }
  }
}

void World::check_budgets() const {
  for (const auto& [id, times] : restarts_) {
    const auto actor = head_->actors().find(id);
    if (actor == head_->actors().end()) continue;
    const wire::RestartPolicy& policy = actor->second.spec.restart;
    if (policy.max_restarts < 0) continue;
    const auto in_window = std::count_if(times.begin(), times.end(), [&](std::int64_t time) {
      return time >= times.back() - policy.window_ms * 1000;
    });
    REQUIRE(in_window <= policy.max_restarts);
  }
  for (const auto& [id, supervisor] : head_->supervisors()) {
    const std::int32_t most = supervisor.spec.restart.max_restarts;
    REQUIRE((most < 0 || supervisor.restarts_unix_us.size() <= static_cast<std::size_t>(most)));
  }
}

}  // namespace troupe::scheduler::tests
