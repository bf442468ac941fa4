#include "scheduler/client/actor_words.h"

#include <fmt/format.h>

namespace troupe::scheduler {

std::string actor_label(const wire::ActorInfo& actor) {
  if (!actor.name.empty()) return actor.name;
  return fmt::format("{} {}", actor.type, actor.actor_id.brief());
}

std::string actor_waits_for(const wire::ActorInfo& actor, std::string_view node) {
  switch (actor.state) {
    case wire::ActorState::kPending:
      return actor.pending_why.empty() ? "the head looks for a node with room for it"
                                       : actor.pending_why;
    case wire::ActorState::kStarting:
      if (actor.pid > 0) return fmt::format("its process {} starts on node {}", actor.pid, node);
      if (!actor.pending_why.empty()) return actor.pending_why;
      return fmt::format("its process starts on node {}{}", node,
                         actor.saved_state_node.empty() || actor.saved_state_node == actor.node_id
                             ? ""
                             : "; what it has saved is fetched from the node that keeps it");
    case wire::ActorState::kAlive:
      return fmt::format("process {} on node {} runs it: it waits for nothing{}", actor.pid, node,
                         actor.state_lost_generation == 0
                             ? ""
                             : fmt::format("; its generation {} began without what it had saved "
                                           "before, which was lost with a node",
                                           actor.state_lost_generation));
    case wire::ActorState::kRestarting:
      return fmt::format("{}; {}",
                         actor.death.ok() ? "its process is gone" : actor.death.to_string(),
                         actor.pending_why.empty() ? "its next process starts after its back-off"
                                                   : actor.pending_why);
    case wire::ActorState::kDead:
      return actor.death.ok() ? "it has ended" : actor.death.to_string();
  }
  return {};
}

}  // namespace troupe::scheduler
