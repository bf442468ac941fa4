#include "runtime/base/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace troupe {
namespace {

constexpr std::size_t kPageBytes = 4096;

}  // namespace

std::byte* allocate_huge(std::size_t bytes) {
  const std::size_t align = bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  // A size that is no multiple of the alignment is aligned_alloc()'s to refuse, posix_memalign()'s
  // not.
  void* data = nullptr;
  if (::posix_memalign(&data, align, std::max(bytes, kPageBytes)) != 0) return nullptr;
  auto* const begin = static_cast<std::byte*>(data);
  advise_huge({begin, bytes});
  return begin;
}

void advise_huge(std::span<std::byte> mapping) {
  const auto begin = reinterpret_cast<std::uintptr_t>(mapping.data());
  const auto first = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const auto last = (begin + mapping.size()) / kHugePageBytes * kHugePageBytes;
  // Advice: what refuses it works on.
  if (first < last)
    static_cast<void>(::madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE));
}

void free_huge(std::byte* data) { std::free(data); }

}  // namespace troupe
