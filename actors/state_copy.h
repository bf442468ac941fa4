#pragma once
// The copy of what an actor saves, on another node (ActorOptions::replicas = 1).
//
// It is kept by a companion, an actor of the same program without a place of its own, which ends
// with the actor. Each state is given to it before it counts as saved; where it does not answer it
// is ended, as the head must confirm, before anything is answered without it: so a copy that missed
// a state is never found again. A process that begins with the companion's state tells it its
// generation, and an older process, which may run on where nobody reaches it, is refused.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "actors/client.h"
#include "runtime/base/clock.h"
#include "troupe/context.h"
#include "troupe/detail/actor_class.h"
#include "troupe/handle.h"
#include "troupe/log.h"
#include "troupe/spawn.h"

namespace troupe::detail {

struct CopiedState {
  std::uint64_t generation = 0;  // of the process that saved it; 0: there is none
  std::uint64_t number = 0;      // of that process's saves
  std::uint32_t version = 0;
  std::uint64_t type_hash = 0;
  wire::Bytes bytes;
  wire::Bytes answered;
  bool answered_since = false;  // SavedState
  std::string node;             // where the copy lies
};

// The companion.
class StateCopy {
 public:
  explicit StateCopy(ActorContext& context);
  // kFailedPrecondition: of a process that was replaced. kDataLoss: of a save that adds to one that
  // was not kept.
  Status keep(const CopiedState& state);
  // What was kept last, for the process of this generation: older ones are refused from now on.
  Result<CopiedState> hand_over(std::uint64_t generation);

  static constexpr auto methods = troupe::methods<&StateCopy::keep, &StateCopy::hand_over>;

 private:
  const std::string node_;
  std::uint64_t least_generation_ = 0;
  CopiedState kept_;
};

// The actor's side. One thread at a time: the actor's.
class StateCopier {
 public:
  struct Self {
    ActorId id;
    std::uint64_t generation = 0;
    NodeId node_id;
    std::string namespace_name;
    std::string rack;  // of its node; empty: not known
  };
  // `again` is told, on the loop's thread, that keep() has to be called with the last state once
  // more: the companion is gone.
  StateCopier(std::shared_ptr<ActorClient> client, Self self, Logger log,
              std::function<void()> again);

  // What the companion of the process before holds. Nothing: there is no companion, or it holds
  // nothing. kUnavailable, kDeadlineExceeded: it could not be asked.
  Result<std::optional<SavedState>> take();
  // Returns when the copy holds it, or when there is none, and the head knows of none: on the only
  // node, or where no other one has taken it in time. An error: neither could be had, and nothing
  // may be answered. `all`: the same with all that was answered, where `saved` says less: for
  // a copy that did not hold the save before.
  Status keep(const SavedState& saved, const std::function<SavedState()>& all);

 private:
  Result<std::optional<NodeId>> choose_node(std::span<const NodeId> but) const;
  Result<std::optional<CopiedState>> take_companion();
  // On a node that was not tried; on none where there is no other.
  Status begin(std::vector<NodeId>& tried);
  Status give(const SavedState& state, Duration timeout);
  void watch_companion();
  Status end(const std::string& why);
  std::string name() const;

  const std::shared_ptr<ActorClient> client_;
  const Self self_;
  const Logger log_;
  const std::function<void()> again_;
  std::optional<ActorHandle<StateCopy>> companion_;
  ActorWatch watch_;
  bool told_alone_ = false;
  TimePoint look_again_at_{};  // for another node, where there was none
  bool looked_for_ = false;    // a companion of the process before
  std::uint64_t saves_ = 0;
};

}  // namespace troupe::detail
