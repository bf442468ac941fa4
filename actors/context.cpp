#include "troupe/context.h"

#include <utility>

#include "actors/context_state.h"
#include "troupe/detail/running_call.h"

namespace troupe {

ActorContext::ActorContext(detail::ContextState state)
    : state_(std::make_unique<detail::ContextState>(std::move(state))) {}
ActorContext::~ActorContext() = default;

Result<Actors::Client> ActorContext::usable() const { return state_->client; }
const Actors::Client& ActorContext::client() const { return state_->client; }

// --- who the actor is ----------------------------------------------------------------------------

ActorId ActorContext::id() const {
  return light() ? detail::light_actor_id(state_->spec.actor_id, state_->light_number)
                 : state_->spec.actor_id;
}
bool ActorContext::light() const { return state_->light_number != kNoLightNumber; }
std::uint32_t ActorContext::light_number() const { return state_->light_number; }
std::uint64_t ActorContext::light_index() const { return state_->light_index; }
const std::string& ActorContext::name() const { return state_->spec.name; }
const std::string& ActorContext::namespace_name() const { return state_->spec.namespace_name; }
int ActorContext::rank() const { return state_->spec.rank; }
const std::string& ActorContext::run() const { return state_->spec.run; }
std::uint64_t ActorContext::generation() const { return state_->generation; }
NodeId ActorContext::node_id() const { return state_->node_id; }
const std::map<std::string, std::string>& ActorContext::node_labels() const {
  return state_->node_labels;
}
GroupId ActorContext::placement_group() const { return state_->spec.placement_group; }
int ActorContext::bundle_index() const { return state_->spec.bundle_index; }
const Logger& ActorContext::log() const { return state_->log; }
Executor& ActorContext::executor() { return *state_->executor; }

detail::ChannelPtr ActorContext::own_channel(const detail::ActorInterface& interface) const {
  return state_->client->channel(state_->spec.actor_id, interface);
}

// --- the call that this thread runs --------------------------------------------------------------

std::optional<Deadline> ActorContext::deadline() const {
  const detail::RunningCall* const call = detail::RunningCall::current();
  if (call == nullptr) return std::nullopt;
  return call->deadline();
}

std::stop_token ActorContext::call_stop_token() const {
  detail::RunningCall* const call = detail::RunningCall::current();
  return call != nullptr ? call->stop_token() : std::stop_token();
}

// --- the process ---------------------------------------------------------------------------------

void ActorContext::accept_connections(
    const std::string& purpose,
    std::function<void(ByteStream, std::string target, bool same_node)> on_connection) {
  state_->host.accept_connections(purpose, std::move(on_connection));
}
std::stop_token ActorContext::stop_token() const { return state_->host.stop_token(); }
void ActorContext::request_exit() { state_->host.request_exit(); }
Status ActorContext::save_now() { return state_->host.save_now(); }

Status ActorContext::keep_segment(const std::string& name, int fd) {
  return state_->host.keep_segment(name, fd);
}

Result<UniqueFd> ActorContext::attach_segment(const std::string& name, Deadline deadline) {
  return state_->host.attach_segment(name, deadline);
}

Result<std::vector<std::byte>> ActorContext::read_segment(ActorId actor_id, const std::string& name,
                                                          std::size_t bytes_max, Deadline deadline,
                                                          std::uint64_t offset) {
  auto piece = state_->client->read_segment(actor_id, name, offset, bytes_max, deadline);
  if (!piece.ok()) return piece.status();
  return std::move(piece->bytes);
}

}  // namespace troupe
