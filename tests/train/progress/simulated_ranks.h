#pragma once
// Ranks of a run in virtual time, as a watcher sees them: operators, collectives, files, states
// that are read, and what goes wrong.

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "train/progress/hang_watch.h"

namespace troupe::train {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline TimePoint at_time(Duration since_start) { return TimePoint(since_start); }

// Advances in steps of 10 ms.
class SimulatedRanks {
 public:
  static constexpr Duration kTurn = milliseconds(10);

  SimulatedRanks(int world_size, std::uint64_t seed) : random_(seed) {
    for (int i = 0; i < world_size; ++i) {
      Rank rank;
      rank.snapshot.pid = 1000 + i;
      rank.snapshot.generation = 1;
      rank.beat_phase = below(10);
      rank.clock_offset = milliseconds(below(1'000'000));
      ranks_.push_back(rank);
    }
  }

  // A machine that runs nobody at all for a while.
  void freeze(bool frozen) { frozen_ = frozen; }
  // From now on.
  void stop(int rank) { of(rank).stopped = true; }
  // At its next operator.
  void hang(int rank) { of(rank).to_hang = true; }
  void cut_network() { network_ = false; }
  // A collective of 300 ms and more.
  void slow_network() { transfer_turns_ = 30; }

  bool stopped(int rank) const { return ranks_[static_cast<std::size_t>(rank)].stopped; }
  bool hangs(int rank) const {
    const Rank& r = ranks_[static_cast<std::size_t>(rank)];
    return r.activity == Activity::kHang;
  }
  const ProgressSnapshot& snapshot(int rank) const {
    return ranks_[static_cast<std::size_t>(rank)].snapshot;
  }
  TimePoint now() const { return now_; }
  // Of the last sign of it, in the watcher's time.
  TimePoint last_beat(int rank) const { return ranks_[static_cast<std::size_t>(rank)].beat_at; }
  TimePoint last_change(int rank) const { return ranks_[static_cast<std::size_t>(rank)].change_at; }

  void turn() {
    now_ += kTurn;
    if (frozen_) return;
    ++turns_;
    for (Rank& rank : ranks_) {
      if (rank.stopped) continue;
      advance(rank);
      if ((turns_ + rank.beat_phase) % 10 == 0) {
        ++rank.snapshot.beats;
        rank.snapshot.cpu_ns = rank.cpu_ns;
        rank.beat_at = now_;
        rank.snapshot.beat_at_ns = (now_ + rank.clock_offset).time_since_epoch().count();
      }
    }
    transfer();
  }

 private:
  enum class Activity : std::uint8_t { kBegin, kOperator, kCollective, kFile, kLoad, kHang };
  struct Rank {
    ProgressSnapshot snapshot;
    Activity activity = Activity::kBegin;
    int turns_left = 0;
    bool busy = false;
    int operators_left = 0;
    bool stopped = false, to_hang = false;
    std::int64_t cpu_ns = 0;
    int beat_phase = 0;
    Duration clock_offset{};
    TimePoint beat_at{}, change_at{};
  };

  Rank& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  void change(Rank& rank) {
    ++rank.snapshot.changes;
    rank.change_at = now_;
    rank.snapshot.changed_at_ns = (now_ + rank.clock_offset).time_since_epoch().count();
  }

  void advance(Rank& rank) {
    if (rank.busy) rank.cpu_ns += kTurn.count();
    if (rank.activity == Activity::kHang || rank.activity == Activity::kCollective) return;
    if (rank.turns_left-- > 0) return;
    next(rank);
  }

  // The next activity of a step: operators, then a collective, now and then a file or a state.
  void next(Rank& rank) {
    rank.busy = false;
    rank.snapshot.in_file = false;
    rank.snapshot.stage = Stage::kForward;
    change(rank);
    if (rank.operators_left-- > 0) {
      rank.activity = Activity::kOperator;
      rank.busy = true;
      rank.turns_left = below(80) == 0 ? below(2000) : below(15);
      if (rank.to_hang) {
        rank.activity = Activity::kHang;
        rank.busy = false;
      } else if (below(150) == 0) {
        rank.activity = Activity::kFile;
        rank.busy = false;
        rank.snapshot.in_file = true;
        rank.turns_left = below(6000);
      } else if (below(200) == 0) {
        rank.activity = Activity::kLoad;
        rank.busy = false;
        rank.snapshot.stage = Stage::kLoad;
        rank.turns_left = below(3000);
      }
      return;
    }
    rank.activity = Activity::kCollective;
    rank.operators_left = 1 + below(8);
    rank.snapshot.in_collective = true;
    rank.snapshot.collective = "all_reduce";
    ++rank.snapshot.collective_sequence;
  }

  // All ranks are in one collective: bytes move, then it is over.
  void transfer() {
    const bool together = std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& rank) {
      return rank.activity == Activity::kCollective && !rank.stopped &&
             rank.snapshot.collective_sequence == ranks_[0].snapshot.collective_sequence;
    });
    if (!together || !network_) return;
    const bool over = ++transferred_turns_ >= transfer_turns_;
    for (Rank& rank : ranks_) {
      change(rank);
      if (!over) continue;
      rank.snapshot.in_collective = false;
      rank.activity = Activity::kOperator;
      rank.turns_left = 0;
    }
    if (over) transferred_turns_ = 0;
  }

  std::mt19937_64 random_;
  std::vector<Rank> ranks_;
  TimePoint now_ = at_time(seconds(1000));
  bool frozen_ = false, network_ = true;
  int turns_ = 0, transfer_turns_ = 1, transferred_turns_ = 0;
};

}  // namespace troupe::train
