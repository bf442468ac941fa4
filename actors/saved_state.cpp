#include "actors/saved_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"

namespace troupe::detail {
namespace {

constexpr RecordKind kSavedStateKind{
    .magic = "TRPSAVE4",
    .name = "memory of an actor's saved state",
    .of_another_version = "run the cluster and its programs with one version"};
constexpr std::size_t kAreas = 2;
constexpr std::size_t kStateBytesMin = 4000;

struct StateHead {
  std::uint64_t type_hash = 0;
  std::uint64_t answered_bytes = 0;
  std::uint32_t version = 0;
  std::uint32_t zero = 0;
};

}  // namespace

Result<SavedStateSegment> SavedStateSegment::create(std::size_t state_bytes) {
  // Half as much again, so that a state that grows steadily seldom needs new memory.
  const std::size_t bytes = std::max(kStateBytesMin, state_bytes + state_bytes / 2);
  // Populated: a full memory is an error here instead of a fault in mid-save.
  return SavedStateSegment(TROUPE_TRY(memory::RecordMemory::create(
      kSavedStateKind, "troupe-saved-state", kAreas,
      memory::RecordMemory::bytes_of(sizeof(StateHead) + bytes), memory::Populate::kNow)));
}

Result<SavedStateSegment> SavedStateSegment::open(UniqueFd fd) {
  return SavedStateSegment(
      TROUPE_TRY(memory::RecordMemory::open(kSavedStateKind, kAreas, std::move(fd))));
}

bool SavedStateSegment::fits(std::size_t bytes) const {
  return records_.fits(sizeof(StateHead) + bytes);
}

void SavedStateSegment::write(const SavedState& state) {
  TROUPE_CHECK(fits(state.bytes.size() + state.answered.size()));
  const StateHead head{state.type_hash, state.answered.size(), state.version, 0};
  records_.begin_area({std::as_bytes(std::span(&head, 1)), state.bytes, state.answered});
}

std::optional<SavedState> SavedStateSegment::read() const {
  const auto record = records_.first();
  StateHead head;
  if (!record || record->size() < sizeof head) return std::nullopt;
  std::memcpy(&head, record->data(), sizeof head);
  const auto both = record->subspan(sizeof head);
  if (head.answered_bytes > both.size()) return std::nullopt;
  const auto answered = both.last(head.answered_bytes);
  const auto bytes = both.first(both.size() - head.answered_bytes);
  return SavedState{head.version, head.type_hash, wire::Bytes(bytes.begin(), bytes.end()),
                    wire::Bytes(answered.begin(), answered.end())};
}

}  // namespace troupe::detail
