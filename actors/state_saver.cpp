#include "actors/state_saver.h"

#include <utility>

namespace troupe::detail {

Result<std::optional<SavedState>> StateSaver::open(UniqueFd memory) {
  auto segment = TROUPE_TRY(SavedStateSegment::open(std::move(memory)));
  auto state = TROUPE_TRY(segment.read());
  memory_.emplace(std::move(segment));
  return state;
}

Result<std::optional<SavedState>> StateSaver::take_copy() {
  return copier_ ? copier_->take() : std::optional<SavedState>();
}

Status StateSaver::save(const State& state_of, const Answered& answered) {
  // Until this one stands: what fails leaves the session with answers that it takes for saved.
  const bool since = answered && !std::exchange(all_next_, true);
  SavedState state = TROUPE_TRY(state_of());
  if (since) {
    state.answered = answered(SavedAnswers::kSince);
    state.answered_since = memory_->has_room(state);
  }
  const auto all = [&] {
    SavedState whole = state;
    whole.answered = answered(SavedAnswers::kAll);
    whole.answered_since = false;
    return whole;
  };
  if (answered && !state.answered_since) state = all();
  // What was answered without would be lost with this node. The next process begins with what both
  // hold.
  if (const Status copied = copy(state, all); !copied.ok()) without_copy_(copied);
  TROUPE_RETURN_IF_ERROR(write(state));
  all_next_ = false;
  return {};
}

Status StateSaver::copy(const SavedState& state, const std::function<SavedState()>& all) {
  return copier_ ? copier_->keep(state, all) : Status();
}

void StateSaver::copy_last() {
  if (!copier_ || !memory_) return;
  const auto state = memory_->read();
  if (!state.ok()) return without_copy_(state.status());
  if (!*state) return;
  if (const Status copied = copy(**state, nullptr); !copied.ok()) without_copy_(copied);
}

Status StateSaver::write(const SavedState& state) {
  if (state.answered_since) {
    memory_->append(state);
    return {};
  }
  if (memory_ && memory_->fits(state)) {
    memory_->write(state);
    return {};
  }
  // The segment before stays with the node until the new one, written completely, replaces it.
  auto memory = TROUPE_TRY(SavedStateSegment::create(state));
  memory.write(state);
  TROUPE_RETURN_IF_ERROR(keep_(memory.fd()));
  memory_.emplace(std::move(memory));
  return {};
}

}  // namespace troupe::detail
