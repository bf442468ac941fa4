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
      return actor.pid > 0 ? fmt::format("its process {} starts on node {}", actor.pid, node)
                           : fmt::format("its process starts on node {}", node);
    case wire::ActorState::kAlive:
      return fmt::format("process {} on node {} runs it: it waits for nothing", actor.pid, node);
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
