#pragma once
// Which trainer has which rank, and who stands by.
//
// A trainer is an actor's place; its processes come and go. The first world_size trainers begin
// with the rank of their number, the others are spares. Memory is a node's, and on GPUs a GPU's:
// only a spare of the node and the GPU where a rank's last process ran can go on with its memory.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::train {

// Those of machines with so many trainers each, of which machine m has those from m · `each` on.
std::vector<int> trainers_of(std::span<const int> machines, int each);

class TrainerPlaces {
 public:
  struct Trainer {
    int rank = -1;                  // -1: a spare
    bool alive = false;             // its process answers calls
    std::uint64_t incarnation = 0;  // of the living process, or of the last one
    std::string node;               // where that runs or ran; empty: not known
    std::string gpu;                // what it sees of GPUs; empty: none, or no one in particular
    // Of a process that cannot serve any rank (no GPU that works); 0: none.
    std::uint64_t unfit = 0;

    bool fit() const { return alive && incarnation != unfit; }
  };

  TrainerPlaces(int world_size, int spares);
  // `count` trainers, of which these have the ranks.
  TrainerPlaces(const std::vector<int>& by_rank, int count);
  // As of before: every rank once. Anything else is a failed check.
  TrainerPlaces(int world_size, std::vector<Trainer> trainers);

  // Other trainers have the ranks from now on, and as many of them as are named.
  void set_world(const std::vector<int>& by_rank);
  void add_spares(int count) {
    trainers_.resize(trainers_.size() + static_cast<std::size_t>(count));
  }

  int world_size() const { return static_cast<int>(trainer_of_.size()); }
  const std::vector<Trainer>& trainers() const { return trainers_; }
  // Null: there is no such trainer.
  const Trainer* find(int trainer) const;
  int trainer_of(int rank) const { return trainer_of_.at(static_cast<std::size_t>(rank)); }
  const Trainer& with_rank(int rank) const {
    return trainers_[static_cast<std::size_t>(trainer_of(rank))];
  }
  // By rank.
  const std::vector<int>& by_rank() const { return trainer_of_; }

  // False where it changes nothing: this process, or a later one, was told before.
  bool came_alive(int trainer, std::uint64_t incarnation, const std::string& node,
                  const std::string& gpu = {});
  // The process, which may not have come alive yet, serves no rank.
  void unfit(int trainer, std::uint64_t incarnation);
  // Also of a process that never came alive; false where a later one is known or this death is.
  bool died(int trainer, std::uint64_t incarnation, const std::string& node);

  // Gives a rank whose process is dead to a living spare of its node and GPU: the spare's number.
  // The trainer that had it is a spare from now on. Nothing where no spare that is fit lives there.
  std::optional<int> replace(int rank);
  // The same the other way round: a rank without a process that this living spare can serve.
  std::optional<int> rank_for_spare(int spare);

 private:
  bool serves(const Trainer& spare, const Trainer& absent) const;
  void swap(int rank, int spare);

  std::vector<Trainer> trainers_;
  std::vector<int> trainer_of_;
};

}  // namespace troupe::train
