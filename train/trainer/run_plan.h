#pragma once
// What a run will need, from its configuration: for `troupe plan`, and for the refusal of a run
// that cannot fit before anything is started.

#include <cstdint>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/config/load.h"
#include "train/model/model_config.h"
#include "train/sharding/memory_fit.h"
#include "train/trainer/run_bundle.h"

namespace troupe::train {

// What a plan needs to know besides the configuration.
struct PlanFacts {
  Trainables trainables = {};  // of the model
  int world_size = 1;
  int machines = 1;
  int machines_max = 0;         // PlanRequest::machines_max
  int threads = 1;              // of a trainer
  std::int64_t cores = 1;       // of a machine
  std::int64_t length_max = 1;  // of training's rows
  std::string length_from;      // where the length is from, for people
  // Of the rows that are evaluated, and how many there are; 0: none is.
  std::int64_t evaluation_length_max = 0, evaluation_rows = 0;
  bool ragged = false;  // samples may differ in length
  std::int64_t dataset_bytes = 0;
  bool on_gpus = false;  // trainers compute there

  int ranks_on_machine() const { return (world_size + machines - 1) / machines; }
};

// From the configuration alone. Rows have cutoff_len tokens at most, and exactly with packing; the
// data set is counted as large as its files. kNotFound and its like where the data set is not
// there.
Result<PlanFacts> facts_of(FileSystem& files, const LoadedConfig& loaded, std::int64_t cores);
// From the data of a run that is about to begin, on so many machines of so many cores.
PlanFacts facts_of(const RunBundle& bundle, const LoadedConfig& loaded, std::int64_t machines,
                   std::int64_t cores);

// kInvalidArgument where strategy and mesh do not fit the world.
Result<PlanRequest> plan_request(const TrainConfig& config, const ModelConfig& model,
                                 const PlanFacts& facts);
// The same for another strategy and world: the mesh is what the strategy makes of it, the number of
// trainers on a machine stays.
Result<PlanRequest> plan_request(const TrainConfig& config, const ModelConfig& model,
                                 const PlanFacts& facts, Strategy strategy, int world_size);

// What of a configuration depends on how many trainers there are: the faults that are to strike,
// and the mesh, as far as it is known which of them share a node; with MIN_NNODES, what a world
// that may change does not support. `on_gpus`: trainers compute there.
Status check_world(const LoadedConfig& loaded, bool on_gpus = false);

// Whether the trainers of a run that is about to begin fit into the memory of each of so many
// machines: check_fits() of all that. Where they do without copies of each other's states alone,
// troupe.replicas=auto becomes 0 in the bundle, and the notice that says so is returned; a world
// that may change is refused then, for no machine could leave it.
Result<std::string> check_run_fits(RunBundle& bundle, const LoadedConfig& loaded,
                                   std::int64_t machines, std::int64_t cores,
                                   const NodeMemory& memory, bool on_gpus = false);

// Bytes of the arrays of a data set.
std::int64_t memory_bytes(const TokenDataset& dataset);

}  // namespace troupe::train
