#pragma once
// What the head tells of the trainers' processes, and what it means for the run: pure. A process
// counts once it has the run's data; a death is told once, whatever the head told of it and in
// which order.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/wire/types.h"

namespace troupe::train {

class TrainerProcesses {
 public:
  // A process that lives and does not take the run's data for so long is ended. By then the head
  // has told of one that died.
  static constexpr Duration kUnservedPatience = std::chrono::seconds(2);

  // Incarnations are generations of the trainer's actor; 0: none.
  struct Trainer {
    std::uint64_t alive = 0;   // of the last process that the head told alive
    std::uint64_t served = 0;  // of the last process that has the run's data
    std::uint64_t died = 0;    // of the last process whose death was told
    // Of the process `alive`.
    std::string node;
    NodeId node_id;
    std::int64_t pid = 0;
    // Since its process that lives did not take the run's data.
    std::optional<TimePoint> unserved_since;
  };

  // What a controller saves of one for its next process.
  struct Saved {
    std::uint64_t served = 0;
    std::uint64_t died = 0;
    std::string node;
    NodeId node_id;
    std::int64_t pid = 0;
  };

  // What follows from something that the head told, in this order.
  struct Change {
    // This process died, even where nobody saw the states between.
    std::uint64_t died = 0;
    bool was_alive = false;  // it had come alive, so that it may have left memory
    std::string node;        // where it ran
    // Why: never ok where a process died, even where the head knows no cause any more.
    Status cause;
    // No other one will come.
    bool gone = false;
    // A process lives that wants the run's data.
    bool wants_data = false;
  };

  std::size_t size() const { return trainers_.size(); }
  const Trainer& operator[](int trainer) const {
    return trainers_[static_cast<std::size_t>(trainer)];
  }

  void add() { trainers_.emplace_back(); }
  std::vector<Saved> saved() const;
  // As a controller before this one saved it. A process that had no data yet is told alive again.
  void restore(int trainer, const Saved& known);
  // A living process that has the run's data.
  void found(int trainer, std::uint64_t incarnation, NodeId node, std::int64_t pid);

  Change changed(int trainer, const wire::ActorInfo& info, TimePoint now);
  // The data are on their way to the trainer's process.
  void serving(int trainer) { at(trainer).unserved_since.reset(); }
  // How that went for the process `incarnation`; false where it is past and nothing follows.
  bool served(int trainer, std::uint64_t incarnation, bool ok, TimePoint now);
  // There are no data to give yet.
  void cannot_serve(int trainer, TimePoint now) { at(trainer).unserved_since = now; }
  // Those that live without data: they may be given them now.
  std::vector<int> unserved() const;
  // Those that have been for too long, and at once those whose death was told and who live; they
  // are named again when they live on.
  std::vector<int> to_end(TimePoint now);

 private:
  Trainer& at(int trainer) { return trainers_[static_cast<std::size_t>(trainer)]; }

  std::vector<Trainer> trainers_;
};

}  // namespace troupe::train
