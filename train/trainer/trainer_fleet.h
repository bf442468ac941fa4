#pragma once
// A run's trainers as actors: places them, hears of their processes from the head, and gives each
// process the run's data. What that means for the run is RunState's to decide, which is told of it.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/context.h"
#include "actors/handle.h"
#include "runtime/base/clock.h"
#include "train/trainer/bundle_courier.h"
#include "train/trainer/controller_memory.h"
#include "train/trainer/run_finder.h"
#include "train/trainer/run_journal.h"
#include "train/trainer/run_spec.h"
#include "train/trainer/run_state.h"
#include "train/trainer/side_threads.h"
#include "train/trainer/trainer_actor.h"
#include "train/trainer/trainer_options.h"
#include "train/trainer/trainer_processes.h"

namespace troupe::train {

// On its actor's thread.
class TrainerFleet {
 public:
  // A death's event waits so long for the memory of the dead.
  static constexpr auto kPostMortemTimeout = std::chrono::milliseconds(500);

  struct Trainer {
    ActorHandle<TrainerActor> handle;
    ActorWatch watch;
    // Of the process that the head told alive last.
    NodeId node_id;
    std::int64_t pid = 0;
    // A spare that gets the run's data when the ranks do not need the processors for a recovery.
    bool served_later = false;
  };
  // The run that they are of. All outlive the fleet, and the threads end before it.
  struct Run {
    const RunSpec& spec;
    const RunState& state;
    const BundleCourier& bundle;
    RunJournal& journal;
    const Clock& clock;
    SideThreads& beside;
    // Gives RunState what happened.
    std::function<void(const RunInput&)> feed;
    // There are more trainers for save().
    std::function<void()> remember;
  };
  TrainerFleet(ActorContext& context, Run run) : context_(context), run_(std::move(run)) {}

  // The ranks' trainers, all at once or none: they wait in the cluster's line, or with
  // RunSpec::no_wait are refused with what is missing.
  Status place();
  // Spares beside them, where none were placed before.
  void place_spares();
  const std::vector<Trainer>& trainers() const { return trainers_; }
  const Trainer& operator[](int number) const {
    return trainers_[static_cast<std::size_t>(number)];
  }

  // For the next process of the controller; what a process before it knew; what was found of a run
  // whose controller left no memory (`living`: RunState's part of it). watch() goes on from there.
  void save(ControllerMemory& memory) const;
  void restore(const ControllerMemory& memory);
  void adopt(const FoundRun& run, const std::vector<TrainerFound>& living);
  void watch();

  // The run's data have arrived.
  void serve_waiting();
  // After each input of RunState: spares that were to wait for the end of a recovery.
  void serve_later_ones();
  // Ends processes that do not take the run's data.
  void end_unserved(TimePoint now);
  void kill_and_restart(int number, const std::string& reason);
  // For good.
  void end_all(const std::string& reason);

 private:
  GangMember<TrainerActor> member(int number, const std::optional<SparePlace>& place = {});
  void add(const ActorHandle<TrainerActor>& handle);
  void watch(int number);
  void changed(int number, const wire::ActorInfo& info);
  void keeper_lost(const std::string& node);
  void give_bundle(int number);
  // `status`: of the trainer, where its node's GPUs matter.
  void gave_bundle(int number, std::uint64_t incarnation, const Status& given,
                   const TrainerStatus& status = {});
  // Reads what the memory of a rank's dead process says.
  void look_back(int number, int rank, std::uint64_t incarnation);

  ActorContext& context_;
  const Run run_;
  std::vector<Trainer> trainers_;
  TrainerProcesses processes_;  // of the same numbers
  bool spares_wanted_ = true;
  std::map<std::string, std::optional<TimePoint>> keepers_lost_;  // by node, when last told
};

}  // namespace troupe::train
