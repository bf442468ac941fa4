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
#include "train/report/run_event.h"
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

  // How a world of so many ranks shares the model.
  const Layout& layout(int ranks);

  // Where a node keeps something: with another life, what it kept is lost.
  struct Where {
    int node = -1;
    std::uint64_t memory_life = 0;
    friend auto operator<=>(const Where&, const Where&) = default;
  };

  // --- told by trainers
  // The memory of this name was not found there, or was, or is not needed any more.
  void memory_missing(const std::string& name, const Where& at) const;
  void memory_found(const std::string& name, const Where& at) { memory_at_[name] = at; }
  void memory_dropped(const std::string& name, int of_world);
  // It was in this generation last. A rank that moved to another node and back finds older memory
  // than it had meanwhile, which fits that of nobody.
  void memory_taken(const std::string& name, std::uint64_t generation);
  void memory_joins(const std::string& name, std::uint64_t generation) {
    joined_[name] = generation;
  }
  // A generation loads; `mixed`: because the ranks' memories do not fit together.
  void load_decided(bool mixed);
  void all_loaded() { loading_ = false; }
  // True: nobody has seen it before.
  bool votes_complete(int rank, std::uint64_t generation, std::int64_t step,
                      const train::StepPlan& plan);
  // A step stands in this world: where each distinct state is held from here on, by whomever.
  using Holders = std::vector<std::set<Where>>;
  void stands(int in_world, Holders holders);
  void commits(std::uint64_t pid, std::uint64_t generation);
  void finished(int rank, std::uint64_t pid, std::int64_t step, const Layout& layout,
                const std::vector<std::uint64_t>& values);
  void loaded(int rank, std::int64_t step);
  // A generation goes on from memory, after which `step` stands. Ranks may have gone back to a
  // checkpoint meanwhile, on other nodes: then the older memory is further than they were.
  void goes_on(const std::vector<train::RankPosition>& positions, std::int64_t step);
  // The rank has the state of one that holds the same or, `from_kept`, kept a copy.
  void copied(int rank, std::int64_t step, bool from_kept);
  // What another rank keeps of this one's state, or what this one had in a world before.
  void kept_finished(int rank, std::int64_t step, const Layout& layout,
                     const std::vector<std::uint64_t>& values);
  // All that are left had prepared the step, and others are lost, who may have committed it.
  void finished_for_the_lost(std::int64_t step, std::uint64_t generation,
                             const train::StepPlan& plan);
  using IsKept = std::function<bool(const Where&)>;
  // A state of another world is this rank's.
  void handed_over(int rank, std::int64_t step, const Layout& layout,
                   const std::vector<std::uint64_t>& values, const IsKept& is_kept);
  // Steps are lost: some state is in nobody's memory.
  void steps_lost(const IsKept& is_kept) const;
  void process_gone(std::uint64_t pid) { committing_.erase(pid); }
  // --- told by machines that come and go
  void cut_off(int node);
  void reached(int node) { cut_off_.extract(node); }
  // Something happened after which steps may be lost, until one stands again: README.md, "Known".
  void may_lose_steps() { may_lose_steps_ = true; }
  // The node goes in order, since the run does without it.
  void let_go(int node, const IsKept& is_kept) const;

  // The run is over: every sample of every epoch was trained on once.
  void check_samples() const;
  std::int64_t newest_step() const;

  const Options options;
  Result& result;
  const int ranks;           // the most that there may be
  const bool buddies;        // what only one node holds is kept by another
  const int machines_min;    // of a world that may change
  const int first_machines;  // that it begins with
  Oracle oracle;
  MeetingPlace meetings;
  std::vector<ActorId> trainers;
  ActorId controller;
  std::int64_t checkpoint = 0;               // the newest one's step
  std::uint64_t told_generation = 0;         // the newest in the run's events
  std::int64_t told_step = 0;                // the newest in its steps
  std::vector<train::RunEvent> told_events;  // that its world changed
  bool ended = false;
  Status end;
  // Called, once, with the node of the next rank that commits a step by its votes.
  std::function<void(int node)> when_committed;
  // Called with the machines that the run does without.
  std::function<void(const std::vector<std::int32_t>& machines)> when_done_without;

 private:
  // False: it was decided before.
  bool decide(std::int64_t step, std::uint64_t generation, const train::StepPlan& plan);
  void check_values(const char* what, int rank, std::int64_t step, const Layout& layout,
                    const std::vector<std::uint64_t>& values);

  World& world_;
  train::Sampler& sampler_;
  std::map<int, Layout> layouts_;  // by ranks
  std::map<std::string, Where> memory_at_;
  std::map<std::string, std::uint64_t> joined_;  // generation, by memory
  bool may_lose_steps_ = false;
  int stands_in_ = 0;                // the world in which the last step stood
  Holders holders_;                  // as the last step that stood had them
  std::multiset<int> cut_off_;       // nodes
  std::multiset<int> were_cut_off_;  // since that step
  bool loading_ = false;             // a generation began to load, and not all ranks have
  std::map<std::int64_t, train::StepPlan> plans_;     // by samples consumed before
  std::map<std::int64_t, std::uint64_t> decided_in_;  // step → generation
  std::map<std::int64_t, std::vector<std::uint32_t>> samples_;
  std::map<std::uint64_t, std::uint64_t> committing_;  // process → generation
  std::vector<std::int64_t> done_;                     // by rank
};

}  // namespace troupe::simulation
