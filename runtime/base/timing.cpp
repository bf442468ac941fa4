#include "runtime/base/timing.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace troupe {
namespace {

struct Time {
  const char* name = nullptr;
  Duration Timing::*member = nullptr;
  int factor = 1;
};

constexpr Duration value(const Timing& timing, const Time& time) {
  return time.member == nullptr ? Duration::zero() : time.factor * (timing.*time.member);
}

// `shorter` and `more`, added up, are less than `longer`.
struct Rule {
  Time shorter, more, longer;
  const char* why;
  bool of_leases = false;  // holds trivially where there are none
  bool or_equal = false;

  constexpr bool holds(const Timing& timing) const {
    if (of_leases && timing.heartbeat_timeout == Duration::zero()) return true;
    const Duration left = value(timing, shorter) + value(timing, more);
    const Duration right = value(timing, longer);
    return left < right || (or_equal && left == right);
  }
};

#define TROUPE_TIME(name) \
  Time { #name, &Timing::name }

constexpr Time kNothing;
constexpr Rule kRules[] = {
    {{"heartbeat_interval", &Timing::heartbeat_interval, 3},
     kNothing,
     TROUPE_TIME(heartbeat_timeout),
     "a heartbeat that is lost or late ends no lease",
     true,
     true},
    {TROUPE_TIME(fence_grace), kNothing, TROUPE_TIME(fence_delay),
     "a node has killed what must not run twice before the head starts it elsewhere", true},
    {TROUPE_TIME(heartbeat_timeout), TROUPE_TIME(fence_grace), TROUPE_TIME(disconnect_grace),
     "a node that was cut off when its connection closed has killed what must not run twice before "
     "the head starts it elsewhere",
     true},
    {TROUPE_TIME(heartbeat_timeout), TROUPE_TIME(fence_grace), TROUPE_TIME(rejoin_grace),
     "so it has where the head was started again meanwhile", true},
    {TROUPE_TIME(heartbeat_timeout), TROUPE_TIME(fence_grace), TROUPE_TIME(state_known_timeout),
     "what must not run twice, on a node that is cut off, is killed before it answers for a state "
     "of which the head does not know",
     true},
    {TROUPE_TIME(keeper_hold), kNothing, TROUPE_TIME(state_known_timeout),
     "so it is on a node without its daemon"},
    {TROUPE_TIME(keeper_hold), kNothing, TROUPE_TIME(disconnect_grace),
     "a node without its daemon has ended its actors before the head starts them elsewhere"},
    {TROUPE_TIME(keeper_hold), kNothing, TROUPE_TIME(rejoin_grace),
     "so it has where the head was started again meanwhile"},
    {TROUPE_TIME(keeper_replace_timeout), TROUPE_TIME(heartbeat_interval),
     TROUPE_TIME(heartbeat_timeout),
     "a node that waits for a new keeper, and sends no heartbeat meanwhile, keeps its lease", true},
    {TROUPE_TIME(keeper_end_timeout), kNothing, TROUPE_TIME(keeper_start_timeout),
     "a daemon outwaits the keeper before its own, which ends its processes first"},
    {TROUPE_TIME(node_attempt_timeout), kNothing, TROUPE_TIME(disconnect_grace),
     "a node whose first attempt to come back is not answered has time for a second one"},
    {TROUPE_TIME(node_attempt_timeout), TROUPE_TIME(retry_max), TROUPE_TIME(rejoin_grace),
     "a node finds a new head in time, whatever it was doing when that came"},
    {TROUPE_TIME(client_attempt_timeout), TROUPE_TIME(retry_max), TROUPE_TIME(rejoin_grace),
     "a driver finds a new head in time, whatever it was doing when that came"},
    {TROUPE_TIME(client_attempt_timeout), TROUPE_TIME(retry_max), TROUPE_TIME(reconnect_timeout),
     "one attempt at least is made whole before requests are given up"},
    {TROUPE_TIME(client_retry_first), kNothing, TROUPE_TIME(owner_grace),
     "a driver that comes back at once keeps its actors"},
    {TROUPE_TIME(node_retry_first), kNothing, TROUPE_TIME(retry_max), "pauses grow", false, true},
    {TROUPE_TIME(client_retry_first), kNothing, TROUPE_TIME(retry_max), "pauses grow", false, true},
    {TROUPE_TIME(client_attempt_timeout), kNothing, TROUPE_TIME(control_timeout),
     "an attempt that is not answered leaves a request time for the next one"},
    {TROUPE_TIME(journal_stall), kNothing, TROUPE_TIME(control_timeout),
     "whoever asks a head whose disk stands still is answered", false, true},
    {TROUPE_TIME(stop_timeout), kNothing, TROUPE_TIME(control_timeout),
     "whoever stops a cluster waits until its nodes have stopped", false, true},
    {TROUPE_TIME(hand_over_timeout), kNothing, TROUPE_TIME(call_timeout),
     "a call whose connection was handed to nobody is made again"},
    {TROUPE_TIME(turn_hold), kNothing, TROUPE_TIME(turn_hold_max), "turns grow", false, true},
    {TROUPE_TIME(read_timeout), kNothing, TROUPE_TIME(first_read_timeout),
     "a process that loads its libraries has more time than one that is ready", false, true},
    {TROUPE_TIME(rejoin_grace), kNothing, TROUPE_TIME(keep_segments),
     "an actor that a new head starts again finds what it saved"},
    {TROUPE_TIME(gpu_release_timeout), kNothing, TROUPE_TIME(gpu_wait),
     "an actor outwaits the memory of the process before it"},
};
#undef TROUPE_TIME

constexpr bool all_hold(const Timing& timing) {
  return std::all_of(std::begin(kRules), std::end(kRules),
                     [&](const Rule& rule) { return rule.holds(timing); });
}
static_assert(all_hold(kTiming));

std::string described(const Timing& timing, const Time& time) {
  const auto ms = std::chrono::duration<double, std::milli>(timing.*time.member).count();
  return (time.factor == 1 ? std::string() : fmt::format("{} × ", time.factor)) +
         fmt::format("{} ({} ms)", time.name, ms);
}

}  // namespace

Status check(const Timing& timing) {
  std::string broken;
  for (const Rule& rule : kRules) {
    if (rule.holds(timing)) continue;
    broken += broken.empty() ? "" : "; ";
    broken += described(timing, rule.shorter);
    if (rule.more.member != nullptr) broken += " + " + described(timing, rule.more);
    broken +=
        fmt::format(" is to be less than {}{}, so that {}", rule.or_equal ? "or equal to " : "",
                    described(timing, rule.longer), rule.why);
  }
  if (broken.empty()) return {};
  return Status(Code::kInvalidArgument, std::move(broken));
}

}  // namespace troupe
