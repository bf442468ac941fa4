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
#include "train/transaction/hand_over_session.h"
#include "train/transaction/recovery_session.h"
#include "train/transaction/step_session.h"

namespace troupe::simulation {

// A rank's state: its own, or what another keeps of it.
struct StateMemory {
  explicit StateMemory(const Layout& layout);

  train::TransactionMemory state{};
  std::vector<std::uint64_t> marks;  // whole lines
  std::vector<std::uint64_t> undo;
  std::vector<std::uint64_t> values;   // the rank's parameters
  std::vector<std::uint64_t> reduced;  // its gradients, reduced
};

// A rank's memory in a world, which outlives its processes.
struct RankMemory final : Memory {
  RankMemory(const Layout& of, std::size_t values);

  const Layout& layout;

  StateMemory own;
  StateMemory kept;                      // of the rank that own.state.keeps names
  std::vector<std::uint64_t> published;  // all ranks' parameters
  std::uint64_t owner = 0;               // the process that has it
};

class Trainer final : public Process {
 public:
  Trainer(Cluster& cluster, Run& run, Place place);

  // --- calls
  void take_bundle();
  void begin(train::GenerationPlan plan);
  void abort(std::uint64_t generation, const Status& reason);
  void pause(std::uint64_t generation) { pause_ = generation; }
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
  void asked_to_stop(Duration grace) override;
  void on_death() override;
  void resume();
  void wake();
  void tell(train::TrainerMessage message);
  bool cancelled() const { return !generations_.cancelled().ok(); }
  int rank() const { return generations_.rank(); }
  std::uint64_t generation() const { return generations_.running(); }
  // How a generation ends that is left.
  Status lost() const;

  Task<Nothing> loop();
  // Each: ok, or how the generation ended.
  Task<Status> train(train::GenerationPlan plan);
  void enter_world(const train::GenerationPlan& plan);
  // What the node keeps under this name with this layout, in `memory`; null: nothing.
  Task<Status> attach(std::string name, const Layout& layout, std::shared_ptr<RankMemory>& memory);
  Task<Status> take_rank();
  Task<Status> open_former(const train::GenerationPlan& plan);
  Task<Status> recover();
  Task<Status> meet(train::RecoverySession& session);
  Task<Status> share_record(train::RecoverySession& session);
  Task<Status> copy(train::RecoverySession& session);
  Task<Status> load(train::RecoverySession& session);
  Task<Nothing> overwrite(StateMemory& memory, std::vector<std::uint64_t> values);
  // This rank's part of all of the model's values, which outlive it, becomes its state.
  Task<Nothing> take_own_of(const std::vector<std::uint64_t>& model);
  Task<Status> load_checkpoint(train::RecoverySession& session);
  Task<Status> renew(train::RecoverySession& session);
  Task<Status> publish();
  Task<Status> step();
  Task<Status> compute(train::StepSession& session, const train::StepPlan& plan);
  Task<Status> vote(train::StepSession& session, const train::StepPlan& plan);
  Task<Status> save_checkpoint();
  // A state of a rank, here.
  struct Held {
    Held(StateMemory& memory, const Layout& layout, int rank);
    StateMemory& memory;
    const Layout& layout;
    int rank;
    train::StepTransaction transaction;
    train::UpdateLog update_log;
  };
  // A rank's memory of a world: its own state there, and what it keeps of another's.
  struct Holding {
    Holding(std::string name, std::shared_ptr<RankMemory> memory, const Layout& layout, int rank);
    train::StepTransaction* kept_transaction() { return kept ? &kept->transaction : nullptr; }
    const std::string name;
    const std::shared_ptr<RankMemory> memory;
    Held own;
    std::optional<Held> kept;  // nothing: it keeps nothing of another's
  };
  // A world before, whose memory may be needed yet.
  struct Former {
    const int number;
    const Layout& layout;
    std::vector<int> ranks;         // train::ranks_there()
    std::unique_ptr<Holding> here;  // null: this rank was not there, or has nothing of it
  };
  // `handed`: nothing where some state of that world is in nobody's memory.
  Task<Status> hand_over(Former& former, std::optional<train::CommitRecord>& handed);
  Task<Status> meet(train::HandOverSession& session);
  Task<Status> share_record(train::HandOverSession& session);
  Task<Status> take_states(Former& former, train::HandOverSession& session,
                           train::CommitRecord& record);
  // No step has come of that world.
  void drop_former();
  Run::Holders holders() const;
  Run::IsKept is_kept() const;
  Task<Nothing> optimizer_phase(Held& held);
  Task<Nothing> pause(Duration time);
  // Null: the generation is over.
  Task<Gathered> gather(Payload payload, bool votes = false);
  std::uint64_t norm_of_states(const std::vector<Payload>& by_rank) const;
  static std::span<std::uint64_t> chunk_of(Held& held, std::int64_t chunk);
  void update(Held& held, int slot, int chunk, int other);
  void moment();

  Run& run_;
  Task<Nothing> task_;
  std::coroutine_handle<> suspended_;
  bool wake_asked_ = false;
  std::optional<std::int64_t> loaded_step_;  // in the generation under way
  const char* doing_ = "starts";
  bool dies_in_chunk_ = false;

  bool has_bundle_ = false;
  train::GenerationQueue generations_;

  MeetingPtr meeting_;
  bool broken_ = false;
  std::uint64_t next_collective_ = 0;
  Gathered gathered_;

  int world_number_ = -1;  // the number of the present one
  const Layout* layout_ = nullptr;
  std::unique_ptr<Holding> memory_;  // of its rank
  std::vector<Former> former_;
  std::vector<Run::Where> places_;  // of all ranks of the generation under way
  train::BuddyPlan buddies_;        // of that
  std::uint64_t pause_ = 0;         // the generation that is to be left after a step
  bool pauses_ = false;             // all leave after this step
  bool took_over_ = false;          // its state, from a world before
  std::uint64_t attaching_ = 0;     // the number of the request under way
  std::optional<Status> attach_answer_;
  MemoryPtr attached_memory_;
};

}  // namespace troupe::simulation
