#include "scheduler/control/records.h"

#include <algorithm>

#include "scheduler/policy/resources.h"

namespace troupe::scheduler {
namespace {

// Restarts that the back-off of an actor without a limit looks at.
constexpr std::size_t kRestartsRememberedMax = 64;
// A back-off, however long one was asked for.
constexpr std::int64_t kBackOffMsMax = 24 * 3'600'000;

}  // namespace

bool NodeRecord::lost_some(const wire::Resources& amount) const {
  if (!shrinks_to) return false;
  return std::any_of(amount.begin(), amount.end(), [&](const auto& entry) {
    const auto& [name, value] = entry;
    return value > 0 && amount_of(info.total, name) > amount_of(*shrinks_to, name);
  });
}

std::set<GroupId> NodeRecord::groups() const {
  std::set<GroupId> ids;
  for (const auto& [key, bundle] : bundles) ids.insert(key.first);
  return ids;
}

wire::Resources GroupRecord::on_node(NodeId node_id) const {
  wire::Resources sum;
  for (const wire::BundleInfo& bundle : info.bundles) {
    if (bundle.node_id == node_id) add(sum, bundle.resources);
  }
  return sum;
}

std::string describe(const ActorRecord& actor) {
  const std::string rank = actor.spec.rank >= 0 ? fmt::format(" rank {}", actor.spec.rank) : "";
  return actor.spec.name.empty() ? fmt::format("{}{} {}", actor.spec.type, rank, actor.id().brief())
                                 : fmt::format("{}{} '{}'", actor.spec.type, rank, actor.spec.name);
}

std::string describe(const GroupRecord& group) {
  return group.spec.name.empty() ? fmt::format("placement group {}", group.id().brief())
                                 : fmt::format("placement group '{}'", group.spec.name);
}

std::string describe(const SupervisorRecord& supervisor) {
  return supervisor.spec.name.empty() ? fmt::format("supervisor {}", supervisor.id().brief())
                                      : fmt::format("supervisor '{}'", supervisor.spec.name);
}

std::string describe(const ClientRecord& client) {
  return client.name.empty() ? client.client_id.brief() : client.name;
}

std::string describe(const JobRecord& job) {
  return fmt::format("job '{}' {}", job.info.name, job.id().brief());
}

bool may_restart(const wire::RestartPolicy& policy, std::int64_t now_unix_us,
                 std::vector<std::int64_t>& restarts_unix_us) {
  // A window that began before the calendar's first day forgets nothing.
  if (policy.window_ms > 0 && policy.window_ms < now_unix_us / 1000) {
    const std::int64_t oldest = now_unix_us - policy.window_ms * 1000;
    std::erase_if(restarts_unix_us, [&](std::int64_t time) { return time < oldest; });
  }
  if (policy.max_restarts < 0) {
    if (restarts_unix_us.size() > kRestartsRememberedMax) {
      restarts_unix_us.erase(restarts_unix_us.begin());
    }
    return true;
  }
  return restarts_unix_us.size() < static_cast<std::size_t>(policy.max_restarts);
}

Duration back_off(const wire::RestartPolicy& policy, std::size_t restarts) {
  const std::size_t doublings = std::min<std::size_t>(restarts, 30);
  const std::int64_t initial = std::clamp<std::int64_t>(policy.backoff_initial_ms, 0, 1'000'000);
  const std::int64_t longest = std::clamp<std::int64_t>(policy.backoff_max_ms, 0, kBackOffMsMax);
  return std::chrono::milliseconds(std::min(initial << doublings, longest));
}

}  // namespace troupe::scheduler
