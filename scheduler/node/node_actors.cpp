// The lives of the actors' processes on a node.

#include <algorithm>

#include "runtime/base/limits.h"
#include "scheduler/node/kept_keys.h"
#include "scheduler/node/node_state.h"

namespace troupe::scheduler {
namespace {

// A process whose socket has ended is about to end itself: running destructors, writing a profile.
constexpr Duration kEndAfterChannel = std::chrono::seconds(5);
// Nobody asks for more, and time stays representable.
constexpr std::int64_t kGraceMsMax = 24LL * 3600 * 1000;
// How much later than its time one that drains may say what it did not get to.
constexpr Duration kDrainReportTime = std::chrono::milliseconds(500);
// For the answers to what it did not get to.
constexpr Duration kLastAnswersTime = std::chrono::milliseconds(50);

}  // namespace

NodeState::Actor* NodeState::find(HostId host) {
  const auto found = by_host_.find(host);
  return found == by_host_.end() ? nullptr : &actors_.at(found->second);
}

NodeState::Actor* NodeState::find(ActorId actor_id, std::uint64_t generation) {
  const auto found = actors_.find(actor_id);
  if (found == actors_.end()) return nullptr;
  Actor& actor = found->second;
  return actor.has_process() && actor.generation == generation ? &actor : nullptr;
}

void NodeState::close(FdHandle fd) {
  if (fd != kNoFd) commands_.push_back(node_command::CloseFd{fd});
}

// --- start ---------------------------------------------------------------------------------------

void NodeState::from_head(wire::StartActor& start) {
  const ActorId id = start.spec.actor_id;
  const Status refused = end_status_ ? error(Code::kUnavailable, "node {} is ending", name_)
                                     : check_bundle(start.spec);
  if (!refused.ok()) {
    wire::ActorExited exited{id, start.generation};
    exited.cause = refused;
    send(std::move(exited));
    return;
  }
  Actor& actor = actors_[id];
  if (!actor.has_process()) return spawn(actor, std::move(start));
  // Said twice, or overtaken.
  if (start.generation <= actor.generation) return;
  actor.next = std::move(start);
  kill(actor);
}

void NodeState::spawn(Actor& actor, wire::StartActor start) {
  const ActorId id = start.spec.actor_id;
  std::erase(ended_, id);
  actor.keep_until.reset();
  actor.spec = std::move(start.spec);
  actor.generation = start.generation;
  actor.phase = Phase::kQueued;
  actor.gpus_by = now_ + config_.gpu_wait;
  actor.host = next_host_++;
  actor.pid = 0;
  actor.stopping = actor.killed = actor.ends_for_good = actor.constructor_failed = false;
  actor.kill_at.reset();
  actor.exit = {};
  actor.cause = {};
  actor.calls_dropped = -1;
  actor.health_due.reset();
  actor.state_lost_with = start.state_lost_with;
  actor.has_lost_state = false;
  actor.unread_since.reset();
  by_host_[actor.host] = id;
  if (!find_saved_state(actor, start)) return gone(actor);
  // Or later (settle_gpus): the next daemon is to know of it.
  if (!start_queued(actor)) keep(actor, true);
}

void NodeState::on(node_event::Spawned& event) {
  Actor* actor = find(event.host);
  if (actor == nullptr || actor->phase != Phase::kSpawning) return;
  actor->pid = event.pid;
  gpus_.visitor_runs(actor->spec.actor_id, event.pid);
  actor->phase = Phase::kStarting;
  send(wire::ActorStarted{actor->spec.actor_id, actor->generation, actor->pid});
  if (actor->killed) {
    commands_.push_back(node_command::KillGroup{actor->host});
    return;
  }
  if (actor->spec.is_program()) return program_runs(*actor);
  tell_start(*actor);
  for (Waiting& waiting : actor->waiting) {
    commands_.push_back(
        node_command::TellHost{actor->host, std::move(waiting.connection), waiting.fd});
    close(waiting.fd);
  }
  actor->waiting.clear();
}

// Nobody there speaks our protocol: what runs is ready.
void NodeState::program_runs(Actor& actor) {
  actor.phase = Phase::kReady;
  keep(actor);
  send(wire::ActorReady{actor.spec.actor_id, actor.generation});
}

void NodeState::tell_start(const Actor& actor) {
  wire::HostStart start;
  start.spec = actor.spec;
  start.generation = actor.generation;
  start.node_id = config_.node.node_id;
  start.has_saved_state = actor.saved_state != kNoFd;
  start.state_lost_with = actor.state_lost_with;
  start.node_labels = config_.node.labels;
  commands_.push_back(node_command::TellHost{actor.host, std::move(start), actor.saved_state});
}

void NodeState::on(node_event::SpawnFailed& event) {
  Actor* actor = find(event.host);
  if (actor == nullptr || actor->phase != Phase::kSpawning) return;
  if (actor->cause.ok()) actor->cause = event.why;
  gone(*actor);
}

// --- what the process says -----------------------------------------------------------------------

void NodeState::on(node_event::FromHost& event) {
  Actor* actor = find(event.host);
  if (actor == nullptr) return close(event.fd);
  if (const auto* ready = get_if<wire::HostReady>(&event.message)) {
    close(event.fd);
    if (actor->phase != Phase::kStarting) return;
    if (ready->protocol_version != wire::kProtocolVersion) {
      if (actor->cause.ok()) {
        actor->cause =
            error(Code::kProtocol,
                  "its program {} speaks protocol {}, node {} speaks {}: build the "
                  "program with the version of troupe that the nodes run",
                  actor->spec.image.path, ready->protocol_version, name_, wire::kProtocolVersion);
      }
      return kill(*actor);
    }
    actor->phase = Phase::kReady;
    expect_health(*actor);
    keep(*actor);
    actor->has_lost_state = ready->state_lost;
    send(wire::ActorReady{actor->spec.actor_id, actor->generation, ready->state_lost});
  } else if (auto* failed = get_if<wire::HostFailed>(&event.message)) {
    close(event.fd);
    actor->constructor_failed = true;
    if (actor->cause.ok()) actor->cause = std::move(failed->status);
    keep(*actor);
  } else if (const auto* report = get_if<wire::HostDrained>(&event.message)) {
    close(event.fd);
    drained(*actor, *report);
  } else if (const auto* health = get_if<wire::HostHealth>(&event.message)) {
    close(event.fd);
    health_said(*actor, health->status);
  } else if (holds_alternative<wire::HostSavedState>(event.message)) {
    save(*actor, event.fd);
  } else if (auto* keep = get_if<wire::HostKeepSegment>(&event.message)) {
    keep_segment(*actor, *keep, event.fd);
  } else if (const auto* request = get_if<wire::HostAttachSegment>(&event.message)) {
    close(event.fd);
    attach(*actor, *request);
  } else {
    close(event.fd);
  }
}

void NodeState::on(node_event::Unread& event) {
  Actor* actor = find(event.host);
  if (actor == nullptr) return;
  actor->unread_bytes = event.bytes;
  if (event.bytes == 0) {
    actor->unread_since.reset();
  } else if (event.has_read || !actor->unread_since) {
    actor->unread_since = now_;
  }
}

std::optional<TimePoint> NodeState::unread_until(const Actor& actor) const {
  if (!actor.unread_since || !actor.can_be_told()) return std::nullopt;
  return *actor.unread_since +
         (actor.phase == Phase::kReady ? config_.read_timeout : config_.first_read_timeout);
}

void NodeState::on(node_event::ChannelEnded& event) {
  Actor* actor = find(event.host);
  // A program has no socket to us.
  if (actor == nullptr || actor->killed || actor->spec.is_program()) return;
  if (event.why.code() != Code::kUnavailable) {
    if (actor->cause.ok()) actor->cause = event.why;
    return kill(*actor);
  }
  const TimePoint by = now_ + kEndAfterChannel;
  actor->kill_at = std::min(actor->kill_at.value_or(by), by);
}

// --- callers -------------------------------------------------------------------------------------

void NodeState::on(node_event::ConnectionArrived& event) {
  const auto found = actors_.find(event.actor_id);
  if (found == actors_.end() || !check_actor(event.actor_id).ok()) return close(event.fd);
  Actor& actor = found->second;
  if (actor.can_be_told()) {
    commands_.push_back(node_command::TellHost{actor.host, std::move(event.connection), event.fd});
    return close(event.fd);
  }
  // A stranger has no more time here than in a handshake.
  const Duration patience =
      event.connection.untouched
          ? std::min<Duration>(config_.hand_over_timeout, limits::kHandshakeTimeout)
          : config_.hand_over_timeout;
  actor.waiting.push_back({event.fd, std::move(event.connection), now_ + patience});
}

// --- end -----------------------------------------------------------------------------------------

void NodeState::from_head(wire::StopActor& message) {
  if (Actor* actor = find(message.actor_id, message.generation)) {
    actor->ends_for_good = !message.comes_back;
    keep(*actor);
    const std::int64_t grace_ms = std::clamp<std::int64_t>(message.grace_ms, 0, kGraceMsMax);
    return stop(*actor, std::chrono::milliseconds(grace_ms), message.reason, message.drain);
  }
  const auto found = actors_.find(message.actor_id);
  if (found != actors_.end() && found->second.next &&
      found->second.next->generation == message.generation) {
    found->second.next.reset();
  }
  // It runs on another node, which has fetched what was kept here, or comes back nowhere.
  if (found != actors_.end() && found->second.keep_until &&
      found->second.generation < message.generation) {
    is_over(message.actor_id);
  }
  wire::ActorExited exited{message.actor_id, message.generation};
  exited.cause =
      error(Code::kNotFound, "node {} runs no generation {} of it", name_, message.generation);
  send(std::move(exited));
}

void NodeState::stop(Actor& actor, Duration grace, const std::string& reason, bool drain) {
  if (!actor.has_process() || actor.killed) return;
  if (grace <= Duration::zero() || !actor.can_be_told()) return kill(actor);
  if (!std::exchange(actor.stopping, true)) {
    const auto grace_ms = std::chrono::duration_cast<std::chrono::milliseconds>(grace).count();
    // Where the node itself ends, the head starts it elsewhere.
    const bool comes_back =
        actor.spec.restart.max_restarts != 0 && (!actor.ends_for_good || end_status_.has_value());
    commands_.push_back(
        node_command::TellHost{actor.host, wire::HostStop{grace_ms, reason, drain, comes_back}});
  }
  actor.health_due.reset();  // it is going anyway
  const TimePoint by = now_ + grace + (drain ? kDrainReportTime : Duration::zero());
  actor.kill_at = std::min(actor.kill_at.value_or(by), by);
}

// What it did not get to is over; one that got to everything ends by itself.
void NodeState::drained(Actor& actor, const wire::HostDrained& report) {
  if (!actor.stopping) return;
  actor.calls_dropped = std::max<std::int64_t>(report.calls_dropped, 0);
  if (actor.calls_dropped == 0 || actor.killed) return;
  const TimePoint by = now_ + kLastAnswersTime;
  actor.kill_at = std::min(actor.kill_at.value_or(by), by);
}

// --- health --------------------------------------------------------------------------------------

void NodeState::expect_health(Actor& actor) {
  const wire::HealthPolicy& health = actor.spec.health;
  if (health.interval_ms <= 0 || actor.ending()) return;
  const auto time = [](std::int64_t ms) {
    return std::chrono::milliseconds(std::clamp<std::int64_t>(ms, 0, kGraceMsMax));
  };
  actor.health_due = now_ + time(health.interval_ms) + time(health.timeout_ms);
}

void NodeState::health_said(Actor& actor, const Status& health) {
  if (actor.phase != Phase::kReady || actor.ending()) return;
  if (health.ok()) return expect_health(actor);
  unhealthy(actor, error(Code::kAborted, "it failed its health check: {}", health.message()));
}

void NodeState::unhealthy(Actor& actor, Status why) {
  actor.health_due.reset();
  if (actor.cause.ok()) actor.cause = std::move(why);
  kill(actor);
  keep(actor);
}

void NodeState::kill(Actor& actor) {
  if (!actor.has_process() || std::exchange(actor.killed, true)) return;
  actor.kill_at.reset();
  // While it is being spawned there is nobody to kill: as soon as it is there. One that waits for
  // GPUs is gone when they are settled.
  if (actor.phase != Phase::kSpawning && actor.phase != Phase::kQueued) {
    commands_.push_back(node_command::KillGroup{actor.host});
  }
}

void NodeState::on(node_event::LeaderEnded& event) {
  Actor* actor = find(event.host);
  if (actor == nullptr || actor->phase == Phase::kEnded) return;
  actor->phase = Phase::kEnded;
  actor->exit = event.exit;
  // A shell ends at once when a job is to stop; what it had started has the grace, too.
  if (actor->spec.is_program() && actor->stopping && !actor->killed) return;
  // Whom it left behind goes with it.
  kill(*actor);
}

void NodeState::on(node_event::GroupGone& event) {
  if (Actor* actor = find(event.host)) gone(*actor);
}

void NodeState::gone(Actor& actor) {
  const ActorId id = actor.spec.actor_id;
  wire::ActorExited exited{id, actor.generation, actor.exit, actor.constructor_failed, actor.cause};
  exited.calls_dropped = actor.calls_dropped;
  gpus_.release(id, now_);
  // First: whom the head starts next is not to be sent for what is lost.
  announce_gpus();
  const bool ran = actor.phase != Phase::kQueued;
  commands_.push_back(node_command::ReportExit{std::move(exited), ran ? actor.log : 0});
  by_host_.erase(actor.host);
  actor.host = 0;
  actor.phase = Phase::kNone;
  actor.kill_at.reset();
  actor.health_due.reset();
  if (actor.next) {
    auto next = std::move(*actor.next);
    actor.next.reset();
    return spawn(actor, std::move(next));
  }
  // Also where the constructor failed: what it had saved is for the next attempt.
  const bool comes_back = actor.spec.restart.max_restarts != 0 && !actor.ends_for_good;
  if (comes_back) {
    may_come_back(actor);
    keep(actor);
  } else {
    is_over(id);
  }
}

// It has no process and gets none any more: for a while its output can be read, and that is all.
// However many end together, those that may come back are not counted here: they have their time
// (may_come_back), and keep until then what they saved.
void NodeState::is_over(ActorId id) {
  Actor& actor = actors_.at(id);
  actor.keep_until.reset();
  job_may_have_ended_ = true;
  // First what hangs on the actor's record: a next daemon finds nothing without that.
  drop_saved_state(actor);
  commands_.push_back(node_command::Unkeep{actor_key(id)});
  drop_waiting(actor);
  ended_.push_back(id);
  if (ended_.size() > config_.ended_actors_max) forget(actors_.find(ended_.front()));
}

void NodeState::may_come_back(Actor& actor) {
  const std::int64_t back_off_ms =
      std::clamp<std::int64_t>(actor.spec.restart.backoff_max_ms, 0, kGraceMsMax);
  actor.keep_until = now_ + std::chrono::milliseconds(back_off_ms) + config_.keep_segments;
}

void NodeState::drop_waiting(Actor& actor) {
  for (const Waiting& waiting : actor.waiting) close(waiting.fd);
  actor.waiting.clear();
}

void NodeState::forget(Actors::iterator entry) {
  if (entry == actors_.end()) return;
  Actor& actor = entry->second;
  job_may_have_ended_ = true;
  drop_saved_state(actor);
  drop_waiting(actor);
  if (actor.log != 0) commands_.push_back(node_command::ForgetHost{actor.log});
  if (actor.keep_until) commands_.push_back(node_command::Unkeep{actor_key(entry->first)});
  std::erase(ended_, entry->first);
  actors_.erase(entry);
}

void NodeState::tick_actors() {
  std::vector<ActorId> over;
  for (auto& [id, actor] : actors_) {
    if (actor.kill_at && *actor.kill_at <= now_) kill(actor);
    if (actor.health_due && *actor.health_due <= now_) {
      unhealthy(actor, error(Code::kAborted,
                             "its health check, due every {} ms, had no answer for {} ms: its "
                             "thread is stuck, or its process is stopped",
                             actor.spec.health.interval_ms,
                             actor.spec.health.interval_ms + actor.spec.health.timeout_ms));
    }
    if (const auto until = unread_until(actor); until && *until <= now_) {
      const auto waited_ms =
          std::chrono::duration_cast<std::chrono::milliseconds>(now_ - *actor.unread_since).count();
      unhealthy(actor,
                error(Code::kAborted,
                      "its program {} read nothing for {} ms of the {} bytes that its node has for "
                      "it{}",
                      actor.spec.image.path, waited_ms, actor.unread_bytes,
                      actor.phase == Phase::kReady
                          ? ": its process is stopped, or hangs"
                          : ", among them what it is to run: it has not come to its main(), or "
                            "does not call troupe::host_main there"));
    }
    while (!actor.waiting.empty() && actor.waiting.front().until <= now_) {
      close(actor.waiting.front().fd);
      actor.waiting.pop_front();
    }
    // While the head is away nobody could have started it again.
    if (registered_ && actor.keep_until && *actor.keep_until <= now_) {
      if (actor.saved_state == kNoFd) {
        over.push_back(id);
      } else {
        // What it saved waits with it for room: the head says when it comes back without that, or
        // not at all.
        send(wire::ActorSaved{id, actor.generation});
        may_come_back(actor);
      }
    }
  }
  for (const ActorId& id : over) is_over(id);
}

}  // namespace troupe::scheduler
