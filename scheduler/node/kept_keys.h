#pragma once
// Under which names a node's state lies with its keeper.

#include <string>

#include "runtime/base/ids.h"

namespace troupe::scheduler {

inline constexpr const char* kNodeKey = "node";
// The socket on which the daemon listens: while the keeper has it the port stays open, whichever
// daemon comes, and when nothing of the node is left it is closed.
inline constexpr const char* kListenerKey = "listener";
inline constexpr const char* kGpusKey = "gpus";
inline constexpr const char* kActorKeys = "actor/";
inline constexpr const char* kSavedStateKeys = "saved/";
inline constexpr const char* kSegmentKeys = "segment/";
inline constexpr const char* kOutputKeys = "output/";

inline std::string actor_key(const ActorId& id) { return kActorKeys + id.to_string(); }
inline std::string saved_state_key(const ActorId& id) { return kSavedStateKeys + id.to_string(); }
inline std::string output_key(const ActorId& id) { return kOutputKeys + id.to_string(); }
inline std::string segment_key(const JobId& id, const std::string& name) {
  return kSegmentKeys + id.to_string() + "/" + name;
}

}  // namespace troupe::scheduler
