#pragma once
// What a caller is told of an actor that goes on without the state that it had saved, because that
// was lost with its node: one call of each caller ends with kDataLoss instead of being sent, the
// first one after the caller knows. Later ones go to the actor as it is now. A caller that never
// talked to a process of before is told nothing.
//
// Light actors are told apart: of each that saves, and to which the caller has sent a call, one
// call ends so; a call of many of a host's (light_batch.h) ends so for all of them, where it is the
// next one of any. Calls with CallOptions::despite_state_loss are sent, and nobody is told by them.

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/base/ids.h"
#include "runtime/base/status.h"
#include "runtime/wire/types.h"
#include "troupe/detail/interface.h"

namespace troupe::detail {

// One channel's view of it. Not thread-safe.
class StateLoss {
 public:
  explicit StateLoss(const ActorInterface& interface) : interface_(interface) {}

  // The channel has a connection to the process `generation` of an actor of which `info` says at
  // least as much.
  void bound(std::uint64_t generation, const wire::ActorInfo& info);
  // The process to which the channel is connected, or was last; 0: none so far.
  std::uint64_t generation() const { return generation_; }
  // A call is about to be sent. Not ok: it ends with this instead, and the caller has been told.
  Status tell(std::uint32_t method, std::span<const std::byte> arguments);

 private:
  // Of a light actor that a call is for: whether its caller has to be told.
  bool take_untold(std::uint32_t number);
  const ActorInterface interface_;
  std::uint64_t generation_ = 0;
  NodeId node_;  // where that process was
  Status untold_;
  // Of hosts of light actors that save, by their numbers: who was sent a call; who has to be told.
  std::vector<bool> called_;
  std::vector<bool> untold_lights_;
};

}  // namespace troupe::detail
