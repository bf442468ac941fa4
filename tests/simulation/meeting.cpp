#include "meeting.h"

#include <algorithm>

#include "sim_trainer.h"

namespace troupe::simulation {
namespace {

// Whether some are on the node and some are not.
bool are_parted(const std::vector<Trainer*>& members, int node) {
  const auto here = [&](const Trainer* member) { return member->place().node == node; };
  return std::ranges::any_of(members, here) && !std::ranges::all_of(members, here);
}

}  // namespace

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
  tell_broken();
}

void Meeting::tell_broken() {
  // Now and then all learn it at once, before what is on its way to them.
  const bool at_once = world_.chance(4);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Trainer* member = members_[i];
    if (gone_[i]) continue;
    member->later(at_once ? Duration::zero() : world_.delay(),
                  [meeting = shared_from_this(), member] { member->meeting_broken(*meeting); });
  }
}

void Meeting::part(int node) {
  if (are_parted(members_, node)) tell_broken();
}

void MeetingPlace::arrive(std::uint64_t generation, int rank, int world_size, Trainer& trainer) {
  Waiting& waiting = waiting_[generation];
  waiting.by_rank[rank] = &trainer;
  waiting.world_size = static_cast<std::size_t>(world_size);
  meet(generation);
}

void MeetingPlace::meet(std::uint64_t generation) {
  const Waiting& waiting = waiting_[generation];
  if (waiting.by_rank.size() < waiting.world_size) return;
  std::vector<Trainer*> members;
  for (const auto& [number, member] : waiting.by_rank) members.push_back(member);
  for (const int node : apart_) {
    if (are_parted(members, node)) return;
  }
  waiting_.erase(generation);
  const auto meeting = std::make_shared<Meeting>(world_, generation, members, forgets_votes_);
  std::erase_if(meetings_, [](const auto& one) { return one.expired(); });
  meetings_.push_back(meeting);
  for (std::size_t i = 0; i < members.size(); ++i) members[i]->met(meeting, static_cast<int>(i));
}

void MeetingPlace::part(int node) {
  apart_.insert(node);
  for (const auto& one : meetings_) {
    if (const MeetingPtr meeting = one.lock()) meeting->part(node);
  }
}

void MeetingPlace::reach(int node) {
  apart_.erase(node);
  std::vector<std::uint64_t> generations;
  for (const auto& [generation, waiting] : waiting_) generations.push_back(generation);
  for (const std::uint64_t generation : generations) meet(generation);
}

void MeetingPlace::withdraw(Trainer& trainer) {
  for (auto& [generation, waiting] : waiting_) {
    std::erase_if(waiting.by_rank, [&](const auto& entry) { return entry.second == &trainer; });
  }
}

}  // namespace troupe::simulation
