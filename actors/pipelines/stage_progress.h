#pragma once
// How far a pipeline has come, as pure state machines over its memory: no process, thread, lock or
// clock. What the pipeline's owner pushes and is given, and what one actor of a stage has to do
// next.
//
// Nothing is acknowledged from stage to stage, and nothing is sent again: an item's outputs lie
// where they are until its result was delivered, and the owner pushes no item further ahead. An
// actor's new process begins at the first item that was not delivered, and leaves out what the one
// before gave.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "actors/pipelines/pipeline_memory.h"
#include "actors/pipelines/pipeline_plan.h"

namespace troupe::detail {

// The owner's side.
class SourceProgress {
 public:
  explicit SourceProgress(const PipelinePlan& plan) : in_flight_(plan.in_flight) {}
  bool full() const { return next_ - first_ >= in_flight_; }
  bool empty() const { return next_ == first_; }
  // The number of the next item; not where it is full.
  std::uint64_t push() { return next_++; }
  // The first item that was not delivered; results are taken in order.
  std::uint64_t first() const { return first_; }
  void delivered() { ++first_; }
  std::uint64_t next() const { return next_; }

 private:
  const std::uint64_t in_flight_;
  std::uint64_t first_ = 0;
  std::uint64_t next_ = 0;
};

enum class StageStep : std::uint8_t {
  kWait,    // for an input
  kRun,     // the method, with arguments()
  kPassOn,  // failure() is the output: an input failed
};

// Of one actor of a stage.
class StageProgress {
 public:
  // `first`: SourceProgress::first() when its process was bound.
  StageProgress(const PipelinePlan& plan, PipelineMemory memory, std::uint32_t stage,
                std::uint32_t actor, std::uint64_t first);

  // What there is to do with item number(); leaves out those that have been given.
  StageStep look();
  std::uint64_t number() const { return next_; }
  // What the method is called with: in place where the stage has one input, else put together in
  // `joined`.
  std::span<const std::byte> arguments(std::vector<std::byte>& joined) const;
  std::span<const std::byte> failure() const;
  // Those before `first` were delivered, without this process perhaps.
  void leave_out_before(std::uint64_t first) {
    while (next_ < first) next_ += actors_;
  }
  // The item is in hand: on to the next.
  void taken() { next_ += actors_; }

 private:
  const PipelineMemory memory_;
  const std::vector<std::uint32_t> inputs_;
  const std::uint32_t output_;
  const std::uint64_t actors_;
  std::uint64_t next_;
};

}  // namespace troupe::detail
