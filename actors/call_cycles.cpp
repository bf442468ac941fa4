#include "actors/call_cycles.h"

#include <fmt/format.h>

#include "runtime/base/suggest.h"

namespace troupe::detail {
namespace {

// Longer chains of waits are not looked into.
constexpr std::size_t kPathMax = 64;

}  // namespace

void CallCycles::begin_wait(Waiting waiting, AwaitedCall& awaited) {
  MutexLock lock(mutex_);
  wire::CallProbe probe{0, waiting.caller, waiting.sequence, {waiting.label}};
  const Key key(waiting.caller, waiting.sequence);
  waiting_.insert_or_assign(key, Entry{std::move(waiting), &awaited});
  awaited.send_probe(std::move(probe));
}

void CallCycles::end_wait(ClientId caller, std::uint64_t sequence) {
  MutexLock lock(mutex_);
  waiting_.erase(Key(caller, sequence));
}

bool CallCycles::waits(ClientId caller, std::uint64_t sequence) {
  MutexLock lock(mutex_);
  return waiting_.contains(Key(caller, sequence));
}

void CallCycles::arrived(ClientId caller, const wire::CallProbe& probe, std::optional<int> lane) {
  MutexLock lock(mutex_);
  auto found = waiting_.find(Key(caller, probe.sequence));
  if (found == waiting_.end() && lane) {
    for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
      if (it->second.waiting.lane == *lane) found = it;
    }
  }
  if (found == waiting_.end()) return;  // it goes on by itself
  Entry& entry = found->second;
  if (found->first == Key(probe.initiator, probe.initiator_sequence)) {
    entry.awaited->give_up(error(
        Code::kFailedPrecondition,
        "a cycle of calls, each of which waits for the next: {} -> {}. Make one of them without "
        "waiting, or give an actor room for it (kMaxConcurrency, concurrency groups)",
        join_words(probe.path, " -> "), entry.waiting.label));
    return;
  }
  if (probe.path.size() >= kPathMax) return;
  wire::CallProbe next = probe;
  next.path.push_back(entry.waiting.label);
  entry.awaited->send_probe(std::move(next));
}

}  // namespace troupe::detail
