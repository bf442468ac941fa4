#pragma once
// Large buffers in huge pages: their first touch and a killed process's end take a fault for each
// 2 MiB instead of each 4 KiB. Where the system gives none (transparent_hugepage: never), small
// pages as ever.

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <vector>

namespace troupe {

inline constexpr std::size_t kHugePageBytes = 2u << 20;

// At least `bytes`, aligned to a page, those of kHugePageBytes and more to a huge one; any content.
// Null where there is no memory. Only whole huge pages within `bytes` are asked for, so that the
// buffer takes no more memory than it would in small ones.
std::byte* allocate_huge(std::size_t bytes);
// Asks for huge pages for the whole ones within a mapping.
void advise_huge(std::span<std::byte> mapping);
void free_huge(std::byte* data);

struct FreeHuge {
  void operator()(std::byte* data) const { free_huge(data); }
};
using HugeBytes = std::unique_ptr<std::byte, FreeHuge>;

// For containers whose elements need no construction. Throws std::bad_alloc.
template <typename T>
struct HugeAllocator {
  using value_type = T;
  HugeAllocator() = default;
  template <typename U>
  HugeAllocator(const HugeAllocator<U>&) {}

  T* allocate(std::size_t count) {
    if (count > std::size_t(-1) / sizeof(T)) throw std::bad_array_new_length();
    std::byte* data = allocate_huge(count * sizeof(T));
    if (!data) throw std::bad_alloc();
    return reinterpret_cast<T*>(data);
  }
  void deallocate(T* data, std::size_t) { free_huge(reinterpret_cast<std::byte*>(data)); }
  template <typename U>
  bool operator==(const HugeAllocator<U>&) const {
    return true;
  }
};

template <typename T>
using HugeVector = std::vector<T, HugeAllocator<T>>;

}  // namespace troupe
