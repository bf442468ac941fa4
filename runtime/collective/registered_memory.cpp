#include "runtime/collective/registered_memory.h"

#include <utility>

#include "runtime/base/check.h"

namespace troupe::collective {
namespace {

constexpr int kOffsetBits = 48;
constexpr std::uint64_t kOffsetMask = (std::uint64_t{1} << kOffsetBits) - 1;

}  // namespace

void RegisteredMemory::add(std::span<const std::byte> own, std::vector<memory::Segment> theirs) {
  TROUPE_CHECK(own.size() <= kOffsetMask && registrations_.size() < UINT16_MAX);
  registrations_.push_back({own, std::move(theirs)});
}

void RegisteredMemory::remove(const void* own) {
  for (Registration& registration : registrations_)
    // Numbers stay: they are what ranks have in common.
    if (registration.own.data() == own) registration = {};
}

std::uint64_t RegisteredMemory::place_of(const void* data, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  for (std::size_t i = 0; i < registrations_.size(); ++i) {
    const auto& own = registrations_[i].own;
    const auto base = reinterpret_cast<std::uintptr_t>(own.data());
    if (base != 0 && begin >= base && begin - base <= own.size() &&
        bytes <= own.size() - (begin - base))
      return (i + 1) << kOffsetBits | (begin - base);
  }
  return 0;
}

const std::byte* RegisteredMemory::find(int rank, std::uint64_t place, std::size_t bytes) const {
  const std::uint64_t number = place >> kOffsetBits, offset = place & kOffsetMask;
  if (number == 0 || number > registrations_.size()) return nullptr;
  const auto& theirs = registrations_[number - 1].theirs;
  const auto index = static_cast<std::size_t>(rank);
  if (index >= theirs.size() || !theirs[index].valid()) return nullptr;
  const std::size_t size = theirs[index].size();
  if (offset > size || bytes > size - offset) return nullptr;
  return theirs[index].data() + offset;
}

}  // namespace troupe::collective
