#pragma once
// Where the trainers of a run go when placement_strategy says more than that they are packed:
// places on the nodes, kept for the ranks by a placement group before the trainers are started.

#include <cstdint>
#include <vector>

#include "train/trainer/driver.h"
#include "train/trainer/run_spec.h"

namespace troupe::train {

// Trainers on a node, as far as it is known before they are placed.
std::int64_t trainers_per_node(const TrainConfig& config, const TrainingCluster& cluster,
                               int world_size);

// Keeps the places and puts them into `spec`; nothing for PACK, and where NNODES deals the ranks
// out to the nodes. Ranks of one node follow each other. kResourceExhausted where the nodes cannot
// have the trainers so, with what is missing.
Status keep_places(const TrainConfig& config, TrainingCluster& cluster, RunSpec& spec);

// The order in which ranks take bundles that lie on these nodes.
std::vector<std::int32_t> bundles_by_node(const std::vector<NodeId>& nodes);

}  // namespace troupe::train
