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

constexpr Duration kRetryFirst = kTiming.client_retry_first;
constexpr Duration kRetryMost = kTiming.retry_max;

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
  return answer_of_another_kind();
}

Status answer_of_another_kind() {
  return Status(Code::kProtocol, "the head gave an answer of another kind");
}

HeadSession::HeadSession(wire::ClientHello hello, std::string head,
                         const HeadClientOptions& options)
    : hello_(std::move(hello)), head_(std::move(head)), options_(options) {}

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
  for (const WatchId id : watches_.unasked()) ask_watch(id, now);
  if (watches_nodes_ && !requests_.contains(node_watch_)) ask_node_watch(now);
  if (work_ && !requests_.contains(report_)) report(std::move(*work_), now);
  if (lends_ && !requests_.contains(lend_)) lend(std::move(*lends_), now);
}

// The head is there and wants nothing of this client. A later request tries once more.
void HeadSession::give_up(const Status& why) {
  phase_ = Phase::kIdle;
  commands_.push_back(Disconnect{});
  commands_.push_back(Attempted{why});
  finish_all(why);
  fail_watches(watches_.clear(), why, true);
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
  watches_.wait_until(until);
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
    fail_watches(watches_.late(TimePoint::max(), patience_end(now)), why);
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
  return hello_.reconnect || !requests_.empty() || !watches_.empty() || watches_nodes_;
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
  if (watches_.due() <= now) fail_watches(watches_.late(now, patience_end(now)), why);
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
  TimePoint due = watches_.due();
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
  watches_.clear();
}

// --- requests ------------------------------------------------------------------------------------

HeadRequestId HeadSession::ask(wire::ControlMessage message, TimePoint now) {
  return add_request(std::move(message), true, 0, now);
}

HeadRequestId HeadSession::add_request(wire::ControlMessage message, bool is_users, WatchId watch,
                                       TimePoint now) {
  const HeadRequestId id = next_request_++;
  if (closed()) return id;
  wire::set_request_id(message, id);
  Request& request = requests_[id];
  request = {wire::encode(message), is_users, watch, patience_end(now)};
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
  const bool is_users = found->second.is_users;
  const WatchId watch = found->second.watch;
  if (!TROUPE_CANARY("session-answers-twice") || !answer.ok()) requests_.erase(found);
  if (watch != 0) watch_answered(watch, answer);
  if (is_users) commands_.push_back(Answer{id, std::move(answer)});
}

void HeadSession::finish_all(const Status& why) {
  while (!requests_.empty()) finish(requests_.begin()->first, why);
}

void HeadSession::received(wire::ControlMessage message, TimePoint now) {
  if (phase_ != Phase::kIntroducing && phase_ != Phase::kIntroduced) return;
  const HeadRequestId id = wire::request_id_of(message).value_or(0);
  if (id == 0) {
    updated(std::move(message));
  } else if (phase_ == Phase::kIntroducing && id == hello_.request_id) {
    introduced(answer_status(message), now);
  } else {
    finish(id, std::move(message));
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

void HeadSession::watch(WatchId watch, WatchedId id, WatchedName name, TimePoint now) {
  if (closed()) return;
  if (!id.empty()) {
    name = {};
  } else if (id.kind == WatchKind::kActor && name.namespace_name.empty()) {
    name.namespace_name = hello_.namespace_name.empty() ? wire::namespace_of_job(hello_.job_id)
                                                        : hello_.namespace_name;
  }
  watches_.add(watch, {id, std::move(name), patience_end(now)});
  ask_watch(watch, now);
}

void HeadSession::ask_watch(WatchId id, TimePoint now) {
  auto& watch = *watches_.find(id);
  watch.request_id = next_request_;
  add_request(watch_request(watch.id, watch.name, false), false, id, now);
}

void HeadSession::watch_answered(WatchId id, const Result<wire::ControlMessage>& answer) {
  auto* const watch = watches_.find(id);
  if (watch == nullptr) return;
  watch->request_id = 0;
  // It is renewed on the next connection.
  if (!answer.ok() && is_passing(answer.status())) return;
  const Status status = answer_status(answer);
  if (status.ok()) return;  // its state comes as an update
  watches_.end(id);
  fail_watches({id}, status, true);
}

void HeadSession::fail_watches(const std::vector<WatchId>& watches, const Status& why, bool last) {
  for (const WatchId id : watches) commands_.push_back(WatchFailed{id, why, last});
}

void HeadSession::updated(wire::ControlMessage update) {
  const auto state = watched_state(update);
  if (!state && holds_alternative<wire::NodeUpdate>(update)) {
    commands_.push_back(Update{std::move(update), {}});
  } else if (state && (!watches_.is_outdated(*state) || TROUPE_CANARY("session-passes-outdated"))) {
    commands_.push_back(Update{std::move(update), watches_.updated(*state), state->last});
  }
}

void HeadSession::unwatch(WatchId id, TimePoint now) {
  const auto ended = watches_.end(id);
  if (!ended) return;
  if (phase_ != Phase::kIntroduced) {
    // The head has forgotten it with the connection.
    requests_.erase(ended->request_id);
  } else if (!ended->id.empty() && !watches_.watches(ended->id)) {
    add_request(watch_request(ended->id, {}, true), false, 0, now);
  }
}

// One that has not left yet says what is outdated. Where the head does not answer in time, it is
// told on the next connection.
void HeadSession::report(wire::Work work, TimePoint now) {
  if (closed()) return;
  requests_.erase(report_);
  work_ = std::move(work);
  report_ = add_request(wire::ReportWork{0, *work_}, false, 0, now);
}

// A head that comes back, or a later one, does not know of it.
void HeadSession::lend(wire::LendCpus lends, TimePoint now) {
  if (closed()) return;
  requests_.erase(lend_);
  lends_ = std::move(lends);
  lend_ = add_request(*lends_, false, 0, now);
}

void HeadSession::watch_nodes(TimePoint now) {
  watches_nodes_ = true;
  ask_node_watch(now);
}

void HeadSession::ask_node_watch(TimePoint now) {
  node_watch_ = add_request(wire::WatchNodes{.without_amounts = true}, false, 0, now);
}

}  // namespace troupe::scheduler
