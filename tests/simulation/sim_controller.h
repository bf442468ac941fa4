#pragma once
// The controller's process: it carries out what the real ControllerSession decides, with simulated
// calls and no files.

#include "cluster.h"
#include "run.h"
#include "sim_head_client.h"
#include "sim_trainer.h"
#include "train/trainer/controller_session.h"

namespace troupe::simulation {

class Controller final : public Process {
 public:
  Controller(Cluster& cluster, Run& run, Place place);

  // From trainers.
  void report(std::int32_t rank, const train::TrainerMessage& message);
  // From whoever watches the ranks' progress.
  void stuck(std::uint64_t pid, Duration silent_for);
  // From a machine that is to leave, as TrainController has them.
  bool machine_leaves(int machine);
  bool has_machine(int machine) const { return session_.has_machine(machine); }
  std::string describe() const;

 private:
  struct Search {
    train::ControllerSession::Found found;
    std::size_t answers = 0;
    bool used = false;
  };

  void start(MemoryPtr saved) override;
  void attached(std::uint64_t, const Status&, MemoryPtr) override {}
  void asked_to_stop(Duration grace) override;
  void on_death() override;

  void begin(const std::shared_ptr<SavedController>& saved);
  void find_run();
  void found_run(Search& search);
  void tick();
  wire::ActorInfo seen(int trainer, wire::ActorInfo info) const;
  void kill_and_restart(int trainer, const std::string& why);

  const train::RunState& state() const { return session_.state(); }
  TimePoint now() const { return world_.timeline.now(); }
  // Nothing is carried out once the run has ended.
  void act(const train::ControllerActions& actions);
  void carry_out(const train::SaveMemory& action);
  void carry_out(const train::WatchTrainers& action);
  void carry_out(const train::GiveData& action);
  void carry_out(const train::RestartTrainer& action);
  void carry_out(const train::LookBack&) {}
  void carry_out(const train::TellUser& action);
  void carry_out(const train::BeginGeneration& action);
  void carry_out(const train::AbortGeneration& action);
  void carry_out(const train::SaveAndStop&) {}
  void carry_out(const train::PauseAfterStep& action);
  void carry_out(const train::RecordEvent& action);
  void carry_out(const train::EndRun& action);

  Run& run_;
  train::ControllerSession session_;
  SimHeadClient head_;
};

}  // namespace troupe::simulation
