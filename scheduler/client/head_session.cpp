#include "scheduler/client/head_session.h"

#include <algorithm>
#include <utility>

#include "runtime/base/canary.h"
#include "runtime/base/check.h"
#include "runtime/base/limits.h"
#include "runtime/wire/request_id.h"

namespace troupe {
template class Variant<scheduler::HeadCommands>;
}  // namespace troupe

namespace troupe::scheduler {

using namespace head_command;

namespace {

constexpr Duration kRetryFirst = std::chrono::milliseconds(50);
constexpr Duration kRetryMost = std::chrono::milliseconds(1000);

wire::ControlMessage watch_request(ActorId id, const WatchedName& name, bool stop) {
  return wire::WatchActor{
      .actor_id = id, .name = name.second, .stop = stop, .namespace_name = name.first};
}
wire::ControlMessage watch_request(GroupId id, const WatchedName& name, bool stop) {
  return wire::WatchPlacementGroup{.group_id = id, .name = name.second, .stop = stop};
}
wire::ControlMessage watch_request(SupervisorId id, const WatchedName&, bool stop) {
  return wire::WatchSupervisor{.supervisor_id = id, .stop = stop};
}

// A head that answers so refuses for good: the client is of another version, or its job has ended.
bool is_refusal(const Status& status) {
  return status.code() == Code::kProtocol || status.code() == Code::kFailedPrecondition;
}
// The head is away, or somebody else is where it was: watches wait for it.
bool is_passing(const Status& status) {
  return status.code() == Code::kUnavailable || status.code() == Code::kUnauthenticated;
}

}  // namespace

Status answer_status(const Result<wire::ControlMessage>& answer) {
  if (!answer.ok()) return answer.status();
  if (const auto* reply = get_if<wire::Reply>(&*answer)) return reply->status;
  return Status(Code::kProtocol, "the head gave an answer of another kind");
}

HeadSession::HeadSession(wire::ClientHello hello, std::string head,
                         const HeadClientOptions& options)
    : hello_(std::move(hello)), head_(std::move(head)), options_(options) {}

template <typename Visit>
void HeadSession::each_table(Visit visit) {
  visit(actors_);
  visit(groups_);
  visit(supervisors_);
}

// --- connecting ----------------------------------------------------------------------------------

void HeadSession::connect(Duration timeout, TimePoint now) {
  if (phase_ != Phase::kIdle) return;
  away_since_ = now;
  failure_ = {};
  pause_ = Duration::zero();
  attempt(timeout);
}

void HeadSession::attempt(Duration timeout) {
  phase_ = Phase::kConnecting;
  timeout_ = timeout;
  commands_.push_back(Connect{timeout});
}

void HeadSession::connected(TimePoint now) {
  if (phase_ != Phase::kConnecting) return;
  phase_ = Phase::kIntroducing;
  answer_by_ = TROUPE_CANARY("session-trusts-silence") ? TimePoint::max() : now + timeout_;
  hello_.request_id = unsent_from_ = next_request_++;
  blocked_ = false;
}

void HeadSession::introduced(const Status& status, TimePoint now) {
  if (is_refusal(status)) return give_up(status);
  if (!status.ok()) {
    commands_.push_back(Disconnect{});
    return attempt_failed(status, now);
  }
  phase_ = Phase::kIntroduced;
  hello_.reconnect = true;
  unsent_from_ = TROUPE_CANARY("session-forgets-requests") ? next_request_ : 0;
  if (TROUPE_CANARY("session-repeats-out-of-order") && !requests_.empty()) {
    std::swap(requests_.begin()->second.frame, requests_.rbegin()->second.frame);
  }
  commands_.push_back(Attempted{status});
  if (TROUPE_CANARY("session-forgets-watches")) return;
  each_table([&](auto& table) {
    for (const WatchId id : table.unasked()) ask_watch(table, id, now);
  });
  if (watches_nodes_ && !requests_.contains(node_watch_)) ask_node_watch(now);
}

// The head is there and wants nothing of this client. A later request tries once more.
void HeadSession::give_up(const Status& why) {
  phase_ = Phase::kIdle;
  commands_.push_back(Disconnect{});
  commands_.push_back(Attempted{why});
  finish_all(why);
  each_table([&](auto& table) {
    for (const WatchId id : table.clear()) commands_.push_back(WatchFailed{id, why, true});
  });
}

void HeadSession::disconnected(const Status& why, TimePoint now) {
  if (phase_ == Phase::kConnecting || phase_ == Phase::kIntroducing) {
    return attempt_failed(why, now);
  }
  if (phase_ != Phase::kIntroduced) return;
  if (TROUPE_CANARY("session-reuses-ids")) next_request_ = hello_.request_id;
  away_since_ = now;
  failure_ = why;
  const TimePoint until = patience_end(now);
  for (auto& [id, request] : requests_) request.until = until;
  each_table([until](auto& table) { table.wait_until(until); });
  pause(kRetryFirst, now);
}

void HeadSession::pause(Duration pause, TimePoint now) {
  phase_ = Phase::kPausing;
  pause_ = pause;
  retry_at_ = now + pause;
}

// Somebody else's token is told of at once: waiting does not help.
void HeadSession::attempt_failed(const Status& why, TimePoint now) {
  failure_ = why;
  commands_.push_back(Attempted{why});
  if (why.code() == Code::kUnauthenticated) {
    finish_all(why);
    each_table([&](auto& table) {
      for (const WatchId id : table.late(TimePoint::max(), patience_end(now))) {
        commands_.push_back(WatchFailed{id, why});
      }
    });
  }
  if (wanted()) {
    pause(std::clamp(2 * pause_, kRetryFirst, kRetryMost), now);
  } else {
    phase_ = Phase::kIdle;
  }
}

// Whether the head is needed as soon as it is back. Who was its client once comes back without
// being asked: the head ends what belongs to clients that do not.
bool HeadSession::wanted() const {
  return hello_.reconnect || !requests_.empty() || !actors_.empty() || !groups_.empty() ||
         !supervisors_.empty() || watches_nodes_;
}

// When what waits for the head from now on is told that it is away.
TimePoint HeadSession::patience_end(TimePoint now) const {
  return TROUPE_CANARY("session-forgets-timeout") ? TimePoint::max()
                                                  : now + options_.reconnect_timeout;
}

// Ends the requests that have waited for as long as they may, and tells the watches, which stay.
void HeadSession::end_late(TimePoint now) {
  const double away_s = std::chrono::duration<double>(now - away_since_).count();
  const Status why = error(Code::kUnavailable, "the head at {} has been away for {:.1f} s{}{}",
                           head_, away_s, failure_.ok() ? "" : ": ", failure_.message());
  while (!requests_.empty() && requests_.begin()->second.until <= now) {
    finish(requests_.begin()->first, why);
  }
  each_table([&](auto& table) {
    if (table.due() > now) return;
    for (const WatchId id : table.late(now, patience_end(now))) {
      commands_.push_back(WatchFailed{id, why});
    }
  });
}

void HeadSession::tick(TimePoint now) {
  if (phase_ == Phase::kPausing && retry_at_ <= now) attempt(options_.attempt_timeout);
  if (phase_ == Phase::kIntroducing && answer_by_ <= now) {
    // Something listens, but no head answers there.
    commands_.push_back(Disconnect{});
    attempt_failed(Status(Code::kUnavailable, "the head did not answer in time"), now);
  }
  if (away()) end_late(now);
}

std::optional<TimePoint> HeadSession::next_deadline() const {
  if (!away()) return std::nullopt;
  TimePoint due = std::min({actors_.due(), groups_.due(), supervisors_.due()});
  // The oldest request is the first to end.
  if (!requests_.empty()) due = std::min(due, requests_.begin()->second.until);
  if (phase_ == Phase::kPausing) due = std::min(due, retry_at_);
  if (phase_ == Phase::kIntroducing) due = std::min(due, answer_by_);
  if (due == TimePoint::max()) return std::nullopt;
  return due;
}

void HeadSession::close() {
  const bool connects = phase_ != Phase::kIdle && phase_ != Phase::kPausing && !closed();
  phase_ = Phase::kClosed;
  commands_.clear();
  if (connects) commands_.push_back(Disconnect{});
  requests_.clear();
  each_table([](auto& table) { table.clear(); });
}

// --- requests ------------------------------------------------------------------------------------

HeadRequestId HeadSession::ask(wire::ControlMessage message, TimePoint now) {
  return add_request(std::move(message), Asker::kUser, 0, now);
}

HeadRequestId HeadSession::add_request(wire::ControlMessage message, Asker asker, WatchId watch,
                                       TimePoint now) {
  const HeadRequestId id = next_request_++;
  if (closed()) return id;
  wire::set_request_id(message, id);
  Request& request = requests_[id];
  request = {wire::encode(message), asker, watch, patience_end(now)};
  if (request.frame.size() > limits::kFrameBytesMax) {
    finish(id, error(Code::kInvalidArgument,
                     "the request does not fit into one message to the head: {} bytes, above the "
                     "limit of {}. Ask for less at once: fewer actors, smaller constructor "
                     "arguments",
                     request.frame.size(), limits::kFrameBytesMax));
  } else {
    connect(options_.attempt_timeout, now);
  }
  return id;
}

void HeadSession::finish(HeadRequestId id, Result<wire::ControlMessage> answer) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  const Asker asker = found->second.asker;
  const WatchId watch = found->second.watch;
  if (!TROUPE_CANARY("session-answers-twice") || !answer.ok()) requests_.erase(found);
  switch (asker) {
    case Asker::kUser:
      commands_.push_back(Answer{id, std::move(answer)});
      break;
    case Asker::kActorWatch:
      watch_answered(actors_, watch, answer);
      break;
    case Asker::kGroupWatch:
      watch_answered(groups_, watch, answer);
      break;
    case Asker::kSupervisorWatch:
      watch_answered(supervisors_, watch, answer);
      break;
    case Asker::kNobody:
      break;
  }
}

void HeadSession::finish_all(const Status& why) {
  while (!requests_.empty()) finish(requests_.begin()->first, why);
}

void HeadSession::received(wire::ControlMessage message, TimePoint now) {
  if (phase_ != Phase::kIntroducing && phase_ != Phase::kIntroduced) return;
  if (auto* actor = get_if<wire::ActorUpdate>(&message)) {
    updated(actors_, std::move(actor->actor));
  } else if (auto* group = get_if<wire::PlacementGroupUpdate>(&message)) {
    updated(groups_, std::move(group->group));
  } else if (auto* supervisor = get_if<wire::SupervisorUpdate>(&message)) {
    updated(supervisors_, std::move(supervisor->supervisor));
  } else if (auto* node = get_if<wire::NodeUpdate>(&message)) {
    commands_.push_back(NodeUpdate{std::move(node->node)});
  } else if (const HeadRequestId id = wire::request_id_of(message).value_or(0); id != 0) {
    if (phase_ == Phase::kIntroducing && id == hello_.request_id) {
      introduced(answer_status(message), now);
    } else {
      finish(id, std::move(message));
    }
  }
}

std::optional<HeadCommand> HeadSession::next() {
  TROUPE_CHECK(sending_ == 0, "nobody has said what became of a message to the head");
  if (!commands_.empty()) {
    HeadCommand command = std::move(commands_.front());
    commands_.pop_front();
    return command;
  }
  if (blocked_) return std::nullopt;
  if (phase_ == Phase::kIntroducing && unsent_from_ == hello_.request_id) {
    sending_ = hello_.request_id;
    return Send{wire::encode(hello_)};
  }
  const auto unsent = requests_.lower_bound(unsent_from_);
  if (phase_ != Phase::kIntroduced || unsent == requests_.end()) return std::nullopt;
  sending_ = unsent->first;
  return Send{unsent->second.frame};
}

void HeadSession::sent(const Status& status, TimePoint now) {
  const HeadRequestId id = std::exchange(sending_, 0);
  if (status.ok()) {
    unsent_from_ = id + 1;
  } else if (status.code() == Code::kOverloaded || status.code() == Code::kUnavailable) {
    blocked_ = true;
  } else {
    commands_.push_back(Disconnect{});
    disconnected(status, now);
  }
}

// --- watches -------------------------------------------------------------------------------------

void HeadSession::watch(WatchId watch, ActorId actor, WatchedName name, TimePoint now) {
  if (!actor.empty()) {
    name = {};
  } else if (name.first.empty()) {
    name.first = hello_.namespace_name.empty() ? wire::namespace_of_job(hello_.job_id)
                                               : hello_.namespace_name;
  }
  begin_watch(actors_, watch, {actor, std::move(name)}, now);
}

void HeadSession::watch(WatchId watch, GroupId group, WatchedName name, TimePoint now) {
  if (!group.empty()) name = {};
  begin_watch(groups_, watch, {group, std::move(name)}, now);
}

void HeadSession::watch(WatchId watch, SupervisorId supervisor, WatchedName, TimePoint now) {
  begin_watch(supervisors_, watch, {supervisor, {}}, now);
}

template <typename Table>
void HeadSession::begin_watch(Table& table, WatchId id, typename Table::Watch watch,
                              TimePoint now) {
  if (closed()) return;
  watch.until = patience_end(now);
  table.add(id, std::move(watch));
  ask_watch(table, id, now);
}

template <typename Table>
void HeadSession::ask_watch(Table& table, WatchId id, TimePoint now) {
  auto& watch = *table.find(id);
  watch.request_id = next_request_;
  using Id = decltype(watch.id);
  constexpr Asker kAsker = std::is_same_v<Id, ActorId>   ? Asker::kActorWatch
                           : std::is_same_v<Id, GroupId> ? Asker::kGroupWatch
                                                         : Asker::kSupervisorWatch;
  add_request(watch_request(watch.id, watch.name, false), kAsker, id, now);
}

template <typename Table>
void HeadSession::watch_answered(Table& table, WatchId id,
                                 const Result<wire::ControlMessage>& answer) {
  auto* const watch = table.find(id);
  if (watch == nullptr) return;
  watch->request_id = 0;
  // It is renewed on the next connection.
  if (!answer.ok() && is_passing(answer.status())) return;
  Status status = answer_status(answer);
  if (status.ok()) return;  // its state comes as an update
  table.end(id);
  commands_.push_back(WatchFailed{id, std::move(status), true});
}

template <typename Table, typename Info>
void HeadSession::updated(Table& table, Info info) {
  if (table.is_outdated(info) && !TROUPE_CANARY("session-passes-outdated")) return;
  std::vector<WatchId> watches = table.updated(info);
  const bool last = is_last_update(info);
  commands_.push_back(Update<Info>{std::move(info), std::move(watches), last});
}

void HeadSession::unwatch(WatchId id, TimePoint now) {
  each_table([&](auto& table) {
    const auto ended = table.end(id);
    if (!ended) return;
    if (phase_ != Phase::kIntroduced) {
      // The head has forgotten it with the connection.
      requests_.erase(ended->watch.request_id);
    } else if (ended->last && !ended->watch.id.empty()) {
      add_request(watch_request(ended->watch.id, {}, true), Asker::kNobody, 0, now);
    }
  });
}

void HeadSession::watch_nodes(TimePoint now) {
  watches_nodes_ = true;
  ask_node_watch(now);
}

void HeadSession::ask_node_watch(TimePoint now) {
  node_watch_ = add_request(wire::WatchNodes{.without_amounts = true}, Asker::kNobody, 0, now);
}

}  // namespace troupe::scheduler
