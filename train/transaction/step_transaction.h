#pragma once
// A step as a transaction: the step record of one rank in memory that survives its process.
//
// A rank's record goes COMPUTING(k) → PREPARED(k) → COMMITTED(k) → COMPUTING(k + 1). Parameters and
// moments change only between COMMITTED and the next COMPUTING, under a log that lies where they do
// (train/optimizer/update_log.h, train/cuda/operators/transacted_update.h): a process that attaches
// to the memory after a kill at any instant can finish the phase, since the update is a pure
// function of what a chunk held, the reduced gradient and the record.
// tests/models/step_commit.pml checks the protocol.
//
// Knows no tensors, no communicators, no actors, so that the simulator runs it as it is. A process
// that is killed has executed a prefix of each thread's program: release stores keep the compiler
// to it, and whoever reads has seen the process's exit.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "train/data/sampler.h"
#include "train/optimizer/loss_scale.h"
#include "train/optimizer/plateau.h"
#include "train/report/best_model_state.h"
#include "train/report/step_metrics.h"

namespace troupe::train {

// What is known of a step once it is decided: with the tensors, everything that the next one needs.
struct CommitRecord {
  std::int64_t step = 0;     // steps done, skipped ones included
  std::int64_t skipped = 0;  // of them: gradients were not finite, nothing was updated
  std::int64_t skipped_in_a_row = 0;
  std::int64_t moment_updates = 0;  // of the optimizer's slots: what bias correction counts
  LossScale loss_scale;             // of that step, and of the next one
  double grad_norm = 0;             // of that step, before clipping
  double loss = 0;
  double learning_rate = 0;
  std::int64_t tokens = 0;              // of all ranks
  std::int64_t last_of_epoch = 0;       // 1: it ends an epoch
  SampleCursor cursor;                  // where the next step's samples begin
  std::array<char, 256> skipped_why{};  // empty: it was not skipped; cut to this length
  MetricSums metrics;                   // of that step, as its objective lists them
  // Of a data source of the program's own: its arguments as JSON; empty: as the run began with.
  std::array<char, 512> data_arguments{};
  // Updates of the parameters so far: what the schedule counts.
  std::int64_t updates() const { return step - skipped; }
  bool skips() const { return skipped_why[0] != 0; }
  std::string_view why() const { return skipped_why.data(); }
  void set_why(std::string_view why);
  std::string_view data() const { return data_arguments.data(); }
  // A bug where it is longer than there is room.
  void set_data(std::string_view arguments);
};
static_assert(std::is_trivially_copyable_v<CommitRecord>);

// What the follow-ups of steps (log, evaluation) leave behind.
struct FollowUp {
  std::int64_t evaluated_step = -1;
  BestModelState best;
  PlateauState plateau;
  // Rank 0's reports.
  double total_flos = 0;
  std::int64_t input_tokens = 0;
  double loss_since_log = 0;
  std::int64_t steps_since_log = 0;
  MetricSums metrics_since_log;
  std::int64_t end_run = 0;      // 1: a callback of the program's own ends the run behind this step
  std::int64_t high_losses = 0;  // of so many steps in a row above troupe.loss_limit
};

// What was done after the last steps. No part of a transaction: a follow-up that some rank has not
// finished is done again by all, and those that had finished it go back before it.
struct Aftermath {
  std::int64_t finished_step = -1;  // everything that follows a step was done for this one
  FollowUp now;
  FollowUp before;                // as of the step before finished_step
  std::int64_t saving_step = -1;  // a checkpoint of it was begun, and is not known to be complete
  std::int64_t final_model = 0;   // 1: the best model is being loaded over the last one
  double gemm_flops_per_s = 0;    // of this rank, measured at its begin; 0: not measured
};
static_assert(std::is_trivially_copyable_v<Aftermath>);

enum class CommitPhase : std::uint32_t { kComputing = 0, kPrepared = 1, kCommitted = 2 };
std::string_view commit_phase_name(CommitPhase phase);

// Where a rank's memory stands: what recovery decides from.
struct RankPosition {
  std::uint32_t loaded =
      0;  // 1: the tensors are those of `step`; else nothing below means anything
  CommitPhase phase = CommitPhase::kComputing;  // of step + 1
  std::int64_t step = 0;                        // steps done
  std::int64_t begun = 0;                       // the last step whose passes began
  friend bool operator==(const RankPosition&, const RankPosition&) = default;
};
static_assert(std::is_trivially_copyable_v<RankPosition>);

// The shared part of the memory: fixed layout, one writer.
struct TransactionMemory {
  std::atomic<std::uint64_t> state;       // 0: nothing is loaded; else 1 + (step·4 + phase)
  std::atomic<std::uint64_t> generation;  // that wrote last
  std::atomic<std::int64_t> begun;
  std::atomic<std::uint64_t> aftermaths_written;
  std::atomic<std::int64_t> keeps;  // 1 + the rank whose state lies beside this one; 0: none
  CommitRecord records[2];          // of step k in records[k mod 2]
  Aftermath aftermaths[2];          // the n-th in aftermaths[n mod 2]
};

class StepTransaction {
 public:
  // `memory` lies in surviving memory, zeroed when new, and outlives the object.
  explicit StepTransaction(TransactionMemory& memory) : memory_(memory) {}

  RankPosition position() const;
  // Of the last finished step.
  const CommitRecord& record() const;
  // Of the step that is committed and not finished; a bug in any other phase.
  const CommitRecord& committed() const;
  // Of the step under way, which is prepared or committed; a bug in any other phase.
  const CommitRecord& prepared() const;
  // The rank whose state this one keeps in the same machine's memory (train/sharding/buddy_plan.h);
  // −1: none.
  int keeps() const { return static_cast<int>(memory_.keeps.load(std::memory_order_acquire)) - 1; }
  void set_keeps(int owner) { memory_.keeps.store(owner + 1, std::memory_order_release); }
  const Aftermath& aftermath() const;
  void set_aftermath(const Aftermath& aftermath);

  // The last generation that this memory took part in; 0: none.
  std::uint64_t generation() const { return memory_.generation.load(std::memory_order_acquire); }

  // --- in a step's order; called out of order they are bugs
  // Before the rank tells others its position. A generation that is not newer than generation()
  // must not be joined: a process before this one may have told its position in it.
  void begin_generation(std::uint64_t generation);
  // Before the tensors are overwritten with those of another step.
  void unload();
  // The tensors are those of record.step now. Steps may be done again after this: the update's log
  // has forgotten what was done of them before.
  void load(const CommitRecord& record);
  // The passes of the next step begin: tells what a discarded step cost, nothing else.
  void begin_step();
  // The reduced gradients are complete, and `record`, of the step under way, is what it will leave
  // behind: it lies in memory before anybody can have committed the step, so that the step can be
  // finished where whoever did is lost with its machine.
  void prepare(const CommitRecord& record);
  // record.step is the step under way. From any phase: recovery commits ranks that had prepared.
  void commit(const CommitRecord& record);
  // Back to COMPUTING; not from COMMITTED.
  void discard();
  // The update is done and lies in surviving memory: the step stands.
  void finish();

 private:
  void set(std::int64_t step, CommitPhase phase);

  TransactionMemory& memory_;
};

}  // namespace troupe::train
