#pragma once
// An engine's working buffers: those that collectives are called on lie side by side, so that ranks
// of one machine can read each other's where they lie.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/base/huge_pages.h"
#include "runtime/base/status.h"
#include "runtime/memory/segment.h"

namespace troupe::train {

// Of all buffers together, each rounded up to WorkingMemory::kAlignment.
struct WorkingBytes {
  std::int64_t sent = 0;  // that other ranks may read
  std::int64_t own = 0;
  std::int64_t total() const { return sent + own; }
};

class WorkingMemory {
 public:
  WorkingMemory() = default;
  // In memory of the host; pages are taken when they are touched first. shared: what is sent lies
  // in a segment, to be registered with a communicator. kOutOfMemory.
  static Result<WorkingMemory> allocate(const WorkingBytes& bytes, bool shared);
  // In a stretch of at least bytes.total(), aligned to kAlignment, of whatever memory. `owner` ends
  // with the object.
  static WorkingMemory over(std::span<std::byte> stretch, const WorkingBytes& bytes,
                            std::shared_ptr<void> owner);

  static constexpr std::int64_t kAlignment = 64;
  static std::int64_t rounded(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  // The next buffer; its content is zero or arbitrary. More than was asked for is a bug.
  std::span<std::byte> take_sent(std::int64_t bytes) { return sent_.take(bytes); }
  std::span<std::byte> take_own(std::int64_t bytes) { return own_.take(bytes); }
  template <typename T>
  std::span<T> take_sent_elements(std::int64_t count) {
    return elements<T>(take_sent(count * static_cast<std::int64_t>(sizeof(T))));
  }
  template <typename T>
  std::span<T> take_own_elements(std::int64_t count) {
    return elements<T>(take_own(count * static_cast<std::int64_t>(sizeof(T))));
  }
  // Invalid where nothing is shared.
  const memory::Segment& segment() const { return segment_; }

 private:
  struct Stretch {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
    std::int64_t taken = 0;
    std::span<std::byte> take(std::int64_t count);
  };
  template <typename T>
  static std::span<T> elements(std::span<std::byte> bytes) {
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  memory::Segment segment_;
  HugeBytes allocated_;
  std::shared_ptr<void> owner_;
  Stretch sent_, own_;
};

}  // namespace troupe::train
