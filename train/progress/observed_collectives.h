#pragma once
// Tells a recorder of the operations of communicators: Communicator::observe(&observed).

#include <atomic>
#include <cstdint>
#include <string_view>

#include "runtime/collective/communicator.h"
#include "train/progress/progress_recorder.h"

namespace troupe::train {

// One for all communicators of a rank, so that moved bytes are counted together. The recorder
// outlives it. From any thread.
class ObservedCollectives final : public collective::OperationObserver {
 public:
  explicit ObservedCollectives(ProgressRecorder& recorder) : recorder_(recorder) {}

  void begins(collective::Operation operation, std::string_view group, std::uint64_t sequence,
              std::uint64_t bytes) override;
  void ends(collective::Operation operation, std::string_view group, std::uint64_t sequence,
            bool ok) override;
  void moved(std::uint64_t bytes) override;

 private:
  ProgressRecorder& recorder_;
  std::atomic<std::uint64_t> moved_bytes_{0};
};

}  // namespace troupe::train
