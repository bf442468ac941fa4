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
  kept.bytes += size;
  bytes_ += size;
  while (kept.answers.size() > kOfCallerMax || kept.bytes > kOfCallerBytesMax) {
    drop(of, kept.answers.begin());
  }
  while (bytes_ > kAllBytesMax) {
    const auto [oldest, its_sequence] = by_age_.begin()->second;
    const auto found = callers_.find(oldest);
    drop(found, found->second.answers.find(its_sequence));
    if (found->second.answers.empty()) callers_.erase(found);
  }
}

void KeptAnswers::drop(Callers::iterator caller, std::map<std::uint64_t, Answer>::iterator answer) {
  const std::size_t size = answer->second.frame.size();
  caller->second.bytes -= size;
  bytes_ -= size;
  by_age_.erase(answer->second.number);
  caller->second.answers.erase(answer);
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
  while (!of->second.answers.empty()) drop(of, of->second.answers.begin());
  callers_.erase(of);
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
