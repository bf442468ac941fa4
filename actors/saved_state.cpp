#include "actors/saved_state.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "runtime/base/check.h"

namespace troupe::detail {
namespace {

using memory::RecordMemory;

constexpr RecordKind kSavedStateKind{
    .magic = "TRPSAVE5",
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

std::size_t record_bytes(const SavedState& state) {
  return sizeof(StateHead) + state.bytes.size() + state.answered.size();
}
StateHead head_of(const SavedState& state) {
  return {state.type_hash, state.answered.size(), state.version, 0};
}

// What a record says; nothing where it is none.
struct StateRecord {
  StateHead head;
  RecordMemory::Payload bytes;
  RecordMemory::Payload answered;
};
std::optional<StateRecord> parse(RecordMemory::Payload payload) {
  StateRecord record;
  if (payload.size() < sizeof record.head) return std::nullopt;
  std::memcpy(&record.head, payload.data(), sizeof record.head);
  const auto both = payload.subspan(sizeof record.head);
  if (record.head.answered_bytes > both.size()) return std::nullopt;
  record.answered = both.last(record.head.answered_bytes);
  record.bytes = both.first(both.size() - record.head.answered_bytes);
  return record;
}

}  // namespace

Result<SavedStateSegment> SavedStateSegment::create(const SavedState& state) {
  // Half as much again, so that a state that grows steadily seldom needs new memory.
  const std::size_t bytes = std::max(
      kStateBytesMin, state.bytes.size() + state.bytes.size() / 2 + 4 * state.answered.size());
  // Populated: a full memory is an error here instead of a fault in mid-save.
  return SavedStateSegment(TROUPE_TRY(RecordMemory::create(
      kSavedStateKind, "troupe-saved-state", kAreas,
      RecordMemory::bytes_of(sizeof(StateHead) + bytes), memory::Populate::kNow)));
}

Result<SavedStateSegment> SavedStateSegment::open(UniqueFd fd) {
  return SavedStateSegment(TROUPE_TRY(RecordMemory::open(kSavedStateKind, kAreas, std::move(fd))));
}

// With room for as much as was answered again: so an area takes as many bytes of saves as writing
// all the answers once has cost.
bool SavedStateSegment::fits(const SavedState& state) const {
  return records_.fits(record_bytes(state) + state.answered.size());
}

void SavedStateSegment::write(const SavedState& state) {
  TROUPE_CHECK(fits(state) && !state.answered_since);
  const StateHead head = head_of(state);
  records_.begin_area({std::as_bytes(std::span(&head, 1)), state.bytes, state.answered});
}

bool SavedStateSegment::has_room(const SavedState& state) const {
  return records_.has_room(record_bytes(state));
}

void SavedStateSegment::append(const SavedState& state) {
  TROUPE_CHECK(state.answered_since);
  const StateHead head = head_of(state);
  TROUPE_CHECK(records_.append({std::as_bytes(std::span(&head, 1)), state.bytes, state.answered})
                   .has_value());
}

Result<std::optional<SavedState>> SavedStateSegment::read() const {
  const auto damaged = [] {
    return error(Code::kDataLoss, "the {} holds what is no state", kSavedStateKind.name);
  };
  const auto first = records_.first();
  if (!first) return std::optional<SavedState>();
  auto last = parse(*first);
  if (!last) return damaged();
  SavedState state;
  // Where nothing was answered it is alone, and what may be a large rest is not looked at.
  if (last->head.answered_bytes > 0) {
    for (const auto payload : TROUPE_TRY(records_.newest())) {
      last = parse(payload);
      if (!last) return damaged();
      state.answered.insert(state.answered.end(), last->answered.begin(), last->answered.end());
    }
  }
  state.version = last->head.version;
  state.type_hash = last->head.type_hash;
  state.bytes.assign(last->bytes.begin(), last->bytes.end());
  return std::optional(std::move(state));
}

}  // namespace troupe::detail
