#pragma once
// What a program sees of its run on one rank between two steps.

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/status.h"
#include "troupe/train/callback.h"

namespace troupe::train {

struct RankParts;  // the library's

// Elements [begin, begin + values.size()) of a parameter in row-major order, in fp32.
struct ParameterValues {
  std::string name;  // as in the model's files
  std::vector<std::int64_t> shape;
  std::int64_t begin = 0;
  std::vector<float> values;
};

// Valid while TrainerActor::between_steps() runs what it was given: this rank computes nothing
// meanwhile. Others may be a step ahead, until they wait for this one: compare step() where the
// parts of several ranks are put together.
class TrainingView {
 public:
  // `ended`: no step follows.
  explicit TrainingView(RankParts& parts, bool ended = false) : parts_(parts), ended_(ended) {}

  std::string run() const;
  int rank() const;
  std::int64_t step() const;  // steps done
  std::int64_t total_steps() const;
  // No step follows: it was the last one, or a callback or early stopping has ended the run.
  bool has_ended() const { return ended_; }
  // The last step; without one: of step 0.
  FinishedStep last_step() const;
  bool has_own_data() const;
  // The arguments of the program's own data source as JSON; empty: as the run began with.
  std::string data_arguments() const;
  // Copies of the trained parameters that this rank updates: all of the model where the strategy
  // does not shard them, else this rank's part; the ranks' parts together are the model.
  Result<std::vector<ParameterValues>> weights() const;

 private:
  RankParts& parts_;
  bool ended_;
};

}  // namespace troupe::train
