#include "actors/session/callee_session.h"

#include <algorithm>

#include "runtime/base/canary.h"

namespace troupe::detail {
namespace {

// Callers without a link that may send a call again: where there are more, new ones are refused.
// About 64 MiB.
constexpr std::size_t kDisconnectedCallersMax = 256u << 10;
// Actors of whose processes it is remembered which is the newest that has bound. About 8 MiB.
constexpr std::size_t kGenerationsMax = 128u << 10;
constexpr std::uint32_t kNoMethod = ~0u;
// A process later than this has no caller of before.
constexpr Duration kRepeatsMax = std::chrono::hours(24 * 365);
constexpr std::uint64_t kRepeatsMaxMs =
    std::chrono::milliseconds(std::chrono::hours(24 * 365)).count();

std::int64_t ceil_ms(Duration time) {
  return std::chrono::ceil<std::chrono::milliseconds>(time).count();
}
std::int64_t floor_ms(Duration time) {
  return std::chrono::floor<std::chrono::milliseconds>(time).count();
}

wire::CallMessage reply_of(std::uint64_t sequence, Result<wire::Bytes> result) {
  wire::CallReply reply;
  reply.sequence = sequence;
  if (result.ok()) {
    reply.result = std::move(*result);
  } else {
    reply.status = result.status();
  }
  return reply;
}

}  // namespace

Reply::Reply(std::uint64_t sequence, Result<wire::Bytes> result, bool keep) {
  const std::size_t bytes = result.ok() ? result->size() : 0;
  wire::CallMessage message = reply_of(sequence, std::move(result));
  if (keep && bytes <= KeptAnswers::kAnswerBytesMax) kept = wire::encode(message);
  if (kept && bytes < wire::kAttachedBytesMin) {
    sent.frame = *kept;
  } else {
    sent = wire::encode_attached(std::move(message));
  }
}

CalleeSession::CalleeSession(Config config)
    : config_(config), forget_above_(config.idle_callers_max), generations_(kGenerationsMax) {}

CalleeSession::Caller* CalleeSession::find(ClientId caller) {
  const auto it = callers_.find(caller);
  return it != callers_.end() ? &it->second : nullptr;
}

const CalleeSession::Caller* CalleeSession::find(ClientId caller) const {
  const auto it = callers_.find(caller);
  return it != callers_.end() ? &it->second : nullptr;
}

CalleeSession::Caller* CalleeSession::with_open(ClientId caller, std::uint64_t sequence) {
  Caller* const known = find(caller);
  if (known == nullptr) return nullptr;
  const bool open = std::binary_search(known->open.begin(), known->open.end(), sequence);
  return open ? known : nullptr;
}

// --- binding -------------------------------------------------------------------------------------

CalleeSession::Introduction CalleeSession::introduce(const wire::Bind& bind) {
  Introduction result;
  result.refusal = check_generations(bind);
  result.superseded = result.refusal.code() == Code::kUnavailable;
  if (!result.refusal.ok()) return result;
  auto methods = translate(bind);
  result.refusal = methods.status();
  if (!methods.ok()) return result;
  result.methods = std::move(*methods);
  if (disconnected_.size() >= kDisconnectedCallersMax && find(bind.caller) == nullptr) {
    result.refusal = error(Code::kResourceExhausted,
                           "actor {} remembers {} callers that have no connection now and may send "
                           "a call again before its deadline: it takes no more. Use shorter "
                           "timeouts, or fewer programs that call it one after the other",
                           config_.actor_id.brief(), disconnected_.size());
    return result;
  }
  if (bind.caller_actor.empty()) return result;
  for (const auto& [id, caller] : callers_) {
    if (caller.link && caller.actor == bind.caller_actor &&
        caller.actor_generation < bind.caller_generation) {
      result.older.push_back(caller.link);
    }
  }
  return result;
}

// kUnavailable: this process is the older one of two. kAborted: the caller is.
Status CalleeSession::check_generations(const wire::Bind& bind) {
  if (bind.actor_id != config_.actor_id) return {};
  if (bind.generation > config_.generation) {
    return error(Code::kUnavailable,
                 "this is process {} of actor {}, and a caller knows process {}: its node was lost "
                 "to the head, and it was started again elsewhere",
                 config_.generation, config_.actor_id.brief(), bind.generation);
  }
  if (bind.caller_actor.empty() || TROUPE_CANARY("older-callers-may-call")) return {};
  const std::uint64_t newest = generations_.note(bind.caller_actor, bind.caller_generation);
  if (bind.caller_generation < newest) {
    return error(Code::kAborted,
                 "process {} of actor {} calls, and process {} has called already: its node was "
                 "lost to the head, and it was started again elsewhere",
                 bind.caller_generation, bind.caller_actor.brief(), newest);
  }
  return {};
}

// Methods that the two programs know differently are refused at their calls: the others work.
Result<CalleeSession::MethodNumbers> CalleeSession::translate(const wire::Bind& bind) const {
  const ActorInterface& interface = config_.interface;
  if (bind.actor_id != config_.actor_id) {
    return error(Code::kNotFound, "this process hosts actor {}, not {}", config_.actor_id.brief(),
                 bind.actor_id.brief());
  }
  if (bind.type != interface.type) {
    return error(Code::kInvalidArgument, "the actor is a {}, not a {}", interface.type, bind.type);
  }
  MethodNumbers numbers;
  for (const auto& theirs : bind.methods) {
    const auto ours = std::find_if(interface.methods.begin(), interface.methods.end(),
                                   [&](const auto& m) { return m.name == theirs.name; });
    const bool known = ours != interface.methods.end();
    const bool same = known && ours->hash == theirs.hash;
    if (!same) {
      numbers.refused.emplace(
          static_cast<std::uint32_t>(numbers.ours.size()),
          error(Code::kFailedPrecondition,
                "the caller's and the actor's program differ: {}::{} {}. Build both from the same "
                "sources",
                bind.type, theirs.name,
                known ? "has other argument or result types, or they contain something else"
                      : "is unknown to the actor")
              .with(kInActorsProgram, known ? ours->type : "no such method"));
    }
    numbers.ours.push_back(same ? static_cast<std::uint32_t>(ours - interface.methods.begin())
                                : kNoMethod);
  }
  return numbers;
}

CalleeSession::Change CalleeSession::bind(std::shared_ptr<CalleeLink> link, const wire::Bind& bind,
                                          MethodNumbers methods) {
  Change change;
  Caller& caller = callers_[bind.caller];
  change.replaced = std::exchange(caller.link, std::move(link));
  caller.methods = std::move(methods);
  caller.actor = bind.caller_actor;
  caller.actor_generation = bind.caller_generation;
  disconnected_.erase(std::exchange(caller.disconnected, 0));
  change.stops = stops_of_streams(caller);
  change.may_begin = end_holding_back(caller);  // on the link before
  // Before any answer of an earlier link's calls.
  tell(caller.link, wire::BindReply{{}, config_.generation});
  if (gives_back_) tell(caller.link, wire::Draining{});
  return change;
}

void CalleeSession::refuse(CalleeLink& link, const Status& why) {
  const Status sent =
      link.send({wire::encode(wire::BindReply{why, config_.generation}), nullptr}, false);
  if (!sent.ok() && sent.code() != Code::kUnavailable) link.end();
}

std::optional<CalleeSession::Change> CalleeSession::unbind(ClientId caller, const CalleeLink& link,
                                                           TimePoint now) {
  Caller* const known = find(caller);
  if (known == nullptr || !known->link) return std::nullopt;
  if (known->link.get() != &link && !TROUPE_CANARY("older-links-unbind")) return std::nullopt;
  Change change;
  change.stops = stops_of_streams(*known);
  change.may_begin = end_holding_back(*known);
  known->link.reset();
  known->methods = {};  // said anew with the next link
  note_disconnected(caller, *known);
  forget_old_callers(now);
  return change;
}

std::shared_ptr<CalleeLink> CalleeSession::link(ClientId caller) const {
  const Caller* const known = find(caller);
  return known != nullptr ? known->link : nullptr;
}

void CalleeSession::note_disconnected(ClientId id, Caller& caller) {
  caller.disconnected = next_disconnected_++;
  disconnected_.emplace(caller.disconnected, id);
}

// Whoever forgets a caller that has a call to send again runs that call twice.
bool CalleeSession::may_be_forgotten(const Caller& caller, TimePoint now) const {
  if (TROUPE_CANARY("forgets-callers-with-calls")) return true;
  return caller.open.empty() && caller.repeats_until <= now;
}

// The oldest first. What is left over is looked at again when it has grown by half: forgetting
// costs a caller no more than a constant.
void CalleeSession::forget_old_callers(TimePoint now) {
  if (disconnected_.size() <= forget_above_) return;
  std::size_t surplus = disconnected_.size() - config_.idle_callers_max;
  std::erase_if(disconnected_, [&](const auto& entry) {
    const auto it = callers_.find(entry.second);
    if (surplus == 0 || !may_be_forgotten(it->second, now)) return false;
    --surplus;
    kept_.forget(it->first);
    callers_.erase(it);
    return true;
  });
  forget_above_ = std::max(config_.idle_callers_max, disconnected_.size() * 3 / 2);
}

// --- sending -------------------------------------------------------------------------------------

// A link that does not take a message is ended, which its caller notices. One that is over says so
// by itself.
Status CalleeSession::send(const std::shared_ptr<CalleeLink>& link, wire::EncodedCall message,
                           bool soon) {
  Status sent = link->send(std::move(message), soon);
  if (!sent.ok() && sent.code() != Code::kUnavailable) link->end();
  return sent;
}

void CalleeSession::tell(const std::shared_ptr<CalleeLink>& link,
                         const wire::CallMessage& message) {
  static_cast<void>(
      send(link, {wire::encode(message), nullptr}, false));  // its caller notices the end
}

void CalleeSession::send_answer(Caller& to, wire::EncodedCall answer, bool soon) {
  if (!to.link || !send(to.link, std::move(answer), soon).ok()) return;
  if (to.held_back || !to.link->unread()) return;
  to.held_back = true;
  ++held_back_count_;
}

bool CalleeSession::end_holding_back(Caller& caller) {
  if (!std::exchange(caller.held_back, false)) return false;
  --held_back_count_;
  return true;
}

bool CalleeSession::on_read(ClientId caller, const CalleeLink& link) {
  Caller* const known = find(caller);
  return known != nullptr && known->link.get() == &link && end_holding_back(*known);
}

std::vector<ClientId> CalleeSession::held_back() const {
  std::vector<ClientId> held;
  for (const auto& [id, caller] : callers_) {
    if (caller.held_back) held.push_back(id);
  }
  return held;
}

bool CalleeSession::holds_back(ClientId caller) const {
  const Caller* const known = find(caller);
  return known != nullptr && known->held_back;
}

// --- calls ---------------------------------------------------------------------------------------

CalleeSession::Admission CalleeSession::admit(ClientId caller, std::uint64_t sequence,
                                              std::uint32_t method, TimePoint deadline,
                                              const wire::Bytes& arguments) {
  Caller* const known = find(caller);
  // What was said over a link that has ended since, as an item that was taken from a pipeline's
  // memory, is said again over the next one, which says what the methods' numbers mean.
  if (known == nullptr || !known->link) return {};
  if (sequence <= known->highest && !TROUPE_CANARY("runs-again-what-is-sent-again")) {
    if (known->given_back.contains(sequence)) {
      give_back(*known, sequence, arguments);  // the link that was to carry it has broken
      return {};
    }
    if (std::binary_search(known->open.begin(), known->open.end(), sequence)) return {};
    const wire::Bytes* const answer = kept_.find(caller, sequence);
    send_answer(*known,
                {answer != nullptr
                     ? *answer
                     : wire::encode(reply_of(
                           sequence, error(Code::kUnavailable,
                                           "the call ran before its connection broke, and its "
                                           "answer is no longer kept"))),
                 nullptr},
                false);
    return {};
  }
  // It has not run, and its number is free for the next process.
  if (gives_back_) {
    give_back(*known, sequence, arguments);
    return {};
  }
  known->repeats_until = std::max(known->repeats_until, deadline);
  known->highest = sequence;
  known->open.push_back(sequence);
  if (!refusal_.ok()) return {Verdict::kRefused, kNoMethod, refusal_};
  const MethodNumbers& methods = known->methods;
  const std::uint32_t ours = method < methods.ours.size() ? methods.ours[method] : kNoMethod;
  if (ours != kNoMethod) return {Verdict::kRun, ours};
  const auto refused = methods.refused.find(method);
  return {Verdict::kRefused, kNoMethod,
          refused != methods.refused.end()
              ? refused->second
              : error(Code::kProtocol, "there is no method {}", method)};
}

bool CalleeSession::ended(ClientId caller, std::uint64_t sequence) {
  Caller* const known = find(caller);
  if (known == nullptr) return false;
  const auto open = std::lower_bound(known->open.begin(), known->open.end(), sequence);
  if (open != known->open.end() && *open == sequence) known->open.erase(open);
  if (!known->stops.empty()) {
    std::erase_if(known->stops, [&](const auto& stop) { return stop.first == sequence; });
  }
  if (!known->credits.empty()) known->credits.erase(sequence);
  if (!known->given_back.empty()) known->given_back.erase(sequence);
  return true;
}

void CalleeSession::reply(ClientId caller, std::uint64_t sequence, Reply reply, bool sent,
                          bool soon) {
  Caller* const known = find(caller);
  if (known == nullptr) return;
  if (reply.kept && !TROUPE_CANARY("keeps-no-answers")) {
    kept_.add(caller, sequence, std::move(*reply.kept));
  }
  if (!sent) send_answer(*known, std::move(reply.sent), soon);
}

void CalleeSession::give_back(Caller& to, std::uint64_t sequence, const wire::Bytes& arguments) {
  if (!to.link) return;
  // (What lies in the caller's own memory stays there until the call has an answer.)
  static_cast<void>(
      send(to.link, wire::encode_attached(wire::CallGivenBack{sequence, arguments}), false));
}

void CalleeSession::give_back(ClientId caller, std::uint64_t sequence,
                              const wire::Bytes& arguments) {
  Caller* const known = find(caller);
  if (known == nullptr) return;
  known->given_back.insert(sequence);
  give_back(*known, sequence, arguments);
}

void CalleeSession::refuse_new(Status why) {
  if (refusal_.ok()) refusal_ = std::move(why);
}

void CalleeSession::give_back_new() {
  if (std::exchange(gives_back_, true)) return;
  for (const auto& [id, caller] : callers_) {
    if (caller.link) tell(caller.link, wire::Draining{});
  }
}

std::size_t CalleeSession::open_calls() const {
  std::size_t count = 0;
  for (const auto& [id, caller] : callers_) count += caller.open.size();
  return count;
}

void CalleeSession::clear() {
  callers_.clear();
  disconnected_.clear();
  held_back_count_ = 0;
}

// --- calls that run ------------------------------------------------------------------------------

std::stop_source& CalleeSession::stop_of(Caller& caller, std::uint64_t sequence) {
  for (auto& [number, stop] : caller.stops) {
    if (number == sequence) return stop;
  }
  return caller.stops.emplace_back(sequence, std::stop_source()).second;
}

// Of a link that is over: nobody takes what its streams give.
std::vector<std::stop_source> CalleeSession::stops_of_streams(Caller& caller) {
  if (!TROUPE_CANARY("forgets-streams-of-ended-links")) caller.streams_cut_to = caller.highest;
  std::vector<std::stop_source> stops;
  for (const auto& [sequence, items] : caller.credits) stops.push_back(stop_of(caller, sequence));
  return stops;
}

std::stop_token CalleeSession::stop_token_of(ClientId caller, std::uint64_t sequence) {
  Caller* const known = with_open(caller, sequence);
  return known != nullptr ? stop_of(*known, sequence).get_token() : std::stop_token();
}

std::stop_source CalleeSession::stop_of(ClientId caller, std::uint64_t sequence) {
  Caller* const known = with_open(caller, sequence);
  return known != nullptr ? stop_of(*known, sequence) : std::stop_source(std::nostopstate);
}

Status CalleeSession::send_item(ClientId caller, std::uint64_t sequence, std::uint64_t index,
                                wire::Bytes item) {
  Caller* const known = find(caller);
  if (known == nullptr || !known->link) {
    return Status(Code::kUnavailable, "the stream's caller is gone");
  }
  Status sent =
      send(known->link, wire::encode_attached(wire::StreamItem{sequence, index, std::move(item)}),
           false);
  if (sent.ok() && !known->held_back && known->link->unread()) {
    known->held_back = true;
    ++held_back_count_;
  }
  return sent;
}

bool CalleeSession::on_credit(ClientId caller, const wire::StreamCredit& credit) {
  Caller* const known = with_open(caller, credit.sequence);
  if (known == nullptr) return false;
  std::uint64_t& items = known->credits[credit.sequence];
  items = std::max(items, credit.items);
  return true;
}

// (The link may have broken between the call and the first credit: the call is a stream all the
// same, and ends with the link.)
std::optional<std::uint64_t> CalleeSession::credit(ClientId caller, std::uint64_t sequence) {
  Caller* const known = with_open(caller, sequence);
  if (known == nullptr || sequence <= known->streams_cut_to) return std::nullopt;
  return known->credits.try_emplace(sequence, 0).first->second;
}

// --- exactly once over deaths --------------------------------------------------------------------

// A caller's calls run in order: what is open has not run, but for the one that just has. Nothing:
// none of its calls has run.
std::optional<AnsweredCaller> CalleeSession::saved_of(ClientId id, Caller& of, const RanCall& call,
                                                      TimePoint now) const {
  auto open = of.open.begin();
  const bool own = id == call.caller;
  if (own && open != of.open.end() && *open == call.sequence) ++open;
  if (TROUPE_CANARY("saves-what-has-not-run")) open = of.open.end();
  const std::uint64_t highest = open != of.open.end() ? *open - 1 : of.highest;
  if (highest == 0) return std::nullopt;
  // (A time as far as the end of the clock stays representable.)
  const TimePoint repeats_until = std::min(of.repeats_until, now + kRepeatsMax);
  AnsweredCaller saved{
      id, highest, {}, ceil_ms(repeats_until.time_since_epoch()), of.actor, of.actor_generation};
  if (own && call.keep) {
    wire::Bytes frame = wire::encode(reply_of(call.sequence, Result<wire::Bytes>(call.result)));
    if (frame.size() <= KeptAnswers::kAnswerBytesMax)
      saved.answers.emplace(call.sequence, std::move(frame));
  }
  return saved;
}

AnsweredCalls CalleeSession::answered(const RanCall& call, SavedAnswers which, TimePoint now) {
  AnsweredCalls saved{floor_ms(now.time_since_epoch()), {}};
  Caller* const caller = find(call.caller);
  if (caller != nullptr) forget_answers_of_older(*caller);
  if (which == SavedAnswers::kSince) {
    auto of = caller != nullptr ? saved_of(call.caller, *caller, call, now) : std::nullopt;
    if (!of) return saved;
    if (!TROUPE_CANARY("saves-the-last-answer-alone")) {
      kept_.for_calls(call.caller, caller->saved_to, of->highest,
                      [&](std::uint64_t number, const wire::Bytes& answer) {
                        of->answers.emplace(number, answer);
                      });
    }
    caller->saved_to = of->highest;
    saved.callers.push_back(std::move(*of));
    return saved;
  }
  saved.callers.reserve(callers_.size());
  for (auto& [id, known] : callers_) {
    // It does not ask for any of them.
    if (!known.link && may_be_forgotten(known, now)) kept_.forget(id);
    auto of = saved_of(id, known, call, now);
    if (!of) continue;
    known.saved_to = of->highest;
    saved.callers.push_back(std::move(*of));
  }
  kept_.for_saved([&](ClientId id, std::uint64_t number, const wire::Bytes& answer) {
    const auto of =
        std::lower_bound(saved.callers.begin(), saved.callers.end(), id,
                         [](const AnsweredCaller& c, ClientId other) { return c.caller < other; });
    if (of == saved.callers.end() || of->caller != id) return;
    // Those above were refused without running.
    if (number <= of->highest) of->answers.emplace(number, answer);
  });
  return saved;
}

// With the save that is being made every process of this actor knows of the newer process of that
// one, and refuses the older ones: they get no answers any more. (Their numbers stay, as those of
// others.)
void CalleeSession::forget_answers_of_older(Caller& newer) {
  if (newer.actor.empty() || std::exchange(newer.older_are_over, true)) return;
  for (const auto& [id, other] : callers_) {
    if (other.actor == newer.actor && other.actor_generation < newer.actor_generation)
      kept_.forget(id);
  }
}

void CalleeSession::restore_answered(std::vector<AnsweredCalls> saves, TimePoint now) {
  if (saves.empty() || TROUPE_CANARY("restores-no-answers")) return;
  if (TROUPE_CANARY("restores-the-last-save-alone")) saves.erase(saves.begin(), saves.end() - 1);
  const std::int64_t saved_at_ms = saves.back().at_ms;
  for (auto& save : saves) {
    for (auto& saved : save.callers) {
      Caller& caller = callers_[saved.caller];
      caller.highest = std::max(caller.highest, saved.highest);
      const auto left = std::chrono::milliseconds(
          saved.repeats_until_ms > saved_at_ms
              ? std::min(static_cast<std::uint64_t>(saved.repeats_until_ms) -
                             static_cast<std::uint64_t>(saved_at_ms),
                         kRepeatsMaxMs)
              : 0);
      caller.repeats_until = now + left;
      caller.actor = saved.actor;
      caller.actor_generation = saved.actor_generation;
      if (!saved.actor.empty()) generations_.note(saved.actor, saved.actor_generation);
      if (caller.disconnected == 0) note_disconnected(saved.caller, caller);
      for (auto& [sequence, frame] : saved.answers) {
        kept_.add(saved.caller, sequence, std::move(frame));
      }
    }
  }
}

}  // namespace troupe::detail
