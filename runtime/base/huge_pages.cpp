#include "runtime/base/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
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
  const std::size_t whole = bytes / kHugePageBytes * kHugePageBytes;
  // Advice: what refuses it works on.
  if (whole > 0) static_cast<void>(::madvise(data, whole, MADV_HUGEPAGE));
  return static_cast<std::byte*>(data);
}

void free_huge(std::byte* data) { std::free(data); }

}  // namespace troupe
