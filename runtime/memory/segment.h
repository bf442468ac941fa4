#pragma once
// Shared memory that outlives a process: a sealed memfd and its mapping.
//
// A segment's size never changes after creation (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), so
// that no holder of the descriptor can make another one's access fault. Whoever holds a descriptor
// keeps the bytes alive; pass it with unix_socket.h.

#include <cstddef>
#include <span>
#include <string>

#include "runtime/base/status.h"
#include "troupe/unique_fd.h"

namespace troupe::memory {

enum class Access { kReadOnly, kReadWrite };
// kNow touches every page at mapping time, so that no page fault and no out-of-memory comes later;
// a new segment gets huge pages where the kernel gives them.
enum class Populate { kLazily, kNow };

class Segment {
 public:
  // A new zeroed segment, `size_bytes` > 0, mapped read-write. `name` is what /proc/*/maps shows
  // (at most 200 characters). Errors: kInvalidArgument, kOutOfMemory, kResourceExhausted
  // (descriptors).
  static Result<Segment> create(const std::string& name, std::size_t size_bytes,
                                Populate populate = Populate::kLazily);

  // Maps a segment received from elsewhere. It must be a memfd of exactly `size_bytes` that is
  // sealed against changing size (kProtocol otherwise). Takes the descriptor.
  static Result<Segment> adopt(UniqueFd fd, std::size_t size_bytes, Access access,
                               Populate populate = Populate::kLazily);

  Segment() = default;
  Segment(Segment&& other) noexcept;
  Segment& operator=(Segment&& other) noexcept;
  ~Segment();

  bool valid() const { return data_ != nullptr; }
  std::size_t size() const { return size_bytes_; }
  Access access() const { return access_; }
  // The mapping; page-aligned, one of kHugePageBytes and more to a huge page. Writing through a
  // read-only one faults.
  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::span<std::byte> bytes() { return {data_, size_bytes_}; }
  // For passing on; stays owned by the segment.
  int fd() const { return fd_.get(); }
  // Gives a part's memory back to the machine, for all who map it: it reads as zeros from then on.
  void discard(std::size_t offset, std::size_t bytes);
  // A second descriptor of the same memory.
  Result<UniqueFd> duplicate_fd() const;

 private:
  static Result<Segment> map(UniqueFd fd, std::size_t size_bytes, Access access);
  void populate();
  void unmap();

  UniqueFd fd_;
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
  Access access_ = Access::kReadWrite;
};

// The machine's page size.
std::size_t page_bytes();

}  // namespace troupe::memory
