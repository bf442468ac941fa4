#pragma once
// Which rank hangs, what it was doing, and who waits for it: pure decisions from the ranks'
// progress records, taken by the controller.
//
// A rank is named where its process has no beats any more (it is stopped, or its machine is), or
// where it beats and reaches no point. A rank that waits in a collective is not the reason; where
// all wait and no bytes move, the network is.
//
// Time is the watcher's own. Of two readings that lie further apart than pause_max only that much
// counts: a watcher that was not run, or could not read, has not seen anybody be silent. So do two
// beats: a process that was not run could not move.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "runtime/base/clock.h"
#include "train/progress/progress_record.h"

namespace troupe::train {

struct HangSettings {
  // Without beats, or without a point.
  Duration hang_timeout = std::chrono::seconds(3);
  // What an operation on a file may take: slow disks sync for minutes.
  Duration file_timeout = std::chrono::minutes(11);
  // What a rank may compute without reaching a point while it uses its processor: a product of
  // large matrices is one operator.
  Duration busy_timeout = std::chrono::seconds(60);
  // All wait in collectives and no bytes move.
  Duration stall_timeout = std::chrono::seconds(6);
  // A started process's time up to its first beat.
  Duration start_grace = std::chrono::seconds(30);
  // The longest pause between two readings that counts whole. Ranks are read more often.
  Duration pause_max = std::chrono::milliseconds(750);

  // `hang_timeout` given, the others in proportion; file_timeout and start_grace as above.
  static HangSettings with_timeout(Duration hang_timeout);
};

// A rank that is to be killed and replaced.
struct Stuck {
  enum class Kind : std::uint8_t {
    kStopped,  // no beats
    kStuck,    // beats, but no point
    kBehind,   // likewise, and all other ranks wait for it
  };
  struct Waiting {
    int rank = 0;
    std::string collective;  // describe_collective()
    friend bool operator==(const Waiting&, const Waiting&) = default;
  };
  int rank = 0;
  Kind kind = Kind::kStopped;
  std::string what;              // describe_progress() of it
  Duration silence{0};           // without beats or points, as far as it was watched
  std::vector<Waiting> waiting;  // who waits in a collective meanwhile, by rank

  // "rank 2 does not run for 3.0 s: step 41, backward of unit 3, operator gemm; ranks 0, 1 wait for
  // it in all-reduce 1207"
  std::string to_string() const;
};

// The network: the generation is to be formed anew, nobody is to be killed.
struct Stalled {
  // Ranks, collectives and sequence numbers: "ranks 0, 1 wait in all-reduce 1207; rank 2 in barrier
  // 9 of group 'shard'".
  std::string what;
  Duration silence{0};

  std::string to_string() const;
};

using HangVerdict = std::variant<Stuck, Stalled>;
std::string to_string(const HangVerdict& verdict);

// Times never go back. Ranks are 0 … world_size − 1.
class HangWatch {
 public:
  HangWatch(int world_size, const HangSettings& settings);

  // A process for this rank was started, or a spare was given the rank: it has start_grace up to
  // its first beat. Where its pid is known the first reading of its record shows that; else the
  // record may be what a process before it left, until beats move.
  void rank_started(int rank, TimePoint now, std::optional<std::int64_t> pid = {});
  // The rank has no process: nothing is expected of it until rank_started().
  void rank_ended(int rank, TimePoint now);
  // All ranks run in this generation from now on. Before and after one nobody waits in a collective
  // with a reason.
  void generation_begun(std::uint64_t generation, TimePoint now);
  void generation_ended(TimePoint now);
  // What was read of the rank at `now`; nothing: it could not be read, which is nobody's fault here
  // (a node that does not answer is noticed by others).
  void read(int rank, const std::optional<ProgressSnapshot>& snapshot, TimePoint now);

  // After the readings of a tick. Each is told once: again where the rank has moved or was started
  // anew since then, and a stall once a generation unless bytes have moved.
  std::vector<HangVerdict> decide();

 private:
  enum class Phase : std::uint8_t {
    kAbsent,    // no process
    kStarting,  // its beats are awaited
    kRunning,
  };
  struct CpuMark {
    TimePoint at{};
    std::int64_t cpu_ns = 0;
  };
  struct Rank {
    Phase phase = Phase::kAbsent;
    TimePoint started_at{};
    // What the record said when it was first read after the start: still its predecessor's words.
    std::optional<std::uint64_t> beats_at_start;
    std::optional<std::int64_t> pid;
    std::optional<ProgressSnapshot> last;
    TimePoint read_at{};    // of `last`
    bool readable = false;  // the last attempt gave `last`
    // No beat, no change since.
    TimePoint beat_since{}, change_since{};
    // The watcher's clock minus the rank's: the least that was seen.
    std::optional<Duration> offset;
    // Processor time at a beat a while ago, and a while before that, within one silence.
    CpuMark older, newer;
    std::optional<Stuck::Kind> named;

    // Time in which it could not be seen to move.
    void leave_out(Duration time);
  };

  Rank& at(int rank) { return ranks_.at(static_cast<std::size_t>(rank)); }
  void take(Rank& rank, const ProgressSnapshot& snapshot, TimePoint now);
  void take_times(Rank& rank, const ProgressSnapshot& snapshot, bool beat, bool change,
                  TimePoint now);
  void take_start(Rank& rank, const ProgressSnapshot& snapshot, TimePoint now);
  std::optional<Stuck> judge(int index) const;
  Duration silence_while_beating(const Rank& rank) const;
  std::optional<Duration> allowed_silence(const Rank& rank) const;
  bool waits(const Rank& rank) const;
  bool busy(const Rank& rank) const;
  bool all_others_wait(int index) const;
  std::optional<Stalled> judge_all() const;
  std::vector<Stuck::Waiting> waiting(int except) const;

  HangSettings settings_;
  std::vector<Rank> ranks_;
  std::optional<std::uint64_t> generation_;
  bool stall_told_ = false;
};

}  // namespace troupe::train
