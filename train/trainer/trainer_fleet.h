#pragma once
// A run's trainers as actors: places them, hears of their processes from the head, and gives each
// process the run's data. What that means is ControllerSession's to decide.

#include <functional>
#include <string>
#include <vector>

#include "train/trainer/bundle_courier.h"
#include "train/trainer/controller_memory.h"
#include "train/trainer/controller_session.h"
#include "train/trainer/run_finder.h"
#include "train/trainer/run_spec.h"
#include "train/trainer/side_threads.h"
#include "train/trainer/trainer_actor.h"
#include "train/trainer/trainer_options.h"
#include "troupe/actor.h"
#include "troupe/handle.h"

namespace troupe::train {

// On its actor's thread.
class TrainerFleet {
 public:
  // A death's event waits so long for the memory of the dead.
  static constexpr auto kPostMortemTimeout = std::chrono::milliseconds(500);

  struct Trainer {
    ActorHandle<TrainerActor> handle;
    ActorWatch watch;
  };
  // The run that they are of. All outlive the fleet, and the threads end before it.
  struct Run {
    const RunSpec& spec;
    ControllerSession& session;
    const BundleCourier& bundle;
    const Clock& clock;
    SideThreads& beside;
    // Carries out what the session answers.
    std::function<void(ControllerActions)> act;
  };
  TrainerFleet(ActorContext& context, Run run) : context_(context), run_(std::move(run)) {}

  // The ranks' trainers, all at once or none: they wait in the cluster's line, or with
  // RunSpec::no_wait are refused with what is missing.
  Status place();
  Status place_machines();
  // Spares beside them, where none were placed before.
  void place_spares();
  const std::vector<Trainer>& trainers() const { return trainers_; }
  const ActorHandle<TrainerActor>& operator[](int number) const {
    return trainers_[static_cast<std::size_t>(number)].handle;
  }

  // For the next process of the controller; the handles that a process before it saved, or that
  // were found. The session knows the rest; watch() goes on from there.
  void save(ControllerMemory& memory) const;
  void restore(const ControllerMemory& memory);
  void adopt(const std::vector<ActorHandle<TrainerActor>>& found);
  void watch();

  void give_data(int number, std::uint64_t incarnation);
  // Ends the process; another one is started.
  void restart(int number, const std::string& reason);
  // For good.
  void end_all(const std::string& reason);
  // Reads what the memory of a rank's dead process says.
  void look_back(const LookBack& dead);

 private:
  GangMember<TrainerActor> member(int number, const std::optional<SparePlace>& place = {});
  void add(const std::vector<ActorHandle<TrainerActor>>& handles);
  void watch(int number);
  // `status`: of the trainer, where its node's GPUs matter.
  void gave_data(int number, std::uint64_t incarnation, const Status& given,
                 const TrainerStatus& status = {});

  ActorContext& context_;
  const Run run_;
  std::vector<Trainer> trainers_;
  bool spares_wanted_ = true;
  std::uint64_t spares_tried_in_ = 0;  // generation
};

}  // namespace troupe::train
