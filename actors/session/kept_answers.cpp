#include "actors/session/kept_answers.h"

namespace troupe::detail {

void KeptAnswers::add(ClientId caller, std::uint64_t sequence, wire::Bytes frame) {
  if (frame.size() > kAnswerBytesMax) return;
  const auto of = callers_.try_emplace(caller).first;
  Caller& kept = of->second;
  const std::size_t size = frame.size();
  const auto [answer, added] =
      kept.answers.try_emplace(sequence, Answer{std::move(frame), next_number_});
  if (!added) return;
  by_age_.emplace(next_number_++, std::pair{caller, sequence});
  kept.by_age.push_back(sequence);
  kept.bytes += size;
  bytes_ += size;
  while (kept.answers.size() > kOfCallerMax || kept.bytes > kOfCallerBytesMax) drop_oldest(kept);
  while (bytes_ > kAllBytesMax) {
    // The oldest of all is the oldest of its caller.
    const auto oldest = callers_.find(by_age_.begin()->second.first);
    drop_oldest(oldest->second);
    if (oldest->second.answers.empty()) callers_.erase(oldest);
  }
}

void KeptAnswers::drop_oldest(Caller& caller) {
  const auto answer = caller.answers.find(caller.by_age.front());
  caller.by_age.pop_front();
  const std::size_t size = answer->second.frame.size();
  caller.bytes -= size;
  bytes_ -= size;
  by_age_.erase(answer->second.number);
  caller.answers.erase(answer);
}

const wire::Bytes* KeptAnswers::find(ClientId caller, std::uint64_t sequence) const {
  const auto of = callers_.find(caller);
  if (of == callers_.end()) return nullptr;
  const auto answer = of->second.answers.find(sequence);
  return answer != of->second.answers.end() ? &answer->second.frame : nullptr;
}

void KeptAnswers::forget(ClientId caller) {
  const auto of = callers_.find(caller);
  if (of == callers_.end()) return;
  while (!of->second.answers.empty()) drop_oldest(of->second);
  callers_.erase(of);
}

void KeptAnswers::for_calls(
    ClientId caller, std::uint64_t after, std::uint64_t up_to,
    const std::function<void(std::uint64_t, const wire::Bytes&)>& take) const {
  const auto of = callers_.find(caller);
  if (of == callers_.end()) return;
  const auto& answers = of->second.answers;
  for (auto it = answers.upper_bound(after); it != answers.end() && it->first <= up_to; ++it)
    take(it->first, it->second.frame);
}

void KeptAnswers::for_saved(
    const std::function<void(ClientId, std::uint64_t, const wire::Bytes&)>& take) const {
  std::size_t count = 0;
  std::size_t bytes = 0;
  for (auto it = by_age_.rbegin(); it != by_age_.rend(); ++it) {
    const auto& [caller, sequence] = it->second;
    const wire::Bytes& frame = *find(caller, sequence);
    bytes += frame.size();
    if (++count > kSavedMax || bytes > kSavedBytesMax) break;
    take(caller, sequence, frame);
  }
}

}  // namespace troupe::detail
