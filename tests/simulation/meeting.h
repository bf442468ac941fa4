#pragma once
// Simulated collectives: ranks meet for a generation; what all have given arrives at each.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "train/transaction/recovery.h"
#include "train/transaction/step_session.h"
#include "world.h"

namespace troupe::simulation {

class Trainer;

// What a rank gives to a collective.
struct Payload {
  std::vector<std::uint64_t> words;
  std::vector<std::uint64_t> kept_words;  // of another rank's state
  train::RankPosition position;
  train::KeptPosition kept;
  std::uint64_t machine = 0;
  std::uint64_t memory_life = 0;
  train::CommitRecord record;
  train::StepVote vote;
  bool pauses = false;
};
using Gathered = std::shared_ptr<const std::vector<Payload>>;

// One communicator: the processes that met for a generation. As soon as one of them dies or leaves,
// every other one learns it, each in its own time; what was complete before may still arrive.
class Meeting : public std::enable_shared_from_this<Meeting> {
 public:
  // `forgets_votes`: a planted mistake.
  Meeting(World& world, std::uint64_t generation, std::vector<Trainer*> members, bool forgets_votes)
      : world_(world),
        generation_(generation),
        members_(std::move(members)),
        calls_(members_.size()),
        gone_(members_.size()),
        forgets_votes_(forgets_votes) {}

  std::uint64_t generation() const { return generation_; }
  // `votes`: the collective that commits a step.
  void give(int rank, Payload payload, bool votes);
  void leave(int rank);
  // The node's members and the others reach each other no more.
  void part(int node);

 private:
  struct Round {
    std::shared_ptr<std::vector<Payload>> given;
    std::vector<bool> has;
    std::size_t count = 0;
    bool complete = false;
  };
  void deliver(std::uint64_t number, Round& round);
  void tell_broken();

  World& world_;
  const std::uint64_t generation_;
  const std::vector<Trainer*> members_;
  std::vector<std::uint64_t> calls_;  // by rank: the next one's number
  std::vector<bool> gone_;
  const bool forgets_votes_;
  std::map<std::uint64_t, Round> rounds_;
};
using MeetingPtr = std::shared_ptr<Meeting>;

// Where ranks wait for each other, by generation.
class MeetingPlace {
 public:
  MeetingPlace(World& world, bool forgets_votes) : world_(world), forgets_votes_(forgets_votes) {}
  // All ranks get their meeting once the last one is there. A later process of a rank takes the
  // place of one that waits no more.
  void arrive(std::uint64_t generation, int rank, int world_size, Trainer& trainer);
  void withdraw(Trainer& trainer);
  // The node's trainers do not reach those of others, until they do again.
  void part(int node);
  void reach(int node);

 private:
  struct Waiting {
    std::map<int, Trainer*> by_rank;
    std::size_t world_size = 0;
  };
  void meet(std::uint64_t generation);

  World& world_;
  const bool forgets_votes_;
  std::map<std::uint64_t, Waiting> waiting_;
  std::vector<std::weak_ptr<Meeting>> meetings_;
  std::set<int> apart_;  // nodes
};

}  // namespace troupe::simulation
