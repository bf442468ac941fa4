#include "actors/saved_state.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"

namespace troupe::detail {
namespace {

constexpr std::uint64_t kMagic = 0x3245564153505254ULL;  // "TRPSAVE2"
constexpr std::size_t kPage = 4096;
constexpr std::size_t kSlotHeaderBytes = 64;
constexpr std::size_t kCapacityMin = kPage - kSlotHeaderBytes;
constexpr std::size_t kCapacityMax = std::size_t{1} << 40;

struct SegmentHeader {
  std::uint64_t magic = 0;
  std::uint64_t capacity = 0;
};
struct SlotHeader {
  std::uint64_t number = 0;
  std::uint64_t size = 0;
  std::uint64_t type_hash = 0;
  std::uint32_t version = 0;
  std::uint32_t zero = 0;
  std::uint64_t answered_size = 0;
  std::uint64_t hash = 0;
};
static_assert(sizeof(SlotHeader) <= kSlotHeaderBytes);

constexpr std::size_t round_up(std::size_t n) { return (n + kPage - 1) / kPage * kPage; }
constexpr std::size_t slot_bytes(std::size_t capacity) {
  return round_up(kSlotHeaderBytes + capacity);
}
constexpr std::size_t segment_bytes(std::size_t capacity) {
  return kPage + 2 * slot_bytes(capacity);
}

std::uint64_t hash_of_slot(const SlotHeader& header, std::span<const std::byte> state,
                           std::span<const std::byte> answered) {
  Xxh3Stream stream;
  stream.update(state);
  stream.update(answered);
  stream.update(std::as_bytes(std::span(&header, 1)).first(offsetof(SlotHeader, hash)));
  return stream.digest();
}

SlotHeader load_header(const std::byte* slot) {
  SlotHeader header;
  std::memcpy(&header, slot, sizeof header);
  return header;
}

bool is_good(const SlotHeader& header, const std::byte* slot, std::size_t capacity) {
  if (header.number == 0 || header.size > capacity ||
      header.answered_size > capacity - header.size) {
    return false;
  }
  const std::byte* bytes = slot + kSlotHeaderBytes;
  return header.hash ==
         hash_of_slot(header, {bytes, header.size}, {bytes + header.size, header.answered_size});
}

}  // namespace

Result<SavedStateSegment> SavedStateSegment::create(std::size_t state_bytes) {
  // Half as much again, so that a state that grows steadily seldom needs a new segment.
  const std::size_t wanted = std::max(kCapacityMin, state_bytes + state_bytes / 2);
  const std::size_t capacity = slot_bytes(wanted) - kSlotHeaderBytes;
  // Populated: a full memory is an error here instead of a fault in mid-save.
  auto segment = TROUPE_TRY(memory::Segment::create("troupe-saved-state", segment_bytes(capacity),
                                                    memory::Populate::kNow));
  const SegmentHeader header{kMagic, capacity};
  std::memcpy(segment.data(), &header, sizeof header);
  return SavedStateSegment(std::move(segment), capacity);
}

Result<SavedStateSegment> SavedStateSegment::open(UniqueFd fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || info.st_size < static_cast<off_t>(segment_bytes(0))) {
    return Status(Code::kDataLoss, "the descriptor is no segment of saved state");
  }
  auto segment = TROUPE_TRY(memory::Segment::adopt(
      std::move(fd), static_cast<std::size_t>(info.st_size), memory::Access::kReadWrite));
  SegmentHeader header;
  std::memcpy(&header, segment.data(), sizeof header);
  if (header.magic != kMagic || header.capacity > kCapacityMax ||
      segment_bytes(header.capacity) != segment.size()) {
    return Status(Code::kDataLoss, "the segment of saved state has no valid header");
  }
  return SavedStateSegment(std::move(segment), header.capacity);
}

std::byte* SavedStateSegment::slot(int index) {
  return segment_.data() + kPage + static_cast<std::size_t>(index) * slot_bytes(capacity_);
}
const std::byte* SavedStateSegment::slot(int index) const {
  return segment_.data() + kPage + static_cast<std::size_t>(index) * slot_bytes(capacity_);
}

void SavedStateSegment::write(const SavedState& state) {
  TROUPE_CHECK(fits(state.bytes.size() + state.answered.size()));
  // The newest good slot stays; a slot that was torn by a kill is the one to write over.
  std::uint64_t newest = 0;
  int target = 0;
  for (int index = 0; index < 2; ++index) {
    const SlotHeader header = load_header(slot(index));
    if (header.number > newest && is_good(header, slot(index), capacity_)) {
      newest = header.number;
      target = 1 - index;
    }
  }
  SlotHeader header{.number = newest + 1,
                    .size = state.bytes.size(),
                    .type_hash = state.type_hash,
                    .version = state.version,
                    .zero = 0,
                    .answered_size = state.answered.size(),
                    .hash = 0};
  header.hash = hash_of_slot(header, state.bytes, state.answered);
  std::byte* out = slot(target);
  const SlotHeader unwritten;
  std::memcpy(out, &unwritten, sizeof unwritten);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (!state.bytes.empty()) {
    std::memcpy(out + kSlotHeaderBytes, state.bytes.data(), state.bytes.size());
  }
  if (!state.answered.empty()) {
    std::memcpy(out + kSlotHeaderBytes + state.bytes.size(), state.answered.data(),
                state.answered.size());
  }
  std::atomic_signal_fence(std::memory_order_seq_cst);
  std::memcpy(out, &header, sizeof header);
}

std::optional<SavedState> SavedStateSegment::read() const {
  std::optional<SavedState> state;
  std::uint64_t newest = 0;
  for (int index = 0; index < 2; ++index) {
    const SlotHeader header = load_header(slot(index));
    if (header.number <= newest || !is_good(header, slot(index), capacity_)) continue;
    newest = header.number;
    const std::byte* bytes = slot(index) + kSlotHeaderBytes;
    const std::byte* answered = bytes + header.size;
    state = SavedState{header.version, header.type_hash, wire::Bytes(bytes, bytes + header.size),
                       wire::Bytes(answered, answered + header.answered_size)};
  }
  return state;
}

}  // namespace troupe::detail
