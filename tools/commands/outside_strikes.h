#pragma once
// Strikes a training from outside, by pid and by proxy, when its schedule says so. Knows nothing of
// what happens inside: a kill comes at any moment.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "actors/chaos_cluster/marked_processes.h"
#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "train/chaos/schedule.h"
#include "troupe/chaos_cluster.h"

namespace troupe::tools {

// The step under way as a training's steps.jsonl says, read on from where it was.
class StepsSeen {
 public:
  // What is in the file now is of an earlier run.
  explicit StepsSeen(const std::string& output_dir);
  // 0: the training has not begun to write.
  std::int64_t under_way();

 private:
  const std::string path_;
  std::int64_t old_mtime_ns_ = -1;
  std::int64_t offset_ = 0, lines_ = 0;
};

struct OutsideStrike {
  double at_s = 0;  // since the first step stood
  std::string fault;
  std::string target;  // "rank 1, process 4711", "node 0's connections"; empty: there was none
  // A process of the cluster, whose end no trainer notices.
  bool of_cluster = false;
  std::int64_t unix_time_us = 0;
};
json::Object to_json(const OutsideStrike& strike);

// One thread. Stopped processes go on when it is destroyed.
class OutsideStrikes {
 public:
  // `cluster` may be null: then no fault needs it. All outlive it.
  OutsideStrikes(const std::vector<train::Fault>& faults, std::uint64_t seed, std::string mark,
                 ChaosCluster* cluster, const Clock& clock);
  ~OutsideStrikes();
  OutsideStrikes(const OutsideStrikes&) = delete;
  OutsideStrikes& operator=(const OutsideStrikes&) = delete;

  // Strikes what is due, and ends what has lasted long enough. To be called every few milliseconds.
  // `step`: the one under way; 0 before the first.
  void tick(std::int64_t step);
  const std::vector<OutsideStrike>& strikes() const { return strikes_; }
  // The faults that found something to strike, one text for each time.
  std::vector<std::string> struck() const;

 private:
  struct Lasting {  // a fault that ends by itself
    TimePoint until;
    pid_t pid = -1;     // of a slow process
    double factor = 0;  // of it
    bool stopped = false;
    int node = -1;  // of connections
  };
  void strike(const train::Fault& fault, double at_s);
  std::string strike_process(const train::Fault& fault);
  std::string strike_link(const train::Fault& fault);
  std::string strike_node(const train::Fault& fault);
  std::optional<chaos::MarkedProcess> victim_of(const train::Fault& fault);
  void end_lasting(TimePoint now);

  const std::vector<train::Fault>& faults_;
  train::StrikeSchedule schedule_;
  SeededRandom random_;
  const std::string mark_;
  ChaosCluster* cluster_;
  const Clock& clock_;
  std::optional<TimePoint> first_step_at_;
  std::vector<Lasting> lasting_;
  std::vector<OutsideStrike> strikes_;
};

// The same beside a training that this process drives, with an embedded cluster, in a thread of its
// own.
class StrikesBeside {
 public:
  // Null where all faults strike at points. kInvalidArgument for faults that need a cluster of
  // their own. Marks the processes that this one will start, by its environment: before it has
  // other threads.
  static Result<std::unique_ptr<StrikesBeside>> start(const std::vector<train::Fault>& faults,
                                                      const std::string& output_dir);
  ~StrikesBeside();
  // Ends the strikes; the faults that found something to strike, one text for each time.
  std::vector<std::string> struck();
  StrikesBeside(const StrikesBeside&) = delete;
  StrikesBeside& operator=(const StrikesBeside&) = delete;

 private:
  StrikesBeside(std::vector<train::Fault> faults, const std::string& output_dir, std::string mark);
  const std::vector<train::Fault> faults_;
  SystemClock clock_;
  StepsSeen steps_;
  OutsideStrikes strikes_;
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace troupe::tools
