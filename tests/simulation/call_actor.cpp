#include "call_actor.h"

#include <algorithm>

#include "actors/session/drain_watch.h"
#include "runtime/base/timing.h"

namespace troupe::simulation {

using namespace troupe::detail;
using std::chrono::milliseconds;

namespace {

wire::ClientHello hello_of(const wire::ActorSpec& spec, World& world) {
  wire::ClientHello hello;
  hello.client_id = ClientId::make(world.random);
  hello.job_id = spec.job_id;
  hello.name = spec.type + " " + spec.actor_id.brief();
  hello.kind = "actor";
  return hello;
}

}  // namespace

struct CallActor::Connection {
  std::shared_ptr<CallWire> wire;
  std::shared_ptr<CalleeLink> link;
  ClientId caller;
  bool bound = false;
  bool stopped = false;  // its caller calls no more
};

CallActor::CallActor(Cluster& cluster, Place place, CallsOracle& oracle, bool saves_may_fail)
    : Process(cluster, std::move(place)),
      oracle_(oracle),
      saves_may_fail_(saves_may_fail),
      self_(this->place().spec.actor_id),
      head_(cluster, this->place().node, hello_of(this->place().spec, cluster.world()), {},
            [this](Duration delay, std::function<void()> what) { later(delay, std::move(what)); }),
      caller_(
          cluster, head_, {.self = self_, .generation = this->place().incarnation, .name = label()},
          [this](Duration delay, std::function<void()> what) { later(delay, std::move(what)); }),
      session_({.actor_id = self_,
                .generation = this->place().incarnation,
                .interface = kSimInterface,
                .idle_callers_max = 0}) {
  caller_.set_observer(oracle_.observer());
  caller_.set_on_superseded(
      [this] { later(Duration::zero(), [this] { cluster_.kill(*this, "it has a successor"); }); });
}

// --- its life ------------------------------------------------------------------------------------

void CallActor::start(MemoryPtr saved) {
  state_ = std::dynamic_pointer_cast<CounterState>(saved);
  state_known_ = state_ != nullptr;
  const bool empty = !state_;
  if (empty) {
    state_ = std::make_shared<CounterState>();
    state_->history = world_.random.below(~0ull >> 1) + 1;
  } else {
    session_.restore_answered(state_->answered, world_.timeline.now());
  }
  oracle_.began(self_, place().pid, state_->history, empty);
  later(world_.between(1, 30), [this] {
    become_ready();
    for (auto& memory : std::exchange(arrived_, {})) connected(std::move(memory));
  });
}

void CallActor::on_death() {
  const bool told = cluster_.node_up(place().node) || world_.chance(2);
  for (const auto& connection : connections_) connection->wire->die(true, told);
  caller_.die(told);
  head_.close();
  for (const auto& connection : replaced_) connection->wire->die(true, told);
  arrived_.clear();
  if (running_ && running_->onward != 0) oracle_.given_up(running_->onward);
}

void CallActor::asked_to_stop(Duration grace) {
  const double grace_ms = std::chrono::duration<double, std::milli>(grace).count();
  later(world_.between(0, grace_ms), [this] { cluster_.kill(*this, "it has finished"); });
}

// What it does not come to goes back to its callers.
void CallActor::asked_to_move(Duration grace) {
  if (std::exchange(moves_, true)) return;
  session_.give_back_new();
  for (const Queued& call : std::exchange(queue_, {})) {
    session_.give_back(call.caller, call.sequence, call.arguments);
  }
  later(std::min(grace, Duration(DrainWatch::kSilenceMax)), [this] {
    for (const auto& connection : connections_) connection->stopped = true;
    move_on();
  });
  later(grace, [this] { cluster_.kill(*this, "its grace is over"); });
  move_on();
}

void CallActor::move_on() {
  if (!moves_ || running_) return;
  const bool stopped = std::all_of(connections_.begin(), connections_.end(),
                                   [](const auto& c) { return c->stopped || !c->bound; });
  // What it has said leaves before it does.
  if (stopped) later(milliseconds(1), [this] { cluster_.kill(*this, "it moves"); });
}

std::shared_ptr<CallWire> CallActor::any_wire() {
  if (auto wire = caller_.any_wire(); wire && world_.chance(2)) return wire;
  return connections_.empty() ? nullptr
                              : connections_[world_.random.below(connections_.size())]->wire;
}

// --- its callers ---------------------------------------------------------------------------------

void CallActor::connected(MemoryPtr memory) {
  if (!ready()) return arrived_.push_back(std::move(memory));
  auto connection = std::make_shared<Connection>();
  connection->wire = take_wire(memory);
  connection->link = connection->wire->accept(
      {.run = [this](std::function<void()> what) { later(Duration::zero(), std::move(what)); },
       .on_message =
           [this, weak = std::weak_ptr(connection)](wire::CallMessage message) {
             if (const auto alive = weak.lock()) on_message(alive, std::move(message));
           },
       .on_room =
           [this, weak = std::weak_ptr(connection)] {
             const auto alive = weak.lock();
             if (!alive || !session_.on_read(alive->caller, *alive->link)) return;
             if (running_ && running_->call.method == kCount) send_items();
             begin_next();
           },
       .on_ended =
           [this, weak = std::weak_ptr(connection)] {
             if (const auto alive = weak.lock()) on_ended(alive);
           }});
  connections_.push_back(std::move(connection));
}

void CallActor::on_ended(const std::shared_ptr<Connection>& connection) {
  const auto alive = connection;
  std::erase(connections_, alive);
  std::erase(replaced_, alive);
  alive->wire->close(true);
  if (alive->bound) {
    if (const auto change = session_.unbind(alive->caller, *alive->link, world_.timeline.now()))
      carry_out(*change);
  }
  move_on();
}

void CallActor::carry_out(const CalleeSession::Change& change) {
  for (auto stop : change.stops) stop.request_stop();
  const bool stream = running_ && running_->call.method == kCount;
  if (stream && (!change.stops.empty() || change.may_begin)) send_items();
  if (change.may_begin) begin_next();
}

void CallActor::on_message(const std::shared_ptr<Connection>& connection,
                           wire::CallMessage message) {
  if (auto* bind = std::get_if<wire::Bind>(&message)) return on_bind(connection, *bind);
  require(connection->bound, "{} hears of somebody who has not bound", label());
  if (auto* call = std::get_if<wire::Call>(&message)) return on_call(connection, std::move(*call));
  if (const auto* cancel = std::get_if<wire::CancelCall>(&message)) {
    return on_cancel(connection->caller, cancel->sequence);
  }
  if (const auto* credit = std::get_if<wire::StreamCredit>(&message)) {
    const bool open = session_.on_credit(connection->caller, *credit);
    if (open && running_ && running_->call.method == kCount) send_items();
    return;
  }
  if (std::holds_alternative<wire::Draining>(message)) {
    connection->stopped = true;
    return move_on();
  }
  throw Violation(fmt::format("{} hears what only actors say", label()));
}

void CallActor::on_bind(const std::shared_ptr<Connection>& connection, const wire::Bind& bind) {
  auto introduction = session_.introduce(bind);
  if (!introduction.refusal.ok()) {
    session_.refuse(*connection->link, introduction.refusal);
    if (introduction.superseded) {
      later(Duration::zero(), [this] { cluster_.kill(*this, "a caller knows its successor"); });
    }
    return;
  }
  const auto by_link = [this](const std::shared_ptr<CalleeLink>& link) {
    for (const auto& other : connections_) {
      if (other->link == link) return other;
    }
    return std::shared_ptr<Connection>();
  };
  for (const auto& older : introduction.older) {
    if (const auto ended = by_link(older)) on_ended(ended);
  }
  if (!bind.caller_actor.empty()) {
    std::uint64_t& newest = newest_callers_[bind.caller_actor];
    require(bind.caller_generation >= newest, "process {} of {} binds to {} after process {} has",
            bind.caller_generation, bind.caller_actor.brief(), label(), newest);
    newest = bind.caller_generation;
  }
  connection->bound = true;
  connection->caller = bind.caller;
  const auto change = session_.bind(connection->link, bind, std::move(introduction.methods));
  if (const auto replaced = by_link(change.replaced)) {
    replaced->wire->close(true);
    std::erase(connections_, replaced);
    replaced_.push_back(replaced);
  }
  carry_out(change);
}

void CallActor::on_call(const std::shared_ptr<Connection>& connection, wire::Call call) {
  if (session_.link(connection->caller) != connection->link) return;
  auto admission = session_.admit(
      connection->caller, call.sequence, call.method,
      world_.timeline.now() + std::chrono::microseconds(call.timeout_us), call.arguments);
  if (admission.verdict == CalleeSession::Verdict::kNothing) return;
  Queued queued{connection->caller, call.sequence, admission.method,
                world_.timeline.now() + std::chrono::microseconds(call.timeout_us),
                std::move(call.arguments)};
  if (admission.verdict == CalleeSession::Verdict::kRefused) {
    return answer(queued, std::move(admission.refusal));
  }
  queue_.push_back(std::move(queued));
  begin_next();
}

void CallActor::on_cancel(ClientId caller, std::uint64_t sequence) {
  const auto queued = std::find_if(queue_.begin(), queue_.end(), [&](const Queued& call) {
    return call.caller == caller && call.sequence == sequence;
  });
  if (queued == queue_.end()) {
    session_.stop_of(caller, sequence).request_stop();
    if (running_ && running_->call.method == kCount) send_items();
    return;
  }
  const Queued cancelled = std::move(*queued);
  queue_.erase(queued);
  answer(cancelled, error(Code::kCancelled, "the caller cancelled it"));
}

// --- its calls -----------------------------------------------------------------------------------

void CallActor::begin_next() {
  if (running_ || !ready()) return;
  const auto next = std::find_if(queue_.begin(), queue_.end(), [&](const Queued& call) {
    return call.deadline <= world_.timeline.now() || !session_.holds_back(call.caller);
  });
  if (next == queue_.end()) return;
  running_.emplace(Running{std::move(*next)});
  queue_.erase(next);
  later(world_.between(0.02, world_.chance(20) ? 300 : 2), [this] { run(); });
}

void CallActor::run() {
  const Queued& call = running_->call;
  if (call.deadline <= world_.timeline.now()) {
    const Queued late = std::move(running_->call);
    running_.reset();
    answer(late, error(Code::kDeadlineExceeded, "it waited in the mailbox until its deadline"));
    begin_next();
    return move_on();
  }
  const SimArguments arguments = arguments_from(call.arguments);
  running_->begun = true;
  oracle_.runs(arguments.call, place().pid, call.caller, call.sequence);
  if (call.method == kRelay) return relay(arguments);
  if (call.method == kCount) return send_items();
  // A state that was never saved may be gone without a word.
  const bool lasts = call.method != kLook || state_known_;
  finish(to_bytes(SimResult{arguments.call, lasts ? state_->history : 0, place().incarnation}));
}

void CallActor::relay(const SimArguments& arguments) {
  const TimePoint deadline = running_->call.deadline;
  const std::uint64_t onward = oracle_.made({.caller = label(),
                                             .target = arguments.target,
                                             .method = kAdd,
                                             .retry = true,
                                             .deadline = deadline,
                                             .punctual = false});
  running_->onward = onward;
  SimArguments passed;
  passed.call = onward;
  caller_.call(
      {.target = arguments.target,
       .method = kAdd,
       .arguments = passed,
       .deadline = deadline,
       .retry = true,
       .on_end = [this, onward, call = arguments.call](const troupe::Result<SimResult>& result) {
         oracle_.ended(onward, result);
         running_->onward = 0;
         if (result.ok())
           return finish(to_bytes(SimResult{call, state_->history, place().incarnation}));
         finish(error(Code::kActorError, "the call that it made has failed"));
       }});
}

// As many as its caller allows, and while it reads them.
void CallActor::send_items() {
  if (!running_->begun || running_->done) return;
  const Queued& call = running_->call;
  const SimArguments arguments = arguments_from(call.arguments);
  const auto stopped = session_.stop_token_of(call.caller, call.sequence);
  while (running_->items < arguments.onward && !stopped.stop_requested()) {
    const auto credit = session_.credit(call.caller, call.sequence);
    if (!credit) return finish(error(Code::kUnavailable, "its caller is gone"));
    if (*credit <= running_->items) return;
    if (session_.holds_back(call.caller)) return;
    const Status sent =
        session_.send_item(call.caller, call.sequence, ++running_->items, wire::Bytes(8));
    if (!sent.ok()) return finish(sent);
  }
  if (stopped.stop_requested()) return finish(error(Code::kCancelled, "its caller cancelled it"));
  finish(to_bytes(SimResult{arguments.call, state_->history, place().incarnation}));
}

void CallActor::finish(troupe::Result<wire::Bytes> result) {
  running_->done = true;
  const Queued& call = running_->call;
  if (oracle_.runs_once(self_) && call.method != kLook) {
    if (call.method != kCount) unsaved_.push_back(arguments_from(call.arguments).call);
    if (saves_may_fail_ && world_.chance(25)) {
      saves_all_ = true;
      result = error(Code::kResourceExhausted, "the call ran, but its state could not be saved");
    } else if (save(call, result); !std::exchange(state_known_, true)) {
      // The first save is answered for when the head knows that there is one.
      cluster_.tell_node(*this, wire::HostSavedState{place().incarnation}, state_);
      unanswered_ = std::move(result);
      return later(kTiming.state_known_timeout, [this] { state_known(); });
    }
  }
  // Its thread may be killed between the save and the answer.
  later(world_.between(0, 0.05), [this, result = std::move(result)] {
    const Queued done = std::move(running_->call);
    running_.reset();
    answer(done, result);
    begin_next();
    move_on();
  });
}

// As StateSaver does: all that was answered where its memory has no room for more.
void CallActor::save(const Queued& call, const troupe::Result<wire::Bytes>& result) {
  const bool all = std::exchange(saves_all_, false) || world_.chance(12);
  auto saved =
      session_.answered({call.caller, call.sequence, result},
                        all ? SavedAnswers::kAll : SavedAnswers::kSince, world_.timeline.now());
  if (all) state_->answered.clear();
  state_->answered.push_back(std::move(saved));
  for (const std::uint64_t number : std::exchange(unsaved_, {}))
    oracle_.took_effect(number, self_, state_->history);
}

void CallActor::state_known() {
  if (!unanswered_) return;
  const auto result = *std::exchange(unanswered_, std::nullopt);
  const Queued done = std::move(running_->call);
  running_.reset();
  answer(done, result);
  begin_next();
  move_on();
}

void CallActor::answer(const Queued& call, troupe::Result<wire::Bytes> result) {
  if (!session_.ended(call.caller, call.sequence)) return;
  session_.reply(call.caller, call.sequence, Reply(call.sequence, std::move(result), true), false,
                 false);
}

}  // namespace troupe::simulation
