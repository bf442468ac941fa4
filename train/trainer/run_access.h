#pragma once
// A driver's ways to the controller of its run.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/net/interfaces.h"
#include "train/trainer/controller.h"
#include "train/trainer/run_bundle.h"
#include "train/trainer/run_spec.h"
#include "troupe/byte_stream.h"
#include "troupe/cluster.h"

namespace troupe::train {

// A controller's name: this and its run's.
inline constexpr const char* kControllerPrefix = "controller/";
// How long a controller may take to answer its driver.
inline constexpr auto kControllerTimeout = std::chrono::seconds(30);

// The living node that has one of these addresses: the first where several have.
std::optional<NodeId> node_of(const std::vector<NodeInfo>& nodes,
                              const std::vector<net::InterfaceAddress>& own);
// On the node of the driver's machine where there is one with room, unless a launcher's machines
// have ranks: then on the first of those.
Result<ActorHandle<TrainController>> spawn_controller(Cluster& cluster, const RunSpec& spec);
// The number of the controller's process that the head knew last.
class ControllerWatch {
 public:
  ControllerWatch(Cluster& cluster, const ActorHandle<TrainController>& controller);
  std::uint64_t process() const { return *process_; }

 private:
  std::shared_ptr<std::atomic<std::uint64_t>> process_;
  ActorWatch watch_;
};
// A connection of kProgressPurpose. Any thread. kCancelled: its cluster was closed.
Result<ByteStream> open_progress(const ActorHandle<TrainController>& controller, Deadline deadline);
// Gives it the run's data. Any thread.
Status hand_over(const ActorHandle<TrainController>& controller, const RunBundle& bundle);

}  // namespace troupe::train
