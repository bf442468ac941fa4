#pragma once
// Leaving a pass over the model at once, from wherever it is.
//
// A generation is lost while survivors compute what nobody will use. They meet the loss at their
// next collective, which may be most of a step away; a PointObserver that knows it earlier throws
// Abandoned at the next operator, and the pass ends there. Buffers of the pass hold anything then;
// parameters, moments and the step record are not touched by passes.

#include "runtime/base/status.h"
#include "train/progress/point.h"

namespace troupe::train {

// The one exception that crosses operators.
struct Abandoned {};

// Whether the pass may be left at this point: between operators of a forward or backward pass.
inline bool may_abandon(const Point& point) {
  return point.kind == PointKind::kOperator &&
         (point.stage == Stage::kForward || point.stage == Stage::kBackward ||
          point.stage == Stage::kEvaluate);
}

// What `pass` returns, or kAborted where it was abandoned.
template <typename Pass>
auto unless_abandoned(Pass&& pass) -> decltype(pass()) {
  try {
    return pass();
  } catch (const Abandoned&) {
    return Status(Code::kAborted, "the generation was lost during a pass over the model");
  }
}

}  // namespace troupe::train
