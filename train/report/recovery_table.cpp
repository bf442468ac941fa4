#include "train/report/recovery_table.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include "runtime/base/suggest.h"
#include "train/report/format.h"
#include "train/report/text_table.h"

namespace troupe::train {
namespace {

constexpr std::string_view kNotKnown = "-";
// A generation that was lost though nobody died.
constexpr std::string_view kConnection = "connection";
// A spare that is there is in its place within microseconds.
constexpr std::int64_t kAtOnceUs = 10'000;
// Decimals of milliseconds in JSON: microseconds mean nothing here.
constexpr int kMillisecondDigits = 3;
constexpr int kGoodputDigits = 6;

bool is_failure(const RunEvent& event) {
  // A spare's death has no rank and holds nobody up.
  return event.rank >= 0 && (event.event == events::kDeath || event.event == events::kHang);
}

// "kill phase=forward" of "kill@step=15,rank=1,phase=forward": step and rank have their own
// columns.
std::string short_fault(const std::string& fault) {
  const auto at = fault.find('@');
  std::string name = fault.substr(0, at);
  std::string_view rest =
      at == std::string::npos ? std::string_view() : std::string_view(fault).substr(at + 1);
  while (!rest.empty()) {
    const auto end = std::min(rest.find(','), rest.size());
    const auto part = rest.substr(0, end);
    const bool told = part.starts_with("step=") || part.starts_with("rank=") ||
                      part.starts_with("generation=") || part == "point=stage";
    if (!told) name.append(" ").append(part);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return name;
}

// The rank that an injected fault strikes, by its event or by its name; -1: any.
int struck_rank(const RunEvent& fault) {
  if (fault.rank >= 0) return fault.rank;
  constexpr std::string_view kKey = "rank=";
  const auto at = fault.fault.find(kKey);
  int rank = -1;
  if (at != std::string::npos) {
    const char* begin = fault.fault.data() + at + kKey.size();
    std::from_chars(begin, fault.fault.data() + fault.fault.size(), rank);
  }
  return rank;
}

// A few words for what `event` was: the injected fault, a signal, an exit code.
std::string name_of_failure(const RunEvent& event) {
  if (!event.fault.empty()) return short_fault(event.fault);
  if (event.event != events::kDeath && event.event != events::kRecovered) return event.event;
  const auto word = [&](std::string_view begins) -> std::string {
    const auto at = event.cause.find(begins);
    if (at == std::string::npos) return {};
    auto end = at + begins.size();
    while (end < event.cause.size() && std::isalnum(static_cast<unsigned char>(event.cause[end])))
      ++end;
    return end > at + begins.size() ? event.cause.substr(at, end - at) : std::string();
  };
  for (const std::string_view begins : {"SIG", "signal ", "exit code "}) {
    if (auto name = word(begins); !name.empty()) return name;
  }
  if (event.event == events::kDeath) return event.event;
  return event.cause.starts_with("the controller") ? events::kController : std::string(kConnection);
}

void add_once(std::vector<int>& ranks, int rank) {
  const auto at = std::ranges::lower_bound(ranks, rank);
  if (rank >= 0 && (at == ranks.end() || *at != rank)) ranks.insert(at, rank);
}

template <typename T>
void keep_larger(std::optional<T>& kept, const std::optional<T>& value) {
  if (value && (!kept || *value > *kept)) kept = value;
}

// Parts that events before `recovered` told: the slowest rank's.
void take_parts(Recovery& recovery, const RunEvent& event) {
  keep_larger(recovery.detected_after_ms, event.detected_after_ms);
  keep_larger(recovery.respawn_ms, event.respawn_ms);
  keep_larger(recovery.attach_ms, event.attach_ms);
  keep_larger(recovery.reform_ms, event.reform_ms);
  keep_larger(recovery.first_step_ms, event.first_step_ms);
}

// What `recovered` tells stands above what single events told.
void finish(Recovery& recovery, const RunEvent& event) {
  const auto take = [](auto& kept, const auto& value) {
    if (value) kept = value;
  };
  take(recovery.detected_after_ms, event.detected_after_ms);
  take(recovery.respawn_ms, event.respawn_ms);
  take(recovery.attach_ms, event.attach_ms);
  take(recovery.reform_ms, event.reform_ms);
  take(recovery.first_step_ms, event.first_step_ms);
  recovery.recovery_ms = event.recovery_ms;
  recovery.recomputed_steps = event.recomputed_steps;
  recovery.lost_steps = event.lost_steps;
  recovery.first_step = event.step;
  recovery.ended_unix_us = event.unix_time_us;
  recovery.finished = true;
}

// A hang's death is its consequence: one failure.
bool same_failure(const Recovery& recovery, const RunEvent& event) {
  return event.event == events::kDeath && event.rank >= 0 &&
         std::ranges::any_of(recovery.causes, [&](const RunEvent& before) {
           return before.event == events::kHang && before.rank == event.rank;
         });
}

void add_failure(Recovery& recovery, const RunEvent& event) {
  add_once(recovery.ranks, event.rank);
  take_parts(recovery, event);
  if (!same_failure(recovery, event)) recovery.causes.push_back(event);
}

// What failed by itself: a keeper's death ends its ranks, whose deaths are no failures of their
// own.
std::vector<RunEvent> own_failures(const std::vector<RunEvent>& causes) {
  std::vector<RunEvent> own;
  for (const auto& event : causes) {
    const bool by_keeper =
        event.event == events::kDeath && event.fault.empty() &&
        std::ranges::any_of(causes, [&](const RunEvent& other) {
          return other.event == events::kKeeper &&
                 (other.node.empty() || event.node.empty() || other.node == event.node);
        });
    if (!by_keeper) own.push_back(event);
  }
  return own;
}

void name_failures(Recovery& recovery) {
  std::vector<std::string> names;
  const auto own = own_failures(recovery.causes);
  for (const auto& event : own) {
    auto name = name_of_failure(event);
    if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  recovery.failures = std::max<std::int64_t>(1, std::ssize(own));
  recovery.fault = names.empty() ? std::string(kConnection) : join_words(names);
}

// What struck and has not shown yet in a death or in a lost generation.
class Pending {
 public:
  void add(const RunEvent& event) { events_.push_back(event); }
  // The injected fault that a failure of `event`'s rank comes from, taken away; `event` gets its
  // name.
  void name(RunEvent& event) {
    const auto found = std::ranges::find_if(events_, [&](const RunEvent& struck) {
      return struck.event == events::kFault &&
             (struck_rank(struck) < 0 || struck_rank(struck) == event.rank) &&
             (event.fault.empty() || event.fault == struck.fault);
    });
    if (found == events_.end()) return;
    event.fault = found->fault;
    events_.erase(found);
  }
  // The keeper whose death ended a rank of `node`.
  std::optional<RunEvent> take_keeper(const std::string& node) {
    const auto found = std::ranges::find_if(events_, [&](const RunEvent& lost) {
      return lost.event == events::kKeeper &&
             (lost.node.empty() || node.empty() || lost.node == node);
    });
    if (found == events_.end()) return std::nullopt;
    auto event = std::move(*found);
    events_.erase(found);
    return event;
  }
  std::vector<RunEvent> take_all() { return std::exchange(events_, {}); }

 private:
  std::vector<RunEvent> events_;
};

void read_again(Recovery& recovery, const RunEvent& event) {
  recovery.reloaded = true;
  recovery.reloaded_step = std::max(recovery.reloaded_step, event.step);
  if (!event.path.empty()) recovery.reloaded_path = event.path;
  if (recovery.reload_reason.empty()) recovery.reload_reason = event.cause;
}

void take_process(Recovery& recovery, const RunEvent& event) {
  add_once(event.event == events::kSpare ? recovery.spares : recovery.respawned, event.rank);
  take_parts(recovery, event);
}

std::string cell(const std::optional<double>& milliseconds) {
  return milliseconds ? format_milliseconds(*milliseconds) : std::string(kNotKnown);
}
std::string cell(const std::optional<std::int64_t>& count) {
  return count ? std::to_string(*count) : std::string(kNotKnown);
}

// Of values in ascending order; the mean of both in the middle where there are two.
double median(const std::vector<double>& ascending) {
  const std::size_t half = ascending.size() / 2;
  return ascending.size() % 2 == 1 ? ascending[half] : (ascending[half - 1] + ascending[half]) / 2;
}

}  // namespace

std::vector<Recovery> recoveries_of(std::span<const RunEvent> events) {
  std::vector<Recovery> recoveries;
  std::optional<Recovery> current;
  Pending pending;
  // Processes whose time is before their predecessor's death: a clock's jitter.
  std::vector<RunEvent> early;
  const auto open = [&](const RunEvent& event) -> Recovery& {
    if (!current) {
      current.emplace();
      current->begun_unix_us = event.unix_time_us;
      current->step = event.step;
    }
    return *current;
  };
  // By what follows a failure that nobody told: the controller was lost with what it knew. The
  // processes that came then are its beginning.
  const auto open_without_failure = [&](const RunEvent& event) -> Recovery& {
    if (current) return *current;
    auto& recovery = open(early.empty() ? event : early.front());
    for (const auto& process : early) take_process(recovery, process);
    return recovery;
  };
  for (const RunEvent& event : events) {
    if (event.event == events::kFault) {
      pending.add(event);
    } else if (event.event == events::kKeeper) {
      RunEvent lost = event;
      pending.name(lost);
      if (current) {
        current->causes.push_back(std::move(lost));
      } else {
        pending.add(lost);
      }
    } else if (is_failure(event)) {
      auto& recovery = open(event);
      if (auto keeper = pending.take_keeper(event.node)) {
        recovery.begun_unix_us = std::min(recovery.begun_unix_us, keeper->unix_time_us);
        recovery.causes.push_back(std::move(*keeper));
      }
      RunEvent failure = event;
      pending.name(failure);
      add_failure(recovery, failure);
      for (const auto& process : early) {
        const bool at_once = process.unix_time_us + kAtOnceUs >= event.unix_time_us;
        if (process.rank == event.rank && at_once) take_process(recovery, process);
      }
    } else if (event.event == events::kRespawn || event.event == events::kSpare) {
      if (current) {
        take_process(*current, event);
      } else {
        early.push_back(event);
      }
    } else if (event.event == events::kReload) {
      read_again(open_without_failure(event), event);
      take_parts(*current, event);
    } else if (event.event == events::kResume) {
      auto& recovery = open_without_failure(event);
      recovery.resumed = event.cause;
      take_parts(recovery, event);
    } else if (event.event == events::kRecovered) {
      auto& recovery = open(event);
      // A generation can be lost without a death: a connection that was cut.
      auto others = pending.take_all();
      if (recovery.causes.empty()) recovery.causes = std::move(others);
      // The event of a death may come later, when the dead rank's memory was read.
      if (recovery.causes.empty() && !event.cause.empty()) {
        recovery.causes.push_back({.event = event.event,
                                   .rank = event.rank,
                                   .cause = event.cause,
                                   .unix_time_us = recovery.begun_unix_us});
        add_once(recovery.ranks, event.rank);
      }
      finish(recovery, event);
      name_failures(recovery);
      recoveries.push_back(std::move(recovery));
      current.reset();
      early.clear();
    }
  }
  // The dead process of a spare, or of a rank that had finished, holds nobody up.
  if (current && !current->causes.empty()) {
    name_failures(*current);
    recoveries.push_back(std::move(*current));
  }
  return recoveries;
}

RecoverySummary summarize(std::span<const Recovery> recoveries, double run_ms) {
  RecoverySummary summary;
  std::vector<double> taken;
  for (const auto& recovery : recoveries) {
    summary.faults += recovery.failures;
    if (!recovery.finished) ++summary.unfinished;
    if (recovery.recovery_ms) taken.push_back(*recovery.recovery_ms);
    summary.recomputed_steps += recovery.recomputed_steps.value_or(0);
    summary.lost_steps += recovery.lost_steps.value_or(0);
  }
  std::ranges::sort(taken);
  for (const double one : taken) summary.lost_ms += one;
  if (!taken.empty()) {
    summary.p50_ms = median(taken);
    summary.max_ms = taken.back();
  }
  // What an unfinished recovery cost is not known.
  if (run_ms > 0 && summary.unfinished == 0) {
    summary.goodput = std::clamp(1 - summary.lost_ms / run_ms, 0.0, 1.0);
  }
  return summary;
}

std::string describe(const RecoverySummary& summary) {
  std::string text = count_of(summary.faults, "fault");
  if (summary.p50_ms && *summary.p50_ms == *summary.max_ms) {
    text += fmt::format(", recovered in {} ms", format_milliseconds(*summary.max_ms));
  } else if (summary.p50_ms) {
    text += fmt::format(", recovered in {} ms (p50), {} ms (max)",
                        format_milliseconds(*summary.p50_ms), format_milliseconds(*summary.max_ms));
  }
  if (summary.unfinished > 0) text += fmt::format(", {} not recovered from", summary.unfinished);
  if (summary.goodput) text += fmt::format("; goodput {:.2f} %", *summary.goodput * 100);
  // The cost of a fault from which the run did not recover is not known.
  if (summary.unfinished > 0 && !summary.p50_ms) return text;
  return text + fmt::format("; {}{} recomputed, steps lost {}",
                            summary.unfinished > 0 ? "in the recoveries " : "",
                            count_of(summary.recomputed_steps, "step"), summary.lost_steps);
}

std::string recovery_table(std::span<const Recovery> recoveries, double run_ms) {
  if (recoveries.empty()) return {};
  TextTable table({"fault", "rank", "step", "detected after", "respawn", "attach", "re-form",
                   "first step", "recomputed", "lost"});
  table.numbers_from(1);
  for (const auto& recovery : recoveries) {
    table.add({recovery.fault,
               recovery.ranks.empty() ? std::string(kNotKnown) : join_numbers(recovery.ranks, ","),
               recovery.step < 0 ? std::string(kNotKnown) : std::to_string(recovery.step),
               cell(recovery.detected_after_ms), cell(recovery.respawn_ms),
               cell(recovery.attach_ms), cell(recovery.reform_ms), cell(recovery.first_step_ms),
               cell(recovery.recomputed_steps), cell(recovery.lost_steps)});
  }
  return "Recoveries, times in milliseconds:\n" + table.text() +
         describe(summarize(recoveries, run_ms)) + "\n";
}

std::string recovery_line(const Recovery& recovery) {
  std::string text = recovery.ranks.empty() ? "the ranks" : name_ranks(recovery.ranks);
  text += fmt::format(" ({})", recovery.fault);
  if (!recovery.finished) return text + ": not recovered from";
  text += " recovered";
  if (recovery.recovery_ms) {
    text += fmt::format(" in {} ms", format_milliseconds(*recovery.recovery_ms));
  }
  std::vector<std::string> parts;
  const auto part = [&](std::string_view name, const std::optional<double>& value) {
    if (value) parts.push_back(fmt::format("{} {}", name, format_milliseconds(*value)));
  };
  part("noticed after", recovery.detected_after_ms);
  part(recovery.spares.empty() ? "respawn" : "spare", recovery.respawn_ms);
  part("attach", recovery.attach_ms);
  part("re-form", recovery.reform_ms);
  part("first step", recovery.first_step_ms);
  if (!parts.empty()) text += fmt::format(": {}", join_words(parts));
  if (recovery.reloaded && recovery.reloaded_step >= 0) {
    text += fmt::format("; {}: went back to step {}",
                        recovery.reload_reason.empty() ? "memory was lost" : recovery.reload_reason,
                        recovery.reloaded_step);
    if (!recovery.reloaded_path.empty()) text += fmt::format(" ({})", recovery.reloaded_path);
  }
  if (recovery.recomputed_steps) {
    text += fmt::format("; {} recomputed", count_of(*recovery.recomputed_steps, "step"));
  }
  if (recovery.lost_steps) {
    text += fmt::format("{} {} lost", recovery.recomputed_steps ? "," : ";",
                        recovery.recomputed_steps ? std::to_string(*recovery.lost_steps)
                                                  : count_of(*recovery.lost_steps, "step"));
  }
  return text;
}

json::Object to_json(const Recovery& recovery) {
  json::Object object{{"fault", recovery.fault},
                      {"ranks", json::Array(recovery.ranks.begin(), recovery.ranks.end())},
                      {"step", recovery.step},
                      {"finished", recovery.finished},
                      {"spares", json::Array(recovery.spares.begin(), recovery.spares.end())},
                      {"reloaded", recovery.reloaded}};
  const auto milliseconds = [&](const char* key, const std::optional<double>& value) {
    if (value) object[key] = round_to(*value, kMillisecondDigits);
  };
  milliseconds("detected_after_ms", recovery.detected_after_ms);
  milliseconds("respawn_ms", recovery.respawn_ms);
  milliseconds("attach_ms", recovery.attach_ms);
  milliseconds("reform_ms", recovery.reform_ms);
  milliseconds("first_step_ms", recovery.first_step_ms);
  milliseconds("recovery_ms", recovery.recovery_ms);
  if (recovery.recomputed_steps) object["recomputed_steps"] = *recovery.recomputed_steps;
  if (recovery.lost_steps) object["lost_steps"] = *recovery.lost_steps;
  return object;
}

json::Object to_json(const RecoverySummary& summary) {
  json::Object object{{"faults", summary.faults},
                      {"unfinished", summary.unfinished},
                      {"recomputed_steps", summary.recomputed_steps},
                      {"lost_steps", summary.lost_steps},
                      {"lost_ms", round_to(summary.lost_ms, kMillisecondDigits)}};
  if (summary.p50_ms) object["p50_ms"] = round_to(*summary.p50_ms, kMillisecondDigits);
  if (summary.max_ms) object["max_ms"] = round_to(*summary.max_ms, kMillisecondDigits);
  if (summary.goodput) object["goodput"] = round_to(*summary.goodput, kGoodputDigits);
  return object;
}

std::string name_ranks(std::span<const int> ranks) {
  if (ranks.empty()) return {};
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

std::string count_of(std::int64_t count, std::string_view one) {
  return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

std::string format_milliseconds(double milliseconds) {
  return fmt::format("{:.{}f}", milliseconds, milliseconds < 9.95 ? 1 : 0);
}

}  // namespace troupe::train
