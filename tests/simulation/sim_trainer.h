#pragma once
// A trainer's process: the loop of train/trainer with small integers for tensors.

#include <deque>
#include <optional>

#include "cluster.h"
#include "run.h"
#include "task.h"
#include "train/optimizer/update_log.h"
#include "train/trainer/run_inputs.h"
#include "train/transaction/recovery.h"

namespace troupe::simulation {

// A rank's memory that outlives its processes.
struct RankMemory final : Memory {
  explicit RankMemory(int ranks);
  train::StepTransaction transaction();
  train::UpdateLog update_log();

  train::TransactionMemory state{};
  std::vector<std::uint64_t> marks;  // whole lines
  std::vector<std::uint64_t> undo;
  std::vector<std::uint64_t> chunks;     // this rank's parameters
  std::vector<std::uint64_t> reduced;    // its gradients, reduced
  std::vector<std::uint64_t> everybody;  // all ranks' parameters, as published
  std::uint64_t owner = 0;               // the process that has it
};

struct Plan {
  std::uint64_t generation = 0;
  std::vector<ActorId> ranks;
};

class Trainer final : public Process {
 public:
  Trainer(Cluster& cluster, Run& run, Place place)
      : Process(cluster, std::move(place)), run_(run) {}

  // --- calls
  void take_bundle();
  void begin(Plan plan);
  void abort(std::uint64_t generation);
  train::TrainerFound status(int number) const;
  bool has_bundle() const { return has_bundle_; }

  // --- from meetings
  void met(const MeetingPtr& meeting, int rank);
  void collective_done(const Meeting& meeting, std::uint64_t number, const Gathered& result);
  void meeting_broken(const Meeting& meeting);

  // Dies inside the optimizer phase, at one of its moments.
  void die_in_chunk() { dies_in_chunk_ = true; }
  std::string doing() const { return doing_; }

 private:
  struct Nothing {};
  struct Suspended {
    Trainer& trainer;
    bool await_ready() { return false; }
    void await_suspend(std::coroutine_handle<> handle) { trainer.suspended_ = handle; }
    void await_resume() {}
  };
  // Thrown where the process dies by itself.
  struct Killed {};

  void start(MemoryPtr saved) override;
  void attached(std::uint64_t request_id, const Status& status, MemoryPtr memory) override;
  void on_death() override;
  void resume();
  void wake();
  void look();
  void tell(train::RunInput message);

  Task<Nothing> loop();
  // False: it left the generation.
  Task<bool> train(Plan plan);
  Task<bool> take_rank();
  Task<bool> recover();
  Task<bool> load();
  Task<bool> publish();
  Task<bool> step();
  Task<Nothing> optimizer_phase();
  Task<Nothing> pause(Duration time);
  // Null: the generation is over.
  Task<Gathered> gather(Payload payload, bool votes = false);
  void update(int slot, int chunk, int other);
  void moment();

  Run& run_;
  Task<Nothing> task_;
  std::coroutine_handle<> suspended_;
  bool wake_asked_ = false;
  const char* doing_ = "starts";
  bool dies_in_chunk_ = false;

  bool has_bundle_ = false;
  std::deque<Plan> plans_;
  std::uint64_t newest_ = 0;
  std::uint64_t running_ = 0;
  std::uint64_t aborted_ = 0;
  bool cancelled_ = false;
  int rank_ = -1;

  MeetingPtr meeting_;
  bool broken_ = false;
  std::uint64_t next_collective_ = 0;
  Gathered gathered_;

  std::shared_ptr<RankMemory> memory_;
  std::optional<train::StepTransaction> transaction_;
  std::optional<train::UpdateLog> update_log_;
  std::optional<Status> attach_answer_;
  MemoryPtr attached_memory_;
};

}  // namespace troupe::simulation
