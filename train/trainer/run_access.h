#pragma once
// A driver's ways to the controller of its run.

#include "actors/cluster.h"
#include "train/trainer/controller.h"
#include "train/trainer/run_bundle.h"
#include "train/trainer/run_spec.h"

namespace troupe::train {

// How long a controller may take to answer its driver.
inline constexpr auto kControllerTimeout = std::chrono::seconds(30);

Result<ActorHandle<TrainController>> spawn_controller(Cluster& cluster, const RunSpec& spec);
Result<RawConnection> open_purpose(Cluster& cluster, const ActorHandle<TrainController>& controller,
                                   const char* purpose, Deadline deadline);
// Gives it the run's data.
Status hand_over(Cluster& cluster, const ActorHandle<TrainController>& controller,
                 const RunBundle& bundle);

}  // namespace troupe::train
