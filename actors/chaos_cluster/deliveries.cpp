#include "troupe/deliveries.h"

#include <optional>

namespace troupe {

void Deliveries::sent(std::uint64_t number) {
  MutexLock lock(mutex_);
  entries_[number].sent = true;
}

void Deliveries::acknowledged(std::uint64_t number) {
  MutexLock lock(mutex_);
  entries_[number].acknowledged = true;
}

void Deliveries::seen(std::uint64_t number, std::uint64_t times) {
  MutexLock lock(mutex_);
  entries_[number].times += times;
}

Status Deliveries::none_lost() const {
  MutexLock lock(mutex_);
  std::optional<std::uint64_t> first;
  std::size_t lost = 0;
  for (const auto& [number, entry] : entries_) {
    if (entry.times > 0 && !entry.sent)
      return error(Code::kInternal, "{} had an effect, and nobody sent it", number);
    if (!entry.acknowledged || entry.times > 0) continue;
    if (!first) first = number;
    ++lost;
  }
  if (!first) return {};
  return error(Code::kDataLoss, "{} of {} were acknowledged and had no effect, {} is the first",
               lost, entries_.size(), *first);
}

Status Deliveries::none_twice() const {
  MutexLock lock(mutex_);
  for (const auto& [number, entry] : entries_) {
    if (entry.times > 1)
      return error(Code::kAlreadyExists, "{} had its effect {} times", number, entry.times);
  }
  return {};
}

Status Deliveries::exactly_once() const {
  TROUPE_RETURN_IF_ERROR(none_lost());
  return none_twice();
}

}  // namespace troupe
