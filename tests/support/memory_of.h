#pragma once
// The bytes of a memory file that a class under test has made, to look at and to damage.

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstddef>
#include <span>

namespace troupe::tests {

// Maps the file of a descriptor, which stays the caller's, for as long as the object lives.
class MemoryOf {
 public:
  explicit MemoryOf(int fd) {
    struct stat info {};
    REQUIRE(::fstat(fd, &info) == 0);
    const auto size = static_cast<std::size_t>(info.st_size);
    void* const at = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    REQUIRE(at != MAP_FAILED);
    bytes_ = {static_cast<std::byte*>(at), size};
  }
  ~MemoryOf() { ::munmap(bytes_.data(), bytes_.size()); }
  MemoryOf(const MemoryOf&) = delete;
  MemoryOf& operator=(const MemoryOf&) = delete;

  std::span<std::byte> bytes() { return bytes_; }
  std::byte& operator[](std::size_t at) { return bytes_[at]; }
  void flip(std::size_t at) { bytes_[at] ^= std::byte{1}; }

 private:
  std::span<std::byte> bytes_;
};

}  // namespace troupe::tests
