#include "scheduler/control/head_state.h"

#include <concepts>

#include "runtime/base/check.h"
#include "runtime/wire/request_id.h"
#include "scheduler/control/clients.h"
#include "scheduler/control/membership.h"

namespace troupe::scheduler {
namespace {

template <typename Part, typename Message>
concept Takes = requires(Part& part, PeerId peer, Message& message) {
  part.on(peer, message);
};
template <typename Part, typename Message>
concept Answers = requires(Part& part, PeerId peer, Message& message) {
  { part.on(peer, message) } -> std::same_as<Status>;
};

// Whether the part has on() for the message, which it then takes. A request is answered by the
// status that on() returns, at `position`: ahead of what it led to.
template <typename Part, typename Message>
bool offer(Context& context, std::size_t position, PeerId peer, Message& message, Part& part) {
  if constexpr (Answers<Part, Message>) {
    context.reply_at(position, peer, message.request_id, part.on(peer, message));
    return true;
  } else if constexpr (Takes<Part, Message>) {
    part.on(peer, message);
    return true;
  }
  return false;
}

// False where no part takes the message: only the head sends such.
template <typename Message, typename... Parts>
bool hand_to_taker(Context& context, PeerId peer, Message& message, Parts&... parts) {
  const std::size_t position = context.command_count();
  return (offer(context, position, peer, message, parts) || ...);
}

// The same of a journal record.
template <typename Record, typename... Parts>
Status replay_in_owner(Record& record, Parts&... parts) {
  Status status;
  const auto offer = [&](auto& part) {
    constexpr bool kOwns = requires { part.replay(record); };
    if constexpr (kOwns) status = part.replay(record);
    return kOwns;
  };
  TROUPE_CHECK((offer(parts) || ...));
  return status;
}

}  // namespace

// Each part is given those that it uses; all of them stand above it.
struct HeadState::Parts {
  explicit Parts(const HeadConfig& config) : context(config) {}

  Context context;
  JournalRoom room{context};
  Connections connections{context};
  WaitingLine line{context};
  Nodes nodes{context, connections, line};
  Supervisors supervisors{context, room};
  Actors actors{context, room, connections, line, nodes, supervisors};
  Jobs jobs{context, room, connections, actors};
  Groups groups{context, room, connections, line, nodes, actors, jobs};
  Supervision supervision{context, room, connections, nodes, supervisors, actors, jobs, groups};
  Placement placement{context, line, nodes, actors, groups};
  Membership membership{context, line, nodes, actors, groups, supervision};
  Clients clients{context, room, connections, line,        nodes,    supervisors,
                  actors,  jobs, groups,      supervision, placement};
};

HeadState::HeadState(const HeadConfig& config) : parts_(std::make_unique<Parts>(config)) {}
HeadState::~HeadState() = default;
HeadState::HeadState(HeadState&&) noexcept = default;
HeadState& HeadState::operator=(HeadState&&) noexcept = default;

const std::map<NodeId, NodeRecord>& HeadState::nodes() const { return parts_->nodes.all(); }
const std::map<ActorId, ActorRecord>& HeadState::actors() const { return parts_->actors.all(); }
const std::map<GroupId, GroupRecord>& HeadState::groups() const { return parts_->groups.all(); }
const std::map<JobId, JobRecord>& HeadState::jobs() const { return parts_->jobs.all(); }
const std::map<SupervisorId, SupervisorRecord>& HeadState::supervisors() const {
  return parts_->supervisors.all();
}
const std::map<ClientId, ClientRecord>& HeadState::clients() const {
  return parts_->connections.clients();
}
const WorkDone& HeadState::work_done() const { return parts_->connections.work_done(); }
std::uint64_t HeadState::kept_bytes() const { return parts_->room.kept_bytes(); }
const HeadConfig& HeadState::config() const { return parts_->context.config(); }
bool HeadState::stopping() const { return parts_->context.stopping(); }
std::size_t HeadState::actor_watch_count() const { return parts_->clients.actor_watch_count(); }

Outcome HeadState::apply(Event event, Moment now) {
  Context& context = parts_->context;
  const TimePoint before = context.begin(now);
  // Who is away cannot come back to a head that stands still.
  if (const auto pause = context.long_pause(before)) {
    parts_->nodes.excuse_away(*pause);
    parts_->connections.excuse_away(*pause);
  }
  run_timers();
  if (auto* arrived = get_if<MessageArrived>(&event)) {
    dispatch(*arrived);
  } else if (auto* closed = get_if<PeerClosed>(&event)) {
    peer_closed(closed->peer);
  } else if (const auto* gone = get_if<NodeGone>(&event)) {
    parts_->membership.node_gone(*gone);
  } else if (auto* noted = get_if<DaemonNoted>(&event)) {
    context.log(std::move(noted->kind), std::move(noted->text));
  }
  return finish();
}

std::optional<TimePoint> HeadState::next_deadline() const {
  return parts_->context.next_deadline();
}

void HeadState::dispatch(MessageArrived& arrived) {
  Parts& p = *parts_;
  const PeerId from = arrived.peer;
  const PeerRecord& peer = p.connections.used(from);
  const bool unknown = peer.client_id.empty() && peer.node_id.empty();
  const bool introduces = holds_alternative<wire::ClientHello>(arrived.message) ||
                          holds_alternative<wire::RegisterNode>(arrived.message);
  if (!introduces && unknown) {
    if (const auto request_id = wire::request_id_of(arrived.message)) {
      p.context.reply(
          from, *request_id,
          Status(Code::kFailedPrecondition, "say who you are first (ClientHello or RegisterNode)"));
    }
    return p.context.close(from);
  }
  if (!peer.node_id.empty()) p.nodes.spoke(from);
  visit(
      [&](auto& message) {
        if (hand_to_taker(p.context, from, message, p.clients, p.membership, p.nodes, p.actors,
                          p.jobs, p.groups, p.supervision)) {
          return;
        }
        // One that only the head sends.
        if constexpr (wire::HasRequestId<std::remove_reference_t<decltype(message)>>) {
          p.context.reply(from, message.request_id,
                          Status(Code::kProtocol, "the head does not take this message"));
        } else {
          p.context.close(from);
        }
      },
      arrived.message);
}

void HeadState::peer_closed(PeerId peer) {
  if (parts_->connections.find(peer) == nullptr) return;
  parts_->clients.peer_closed(peer);
  parts_->membership.peer_closed(peer);
  parts_->connections.closed(peer);
}

void HeadState::run_timers() {
  Parts& p = *parts_;
  while (const auto timer = p.context.take_due_timer()) {
    switch (timer->kind) {
      case TimerKind::kNode:
        p.membership.timer(*timer);
        break;
      case TimerKind::kClient:
        p.clients.client_timer(*timer);
        break;
      case TimerKind::kActor:
        p.actors.back_off_over(*timer);
        break;
      case TimerKind::kGroup:
        p.groups.timer(*timer);
        break;
      case TimerKind::kLine:
        p.line.timer();
        break;
      case TimerKind::kExpected:
        p.clients.expectation_timer(*timer);
        break;
      case TimerKind::kPulse:
        p.context.pulse();
        break;
      case TimerKind::kStop:
        break;  // finish() looks at the clock
    }
  }
}

// What follows from what an event has changed, until nothing does; then what others are told.
Outcome HeadState::finish() {
  Parts& p = *parts_;
  p.supervision.end_owned();
  p.supervision.settle();
  while (p.line.pass_needed()) {
    p.placement.schedule();
    p.supervision.settle();
  }
  p.membership.end_when_stopped();
  p.clients.push_updates();
  p.actors.end_apply();
  p.groups.end_apply();
  p.jobs.end_apply();
  p.supervisors.end_apply();
  return p.context.finish();
}

Status HeadState::replay(Delta delta) {
  Parts& p = *parts_;
  return visit(
      [&](auto& record) {
        return replay_in_owner(record, p.nodes, p.actors, p.groups, p.jobs, p.supervisors,
                               p.context);
      },
      delta);
}

Outcome HeadState::resume(Moment now) {
  Parts& p = *parts_;
  p.context.begin(now);
  p.nodes.resume();
  p.groups.resume();
  p.supervisors.resume();
  p.actors.resume();
  p.supervision.resume();
  if (!p.nodes.all().empty() || !p.actors.all().empty()) {
    p.context.log("head_restarted",
                  fmt::format("the head came back, knowing {} nodes and {} living actors",
                              p.nodes.all().size(), p.room.living().actors));
  }
  return finish();
}

std::vector<Delta> HeadState::snapshot() const {
  const Parts& p = *parts_;
  std::vector<Delta> deltas;
  for (const auto& [id, node] : p.nodes.all()) {
    NodeKnown known = node.delta();
    known.node.available = known.node.total;  // follows from the leases
    deltas.push_back(std::move(known));
  }
  p.groups.snapshot([&](const GroupRecord& group) {
    deltas.push_back(GroupCreated{group.spec});
    deltas.push_back(group.delta());
  });
  p.jobs.snapshot([&](const JobRecord& job) { deltas.push_back(job.delta()); });
  p.supervisors.snapshot([&](const SupervisorRecord& supervisor) {
    deltas.push_back(SupervisorCreated{supervisor.spec});
    deltas.push_back(supervisor.delta());
  });
  p.actors.snapshot([&](const ActorRecord& actor) {
    deltas.push_back(ActorCreated{actor.spec, actor.gang});
    deltas.push_back(actor.delta());
  });
  for (const wire::EventRecord& event : p.context.events()) deltas.push_back(EventLogged{event});
  return deltas;
}

std::optional<std::string> HeadState::broken_invariant() const {
  Parts& p = *parts_;
  JournalRoom counted(p.context);
  for (const auto& [id, actor] : p.actors.all()) {
    if (!actor.ended()) counted.take(actor);
  }
  for (const auto& [id, group] : p.groups.all()) {
    if (!group.ended()) counted.take(group.spec);
  }
  for (const auto& [id, supervisor] : p.supervisors.all()) {
    if (!supervisor.ended()) counted.take(supervisor.spec);
  }
  for (const auto& [id, job] : p.jobs.all()) {
    if (!job.ended()) counted.take(job.info);
  }
  if (counted.living() != p.room.living() || counted.kept_bytes() != p.room.kept_bytes()) {
    return fmt::format("what is kept has {} bytes and was counted as {}", counted.kept_bytes(),
                       p.room.kept_bytes());
  }
  std::optional<std::string> broken;
  const auto check = [&](const auto&... parts) {
    ((broken = broken ? broken : parts.broken_invariant()), ...);
  };
  check(p.line, p.nodes, p.supervisors, p.actors, p.jobs, p.groups, p.supervision);
  return broken;
}

}  // namespace troupe::scheduler

namespace troupe {
template class Variant<scheduler::Events>;
template class Variant<scheduler::Commands>;
}  // namespace troupe
