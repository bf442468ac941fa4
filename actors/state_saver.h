#pragma once
// Saves what an actor keeps: first its copy on another node, where it has one (state_copy.h), then
// the memory that its own node keeps (saved_state.h).
//
// Of an actor that runs each call once a save says what was answered, too. All of it is written
// where that cannot be helped: by the first save of a process, in new memory, where the memory's
// area is full, for a copy that begins, and after whatever went wrong. Other saves say what came
// since the one before, so that they cost their own answers only.

#include <functional>
#include <memory>
#include <optional>

#include "actors/saved_state.h"
#include "actors/session/callee_session.h"
#include "actors/state_copy.h"
#include "runtime/base/status.h"
#include "troupe/detail/actor_class.h"

namespace troupe::detail {

// Not thread-safe.
class StateSaver {
 public:
  // What save() returns, without what was answered.
  using State = std::function<Result<SavedState>()>;
  // What was answered, the call included that is being saved. None where calls are not run exactly
  // once.
  using Answered = std::function<wire::Bytes(SavedAnswers which)>;
  // Gives new memory to the node, which keeps it.
  using Keep = std::function<Status(int fd)>;
  // Does not return: neither could the copy be brought in step, nor given up.
  using WithoutCopy = std::function<void(const Status& why)>;

  StateSaver(Keep keep, WithoutCopy without_copy)
      : keep_(std::move(keep)), without_copy_(std::move(without_copy)) {}
  void set_copier(std::unique_ptr<StateCopier> copier) { copier_ = std::move(copier); }

  // The memory that an earlier process filled, and what it saved last, if anything.
  Result<std::optional<SavedState>> open(UniqueFd memory);
  // What the copy of the process before holds, where there are a copy and such a process.
  Result<std::optional<SavedState>> take_copy();
  bool has_copier() const { return copier_ != nullptr; }
  // Gives the copy a state; before anything is answered that is in it (StateCopier::keep).
  Status copy(const SavedState& state, const std::function<SavedState()>& all = nullptr);

  Status save(const State& state, const Answered& answered);
  // Into the memory of this node alone: what the copy holds already.
  Status write(const SavedState& state);
  // Brings the copy in step with what was saved last: it is behind, or gone.
  void copy_last();

 private:
  const Keep keep_;
  const WithoutCopy without_copy_;
  std::unique_ptr<StateCopier> copier_;  // null: it has no copy
  std::optional<SavedStateSegment> memory_;
  bool all_next_ = true;  // what was answered is to be written all
};

}  // namespace troupe::detail
