#pragma once
// What a run's controller does about all that it hears, in its order: pure. It holds the run's
// state (run_state.h) and what is known of the trainers' processes (trainer_processes.h); what it
// gives back are actions, which the controller's actor carries out on its thread and the simulator
// in virtual time.
//
// One controller follows another. The first begins the run; one that finds the memory of the one
// before it goes on with that (restore), and one that finds none asks the trainers (find, found).

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/wire/types.h"
#include "train/trainer/run_state.h"
#include "train/trainer/trainer_messages.h"
#include "train/trainer/trainer_processes.h"

namespace troupe::train {

// Save what the session knows before the actions behind this one are carried out: the next process
// of the controller says them again.
struct SaveMemory {};
// Hear from the head of all trainers' processes: changed().
struct WatchTrainers {};
// Give the run's data to this process of the trainer, then data_given().
struct GiveData {
  int trainer = 0;
  std::uint64_t incarnation = 0;
};
// End the trainer's process, and let the head start another one.
struct RestartTrainer {
  int trainer = 0;
  std::string reason;
};
// Read what the memory of a rank's dead process says, for a PostMortem.
struct LookBack {
  int trainer = 0;
  int rank = 0;
  std::uint64_t incarnation = 0;
};
// A trainer's message that is news: for the user.
struct TellUser {
  std::int32_t rank = -1;
  TrainerMessage message;
};
using ControllerAction = std::variant<SaveMemory, WatchTrainers, GiveData, RestartTrainer, LookBack,
                                      TellUser, BeginGeneration, AbortGeneration, SaveAndStop,
                                      RecordEvent, EndRun, PauseAfterStep>;
using ControllerActions = std::vector<ControllerAction>;

class ControllerSession {
 public:
  // `incarnation`: of the controller's process.
  ControllerSession(const RunSettings& settings, std::uint64_t incarnation);

  // --- the begin, in one of three ways
  // So many trainers more were placed; RunState counts spares by SparesPlaced.
  void add_trainers(std::size_t count);
  // Goes on with the run where the process before was.
  ControllerActions restore(RunMemory run, const std::vector<TrainerProcesses::Saved>& trainers,
                            TimePoint now);
  // The run is looked for: what trainers tell from here on waits until it is found.
  void find() { finding_ = true; }
  struct Found {
    std::vector<std::optional<TrainerStatus>> trainers;  // by number; nothing: it did not answer
    std::uint64_t generations = 1;                       // that may have begun
    std::int64_t steps = 0;                              // the newest in the files
    std::vector<World> worlds;           // worlds_told(); of a run whose world may change
    std::optional<Duration> silent_for;  // since a step was written; nothing: none was
  };
  ControllerActions found(const Found& run, TimePoint now);

  // --- what happens
  ControllerActions tell(const RunInput& input, TimePoint now);
  // From the trainer that has this rank, or from a spare: -1.
  ControllerActions report(std::int32_t rank, TrainerMessage message, TimePoint now);
  // From the head.
  ControllerActions changed(int trainer, const wire::ActorInfo& info, TimePoint now);
  // The run's data are here: from the driver, or from the process before.
  ControllerActions data_arrived(TimePoint now);
  // How GiveData went; `gpu`: TrainerStatus::gpu.
  ControllerActions data_given(int trainer, std::uint64_t incarnation, const Status& given,
                               const std::string& gpu, TimePoint now);
  // About once a second.
  ControllerActions time_passed(TimePoint now);
  // Machines may come and go.
  bool changes_world() const { return settings_.ranks_per_machine > 0; }
  // The machine announces its end, and asks again until it may go. may_leave(), after it: it is
  // not needed, and goes once has_machine() is false.
  ControllerActions machine_leaves(int machine, TimePoint now);
  bool may_leave(int machine) const;

  const RunState& state() const { return state_; }
  // Whether the run may need what the machine holds, as RunState has it; while the run is looked
  // for, any may be needed.
  bool has_machine(int machine) const { return finding_ || state_.has_machine(machine); }
  const TrainerProcesses& processes() const { return processes_; }

 private:
  void feed(const RunInput& input, TimePoint now);
  void carry_out(std::vector<RunCommand> commands);
  void hear(std::int32_t rank, TrainerMessage message, TimePoint now);
  void keeper_lost(const std::string& node, TimePoint now);
  void give_data(int trainer, TimePoint now);
  // Says that this is another process of the controller than the one before.
  void tell_replaced(const std::string& cause, const std::string& text, TimePoint now);
  ControllerActions take();
  // The head, the controller and the run's output are there.
  static bool leads(int machine) { return machine == 0; }

  const RunSettings settings_;
  const std::uint64_t incarnation_;
  RunState state_;
  TrainerProcesses processes_;
  // By trainer: a spare that gets the run's data when the ranks do not need the processors for a
  // recovery any more.
  std::vector<bool> served_later_;
  std::map<std::string, std::optional<TimePoint>> keepers_lost_;  // by node, when last told
  bool has_data_ = false;
  bool finding_ = false;
  std::vector<std::pair<std::int32_t, TrainerMessage>> unheard_;  // while it is
  ControllerActions actions_;
};

// Those that answered and have the run's data.
std::vector<TrainerFound> living_trainers(
    const std::vector<std::optional<TrainerStatus>>& trainers);

}  // namespace troupe::train
