#pragma once
// Ranks as threads of this process, and a state of a few tensors that lies on them in pieces.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/collective/communicator.h"
#include "train/checkpoint/checkpoint_saver.h"
#include "train/checkpoint/tensor_reader.h"

namespace troupe::train::tests {

// Calls `body` once per rank, at the same time, each with its own communicator of a new group.
void run_ranks(int world_size, const std::function<void(collective::Communicator&)>& body);

// Tensors of several types and shapes, moments of the fp32 ones, whose values are a function of
// name, position and step. `scale` multiplies their sizes.
class TestState {
 public:
  explicit TestState(std::int64_t step, std::int64_t scale = 1);

  std::int64_t step() const { return step_; }
  // All tensors, whole.
  const std::map<std::string, TensorPiece>& weights() const { return weights_; }
  const std::map<std::string, TensorPiece>& optimizer() const { return optimizer_; }
  // What `rank` of `world_size` holds: of each tensor a range; ranges differ in size and some are
  // empty.
  SaveContents contents(int rank, int world_size) const;

  // Whether the reader gives these values, read as `world_size` ranks would.
  void check(const TensorReader& reader, int world_size = 1) const;

 private:
  void add(std::map<std::string, TensorPiece>& tensors, const std::string& name, DType dtype,
           std::vector<std::int64_t> shape);
  std::int64_t step_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
  std::map<std::string, TensorPiece> weights_, optimizer_;
};

// [begin, end) of `elements` that `rank` holds.
std::pair<std::int64_t, std::int64_t> uneven_range(std::int64_t elements, int rank, int world_size);

// One save from start to commit by all ranks, each through its own file system; every rank's
// outcome. The commit's result goes to `written`, where not null.
struct RankOutcome {
  Status start;
  Status outcome;
};
std::vector<RankOutcome> save_with(const std::vector<FileSystem*>& files, const TestState& state,
                                   SaverOptions options,
                                   std::optional<Result<WrittenCheckpoint>>* written = nullptr);

// The options of these tests: output directory "out", run "run".
SaverOptions test_options(CheckpointLayout layout = CheckpointLayout::kHf);

// Opens what newest_good_checkpoint finds in "out" and compares it with the state of its step;
// returns the step, -1 where there is none.
std::int64_t check_newest(FileSystem& files, std::int64_t scale = 1, int world_size = 1,
                          std::vector<RefusedCheckpoint>* refused = nullptr);

}  // namespace troupe::train::tests
