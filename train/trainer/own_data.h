#pragma once
// The samples of a run with a data source of the program's own: those of one step at a time, in the
// form of a data set, and the source's arguments, which may be changed between steps.
//
// The arguments are part of a step's record: a step that is done again has those that it had, and
// all ranks change them at the same step. Until a step was committed with it, a change is a wish of
// rank 0's process.

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/collective/communicator.h"
#include "train/data/sampler.h"
#include "train/data/token_dataset.h"
#include "train/parts/training_parts.h"
#include "train/trainer/run_bundle.h"
#include "train/trainer/training_observer.h"
#include "train/transaction/step_transaction.h"

namespace troupe::train {

// A source whose size and lengths make sense.
Result<std::shared_ptr<const DataSource>> make_source(const TrainingParts& parts,
                                                      const PartChoice& choice);
// A sample as a row of a data set; an error for one that does not fit. `sample_values`: how many
// numbers a model of the program's own takes; 0: it is of tokens.
Result<TrainingSample> row_of(TrainingSample sample, std::int64_t sample_values,
                              std::int64_t length_max, std::int64_t vocab_size);

class OwnData {
 public:
  // `parts` outlives it. kFailedPrecondition where this program's source is not of `facts`.
  static Result<std::unique_ptr<OwnData>> make(const TrainingParts& parts,
                                               const PartChoices& choices, const SourceFacts& facts,
                                               std::int64_t vocab_size);

  // The samples of the step of `plan`, which follows `last`; plan.batches name them by their place
  // in dataset() from then on. Collective, for rank 0's wish.
  Status begin_step(collective::Communicator& world, TrainingObserver& observer,
                    const CommitRecord& last, StepPlan& plan);
  // Puts the arguments of the step that was begun into its record.
  void note(CommitRecord& record) const;
  // After the step stands: tells rank 0's observer that its wish was fulfilled.
  void step_stands(TrainingObserver& observer);

  const TokenDataset& dataset() const { return dataset_; }

 private:
  OwnData(const TrainingParts& parts, PartChoice choice, const SourceFacts& facts)
      : parts_(parts), choice_(std::move(choice)), facts_(facts) {}
  // The source of these arguments; empty: those that the run began with.
  Status use(const std::string& arguments);
  Result<std::shared_ptr<const DataSource>> source_of(const std::string& arguments) const;

  const TrainingParts& parts_;
  const PartChoice choice_;
  const SourceFacts facts_;
  std::int64_t vocab_size_ = 0, sample_values_ = 0;
  std::shared_ptr<const DataSource> source_;
  std::string arguments_;  // of source_
  std::string wish_;       // that the step under way fulfils
  TokenDataset dataset_{TokenDataset::Kind::kSupervised, 0};
};

}  // namespace troupe::train
