#pragma once
// What the verbs of actors.h ask of the process's connection to its cluster, whatever the actor's
// class.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/clock.h"
#include "troupe/codec.h"
#include "troupe/detail/call_line.h"
#include "troupe/detail/durations.h"
#include "troupe/detail/interface.h"
#include "troupe/detail/method_table.h"
#include "troupe/info.h"
#include "troupe/options.h"
#include "troupe/status.h"

namespace troupe::detail {

using ClientPtr = std::shared_ptr<ActorClient>;
using ChannelPtr = std::shared_ptr<ActorChannel>;

// --- creating --------------------------------------------------------------------------------
// `arguments` are those of encode_constructor().

// Returns the channel before the actor runs. A refusal of the head ends its calls.
Result<ChannelPtr> place_actor(const ClientPtr& client, const ActorOptions& options,
                               const ActorInterface& interface, PackedArguments arguments);
struct PlainMember {
  ActorOptions options;
  PackedArguments arguments;
};
Result<std::vector<ChannelPtr>> place_gang(const ClientPtr& client,
                                           std::vector<PlainMember> members,
                                           const ActorInterface& interface, bool no_wait);
Result<ChannelPtr> get_or_place_actor(const ClientPtr& client, const ActorOptions& options,
                                      const ActorInterface& interface, PackedArguments arguments);

struct LightPlace {
  ChannelPtr host;
  std::uint32_t number = 0;
};
Result<LightPlace> place_light(const ClientPtr& client, const ActorOptions& options,
                               const ActorInterface& hosts, PackedArguments arguments);
// How `count` light actors are divided: kInvalidArgument for options that make no sense for them.
struct LightDivision {
  std::size_t host_count = 0;
  std::size_t per_host = 0;
};
Result<LightDivision> divide_light(std::size_t count, const ActorOptions& options);
// Whether a division that came over a connection is one.
bool is_light_division(std::uint64_t count, std::uint64_t per_host, std::size_t host_count);
// A failed check where the index is not below `size`.
void check_light_index(std::size_t index, std::size_t size);
// Hosts for `count` light actors, `per_host` in each as divide_light() says; `start_of(first, end)`
// is what the host of those starts with.
Result<std::vector<ChannelPtr>> place_light_hosts(
    const ClientPtr& client, std::size_t count, std::size_t per_host, const ActorOptions& options,
    const ActorInterface& hosts,
    const std::function<PackedArguments(std::size_t first, std::size_t end)>& start_of);

// --- finding ---------------------------------------------------------------------------------

Result<ChannelPtr> find_actor(const ClientPtr& client, const std::string& name,
                              const GetOptions& options, const ActorInterface& interface);
struct LightHost {
  ChannelPtr channel;
  std::uint32_t count = 0;
};
Result<LightHost> find_light_host(const ClientPtr& client, const std::string& name,
                                  const GetOptions& options, const ActorInterface& hosts);

// Something that goes on while it lives.
class Watching {
 public:
  virtual ~Watching() = default;
};
using OnActorChange = std::function<void(const ActorInfo&)>;
std::unique_ptr<Watching> watch_actor(const ClientPtr& client, ActorId actor_id,
                                      OnActorChange on_change);
std::unique_ptr<Watching> watch_light(const ClientPtr& client, ChannelPtr host,
                                      std::uint32_t number, OnActorChange on_change);

// --- ending ----------------------------------------------------------------------------------

Status kill_actor(const ClientPtr& client, ActorId actor_id, const KillOptions& options);
Status kill_light(const ClientPtr& client, const ChannelPtr& host, std::uint32_t number,
                  const KillOptions& options);
Result<StopReport> stop_actor(const ClientPtr& client, ActorId actor_id, bool light,
                              const StopOptions& options);

}  // namespace troupe::detail
