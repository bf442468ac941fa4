#pragma once
// The actor's half of the conversations with its callers, as a pure state machine: who is bound, by
// which link, with which methods; which of a caller's calls were accepted, are open, were answered.
// It knows no socket, thread, lock or clock: CallServer drives it in an actor's process,
// tests/simulation in virtual time.
//
// A caller is known across its links: one that comes back with calls that it sent before gets their
// answers, and none of them is run twice. Its calls are accepted in the order of their numbers, so
// that a number up to the highest one tells of a call that was sent again.
//
// A caller that reads more slowly than it is answered: what waits to be sent to it is bounded. Once
// CalleeLink::unread() no further call of it is begun (held_back()) until it has read half of that;
// calls that run already may each add a result.
//
// An actor may have two processes after its node was lost (OnHeadLoss::kKeep), and so may an actor
// that calls. Whoever knows the newer one of a pair refuses the older one.

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "actors/session/caller_generations.h"
#include "actors/session/kept_answers.h"
#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/wire/call_messages.h"
#include "troupe/detail/interface.h"

namespace troupe::detail {

// The actor's end of one connection to a caller: ordered messages. Called under the owner's lock:
// implementations neither wait nor call back.
class CalleeLink {
 public:
  virtual ~CalleeLink() = default;
  // `soon`: it may wait for others that follow. Not ok: not sent; kUnavailable: the link is over.
  [[nodiscard]] virtual Status send(wire::EncodedCall message, bool soon) = 0;
  // Whether more waits to be sent than a caller may leave unread. When half of it has been read
  // CalleeSession::on_read follows.
  virtual bool unread() const = 0;
  // The link is of no more use, since it did not take a message: it ends, and its end is told.
  virtual void end() = 0;
};

// An answer as it is sent, and as it is kept for a caller whose link breaks. Made without the
// session, so that its owner need not be locked meanwhile.
struct Reply {
  wire::EncodedCall sent;
  std::optional<wire::Bytes> kept;

  Reply() = default;
  // `keep`: the caller may send the call again.
  Reply(std::uint64_t sequence, Result<wire::Bytes> result, bool keep);
};

// What is saved of a caller with the state of an actor that runs each call once.
struct AnsweredCaller {
  ClientId caller;
  std::uint64_t highest = 0;  // every call up to this one has run, or will never be sent again
  std::map<std::uint64_t, wire::Bytes> answers;
  std::int64_t repeats_until_ms = 0;  // of the process's clock: so long it may send a call again
  // The actor whose process the caller is; empty: it is a driver.
  ActorId actor;
  std::uint64_t actor_generation = 0;
};

// What one save says of them.
struct AnsweredCalls {
  std::int64_t at_ms = 0;  // of the process's clock: when it was saved
  std::vector<AnsweredCaller> callers;
};

// What a save says.
enum class SavedAnswers : std::uint8_t {
  kAll,
  // What came since the save before, of the caller alone whose call is answered: what has changed
  // for others is no effect of theirs on the state, and is said with their own next save. For the
  // next process all saves since one of kAll count together.
  kSince,
};

// A call that has run, and is answered when that has been saved.
struct RanCall {
  ClientId caller;
  std::uint64_t sequence = 0;
  const Result<wire::Bytes>& result;
  bool keep = true;  // its caller may send it again
};

// Not thread-safe.
class CalleeSession {
 public:
  struct Config {
    ActorId actor_id;
    std::uint64_t generation = 0;  // of this process
    ActorInterface interface;
    // Callers without a link, and without a call that they may send again, are remembered up to so
    // many, in case they come back.
    std::size_t idle_callers_max = 1024;
  };
  explicit CalleeSession(Config config);

  // --- binding

  // The caller's method numbers → ours, and why not where the two programs differ.
  struct MethodNumbers {
    std::vector<std::uint32_t> ours;
    std::map<std::uint32_t, Status> refused;
  };
  // What a caller's first message comes to.
  struct Introduction {
    // Not ok: it is refused with this.
    Status refusal;
    // … since it knows a newer process of this actor: this one is to end.
    bool superseded = false;
    MethodNumbers methods;
    // Links of older processes of the calling actor: to be ended before it is bound. They find out
    // why when they bind again.
    std::vector<std::shared_ptr<CalleeLink>> older;
  };
  Introduction introduce(const wire::Bind& bind);
  // What else changes with a link that comes or goes.
  struct Change {
    std::shared_ptr<CalleeLink> replaced;  // the caller's link until now: to be closed
    std::vector<std::stop_source> stops;   // of streams that nobody takes any more: to be requested
    bool may_begin = false;                // the caller is no longer held back
  };
  // Binds a caller that was introduced; says so to it.
  Change bind(std::shared_ptr<CalleeLink> link, const wire::Bind& bind, MethodNumbers methods);
  void refuse(CalleeLink& link, const Status& why);
  // The link has ended. Nothing where its caller has another one.
  std::optional<Change> unbind(ClientId caller, const CalleeLink& link, TimePoint now);
  // Null where the caller is not bound.
  std::shared_ptr<CalleeLink> link(ClientId caller) const;

  // --- calls

  enum class Verdict : std::uint8_t {
    kRun,
    kRefused,  // it is to be answered with Admission::refusal
    kNothing,  // it has been answered, given back, runs already, or its caller's link has ended
  };
  struct Admission {
    Verdict verdict = Verdict::kNothing;
    std::uint32_t method = 0;  // as this program numbers them
    Status refusal = {};
  };
  // A call has arrived. `method`: the caller's number of it; `arguments`: to give them back. Until
  // `deadline` it may arrive again.
  Admission admit(ClientId caller, std::uint64_t sequence, std::uint32_t method, TimePoint deadline,
                  const wire::Bytes& arguments);
  // The call has ended: it is no longer open. False where its caller is forgotten.
  bool ended(ClientId caller, std::uint64_t sequence);
  // Keeps the answer where that is wanted; sends it unless it was `sent` otherwise. `soon`: more
  // answers follow at once. A caller without a link asks again on its next one.
  void reply(ClientId caller, std::uint64_t sequence, Reply reply, bool sent, bool soon);
  // Gives back a call that was admitted and has not begun. To the numbering it stays one that has
  // not run.
  void give_back(ClientId caller, std::uint64_t sequence, const wire::Bytes& arguments);
  // From now on new calls are refused with `why`.
  void refuse_new(Status why);
  // From now on new calls go back to their callers, which send them to the actor's next process;
  // callers are told.
  void give_back_new();
  // Accepted and not answered.
  std::size_t open_calls() const;

  // --- calls that run

  // Requested when the caller cancels an open call, or has ended it at its deadline.
  std::stop_token stop_token_of(ClientId caller, std::uint64_t sequence);
  // To be requested, without a lock; nothing where the call was answered meanwhile.
  std::stop_source stop_of(ClientId caller, std::uint64_t sequence);
  // The index-th item, from 1, of a stream. kUnavailable: its caller has no link.
  Status send_item(ClientId caller, std::uint64_t sequence, std::uint64_t index, wire::Bytes item);
  // How many items of an open stream its caller allows in all. False: it is not open.
  bool on_credit(ClientId caller, const wire::StreamCredit& credit);
  // Of a call that is a stream. Nothing: its link is over, so that nobody takes its items.
  std::optional<std::uint64_t> credit(ClientId caller, std::uint64_t sequence);
  // The caller has read what it was sent. Whether it was held back until now.
  bool on_read(ClientId caller, const CalleeLink& link);
  std::vector<ClientId> held_back() const;
  bool holds_back(ClientId caller) const;
  std::size_t held_back_count() const { return held_back_count_; }

  // --- exactly once over deaths

  // Which calls have run, and the answers that are kept, to be saved with the state; `call` among
  // them. For calls that run one at a time. The first save of a process says kAll, and so does the
  // one that follows a save which failed, or a call that was not saved.
  AnsweredCalls answered(const RanCall& call, SavedAnswers which, TimePoint now);
  // What the last save of an earlier process said: where that was kSince, with those before it.
  // Before anybody binds.
  void restore_answered(std::vector<AnsweredCalls> saves, TimePoint now);

  // Forgets everybody.
  void clear();

 private:
  struct Caller {
    std::shared_ptr<CalleeLink> link;  // null between two links
    MethodNumbers methods;
    std::uint64_t highest = 0;           // number of the last call that was accepted
    std::uint64_t saved_to = 0;          // the calls up to this one are saved, with their answers
    std::deque<std::uint64_t> open;      // accepted and not answered; ascending
    std::set<std::uint64_t> given_back;  // of those: what has not begun here, and never will
    // When the last of its calls has reached its deadline: until then it may send one again, which
    // must not run twice.
    TimePoint repeats_until{};
    std::uint64_t disconnected = 0;  // its place among those without a link
    // Of open calls whose method asked for it, or that were cancelled.
    std::vector<std::pair<std::uint64_t, std::stop_source>> stops;
    std::map<std::uint64_t, std::uint64_t> credits;  // of open calls that are streams
    std::uint64_t streams_cut_to = 0;  // streams up to this number came by a link that is over
    // The actor whose process the caller is; empty: it is a driver.
    ActorId actor;
    std::uint64_t actor_generation = 0;
    bool older_are_over = false;  // that there is this process of it is saved
    bool held_back = false;       // too much of its answers waits to be sent
  };

  Status check_generations(const wire::Bind& bind);
  Result<MethodNumbers> translate(const wire::Bind& bind) const;
  Caller* find(ClientId caller);
  const Caller* find(ClientId caller) const;
  // The caller, where the call is open.
  Caller* with_open(ClientId caller, std::uint64_t sequence);
  Status send(const std::shared_ptr<CalleeLink>& link, wire::EncodedCall message, bool soon);
  void send_answer(Caller& to, wire::EncodedCall answer, bool soon);
  void tell(const std::shared_ptr<CalleeLink>& link, const wire::CallMessage& message);
  void give_back(Caller& to, std::uint64_t sequence, const wire::Bytes& arguments);
  bool end_holding_back(Caller& caller);
  std::stop_source& stop_of(Caller& caller, std::uint64_t sequence);
  std::vector<std::stop_source> stops_of_streams(Caller& caller);
  std::optional<AnsweredCaller> saved_of(ClientId id, Caller& of, const RanCall& call,
                                         TimePoint now) const;
  void forget_answers_of_older(Caller& newer);
  bool may_be_forgotten(const Caller& caller, TimePoint now) const;
  void note_disconnected(ClientId id, Caller& caller);
  void forget_old_callers(TimePoint now);

  const Config config_;
  std::map<ClientId, Caller> callers_;
  KeptAnswers kept_;
  std::map<std::uint64_t, ClientId> disconnected_;  // in the order in which they lost their links
  std::uint64_t next_disconnected_ = 1;
  std::size_t forget_above_ = 0;  // so many of them: look again whom it may forget
  CallerGenerations generations_;
  std::size_t held_back_count_ = 0;
  Status refusal_;
  bool gives_back_ = false;
};

}  // namespace troupe::detail
