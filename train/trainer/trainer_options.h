#pragma once
// How each trainer of a run is started, and where spares are placed. Pure.
//
// Trainers are numbered: those below the world size begin with the rank of their number, the
// others are spares.

#include <optional>
#include <string>
#include <vector>

#include "train/trainer/run_spec.h"
#include "train/trainer/trainer_messages.h"
#include "troupe/options.h"

namespace troupe::train {

// `gpu`: which of the node's GPUs the spare sees; empty: those that the node says.
struct SparePlace {
  NodeId node;
  int machine = 0;  // used where RunSpec::machines says that the run knows its machines
  std::string gpu;
  friend bool operator==(const SparePlace&, const SparePlace&) = default;
};
// `place`: of a spare.
ActorOptions trainer_options(const RunSpec& spec, int trainer,
                             const std::optional<SparePlace>& place);
RankSetup trainer_setup(const RunSpec& spec, int trainer);

struct PlacedTrainer {
  NodeId node;
  int rank = 0;
  std::string gpu;  // empty: it computes on the CPU
};
// The places beside running trainers, each once: RunSpec::spares of them stand by at each. On GPUs
// every GPU is a place, because its memory and what makes a process ready belong to that GPU.
std::vector<SparePlace> spare_places(const RunSpec& spec,
                                     const std::vector<PlacedTrainer>& trainers);

}  // namespace troupe::train
