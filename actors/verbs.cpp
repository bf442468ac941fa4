#include "troupe/detail/verbs.h"

#include <algorithm>
#include <utility>

#include "actors/actor_spec.h"
#include "actors/client.h"
#include "actors/light_client.h"
#include "runtime/base/check.h"
#include "runtime/base/limits.h"
#include "runtime/base/status.h"

namespace troupe::detail {
namespace {

Deadline control_deadline() { return Deadline::after(kControlTimeout); }

class LightWatching final : public Watching {
 public:
  explicit LightWatching(std::shared_ptr<LightWatch> watch) : watch_(std::move(watch)) {}
  ~LightWatching() override { watch_->stop(); }

 private:
  const std::shared_ptr<LightWatch> watch_;
};

}  // namespace

// --- creating ------------------------------------------------------------------------------------

Result<ChannelPtr> place_actor(const ClientPtr& client, const ActorOptions& options,
                               const ActorInterface& interface, PackedArguments arguments) {
  return client->create(options, interface, std::move(arguments));
}

Result<std::vector<ChannelPtr>> place_gang(const ClientPtr& client,
                                           std::vector<PlainMember> members,
                                           const ActorInterface& interface, bool no_wait) {
  return client->create_gang(std::move(members), interface, no_wait, control_deadline());
}

Result<ChannelPtr> get_or_place_actor(const ClientPtr& client, const ActorOptions& options,
                                      const ActorInterface& interface, PackedArguments arguments) {
  if (options.isolation == Isolation::kShared) {
    return Status(Code::kInvalidArgument,
                  "get_or_create of a light actor: one alone has no name. Name the host of several "
                  "(spawn_many), or give it a process of its own (Isolation::kProcess)");
  }
  return client->get_or_create(options, interface, std::move(arguments), control_deadline());
}

Result<LightPlace> place_light(const ClientPtr& client, const ActorOptions& options,
                               const ActorInterface& hosts, PackedArguments arguments) {
  return client->create_light(options, hosts, std::move(arguments));
}

Result<LightDivision> divide_light(std::size_t count, const ActorOptions& options) {
  if (options.isolation != Isolation::kShared) {
    return error(Code::kInvalidArgument,
                 "spawn_many makes light actors: set ActorOptions::isolation to "
                 "Isolation::kShared (actors with processes of their own: spawn, spawn_gang)");
  }
  if (count == 0) return error(Code::kInvalidArgument, "spawn_many of no actors");
  TROUPE_RETURN_IF_ERROR(make_spec(options).status());
  LightDivision division;
  division.host_count = (count + options.light_per_host - 1) / options.light_per_host;
  division.per_host = (count + division.host_count - 1) / division.host_count;
  if (!options.name.empty() && division.host_count > 1) {
    return error(Code::kInvalidArgument,
                 "spawn_many of {} actors called '{}' makes {} hosts, and a name is one host's. "
                 "Raise light_per_host",
                 count, options.name, division.host_count);
  }
  return division;
}

bool is_light_division(std::uint64_t count, std::uint64_t per_host, std::size_t host_count) {
  return per_host >= 1 && per_host <= limits::kLightPerHostMax && count <= per_host * host_count &&
         host_count == (count + per_host - 1) / per_host;
}

void check_light_index(std::size_t index, std::size_t size) {
  TROUPE_CHECK(index < size, "light actor {} of {}", index, size);
}

Result<std::vector<ChannelPtr>> place_light_hosts(
    const ClientPtr& client, std::size_t count, std::size_t per_host, const ActorOptions& options,
    const ActorInterface& hosts,
    const std::function<PackedArguments(std::size_t first, std::size_t end)>& start_of) {
  // All of them are made before the first one is placed: it may be that one of them is refused.
  std::vector<PackedArguments> starts;
  std::vector<std::uint32_t> counts;
  for (std::size_t first = 0; first < count; first += per_host) {
    const std::size_t end = std::min(count, first + per_host);
    counts.push_back(static_cast<std::uint32_t>(end - first));
    starts.push_back(start_of(first, end));
    if (starts.back().bytes.size() <= limits::kActorSpecBytesMax) continue;
    return error(Code::kInvalidArgument,
                 "the constructor arguments of the {} light actors of a host are {} bytes; at "
                 "most {} are taken. Use more hosts (ActorOptions::light_per_host), or put large "
                 "data into the actors' first calls",
                 counts.back(), starts.back().bytes.size(), limits::kActorSpecBytesMax);
  }
  std::vector<ChannelPtr> channels;
  for (std::size_t k = 0; k < starts.size(); ++k) {
    channels.push_back(
        TROUPE_TRY(client->create_light_host(options, hosts, std::move(starts[k]), counts[k])));
  }
  return channels;
}

// --- finding -------------------------------------------------------------------------------------

Result<ChannelPtr> find_actor(const ClientPtr& client, const std::string& name,
                              const GetOptions& options, const ActorInterface& interface) {
  return client->find(name, options.namespace_name, interface, Deadline::after(options.timeout));
}

Result<LightHost> find_light_host(const ClientPtr& client, const std::string& name,
                                  const GetOptions& options, const ActorInterface& hosts) {
  return client->find_light_host(name, options.namespace_name, hosts,
                                 Deadline::after(options.timeout));
}

std::unique_ptr<Watching> watch_actor(const ClientPtr& client, ActorId actor_id,
                                      OnActorChange on_change) {
  return std::make_unique<DirectoryWatching>(client, client->watch(actor_id, std::move(on_change)));
}

std::unique_ptr<Watching> watch_light(const ClientPtr& client, ChannelPtr host,
                                      std::uint32_t number, OnActorChange on_change) {
  return std::make_unique<LightWatching>(
      LightWatch::start(client, std::move(host), number, std::move(on_change)));
}

// --- ending --------------------------------------------------------------------------------------

Status kill_actor(const ClientPtr& client, ActorId actor_id, const KillOptions& options) {
  return client->kill(actor_id, options.allow_restart, options.grace.count(), options.reason,
                      control_deadline());
}

Status kill_light(const ClientPtr& client, const ChannelPtr& host, std::uint32_t number,
                  const KillOptions& options) {
  if (options.allow_restart) {
    return Status(Code::kUnsupported,
                  "kill() of a light actor with allow_restart: one alone is not restarted. Kill "
                  "its host (LightActors::hosts, ActorHandle::host_id), which restarts all of its");
  }
  return end_light(client, host, number, options.reason, control_deadline());
}

Result<StopReport> stop_actor(const ClientPtr& client, ActorId actor_id, bool light,
                              const StopOptions& options) {
  if (light) {
    return Status(Code::kUnsupported, "stop() of a light actor: kill() ends one between two calls");
  }
  // After its time the process has a moment to say what is left, and the head to hear it.
  const Deadline deadline = Deadline::after(options.timeout + kControlTimeout);
  if (options.drain) {
    return StopReport{
        TROUPE_TRY(client->drain(actor_id, options.timeout, options.reason, deadline))};
  }
  TROUPE_RETURN_IF_ERROR(
      client->kill(actor_id, false, options.timeout.count(), options.reason, deadline));
  TROUPE_RETURN_IF_ERROR(client->wait_for_death(actor_id, deadline));
  return StopReport{};
}

}  // namespace troupe::detail
