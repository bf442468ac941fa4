#pragma once
// The controller's process: train/trainer/controller.cpp around the real RunState, with simulated
// calls and no files.

#include <map>
#include <optional>

#include "cluster.h"
#include "run.h"
#include "sim_head_client.h"
#include "sim_trainer.h"
#include "train/trainer/run_state.h"
#include "train/trainer/trainer_processes.h"

namespace troupe::simulation {

class Controller final : public Process {
 public:
  Controller(Cluster& cluster, Run& run, Place place);

  // From trainers.
  void report(const train::RunInput& message);
  // From whoever watches the ranks' progress.
  void stuck(std::uint64_t pid, Duration silent_for);
  std::string describe() const;

 private:
  struct Found {
    std::vector<std::optional<train::TrainerFound>> status;
    std::size_t answers = 0;
    bool used = false;
  };

  void start(MemoryPtr saved) override;
  void attached(std::uint64_t, const Status&, MemoryPtr) override {}
  void on_death() override;

  train::RunSettings settings() const;
  void watch();
  void actor_changed(int number, const wire::ActorInfo& info);
  void give_bundle(int number);
  void gave_bundle(int number, std::uint64_t incarnation, bool given);
  void kill_and_restart(int number, const std::string& why);
  void find_run();
  void found_run(const Found& found);
  void tick();
  void remember();
  void feed(const train::RunInput& input);
  void carry_out(const std::vector<train::RunCommand>& commands);
  void carry_out(const train::BeginGeneration& command);
  void carry_out(const train::AbortGeneration& command);
  void carry_out(const train::KillTrainer& command);
  void carry_out(const train::SaveAndStop& command);
  void carry_out(const train::RecordEvent& command);
  void carry_out(const train::EndRun& command);

  Run& run_;
  train::RunState state_;
  train::TrainerProcesses trainers_;
  std::vector<train::RunInput> unheard_;  // while it looks for its run
  SimHeadClient head_;
};

}  // namespace troupe::simulation
