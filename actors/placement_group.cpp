#include "troupe/placement_group.h"

#include <functional>
#include <optional>
#include <utility>

#include "actors/actor_spec.h"
#include "actors/head_answer.h"
#include "scheduler/client/head_client.h"
#include "scheduler/policy/labels.h"
#include "troupe/detail/mutex.h"
#include "troupe/future.h"
#include "troupe/options.h"

namespace troupe {
namespace {

using Info = wire::PlacementGroupInfo;

Status no_group() { return Status(Code::kFailedPrecondition, "an empty PlacementGroup"); }

// The first state of the group that is `enough`; at the deadline the last one that was seen.
struct Watched {
  Status status;
  std::optional<Info> last;
};

Watched watch_until(scheduler::HeadClient& client, GroupId id, const std::string& name,
                    Deadline deadline, std::function<bool(const Info&)> enough) {
  struct Seen {
    Mutex mutex;
    std::optional<Info> last TROUPE_GUARDED_BY(mutex);
  };
  auto seen = std::make_shared<Seen>();
  auto promise = std::make_shared<Promise<void>>();
  auto future = promise->future();
  const auto watch = client.watch_group(id, name, [seen, promise, enough](Result<Info> info) {
    if (!info.ok()) {
      promise->set(info.status());
      return;
    }
    const bool done = enough(*info);
    {
      MutexLock lock(seen->mutex);
      seen->last = std::move(*info);
    }
    if (done) promise->set(Status());
  });
  Watched watched{future.get(deadline), {}};
  client.unwatch_group(watch);
  MutexLock lock(seen->mutex);
  watched.last = seen->last;
  if (watched.status.code() == Code::kDeadlineExceeded) {
    watched.status =
        watched.last
            ? error(Code::kDeadlineExceeded, "the placement group is {} still: {}",
                    wire::placement_group_state_name(watched.last->state), watched.last->why)
            : Status(Code::kDeadlineExceeded,
                     "a placement group: the head has not answered in time");
  }
  const std::string& known = watched.last ? watched.last->name : name;
  watched.status.with("placement group", known.empty() ? id.brief() : known);
  return watched;
}

}  // namespace

Result<PlacementGroup> PlacementGroup::create(std::shared_ptr<scheduler::HeadClient> client,
                                              wire::PlacementGroupSpec spec, Deadline deadline) {
  const GroupId id = spec.group_id;
  TROUPE_RETURN_IF_ERROR(detail::wait_for_head<void>(
      deadline, "creating a placement group", [&](std::function<void(Status)> done) {
        client->create_group(std::move(spec), std::move(done));
      }));
  return PlacementGroup(std::move(client), id);
}

Result<PlacementGroup> PlacementGroup::find(std::shared_ptr<scheduler::HeadClient> client,
                                            const std::string& name, Deadline deadline) {
  if (name.empty()) return Status(Code::kInvalidArgument, "a placement group's name is empty");
  const Watched watched =
      watch_until(*client, {}, name, deadline, [](const Info&) { return true; });
  TROUPE_RETURN_IF_ERROR(watched.status);
  return PlacementGroup(std::move(client), watched.last->group_id);
}

Status PlacementGroup::ready(Duration timeout) const {
  if (!client_) return no_group();
  const Watched watched =
      watch_until(*client_, id_, "", Deadline::after(timeout), [](const Info& info) {
        return info.state == wire::PlacementGroupState::kCreated ||
               info.state == wire::PlacementGroupState::kRemoved;
      });
  if (watched.status.ok() && watched.last->state == wire::PlacementGroupState::kRemoved) {
    return error(Code::kFailedPrecondition, "the placement group was removed: {}",
                 watched.last->why);
  }
  return watched.status;
}

Result<wire::PlacementGroupInfo> PlacementGroup::info(Duration timeout) const {
  if (!client_) return no_group();
  Watched watched =
      watch_until(*client_, id_, "", Deadline::after(timeout), [](const Info&) { return true; });
  TROUPE_RETURN_IF_ERROR(watched.status);
  return std::move(*watched.last);
}

Status PlacementGroup::remove(Duration timeout) const {
  if (!client_) return no_group();
  return detail::wait_for_head<void>(Deadline::after(timeout), "removing a placement group",
                                     [&](std::function<void(Status)> done) {
                                       client_->remove_group(id_, "by its user", std::move(done));
                                     });
}

namespace detail {

Result<wire::PlacementGroupSpec> make_group_spec(const PlacementGroupOptions& options) {
  wire::PlacementGroupSpec spec;
  const std::size_t selectors = options.bundle_label_selectors.size();
  if (selectors != 0 && selectors != options.bundles.size()) {
    return error(Code::kInvalidArgument,
                 "PlacementGroupOptions: {} bundle_label_selectors for {} bundles; give one for "
                 "each bundle, or none",
                 selectors, options.bundles.size());
  }
  for (std::size_t i = 0; i < options.bundles.size(); ++i) {
    wire::BundleSpec bundle;
    const std::string where = fmt::format("PlacementGroupOptions::bundles[{}]", i);
    for (const auto& [name, amount] : options.bundles[i]) {
      TROUPE_RETURN_IF_ERROR(add_resource(bundle.resources, name, amount, where.c_str()));
    }
    if (selectors != 0) {
      auto selector = scheduler::parse_label_selector(options.bundle_label_selectors[i]);
      if (!selector.ok()) return selector.status().prefixed(where);
      bundle.label_selector = std::move(*selector);
    }
    spec.bundles.push_back(std::move(bundle));
  }
  spec.name = options.name;
  spec.strategy = options.strategy;
  spec.detached = options.detached;
  spec.priority = options.priority;
  return spec;
}

}  // namespace detail
}  // namespace troupe
