#include "meeting.h"

#include "sim_trainer.h"

namespace troupe::simulation {

void Meeting::give(int rank, Payload payload, bool votes) {
  const auto at = static_cast<std::size_t>(rank);
  const std::uint64_t number = calls_[at]++;
  Round& round = rounds_[number];
  if (!round.given) {
    round.given = std::make_shared<std::vector<Payload>>(members_.size());
    round.has.resize(members_.size());
  }
  require(!round.has[at], "rank {} gives twice to a collective", rank);
  round.has[at] = true;
  (*round.given)[at] = std::move(payload);
  ++round.count;
  const std::size_t enough = votes && forgets_votes_ ? members_.size() - 1 : members_.size();
  if (round.count >= enough && !round.complete) deliver(number, round);
}

void Meeting::deliver(std::uint64_t number, Round& round) {
  round.complete = true;
  const Gathered result = round.given;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Trainer* member = members_[i];
    if (gone_[i]) continue;
    member->later(world_.delay(), [meeting = shared_from_this(), member, number, result] {
      member->collective_done(*meeting, number, result);
    });
  }
  if (round.count == members_.size()) rounds_.erase(number);
}

void Meeting::leave(int rank) {
  if (gone_[static_cast<std::size_t>(rank)]) return;
  gone_[static_cast<std::size_t>(rank)] = true;
  // Now and then all learn it at once, before what is on its way to them.
  const bool at_once = world_.chance(4);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Trainer* member = members_[i];
    if (gone_[i]) continue;
    member->later(at_once ? Duration::zero() : world_.delay(),
                  [meeting = shared_from_this(), member] { member->meeting_broken(*meeting); });
  }
}

void MeetingPlace::arrive(std::uint64_t generation, int rank, int world_size, Trainer& trainer) {
  auto& waiting = waiting_[generation];
  waiting[rank] = &trainer;
  if (waiting.size() < static_cast<std::size_t>(world_size)) return;
  std::vector<Trainer*> members;
  for (const auto& [number, member] : waiting) members.push_back(member);
  waiting_.erase(generation);
  const auto meeting = std::make_shared<Meeting>(world_, generation, members, forgets_votes_);
  for (std::size_t i = 0; i < members.size(); ++i) members[i]->met(meeting, static_cast<int>(i));
}

void MeetingPlace::withdraw(Trainer& trainer) {
  for (auto& [generation, waiting] : waiting_) {
    std::erase_if(waiting, [&](const auto& entry) { return entry.second == &trainer; });
  }
}

}  // namespace troupe::simulation
