#pragma once
// What the parts of a simulated run share besides the cluster: its data, its checkpoints, and what
// really happened, for the invariants.

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "meeting.h"
#include "oracle.h"
#include "process.h"
#include "runtime/base/ids.h"
#include "simulation.h"
#include "train/trainer/run_memory.h"
#include "train/trainer/trainer_processes.h"

namespace troupe::simulation {

// What a controller saves for its next process.
struct SavedController final : Memory {
  train::RunMemory run;
  std::vector<train::TrainerProcesses::Saved> trainers;
};

class Run {
 public:
  // `counts`: where what happens is counted.
  Run(World& world, const Options& wanted, Result& counts, train::Sampler& all_samples);

  // The step that begins at `cursor`.
  const train::StepPlan& plan(const train::SampleCursor& cursor);

  // --- told by trainers
  // The rank's memory was not found there, or was. `memory_life`: of what the node keeps.
  void memory_missing(int rank, int node, std::uint64_t memory_life) const;
  void memory_found(int rank, int node, std::uint64_t memory_life);
  // A generation loads; `mixed`: because the ranks' memories do not fit together.
  void load_decided(bool mixed);
  void all_loaded() { loading_ = false; }
  void votes_complete(int rank, std::uint64_t generation, std::int64_t step,
                      const train::StepPlan& plan);
  void commits(std::uint64_t pid, std::uint64_t generation);
  void finished(int rank, std::uint64_t pid, std::int64_t step,
                const std::vector<std::uint64_t>& chunks);
  void loaded(int rank, std::int64_t step);
  // A generation goes on from memory, after which `step` stands. Ranks may have gone back to a
  // checkpoint meanwhile, on other nodes: then the older memory is further than they were.
  void goes_on(const std::vector<train::RankPosition>& positions, std::int64_t step);
  // The rank has the state of one that holds the same or, `from_kept`, kept a copy.
  void copied(int rank, std::int64_t step, bool from_kept);
  // What another rank keeps of this one's state.
  void kept_finished(int rank, std::int64_t step, const std::vector<std::uint64_t>& chunks);
  // All that are left had prepared the step, and others are lost, who may have committed it.
  void finished_for_the_lost(std::int64_t step, std::uint64_t generation,
                             const train::StepPlan& plan);
  void process_gone(std::uint64_t pid) { committing_.erase(pid); }
  // The run is over: every sample of every epoch was trained on once.
  void check_samples() const;
  std::int64_t newest_step() const;

  const Options options;
  Result& result;
  const int ranks;
  const std::vector<int> shards;  // by rank: ranks with equal numbers hold the same state
  const bool buddies;             // what only one node holds is kept by another
  Oracle oracle;
  MeetingPlace meetings;
  std::vector<ActorId> trainers;
  ActorId controller;
  std::int64_t checkpoint = 0;        // the newest one's step
  std::uint64_t told_generation = 0;  // the newest in the run's events
  bool ended = false;
  Status end;
  // Called, once, with the node of the next rank that commits a step by its votes.
  std::function<void(int node)> when_committed;

 private:
  void check_chunks(const char* what, int rank, std::int64_t step,
                    const std::vector<std::uint64_t>& chunks);

  World& world_;
  train::Sampler& sampler_;
  struct Where {
    int node = -1;
    std::uint64_t memory_life = 0;
    friend bool operator==(const Where&, const Where&) = default;
  };
  std::vector<Where> memory_at_;  // by rank
  bool loading_ = false;          // a generation began to load, and not all ranks have
  std::map<std::int64_t, train::StepPlan> plans_;     // by samples consumed before
  std::map<std::int64_t, std::uint64_t> decided_in_;  // step → generation
  std::map<std::int64_t, std::vector<std::uint32_t>> samples_;
  std::map<std::uint64_t, std::uint64_t> committing_;  // process → generation
  std::vector<std::int64_t> done_;                     // by rank
};

}  // namespace troupe::simulation
