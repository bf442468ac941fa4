#include "actors/saved_state.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"

namespace troupe::detail {
namespace {

constexpr std::uint64_t kMagic = 0x3145564153505254ULL;  // "TRPSAVE1"
constexpr std::size_t kPage = 4096;
constexpr std::size_t kSlotHeaderBytes = 64;
constexpr std::size_t kCapacityMin = kPage - kSlotHeaderBytes;
constexpr std::size_t kCapacityMax = std::size_t{1} << 40;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

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

std::uint64_t hash_of_slot(const SlotHeader& header, std::span<const std::byte> state) {
  Xxh3Stream stream;
  stream.update(state);
  stream.update(std::as_bytes(std::span(&header, 1)).first(offsetof(SlotHeader, hash)));
  return stream.digest();
}

SlotHeader load_header(const std::byte* slot) {
  SlotHeader header;
  std::memcpy(&header, slot, sizeof header);
  return header;
}

bool is_good(const SlotHeader& header, const std::byte* slot, std::size_t capacity) {
  if (header.number == 0 || header.size > capacity) return false;
  return header.hash == hash_of_slot(header, {slot + kSlotHeaderBytes, header.size});
}

Result<std::byte*> map_segment(int fd, std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    return error(Code::kOutOfMemory, "cannot map {} bytes of saved state: {}", bytes,
                 std::strerror(errno));
  }
  return static_cast<std::byte*>(memory);
}

}  // namespace

SavedStateSegment::SavedStateSegment(UniqueFd fd, std::byte* memory, std::size_t mapped_bytes,
                                     std::size_t capacity)
    : fd_(std::move(fd)), memory_(memory), mapped_bytes_(mapped_bytes), capacity_(capacity) {}
SavedStateSegment::SavedStateSegment(SavedStateSegment&& other) noexcept
    : fd_(std::move(other.fd_)),
      memory_(std::exchange(other.memory_, nullptr)),
      mapped_bytes_(other.mapped_bytes_),
      capacity_(other.capacity_) {}
SavedStateSegment& SavedStateSegment::operator=(SavedStateSegment&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(memory_, other.memory_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(capacity_, other.capacity_);
  return *this;
}
SavedStateSegment::~SavedStateSegment() {
  if (memory_) ::munmap(memory_, mapped_bytes_);
}

Result<SavedStateSegment> SavedStateSegment::create(std::size_t state_bytes) {
  // Half as much again, so that a state that grows steadily seldom needs a new segment.
  const std::size_t wanted = std::max(kCapacityMin, state_bytes + state_bytes / 2);
  const std::size_t capacity = slot_bytes(wanted) - kSlotHeaderBytes;
  const std::size_t bytes = segment_bytes(capacity);
  UniqueFd fd(::memfd_create("troupe-saved-state", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Allocated now: a full memory is an error here instead of a SIGBUS in mid-save.
  if (!fd.valid() || ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return error(Code::kResourceExhausted, "no {} bytes of memory for saved state: {}", bytes,
                 std::strerror(errno));
  }
  std::byte* memory = TROUPE_TRY(map_segment(fd.get(), bytes));
  const SegmentHeader header{kMagic, capacity};
  std::memcpy(memory, &header, sizeof header);
  return SavedStateSegment(std::move(fd), memory, bytes, capacity);
}

Result<SavedStateSegment> SavedStateSegment::open(UniqueFd fd) {
  struct stat info {};
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (::fstat(fd.get(), &info) != 0 || info.st_size < static_cast<off_t>(segment_bytes(0)) ||
      seals < 0 || (seals & kSeals) != kSeals) {
    return Status(Code::kDataLoss, "the descriptor is no segment of saved state");
  }
  const auto bytes = static_cast<std::size_t>(info.st_size);
  std::byte* memory = TROUPE_TRY(map_segment(fd.get(), bytes));
  SegmentHeader header;
  std::memcpy(&header, memory, sizeof header);
  SavedStateSegment segment(std::move(fd), memory, bytes, header.capacity);
  if (header.magic != kMagic || header.capacity > kCapacityMax ||
      segment_bytes(header.capacity) != bytes) {
    return Status(Code::kDataLoss, "the segment of saved state has no valid header");
  }
  return segment;
}

std::byte* SavedStateSegment::slot(int index) const {
  return memory_ + kPage + static_cast<std::size_t>(index) * slot_bytes(capacity_);
}

void SavedStateSegment::write(const SavedState& state) {
  TROUPE_CHECK(fits(state.bytes.size()));
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
                    .hash = 0};
  header.hash = hash_of_slot(header, state.bytes);
  std::byte* out = slot(target);
  const SlotHeader unwritten;
  std::memcpy(out, &unwritten, sizeof unwritten);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (!state.bytes.empty()) {
    std::memcpy(out + kSlotHeaderBytes, state.bytes.data(), state.bytes.size());
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
    state = SavedState{header.version, header.type_hash, wire::Bytes(bytes, bytes + header.size)};
  }
  return state;
}

}  // namespace troupe::detail
