#include "scheduler/node/output_ring.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

namespace troupe::scheduler {
namespace {

constexpr std::size_t kHeaderBytes = 4096;
constexpr std::uint64_t kCapacity = limits::kLogTailBytes;
constexpr std::uint64_t kRingMagic = 0x313054554f505254;  // "TRPOUT01"
// A daemon that was killed as it wrote a line and its end has spoilt so much of the oldest lines at
// most; and the byte before a line is read, too.
constexpr std::uint64_t kSpoiltBytesMax = limits::kLogLineBytesMax + 1 + 1;
static_assert(kCapacity > 2 * kSpoiltBytesMax);

enum Field : std::size_t { kMagicField, kCapacityField, kWritten, kLines, kProcessBegin };

}  // namespace

// Another process reads them, after this one's end or never: what counts is their order.
std::uint64_t OutputRing::load(std::size_t index) const {
  auto* words = reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(segment_.data()));
  return std::atomic_ref<std::uint64_t>(words[index]).load(std::memory_order_acquire);
}

void OutputRing::store(std::size_t index, std::uint64_t value) {
  auto* words = reinterpret_cast<std::uint64_t*>(segment_.data());
  std::atomic_ref<std::uint64_t>(words[index]).store(value, std::memory_order_release);
}

char* OutputRing::ring() { return reinterpret_cast<char*>(segment_.data()) + kHeaderBytes; }
const char* OutputRing::ring() const {
  return reinterpret_cast<const char*>(segment_.data()) + kHeaderBytes;
}

Result<OutputRing> OutputRing::create() {
  OutputRing ring(TROUPE_TRY(memory::Segment::create("troupe-output", kHeaderBytes + kCapacity)));
  ring.store(kCapacityField, kCapacity);
  ring.store(kMagicField, kRingMagic);
  return ring;
}

Result<OutputRing> OutputRing::adopt(UniqueFd fd) {
  OutputRing ring(TROUPE_TRY(
      memory::Segment::adopt(std::move(fd), kHeaderBytes + kCapacity, memory::Access::kReadWrite)));
  if (ring.load(kMagicField) != kRingMagic || ring.load(kCapacityField) != kCapacity ||
      ring.load(kProcessBegin) > ring.load(kWritten)) {
    return Status(Code::kDataLoss, "the kept output of an actor is damaged");
  }
  return ring;
}

void OutputRing::append(std::string_view line) {
  line = line.substr(0, limits::kLogLineBytesMax);
  const std::uint64_t written = load(kWritten);
  const auto put = [this](std::uint64_t at, std::string_view bytes) {
    const std::uint64_t offset = at % kCapacity;
    const std::size_t first = std::min<std::size_t>(bytes.size(), kCapacity - offset);
    std::memcpy(ring() + offset, bytes.data(), first);
    std::memcpy(ring(), bytes.data() + first, bytes.size() - first);
  };
  put(written, line);
  put(written + line.size(), "\n");
  store(kWritten, written + line.size() + 1);
  store(kLines, load(kLines) + 1);
}

void OutputRing::begin_process() { store(kProcessBegin, load(kWritten)); }

std::uint64_t OutputRing::line_count() const { return load(kLines); }

std::string OutputRing::text(std::size_t bytes_max) const {
  const std::uint64_t written = load(kWritten);
  // One byte less than is sound: the byte before says whether a line begins.
  const std::uint64_t whole = std::min(written, kCapacity - kSpoiltBytesMax - 1);
  const std::uint64_t wanted = std::min<std::uint64_t>(whole, bytes_max);
  std::string result;
  if (wanted == 0) return result;
  result.reserve(wanted);
  // With the byte before, which says whether a line begins here.
  const std::uint64_t begin = written - wanted;
  const bool begins_line = begin == 0 || ring()[(begin - 1) % kCapacity] == '\n';
  const std::uint64_t offset = begin % kCapacity;
  const std::size_t first = std::min<std::size_t>(wanted, kCapacity - offset);
  result.append(ring() + offset, first);
  result.append(ring(), wanted - first);
  if (!begins_line) result.erase(0, result.find('\n') + 1);
  return result;
}

std::string OutputRing::text_of_process(std::size_t bytes_max) const {
  const std::uint64_t of_process = load(kWritten) - load(kProcessBegin);
  return text(std::min<std::uint64_t>(bytes_max, of_process));
}

}  // namespace troupe::scheduler
