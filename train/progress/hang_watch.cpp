#include "train/progress/hang_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/base/build_options.h"
#include "runtime/base/check.h"
#include "runtime/base/suggest.h"

namespace troupe::train {
namespace {

// A rank that uses this much of one processor computes; a beat thread and a monitor use far less.
constexpr double kBusyShare = 0.1;
// Clocks of two machines drift apart by less than a thousandth.
constexpr int kDriftDivisor = 1000;

double seconds_of(Duration duration) { return std::chrono::duration<double>(duration).count(); }

// Nanoseconds of another process's clock, which may be any bits.
Duration plausible(std::int64_t ns) {
  return Duration(std::clamp<std::int64_t>(ns, 0, std::int64_t{1} << 61));
}

// What a rank does there takes what it takes, without points: meeting others, reading a state,
// waiting for a generation.
bool patient(Stage stage) {
  return stage == Stage::kIdle || stage == Stage::kForm || stage == Stage::kLoad ||
         stage == Stage::kFinish;
}

std::string_view plural(std::size_t count) { return count == 1 ? "rank" : "ranks"; }
std::string_view waits_word(std::size_t count) { return count == 1 ? "waits" : "wait"; }

// (collective, ranks) in order of the first rank.
std::vector<std::pair<std::string, std::vector<int>>> by_collective(
    const std::vector<Stuck::Waiting>& waiting) {
  std::vector<std::pair<std::string, std::vector<int>>> out;
  for (const Stuck::Waiting& one : waiting) {
    auto known = std::find_if(out.begin(), out.end(),
                              [&](const auto& entry) { return entry.first == one.collective; });
    if (known == out.end()) known = out.insert(out.end(), {one.collective, {}});
    known->second.push_back(one.rank);
  }
  return out;
}

}  // namespace

HangSettings HangSettings::with_timeout(Duration hang_timeout) {
  return {.hang_timeout = hang_timeout,
          .busy_timeout = 20 * hang_timeout,
          .stall_timeout = 2 * hang_timeout,
          .pause_max = hang_timeout / 4};
}

std::string Stuck::to_string() const {
  std::string out = fmt::format("rank {} {} for {:.1f} s: {}", rank,
                                kind == Kind::kStopped ? "has not run" : "has not moved",
                                seconds_of(silence), what);
  std::string_view joint = "; ";
  for (const auto& [collective, ranks] : by_collective(waiting)) {
    out += fmt::format("{}{} {} {} for it in {}", joint, plural(ranks.size()), join_numbers(ranks),
                       waits_word(ranks.size()), collective);
    joint = ", ";
  }
  return out;
}

std::string Stalled::to_string() const {
  return fmt::format("no bytes have moved for {:.1f} s and all ranks wait: {}", seconds_of(silence),
                     what);
}

std::string to_string(const HangVerdict& verdict) {
  return std::visit([](const auto& one) { return one.to_string(); }, verdict);
}

HangWatch::HangWatch(int world_size, const HangSettings& settings) : settings_(settings) {
  TROUPE_CHECK(world_size > 0 && settings.hang_timeout > Duration::zero() &&
               settings.pause_max > Duration::zero());
  ranks_.resize(static_cast<std::size_t>(world_size));
}

void HangWatch::Rank::leave_out(Duration time) {
  change_since += time;
  older.at += time;
  newer.at += time;
}

void HangWatch::rank_started(int rank, TimePoint now, std::optional<std::int64_t> pid) {
  Rank& r = at(rank);
  r.phase = Phase::kStarting;
  r.started_at = now;
  r.beats_at_start.reset();
  r.pid = pid;
  r.named.reset();
}

void HangWatch::rank_ended(int rank, TimePoint) { at(rank).phase = Phase::kAbsent; }

void HangWatch::generation_begun(std::uint64_t generation, TimePoint now) {
  generation_ = generation;
  stall_told_ = false;
  for (Rank& rank : ranks_) rank.change_since = std::max(rank.change_since, now);
}

void HangWatch::generation_ended(TimePoint now) {
  generation_.reset();
  for (Rank& rank : ranks_) rank.change_since = std::max(rank.change_since, now);
}

void HangWatch::read(int rank, const std::optional<ProgressSnapshot>& snapshot, TimePoint now) {
  Rank& r = at(rank);
  r.readable = snapshot.has_value();
  if (snapshot) take(r, *snapshot, now);
}

void HangWatch::take(Rank& rank, const ProgressSnapshot& snapshot, TimePoint now) {
  const bool first = !rank.last || rank.last->pid != snapshot.pid;
  if (first) {
    rank.offset.reset();
    rank.read_at = now;
  }
  const bool beat = first || snapshot.beats != rank.last->beats;
  const bool change = first || snapshot.changes != rank.last->changes;
  take_times(rank, snapshot, beat, change, now);
  if (rank.phase == Phase::kStarting) take_start(rank, snapshot, now);
  if (rank.named && (*rank.named == Stuck::Kind::kStopped ? beat : change)) rank.named.reset();
  if (change) stall_told_ = false;
  rank.last = snapshot;
  rank.read_at = now;
}

void HangWatch::take_times(Rank& rank, const ProgressSnapshot& snapshot, bool beat, bool change,
                           TimePoint now) {
  // A pause of the watcher longer than pause_max counts as that long.
  const TimePoint counted_from = std::max(rank.read_at, now - settings_.pause_max);
  const Duration unwatched = counted_from - rank.read_at;
  rank.beat_since += unwatched;
  rank.leave_out(unwatched);
  if (beat) {
    // Of one moment, what this clock says minus what the rank's said. It comes out too large by the
    // time that reading took: the least is the best, and times converted with it are never early.
    const Duration seen = now.time_since_epoch() - plausible(snapshot.beat_at_ns);
    if (rank.offset) *rank.offset += (now - rank.read_at) / kDriftDivisor;
    rank.offset = rank.offset ? std::min(*rank.offset, seen) : seen;
  }
  // Between the reading that did not show it and the one that does, whatever the rank says.
  const auto when = [&](std::int64_t at_ns) {
    const TimePoint said{plausible(at_ns) + rank.offset.value_or(Duration::zero())};
    return std::clamp(said, counted_from, now);
  };
  if (beat) {
    const TimePoint before = std::exchange(rank.beat_since, when(snapshot.beat_at_ns));
    // Likewise a time in which the process was not run: it could not have moved.
    rank.leave_out(std::max(Duration::zero(), rank.beat_since - before - settings_.pause_max));
  }
  if (change) {
    rank.change_since = when(snapshot.changed_at_ns);
    rank.older = rank.newer = {rank.beat_since, snapshot.cpu_ns};
  } else if (beat && rank.beat_since - rank.newer.at >= settings_.hang_timeout / 3) {
    rank.older = std::exchange(rank.newer, {rank.beat_since, snapshot.cpu_ns});
  }
}

// The record of a process that was killed is still there while its successor starts.
void HangWatch::take_start(Rank& rank, const ProgressSnapshot& snapshot, TimePoint now) {
  const bool its_own = rank.pid && *rank.pid == snapshot.pid && snapshot.beats > 0;
  if (!rank.beats_at_start && !its_own) {
    rank.beats_at_start = snapshot.beats;
  } else if (its_own || *rank.beats_at_start != snapshot.beats) {
    rank.phase = Phase::kRunning;
    rank.beat_since = rank.change_since = now;
  }
}

std::vector<HangVerdict> HangWatch::decide() {
  std::vector<HangVerdict> verdicts;
  if constexpr (!kRecovery) return verdicts;  // nobody writes a record
  bool somebody = false;
  for (int i = 0; i < static_cast<int>(ranks_.size()); ++i) {
    if (auto stuck = judge(i)) {
      at(i).named = stuck->kind;
      verdicts.push_back(std::move(*stuck));
    }
    somebody |= at(i).named.has_value();
  }
  if (somebody) return verdicts;
  if (auto stalled = judge_all()) {
    stall_told_ = true;
    verdicts.push_back(std::move(*stalled));
  }
  return verdicts;
}

std::optional<Stuck> HangWatch::judge(int index) const {
  const Rank& rank = ranks_[static_cast<std::size_t>(index)];
  if (rank.phase == Phase::kAbsent || !rank.readable || rank.named) return std::nullopt;
  Stuck stuck{.rank = index, .waiting = waiting(index)};
  if (rank.phase == Phase::kStarting) {
    stuck.silence = rank.read_at - rank.started_at;
    stuck.what = "its process was started and has not begun to report";
    if (stuck.silence < settings_.start_grace) return std::nullopt;
    return stuck;
  }
  stuck.what = describe_progress(*rank.last);
  stuck.silence = rank.read_at - rank.beat_since;
  if (stuck.silence >= settings_.hang_timeout) return stuck;
  stuck.kind = all_others_wait(index) ? Stuck::Kind::kBehind : Stuck::Kind::kStuck;
  stuck.silence = silence_while_beating(rank);
  const std::optional<Duration> allowed = allowed_silence(rank);
  if (!allowed || stuck.silence < *allowed) return std::nullopt;
  return stuck;
}

// Up to its last beat: a rank without beats may be stopped, which is another thing to say.
Duration HangWatch::silence_while_beating(const Rank& rank) const {
  return rank.beat_since - rank.change_since;
}

// How long a rank that beats may reach no point; nothing: for ever, as far as this watch goes.
std::optional<Duration> HangWatch::allowed_silence(const Rank& rank) const {
  if (patient(rank.last->stage) || waits(rank)) return std::nullopt;
  if (rank.last->in_file) return settings_.file_timeout;
  return busy(rank) ? settings_.busy_timeout : settings_.hang_timeout;
}

// In a collective of the generation that runs: one that is over must have let its ranks go.
bool HangWatch::waits(const Rank& rank) const {
  return rank.phase == Phase::kRunning && rank.readable && rank.last->in_collective &&
         generation_ == rank.last->generation;
}

bool HangWatch::busy(const Rank& rank) const {
  const Duration elapsed = rank.beat_since - rank.older.at;
  const double used_ns =
      static_cast<double>(rank.last->cpu_ns) - static_cast<double>(rank.older.cpu_ns);
  return elapsed > Duration::zero() && used_ns >= kBusyShare * static_cast<double>(elapsed.count());
}

bool HangWatch::all_others_wait(int index) const {
  return ranks_.size() > 1 && waiting(index).size() + 1 == ranks_.size();
}

std::vector<Stuck::Waiting> HangWatch::waiting(int except) const {
  std::vector<Stuck::Waiting> out;
  for (int i = 0; i < static_cast<int>(ranks_.size()); ++i) {
    const Rank& rank = ranks_[static_cast<std::size_t>(i)];
    if (i != except && waits(rank)) out.push_back({i, describe_collective(*rank.last)});
  }
  return out;
}

std::optional<Stalled> HangWatch::judge_all() const {
  const std::vector<Stuck::Waiting> all = waiting(-1);
  if (stall_told_ || all.size() != ranks_.size()) return std::nullopt;
  Duration silence = Duration::max();
  for (const Rank& rank : ranks_) silence = std::min(silence, silence_while_beating(rank));
  if (silence < settings_.stall_timeout) return std::nullopt;
  Stalled stalled{.silence = silence};
  for (const auto& [collective, ranks] : by_collective(all)) {
    stalled.what += fmt::format("{}{} {} in {}", stalled.what.empty() ? "" : "; ",
                                plural(ranks.size()), join_numbers(ranks), collective);
  }
  return stalled;
}

}  // namespace troupe::train
