#pragma once
// Sockets between the ranks of a run, for the communicator of one generation.
//
// Rank i connects to every j < i and accepts from every j > i; the target names generation and
// rank: "actor/ID/comm/GENERATION/RANK". What belongs to an older generation is dropped.

#include <atomic>
#include <functional>
#include <map>
#include <vector>

#include "runtime/collective/cpu_communicator.h"
#include "train/trainer/trainer_messages.h"
#include "troupe/actor.h"
#include "troupe/detail/mutex.h"

namespace troupe::train {

class PeerLinks {
 public:
  explicit PeerLinks(ActorContext& context);

  // Links to all other ranks. kAborted as soon as `cancelled` holds, kDeadlineExceeded naming the
  // rank that did not come. `say` is told from time to time of whom it waits for.
  Result<std::vector<collective::PeerLink>> form(
      const GenerationPlan& plan, int rank, const std::atomic<bool>& cancelled, Deadline deadline,
      const std::function<void(const std::string&)>& say);
  // Makes form() look at `cancelled` now.
  void wake();

 private:
  struct Accepted {
    ByteStream stream;
    bool same_node = false;
  };
  using Key = std::pair<std::uint64_t, int>;  // generation, rank

  void accepted(ByteStream stream, const std::string& target, bool same_node);

  ActorContext& context_;
  Mutex mutex_;
  CondVar changed_;
  std::map<Key, Accepted> waiting_ TROUPE_GUARDED_BY(mutex_);
};

}  // namespace troupe::train
