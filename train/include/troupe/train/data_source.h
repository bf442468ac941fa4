#pragma once
// A source of training samples of a program's own.
//
// A source is a pure function of its arguments and of a sample's number: a step that is done again
// after a kill asks for the same samples and must get the same numbers, and every rank asks for
// those of the whole step, since a step's loss is divided by the labels of all ranks. The position
// in the source is the run's sample cursor. It counts samples, is part of every step's record and
// of every checkpoint, and does not depend on the number of ranks.

#include <cstdint>
#include <vector>

#include "troupe/status.h"

namespace troupe::train {

// What a language model is trained on: a row of tokens; what a model of the program's own is
// (own_model.h): numbers.
struct TrainingSample {
  std::vector<std::int32_t> ids = {};  // at least one
  // As long as `ids`, −100 where nothing is to be learned: the label of a position is what the
  // position before it is to say. Empty: the ids themselves.
  std::vector<std::int32_t> labels = {};
  // OwnModel::sample_values() of them, and nothing above.
  std::vector<float> values = {};
};

class DataSource {
 public:
  virtual ~DataSource() = default;
  // The samples of an epoch; an endless source says how many it calls an epoch. At least 1.
  virtual std::int64_t size() const = 0;
  // No sample has more tokens: memory is planned with it. Not asked where samples are numbers.
  virtual std::int64_t length_max() const { return 1; }
  // `number` is below size(). A run asks in the order of its seed, or of the numbers
  // (disable_shuffling), for all samples of a step at once: a source that takes longer for them
  // than troupe.hang_timeout_ms is taken for hanging. An error ends the run with it.
  virtual Result<TrainingSample> sample(std::int64_t epoch, std::int64_t number) const = 0;
};

}  // namespace troupe::train
