// Names of actors: unique among the living ones of a namespace.
//
// A namespace is what a driver named when it connected, or its job's own. What an actor creates is
// in the actor's namespace. An actor that was told to end for good has lost its name already.

#include "scheduler/control/head_state.h"

namespace troupe::scheduler {

std::string HeadState::namespace_of(const ClientRecord& client) {
  return client.namespace_name.empty() ? wire::namespace_of_job(client.job_id)
                                       : client.namespace_name;
}

HeadState::Name HeadState::name_of(const wire::ActorSpec& spec) {
  return {spec.namespace_name, spec.name};
}

std::string HeadState::describe(const Name& name) {
  return name.first.empty() ? fmt::format("'{}'", name.second)
                            : fmt::format("'{}' in namespace '{}'", name.second, name.first);
}

void HeadState::release_name(const ActorRecord& actor) {
  const auto named = living_names_.find(name_of(actor.spec));
  if (named != living_names_.end() && named->second == actor.spec.actor_id) {
    living_names_.erase(named);
  }
}

const ActorRecord* HeadState::named(const Name& name) const {
  const auto found = living_names_.find(name);
  return found == living_names_.end() ? nullptr : &actors_.at(found->second);
}

// The actor that has the name already; an empty id where there is none. An error where it is not
// what would be created.
Result<ActorId> HeadState::existing(const wire::ActorSpec& spec) const {
  if (spec.name.empty()) {
    return Status(Code::kInvalidArgument, "getting or creating an actor needs a name");
  }
  const ActorRecord* actor = named(name_of(spec));
  if (actor == nullptr) return ActorId{};
  if (actor->spec.type != spec.type) {
    return error(Code::kInvalidArgument, "the actor {} is a {}, not a {}", describe(name_of(spec)),
                 actor->spec.type, spec.type);
  }
  if (actor->spec.constructor_arguments != spec.constructor_arguments ||
      actor->spec.arguments_beside_bytes != spec.arguments_beside_bytes ||
      actor->spec.arguments_beside_hash != spec.arguments_beside_hash) {
    return error(Code::kInvalidArgument,
                 "the actor {} was created with other constructor arguments: get it by its name, "
                 "or ask for one with the same",
                 describe(name_of(spec)));
  }
  return actor->spec.actor_id;
}

}  // namespace troupe::scheduler
