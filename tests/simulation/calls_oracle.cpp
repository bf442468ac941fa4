#include "calls_oracle.h"

#include "calls_simulation.h"

namespace troupe::simulation {
namespace {

// A process that stood still, with its machine or its head, hears of the time when it goes on.
constexpr auto kStandsStillMost = std::chrono::seconds(11);

}  // namespace

CallsOracle::Call& CallsOracle::find(std::uint64_t call) {
  const auto found = calls_.find(call);
  require(found != calls_.end(), "call {} was never made", call);
  return found->second;
}

// --- at the caller -------------------------------------------------------------------------------

std::uint64_t CallsOracle::made(Made made) {
  const std::uint64_t number = next_++;
  calls_[number].made = std::move(made);
  open_.insert(number);
  ++result_.calls;
  return number;
}

void CallsOracle::given_up(std::uint64_t call) {
  find(call).over = true;
  open_.erase(call);
}

void CallsOracle::item(std::uint64_t call, std::uint64_t index, std::uint64_t allowed) {
  Call& known = find(call);
  require(!known.over, "call {} of {} has an item after its end", call, known.made.caller);
  require(index == known.items + 1, "item {} of call {} comes after item {}", index, call,
          known.items);
  require(index <= allowed, "item {} of call {} comes, of {} allowed", index, call, allowed);
  known.items = index;
  ++result_.items;
}

void CallsOracle::ended(std::uint64_t call, const troupe::Result<SimResult>& result) {
  Call& known = find(call);
  require(!std::exchange(known.over, true), "call {} of {} ends twice", call, known.made.caller);
  open_.erase(call);
  const Duration late = world_.timeline.now() - known.made.deadline;
  require(late <= (known.made.punctual ? Duration::zero() : Duration(kStandsStillMost)),
          "call {} of {} ends {} ms after its deadline", call, known.made.caller,
          late.count() / 1'000'000);
  if (result.ok()) {
    ++result_.answered;
    check_result(call, known, *result);
  } else {
    ++result_.failed;
    const Code code = result.status().code();
    // (A relay fails with the call that it makes.)
    if (code != Code::kDeadlineExceeded && code != Code::kActorError) ++result_.cut_off;
    check_error(known, result.status());
    if (code == Code::kDataLoss) {
      ++result_.told_of_losses;
      ++known_[{known.made.caller, known.made.target}].told;
    }
  }
}

void CallsOracle::check_result(std::uint64_t number, const Call& call, const SimResult& result) {
  const Made& made = call.made;
  require(result.call == number, "call {} of {} gets the answer of call {}", number, made.caller,
          result.call);
  require(!call.ran_in.empty(), "call {} of {} is answered and never ran", number, made.caller);
  if (!runs_once(made.target) || result.history == 0) return;
  const bool has_effect = made.method != kCount && made.method != kLook;
  require(!has_effect || effects_[result.history].contains(number),
          "call {} of {} is answered without its effect", number, made.caller);
  // Who has had an answer of a state, and now has one of a later state, was told in between.
  Known& known = known_[{made.caller, made.target}];
  if (known.history == result.history) return;
  if (known.history == 0 || known.told > 0) {
    known = {result.history, 0, 0};
  } else if (known.told_from == 0) {
    known.told_from = next_;  // (This call may have been sent before the loss.)
  } else {
    require(number < known.told_from, "{} was never told that {} lost its state", made.caller,
            made.target.brief());
  }
}

void CallsOracle::check_error(const Call& call, const Status& status) const {
  const Made& made = call.made;
  const auto wrong = [&] {
    throw Violation(fmt::format("a call of {} to {}{} ends with {}", made.caller,
                                made.target.brief(), made.retry ? ", with retry," : "",
                                status.to_string()));
  };
  switch (status.code()) {
    case Code::kDeadlineExceeded:
      return;
    case Code::kUnavailable:
      if (made.retry || call.came_back) wrong();
      return;
    case Code::kCancelled:
      if (made.method != kCount) wrong();
      return;
    case Code::kAborted:  // an actor's process that has a successor
      if (made.punctual) wrong();
      return;
    case Code::kActorError:
      if (made.method != kRelay) wrong();
      return;
    case Code::kActorDied: {
      if (!cluster_->head_up()) return;
      const auto found = cluster_->head()->actors().find(made.target);
      if (found != cluster_->head()->actors().end() && !found->second.dead()) wrong();
      return;
    }
    case Code::kResourceExhausted:  // a save that failed
      if (!runs_once(made.target)) wrong();
      return;
    case Code::kDataLoss: {
      const auto losses = losses_.find(made.target);
      if (losses == losses_.end()) wrong();
      return;
    }
    default:
      wrong();
  }
}

std::string CallsOracle::overdue() const {
  for (const std::uint64_t call : open_) {
    const Made& made = calls_.at(call).made;
    const Duration late = world_.timeline.now() - made.deadline;
    if (late > Duration(kStandsStillMost)) {
      return fmt::format("call {} of {} to {} has no end", call, made.caller, made.target.brief());
    }
  }
  return {};
}

// --- at the actor --------------------------------------------------------------------------------

void CallsOracle::began(ActorId actor, std::uint64_t pid, std::uint64_t history, bool empty) {
  const bool first = has_begun_.insert(actor).second;
  if (empty && !first && runs_once(actor)) {
    ++losses_[actor];
    ++result_.losses;
    world_.note("process {} of {} begins anew", pid, actor.brief());
  }
  effects_.try_emplace(history);
}

void CallsOracle::runs(std::uint64_t call, std::uint64_t pid, ClientId caller,
                       std::uint64_t sequence) {
  Call& known = find(call);
  require(known.ran_in.insert(pid).second, "call {} of {} runs twice in process {}", call,
          known.made.caller, pid);
  require(known.made.retry || known.ran_in.size() == 1, "call {} of {} runs twice without retry",
          call, known.made.caller);
  std::uint64_t& last = last_begun_[{pid, caller}];
  require(sequence > last, "call {} of {} begins out of order: number {} after number {}", call,
          known.made.caller, sequence, last);
  last = sequence;
  ++result_.runs;
}

void CallsOracle::took_effect(std::uint64_t call, ActorId actor, std::uint64_t history) {
  if (!runs_once(actor)) return;
  require(effects_[history].insert(call).second, "call {} of {} counts twice", call,
          find(call).made.caller);
}

}  // namespace troupe::simulation
