#pragma once
// The memory of one segment as the store has it: a descriptor that processes are given, a mapping
// where the store itself reads or writes, and how far bytes that are being fetched have come.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "troupe/unique_fd.h"

namespace troupe::scheduler {

// Thread-safe.
class ObjectMemory {
 public:
  enum class Writer { kProcess, kStore };
  // Memory that never changes its size. The store's own is mapped at once, and nobody else can
  // write it; a process that is given memory to write seals it itself. kOutOfMemory,
  // kResourceExhausted (descriptors).
  static Result<std::shared_ptr<ObjectMemory>> create(std::uint64_t bytes, Writer writer);
  ~ObjectMemory();
  ObjectMemory(const ObjectMemory&) = delete;
  ObjectMemory& operator=(const ObjectMemory&) = delete;

  int fd() const { return fd_.get(); }
  std::uint64_t size() const { return bytes_; }
  // Mapped at the first call. Empty where the machine refuses.
  std::span<std::byte> mapped();
  // All of it is about to be written: its pages come at once, not with a fault for each, where the
  // kernel can (Linux 5.14).
  void populate();

  // Of bytes that are being fetched: so many are there, from the beginning. Others wait for them.
  void arrived(std::uint64_t bytes);
  // No more will come: the object was dropped, or cannot be had.
  void abandon();
  bool abandoned() const;
  // Waits until more than `have` bytes are there, or all. kDeadlineExceeded; kUnavailable when it
  // was abandoned.
  Result<std::uint64_t> wait_beyond(std::uint64_t have, Deadline deadline);

 private:
  ObjectMemory(UniqueFd fd, std::uint64_t bytes) : fd_(std::move(fd)), bytes_(bytes) {}

  const UniqueFd fd_;
  const std::uint64_t bytes_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::byte* data_ = nullptr;
  std::uint64_t arrived_ = ~std::uint64_t{0};  // all, unless it is being fetched
  bool abandoned_ = false;
};

}  // namespace troupe::scheduler
