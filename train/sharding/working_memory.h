#pragma once
// The working buffers that collectives are called on, side by side, so that ranks of one machine
// can read each other's where they lie.

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/base/huge_pages.h"
#include "runtime/base/status.h"
#include "runtime/memory/segment.h"

namespace troupe::train {

class WorkingMemory {
 public:
  WorkingMemory() = default;
  // Room for buffers of `bytes` in all, each rounded up to kAlignment; pages are taken when they
  // are touched first. shared: in a segment, to be registered with a communicator. kOutOfMemory.
  static Result<WorkingMemory> allocate(std::int64_t bytes, bool shared);

  static constexpr std::int64_t kAlignment = 64;
  static std::int64_t rounded(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  // The next buffer; its content is zero or arbitrary. More than was asked for is a bug.
  std::span<std::byte> take(std::int64_t bytes);
  template <typename T>
  std::span<T> take_elements(std::int64_t count) {
    const auto bytes = take(count * static_cast<std::int64_t>(sizeof(T)));
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  // Invalid where it is not shared.
  const memory::Segment& segment() const { return segment_; }

 private:
  memory::Segment segment_;
  HugeBytes own_;
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::int64_t taken_ = 0;
};

}  // namespace troupe::train
