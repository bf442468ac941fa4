#pragma once
// Looks at the ranks' progress records from outside, on a thread of its own: who hangs, who is
// slow. Decisions are train/progress's (hang_watch.h, straggler_watch.h).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/wire/types.h"
#include "train/progress/hang_watch.h"
#include "train/progress/straggler_watch.h"
#include "troupe/detail/mutex.h"

namespace troupe::train {

// "rank-3/progress": the segment in which a rank's process records where it is.
std::string progress_segment_name(int world, int rank);

class RankWatch {
 public:
  // A rank's process.
  struct Process {
    ActorId actor;
    std::uint64_t incarnation = 0;
    // Records of other processes are not its own: what the one before it left.
    std::int64_t pid = 0;
    friend bool operator==(const Process&, const Process&) = default;
  };
  // Who is to be looked at.
  struct Ranks {
    int world = 0;  // its number: with another one, ranks are others
    std::uint64_t generation = 0;
    bool running = false;                           // the generation has begun and is not lost
    bool saving = false;                            // it is told whether bytes go to a disk
    std::vector<std::optional<Process>> processes;  // by rank; nothing: none lives
    friend bool operator==(const Ranks&, const Ranks&) = default;
  };
  // What was noticed, in the generation that ran then.
  struct Noticed {
    std::uint64_t generation = 0;
    bool saving_moves = false;  // with Ranks::saving: something was done with files since
    std::vector<HangVerdict> hangs;
    std::vector<StragglerReport> stragglers;
  };
  struct Options {
    Duration hang_timeout = std::chrono::seconds(3);  // 0: only stragglers are looked for
    // Reads the first bytes of an actor's segment; called on the watch's thread.
    std::function<Result<wire::Bytes>(ActorId actor, const std::string& segment, std::size_t bytes,
                                      Deadline deadline)>
        read;
    // Called on the watch's thread, with at least one thing noticed.
    std::function<void(Noticed)> tell;
  };

  RankWatch(int world_size, Options options);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  // From now on. Any thread; returns at once.
  void look_at(Ranks ranks);

 private:
  void run();
  void take(const Ranks& ranks);
  Noticed look();

  const Options options_;
  const Duration interval_;
  SystemClock clock_;
  // The thread's.
  HangWatch hangs_;
  StragglerWatch stragglers_;
  Ranks seen_;
  std::vector<std::uint64_t> changes_;  // of the ranks' records, as they were last read

  Mutex mutex_;
  CondVar changed_;
  Ranks wanted_ TROUPE_GUARDED_BY(mutex_);
  bool ends_ TROUPE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace troupe::train
