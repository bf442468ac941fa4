#pragma once
// Placement groups: resources on the nodes, reserved as a whole before actors take them.
//
//   auto group = cluster.create_placement_group(
//       {.bundles = {{{"CPU", 2}}, {{"CPU", 2}}}, .strategy = PlacementStrategy::kSpread}).value();
//   TROUPE_RETURN_IF_ERROR(group.ready(std::chrono::seconds(30)));
//   cluster.spawn<Worker>({.num_cpus = 2, .placement_group = group.id(), .bundle_index = 0});
//
// All bundles are reserved or none is. A group that loses a node is released whole and reserved
// again, its bundles where they were before as far as possible: actors on the other nodes run on,
// unless their bundle comes to lie on another node; then they are stopped and restarted there,
// within their restart policy.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "troupe/clock.h"
#include "troupe/detail/access.h"
#include "troupe/ids.h"
#include "troupe/info.h"
#include "troupe/status.h"

namespace troupe {

namespace scheduler {
class HeadClient;
}
namespace wire {
struct PlacementGroupSpec;
}

struct PlacementGroupOptions {
  // Units of resources by name: "CPU", "GPU", "memory" (bytes) and the user's own; fractions are
  // multiples of 1/10,000. Each bundle lies on one node.
  std::vector<std::map<std::string, double>> bundles = {};
  PlacementStrategy strategy = PlacementStrategy::kPack;
  std::string name = {};  // unique among groups of the cluster; empty: unnamed
  // As ActorOptions::label_selector, one for each bundle; empty: none for any.
  std::vector<std::map<std::string, std::string>> bundle_label_selectors = {};
  bool detached = false;  // outlives the driver; get_placement_group(name) finds it
  int priority = 0;       // while it waits, as ActorOptions::priority
};

// A group that the head knows. A value; copies name the same group. Thread-safe.
class PlacementGroup {
 public:
  // No group, as one that was moved from: everything ends with kFailedPrecondition.
  PlacementGroup() = default;

  GroupId id() const { return id_; }
  // Waits until all bundles are reserved. kDeadlineExceeded with what it waits for, in words;
  // kFailedPrecondition when it was removed.
  Status ready(Duration timeout) const;
  // Where its bundles are and what of them is free.
  Result<PlacementGroupInfo> info(Duration timeout = std::chrono::seconds(10)) const;
  // Ends the actors in it and gives its resources back, to others as soon as the actors' processes
  // are gone. Ok also when it was removed already.
  Status remove(Duration timeout = std::chrono::seconds(10)) const;

 private:
  friend class Cluster;
  friend struct detail::Access;
  static Result<PlacementGroup> create(std::shared_ptr<scheduler::HeadClient> client,
                                       wire::PlacementGroupSpec spec, Deadline deadline);
  static Result<PlacementGroup> find(std::shared_ptr<scheduler::HeadClient> client,
                                     const std::string& name, Deadline deadline);
  PlacementGroup(std::shared_ptr<scheduler::HeadClient> client, GroupId id)
      : client_(std::move(client)), id_(id) {}
  std::shared_ptr<scheduler::HeadClient> client_;
  GroupId id_;
};

}  // namespace troupe
