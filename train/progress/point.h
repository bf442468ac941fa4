#pragma once
// Where a rank is: the stages of a run, and the points inside them that are recorded, watched and
// struck by injected faults.

#include <cstdint>
#include <span>
#include <string_view>

namespace troupe::train {

// What a rank is doing, in the order of a generation and of a step. Names: stage_name().
enum class Stage : std::uint8_t {
  kIdle,           // waits for a generation
  kForm,           // meets the other ranks
  kLoad,           // state: attached, read or initialised
  kBegin,          // a step begins
  kData,           // a micro-batch is put together
  kForward,        // passes over the model; units say how far
  kBackward,       // units say when it is reached
  kCommunication,  // the rest of the gradients' reduction
  kNorm,           // sums of squares, gathered over the shards
  kReplicate,      // reduced gradients to the rank's buddy, and those of whom it is the buddy of
  kPrepared,       // the step record says PREPARED
  kVote,           // all ranks' word on the step
  kCommitted,      // the step record says COMMITTED
  kOptimizer,      // chunk by chunk
  kPublish,        // the step stands; owners' parameters go to all
  kFinished,       // logs and reports of the finished step
  kEvaluate,
  kCheckpoint,  // a save begins
  kFinish,      // after the last step: final model, results
};
inline constexpr int kStageCount = 19;
// "idle", "form", …, "finish".
std::string_view stage_name(Stage stage);

enum class PointKind : std::uint8_t {
  kStage,       // a stage begins
  kUnit,        // a unit's forward or backward begins (by the stage)
  kGradient,    // a unit's gradient is complete on this rank; `gradient` is it
  kOperator,    // an operator begins
  kCollective,  // a collective begins; `number` is its sequence number
  kCollectiveEnd,
  // The optimizer is inside chunk `number`, one in each tile: saved, half written, or done. On a
  // GPU (not offloaded) chunk 0 stands for the whole update: before it, launched, after it.
  kChunk,
  kFile,  // an operation on a file begins
  kFileEnd,
};
inline constexpr int kPointKindCount = 9;
// "stage", "unit", "gradient", "operator", "collective", "collective end", "chunk", "file", "file
// end".
std::string_view point_kind_name(PointKind kind);

struct Point {
  PointKind kind = PointKind::kStage;
  std::int64_t step = 0;  // the one under way, from 1
  Stage stage = Stage::kIdle;
  int unit = -1;
  // Of operators, collectives, file operations and chunk moments ("saved", "written", "done"; on a
  // GPU "before", "launched", "after").
  // Valid during the call.
  std::string_view operation;
  std::uint64_t number = 0;
  std::span<float> gradient;  // kGradient only
  std::string_view group;     // of collectives
};

// Sees every point before it is passed: where injected faults strike. Several threads may call (the
// loop's, the communication's, the one that writes checkpoints).
class PointObserver {
 public:
  virtual ~PointObserver() = default;
  virtual void reached(const Point& point) = 0;
};

}  // namespace troupe::train
