// The node and its head: joining, heartbeats, the lease that fences, the end.

#include "scheduler/node/node_state.h"

#include <algorithm>

#include "scheduler/node/kept_keys.h"
#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

constexpr std::size_t kHeartbeatsRememberedMax = 128;

std::int64_t milliseconds_of(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

// An interval or timeout that the head asks for: never negative, never so long that it is no time.
Duration heartbeat_time(std::int64_t ms) {
  constexpr std::int64_t kHeartbeatMsMax = 24LL * 3600 * 1000;
  return std::chrono::milliseconds(std::clamp<std::int64_t>(ms, 0, kHeartbeatMsMax));
}

// Failures of joining that trying again does not mend.
bool is_final(Code code) {
  return code == Code::kUnauthenticated || code == Code::kProtocol ||
         code == Code::kInvalidArgument || code == Code::kAlreadyExists ||
         code == Code::kPermissionDenied || code == Code::kFailedPrecondition;
}

// The part of a spec that a registration says: which actor holds how much of the node, and in which
// bundle. The head has the rest itself, and a hundred constructors' arguments fit into no frame.
wire::ActorSpec as_registered(const wire::ActorSpec& spec) {
  wire::ActorSpec brief;
  brief.actor_id = spec.actor_id;
  brief.resources = spec.resources;
  brief.placement_group = spec.placement_group;
  brief.bundle_index = spec.bundle_index;
  return brief;
}

}  // namespace

NodeState::NodeState(NodeConfig config, TimePoint now)
    : config_(std::move(config)),
      name_(config_.node.name),
      now_(now),
      gpus_(config_.gpus, amount_of(config_.node.total, kGpu)),
      give_up_at_(now + config_.join_timeout),
      connect_at_(now),
      back_off_(config_.node_retry_first) {}

std::vector<NodeCommand> NodeState::apply(NodeEvent event, TimePoint now) {
  now_ = std::max(now_, now);
  visit([this](auto& e) { on(e); }, event);
  if (!ended_self_) {
    tick_actors();
    tick_head();
    settle_gpus();
    settle_packages();
    settle_attaches();
    drop_segments_of_ended_jobs();
    end_when_empty();
  }
  return std::exchange(commands_, {});
}

std::optional<TimePoint> NodeState::next_deadline() const {
  if (ended_self_) return std::nullopt;
  std::optional<TimePoint> first;
  const auto consider = [&first](std::optional<TimePoint> time) {
    if (time && (!first || *time < *first)) first = time;
  };
  consider(connect_at_);
  consider(heartbeat_at_);
  consider(fence_at());
  if (registered_ && heartbeat_timeout_ > Duration::zero()) {
    consider(contact_ + heartbeat_timeout_);
  }
  if (!registered_ && !end_status_) consider(give_up_at_);
  if (by_host_.empty()) consider(hand_over_until_);
  consider(gpus_.next_deadline());
  consider(read_gpus_at_);
  for (const Attach& attach : attaches_) consider(attach.until);
  for (const auto& [sha256, awaited] : awaited_packages_) {
    if (!registered_ || awaited.fetching) continue;
    consider(awaited.ask_at);
    consider(awaited.give_up_at);
  }
  for (const auto& [id, actor] : actors_) {
    if (!actor.killed) consider(actor.kill_at);
    if (!actor.killed) consider(actor.health_due);
    if (!actor.killed) consider(unread_until(actor));
    if (registered_) consider(actor.keep_until);
    const bool awaits_package = awaited_packages_.contains(actor.spec.package.sha256);
    if (actor.phase == Phase::kQueued && !actor.fetching && !awaits_package) {
      consider(actor.gpus_by);
    }
    if (!actor.waiting.empty()) consider(actor.waiting.front().until);
  }
  return first;
}

void NodeState::send(wire::ControlMessage message) {
  if (connected_) commands_.push_back(node_command::SendHead{std::move(message)});
}

// --- joining -------------------------------------------------------------------------------------

void NodeState::on(node_event::HeadUp&) {
  connected_ = true;
  registered_ = false;
  register_sent_at_ = now_;
  // From here on the head counts its silences, and the disk under its journal may keep the answer
  // waiting for longer than a lease.
  if (heartbeat_interval_ == Duration::zero()) heartbeat_interval_ = config_.heartbeat_interval;
  heartbeat_at_ = now_ + heartbeat_interval_;
  wire::RegisterNode message;
  message.request_id = 1;
  message.node = info();
  gpus_announced_ = gpus_.amount();
  for (const auto& [id, actor] : actors_) {
    if (!actor.has_process()) continue;
    message.running.push_back(
        {as_registered(actor.spec), actor.generation, actor.pid, actor.phase == Phase::kReady});
  }
  send(std::move(message));
  say_saved_states();
  say_packages();
}

void NodeState::on(node_event::HeadDown& event) { head_lost(event.why); }

void NodeState::head_lost(const Status& why) {
  if (registered_) give_up_at_ = now_ + config_.orphan_timeout;
  connected_ = false;
  registered_ = false;
  heartbeat_at_.reset();
  heartbeats_sent_.clear();
  last_failure_ = why;
  if (end_status_) return;
  if (!joined_once_ && is_final(why.code())) {
    end_status_ = why;
    return;
  }
  connect_at_ = now_ + back_off_;
  back_off_ = std::min(2 * back_off_, config_.retry_max);
}

void NodeState::on(node_event::FromHead& event) {
  if (!connected_) return;
  visit([this](auto& message) { from_head(message); }, event.message);
}

// What is only said to others.
template <typename Message>
void NodeState::from_head(Message&) {}

void NodeState::on(node_event::NodesAsked&) {
  if (registered_) send(wire::ListNodes{});
}

void NodeState::from_head(wire::NodeList& list) {
  commands_.push_back(node_command::TellNodes{std::move(list.nodes)});
}

void NodeState::from_head(wire::RegisterNodeReply& reply) {
  if (registered_) return;
  if (!reply.status.ok()) {
    commands_.push_back(node_command::DropHead{});
    head_lost(reply.status);
    if (is_final(reply.status.code()) && !end_status_) {
      for (auto& [id, actor] : actors_) kill(actor);
      end_status_ = reply.status;
      connect_at_.reset();
    }
    return;
  }
  registered_ = true;
  joined_once_ = true;
  if (!reply.name.empty()) name_ = reply.name;
  back_off_ = config_.node_retry_first;
  contact_ = std::max(contact_, register_sent_at_);
  heartbeat_interval_ = heartbeat_time(reply.heartbeat_interval_ms);
  heartbeat_timeout_ = heartbeat_time(reply.heartbeat_timeout_ms);
  heartbeat_at_.reset();
  if (heartbeat_interval_ > Duration::zero()) heartbeat_at_ = now_ + heartbeat_interval_;
  keep_node();
  reservations_.clear();
  for (wire::Reservation& reservation : reply.reservations) {
    const GroupId id = reservation.group_id;
    reservations_[id] = {std::move(reservation), true};
  }
  commands_.push_back(node_command::Registered{name_});
  for (wire::NodeNote& note : std::exchange(notes_, {})) send(std::move(note));
  for (const auto& [actor_id, generation] : reply.stop) {
    if (Actor* actor = find(actor_id, generation)) {
      stop(*actor, Duration::zero(), "the head does not want it any more");
    }
  }
}

void NodeState::keep_node() {
  wire::KeptNode node{config_.node.endpoint, name_, joined_once_,
                      contact_.time_since_epoch().count(), milliseconds_of(heartbeat_timeout_)};
  commands_.push_back(node_command::Keep{kNodeKey, std::move(node)});
}

void NodeState::from_head(wire::Heartbeat& echo) {
  while (!heartbeats_sent_.empty() && heartbeats_sent_.front().first <= echo.sequence) {
    contact_ = heartbeats_sent_.front().second;
    heartbeats_sent_.pop_front();
  }
  keep_node();
}

// --- time ----------------------------------------------------------------------------------------

std::optional<TimePoint> NodeState::lease_end() const {
  if (!joined_once_ || heartbeat_timeout_ == Duration::zero()) return std::nullopt;
  const bool any = std::any_of(actors_.begin(), actors_.end(),
                               [](const auto& entry) { return entry.second.is_fenced(); });
  if (!any) return std::nullopt;
  return contact_ + heartbeat_timeout_ + config_.fence_grace;
}

// The end of the lease, where somebody has not been told yet to end with it.
std::optional<TimePoint> NodeState::fence_at() const {
  const bool any = std::any_of(actors_.begin(), actors_.end(), [](const auto& entry) {
    const Actor& actor = entry.second;
    return actor.is_fenced() && (!actor.killed || actor.next);
  });
  return any ? lease_end() : std::nullopt;
}

// Other actors run on: a head that is silent is more often stopped than right about this node.
void NodeState::fence() {
  for (auto& [id, actor] : actors_) {
    if (!actor.is_fenced()) continue;
    actor.next.reset();
    if (actor.has_process() && actor.cause.ok()) {
      actor.cause = error(Code::kAborted,
                          "its node could not reach the head for {} ms, and the actor wants to be "
                          "ended then (ActorOptions::on_head_loss)",
                          milliseconds_of(now_ - contact_));
    }
    kill(actor);
  }
}

void NodeState::tick_head() {
  if (const auto fenced = fence_at(); fenced && *fenced <= now_) fence();
  if (registered_ && heartbeat_timeout_ > Duration::zero() &&
      contact_ + heartbeat_timeout_ <= now_) {
    commands_.push_back(node_command::DropHead{});
    head_lost(error(Code::kUnavailable, "the head did not answer for {} ms",
                    milliseconds_of(now_ - contact_)));
  }
  if (connected_ && heartbeat_at_ && *heartbeat_at_ <= now_) {
    heartbeats_sent_.emplace_back(++heartbeat_sequence_, now_);
    if (heartbeats_sent_.size() > kHeartbeatsRememberedMax) heartbeats_sent_.pop_front();
    send(wire::Heartbeat{config_.node.node_id, heartbeat_sequence_});
    heartbeat_at_ = now_ + heartbeat_interval_;
  }
  if (!registered_ && !end_status_ && give_up_at_ <= now_) {
    const Duration waited = joined_once_ ? config_.orphan_timeout : config_.join_timeout;
    end_status_ =
        error(Code::kDeadlineExceeded, "no head answered within {} ms: {}", milliseconds_of(waited),
              last_failure_.ok() ? "it said nothing" : last_failure_.to_string());
    connect_at_.reset();
    for (auto& [id, actor] : actors_) kill(actor);
    commands_.push_back(node_command::DropHead{});
    connected_ = false;
    heartbeat_at_.reset();
  }
  if (connect_at_ && *connect_at_ <= now_) {
    connect_at_.reset();
    commands_.push_back(node_command::ConnectHead{});
  }
}

// --- the end -------------------------------------------------------------------------------------

void NodeState::from_head(wire::ShutdownNode& shutdown) {
  const auto grace_ms = std::max<std::int64_t>(0, shutdown.grace_ms);
  node_event::ShutDown event{shutdown.reason, shutdown.drain, std::chrono::milliseconds(grace_ms)};
  on(event);
}

void NodeState::on(node_event::ShutDown& event) {
  if (end_status_) return;
  end_status_ = Status();
  end_reason_ = event.reason;
  connect_at_.reset();
  if (registered_) {
    wire::NodeInfo leaving = info();
    leaving.state = wire::NodeState::kDraining;
    send(wire::NodeUpdate{std::move(leaving)});
  }
  const Duration grace = event.grace > Duration::zero() ? event.grace : config_.shutdown_grace;
  if (event.drain) hand_over_until_ = now_ + 2 * grace;
  for (auto& [id, actor] : actors_) {
    actor.next.reset();
    // Those that come back do so on other nodes, which fetch what was saved here.
    if (!event.drain) actor.ends_for_good = true;
    stop(actor, grace, event.reason, event.drain);
  }
}

void NodeState::end_when_empty() {
  if (!end_status_ || !by_host_.empty() || hands_over_states()) return;
  while (!actors_.empty()) forget(actors_.begin());
  drop_segments_of_ended_jobs();
  if (registered_ && !std::exchange(said_farewell_, true)) {
    wire::NodeInfo left = info();
    left.state = wire::NodeState::kDead;
    send(wire::NodeUpdate{std::move(left)});
  }
  ended_self_ = true;
  commands_.push_back(node_command::EndNode{*end_status_, end_reason_});
}

void NodeState::on(node_event::Tick&) {}

// --- asked from outside --------------------------------------------------------------------------

Status NodeState::check_actor(ActorId actor_id) const {
  if (end_status_) return Status(Code::kUnavailable, "this node is ending");
  const auto found = actors_.find(actor_id);
  if (found == actors_.end()) {
    return error(Code::kNotFound, "no actor {} on node {}", actor_id.brief(), name_);
  }
  const Actor& actor = found->second;
  if (actor.spec.is_program()) {
    return error(Code::kFailedPrecondition, "{} on node {} is a job's program: it takes no calls",
                 actor_id.brief(), name_);
  }
  if (!actor.has_process() && !actor.keep_until) {
    return error(Code::kNotFound, "actor {} on node {} has ended", actor_id.brief(), name_);
  }
  if (actor.waiting.size() >= config_.hand_overs_max) {
    return error(Code::kOverloaded, "{} connections wait for actor {} already",
                 actor.waiting.size(), actor_id.brief());
  }
  return {};
}

std::optional<HostId> NodeState::log_of(ActorId actor_id) const {
  const auto found = actors_.find(actor_id);
  if (found == actors_.end() || found->second.log == 0) return std::nullopt;
  return found->second.log;
}

std::optional<std::string> NodeState::broken_invariant() const {
  std::size_t processes = 0;
  for (const auto& [id, actor] : actors_) {
    const auto label = id.brief();
    if (actor.has_process()) {
      ++processes;
      const auto found = by_host_.find(actor.host);
      if (found == by_host_.end() || found->second != id) return label + ": its host is unknown";
      if (actor.keep_until) return label + ": runs and is to be forgotten";
      if (std::find(ended_.begin(), ended_.end(), id) != ended_.end()) {
        return label + ": runs and counts as over";
      }
    } else {
      if (actor.next) return label + ": waits for nothing to start";
      if (actor.host != 0) return label + ": has a host without a process";
      const bool over = std::find(ended_.begin(), ended_.end(), id) != ended_.end();
      if (over == actor.keep_until.has_value()) {
        return label + (over ? ": may come back and counts as over" : ": is kept for nothing");
      }
      if (over && actor.saved_state != kNoFd) return label + ": is over and has a saved state";
    }
    if (actor.waiting.size() > config_.hand_overs_max) return label + ": too many wait";
    if (actor.can_be_told() && !actor.waiting.empty()) return label + ": connections wait";
  }
  if (processes != by_host_.size()) return "a process without an actor";
  if (ended_.size() > config_.ended_actors_max) return "too many are remembered that are over";
  if (auto broken = gpus_.broken_invariant()) return broken;
  for (const auto& [key, segment] : segments_) {
    const JobId& job = key.first;
    const bool used = std::any_of(actors_.begin(), actors_.end(), [&](const auto& entry) {
      const Actor& actor = entry.second;
      return actor.spec.job_id == job && (actor.has_process() || actor.keep_until);
    });
    if (!used) return key.second + ": a segment of a job that has nothing here";
  }
  for (const Attach& attach : attaches_) {
    if (!by_host_.contains(attach.host)) return attach.key.second + ": nobody waits for it";
    if (!segments_.contains(attach.key)) return attach.key.second + ": awaited and not there";
  }
  return std::nullopt;
}

}  // namespace troupe::scheduler

namespace troupe {
template class Variant<scheduler::NodeEvents>;
template class Variant<scheduler::NodeCommands>;
}  // namespace troupe
