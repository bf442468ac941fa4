#pragma once
// A trainer's process: the sessions that a real one follows (train/trainer/generation_queue.h,
// train/transaction), with small integers for tensors and pauses for work.

#include <optional>

#include "cluster.h"
#include "run.h"
#include "task.h"
#include "train/optimizer/update_log.h"
#include "train/sharding/buddy_plan.h"
#include "train/trainer/generation_queue.h"
#include "train/transaction/recovery_session.h"
#include "train/transaction/step_session.h"

namespace troupe::simulation {

// A rank's state: its own, or what another keeps of it.
struct StateMemory {
  StateMemory();

  train::TransactionMemory state{};
  std::vector<std::uint64_t> marks;  // whole lines
  std::vector<std::uint64_t> undo;
  std::vector<std::uint64_t> chunks;   // the rank's parameters
  std::vector<std::uint64_t> reduced;  // its gradients, reduced
};

// A rank's memory that outlives its processes.
struct RankMemory final : Memory {
  explicit RankMemory(int ranks);

  StateMemory own;
  StateMemory kept;                      // of the rank that own.state.keeps names
  std::vector<std::uint64_t> everybody;  // all ranks' parameters, as published
  std::uint64_t owner = 0;               // the process that has it
};

class Trainer final : public Process {
 public:
  Trainer(Cluster& cluster, Run& run, Place place);

  // --- calls
  void take_bundle();
  void begin(train::GenerationPlan plan);
  void abort(std::uint64_t generation, const Status& reason);
  train::TrainerStatus status() const;

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
  void tell(train::TrainerMessage message);
  bool cancelled() const { return !generations_.cancelled().ok(); }
  int rank() const { return generations_.rank(); }
  int shard() const { return run_.shards[static_cast<std::size_t>(rank())]; }
  std::uint64_t generation() const { return generations_.running(); }
  // How a generation ends that is left.
  Status lost() const;

  Task<Nothing> loop();
  // Each: ok, or how the generation ended.
  Task<Status> train(train::GenerationPlan plan);
  Task<Status> take_rank();
  Task<Status> recover();
  Task<Status> meet(train::RecoverySession& session);
  Task<Status> share_record(train::RecoverySession& session);
  Task<Status> copy(train::RecoverySession& session);
  Task<Status> load(train::RecoverySession& session);
  Task<Status> renew(train::RecoverySession& session);
  Task<Status> publish();
  Task<Status> step();
  Task<Status> compute(train::StepSession& session, const train::StepPlan& plan);
  Task<Status> vote(train::StepSession& session, const train::StepPlan& plan);
  Task<Status> save_checkpoint();
  // A state of a rank, here.
  struct Held {
    Held(StateMemory& memory, int rank);
    StateMemory& memory;
    int rank;
    train::StepTransaction transaction;
    train::UpdateLog update_log;
  };
  Task<Nothing> optimizer_phase(Held& held);
  Task<Nothing> pause(Duration time);
  // Null: the generation is over.
  Task<Gathered> gather(Payload payload, bool votes = false);
  void update(Held& held, int slot, int chunk, int other);
  void moment();

  Run& run_;
  Task<Nothing> task_;
  std::coroutine_handle<> suspended_;
  bool wake_asked_ = false;
  const char* doing_ = "starts";
  bool dies_in_chunk_ = false;

  bool has_bundle_ = false;
  train::GenerationQueue generations_;

  MeetingPtr meeting_;
  bool broken_ = false;
  std::uint64_t next_collective_ = 0;
  Gathered gathered_;

  std::shared_ptr<RankMemory> memory_;
  std::optional<Held> own_;
  std::optional<Held> kept_;  // nothing: this rank keeps nothing of another's
  train::BuddyPlan buddies_;  // of the generation under way
  std::optional<Status> attach_answer_;
  MemoryPtr attached_memory_;
};

}  // namespace troupe::simulation
