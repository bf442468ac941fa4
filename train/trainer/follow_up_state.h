#pragma once
// How far the work that follows steps has come (logs, evaluations, saves): what a rank knows of it,
// what of that lies in memory that outlives the process, and rank 0's reports.

#include <cstdint>
#include <optional>

#include "train/trainer/best_model.h"
#include "train/trainer/rank_parts.h"
#include "train/trainer/run_recorder.h"
#include "train/trainer/surviving_log.h"
#include "train/transaction/step_transaction.h"

namespace troupe::train {

class FollowUpState {
 public:
  explicit FollowUpState(RankParts& parts)
      : best(parts.best), plateau(parts.plateau), parts_(parts) {}

  // The fields are Aftermath's, by their names; note() puts them there.
  BestModel best;
  std::int64_t finished_step = -1;
  PlateauState& plateau;
  FollowUp before;  // of the step before finished_step
  std::optional<std::int64_t> evaluated_step;
  std::int64_t saving_step = -1;
  bool final_model = false;
  bool end_run = false;  // a callback ends the run behind the last step
  std::int64_t high_losses = 0;
  double gemm_flops_per_s_here = 0;
  // Of rank 0 and those that hold the same state (records()).
  TrainerState restored;  // what the checkpoint that was loaded says
  std::optional<RunRecorder> recorder;

  // No step follows the last one, however many were planned.
  bool ends_run() const { return end_run || best.should_stop() || loss_is_too_high(); }
  // The last steps' losses were above troupe.loss_limit.
  bool loss_is_too_high() const;
  FollowUp now() const;
  // Writes what is known into the memory that survives.
  void note();
  // Goes on from what an earlier generation left there, of which all ranks have finished the
  // follow-ups up to `finished_by_all`.
  const FollowUp& take_up(const Aftermath& aftermath, std::int64_t finished_by_all);
  // Whether this rank keeps the run's history: rank 0, and who could give it to the next rank 0.
  bool records() const;
  bool records(int rank) const;
  // Where `left` is given, the reports go on from it; else anew, from `restored`, with the losses
  // that rank 0 says were not logged (rank 0 itself knows from its files).
  Status open_recorder(const FollowUp* left, const Unlogged& unlogged = {});
  // Collective among ranks that record, or will: the root's history lies in everybody's memory.
  Status share_history(collective::Communicator& group, int root);
  // The history of another one, line by line.
  Status take_history(const std::string& text);
  // Collective, behind a first step, which no measuring should hold up: the ranks' rates of
  // products, measured once in a process, become RankParts::gemm_flops_per_s.
  Status agree_on_gemm_rate(collective::Communicator& world);

 private:
  Status open_history();
  // Steps that the checkpoint stands for which the run was begun from; 0: none.
  std::int64_t first_step_of_run() const;

  RankParts& parts_;
  std::optional<SurvivingLog> history_;
};

}  // namespace troupe::train
