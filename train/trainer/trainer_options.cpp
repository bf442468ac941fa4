#include "train/trainer/trainer_options.h"

#include <algorithm>

#include "runtime/base/file_system.h"

namespace troupe::train {
namespace {

// RunState ends a run whose trainers die again and again; the head need not hold them back as well.
constexpr auto kBackOffMax = std::chrono::milliseconds(50);

int rank_at_start(const RunSpec& spec, int trainer) {
  if (spec.elastic()) {
    const auto& machines = spec.first_machines;
    const auto found = std::ranges::find(machines, trainer / spec.ranks_per_node);
    if (found == machines.end()) return -1;
    return static_cast<int>(found - machines.begin()) * spec.ranks_per_node +
           trainer % spec.ranks_per_node;
  }
  return trainer < spec.world_size ? trainer : -1;
}

// Several ranks may have one machine.
int machine_of(const RunSpec& spec, int rank) {
  return rank / ((spec.world_size + spec.machines - 1) / spec.machines);
}

}  // namespace

ActorOptions trainer_options(const RunSpec& spec, int trainer,
                             const std::optional<SparePlace>& place) {
  const int rank = rank_at_start(spec, trainer);
  const bool spare = trainer >= spec.world_size;
  // Trainers run on while the head is silent (OnHeadLoss::kKeep): a step needs the agreement of
  // all ranks and no head. An older process of a trainer whose node was lost does no harm. It
  // belongs to a generation that the other ranks have left, so it commits no step and no checkpoint
  // without them; the controller's next plan goes to the newer process alone. Where all ranks of a
  // run were on the lost node, the older run continues as a whole until that node is back. Both
  // compute the same values, and both may write to output_dir: then a save of one may fail because
  // of the other's, or be replaced by equal bytes, but what stands under a checkpoint's name is
  // complete (train/checkpoint).
  ActorOptions options{.name = fmt::format("{}/trainer-{}", spec.run, trainer),
                       // A spare works only in the place of a trainer that does not.
                       .num_cpus = spare ? 0 : spec.cpus_per_trainer,
                       .num_gpus = spare ? 0 : spec.gpus_per_trainer,
                       .memory_bytes = spare ? 0 : spec.memory_per_trainer,
                       .max_restarts = -1,  // RunState keeps the budget of the whole run
                       .backoff_initial = std::chrono::milliseconds(0),
                       .backoff_max = kBackOffMax,
                       // The next process of the controller takes over those that run.
                       .owner = Owner::kJob,
                       .run = spec.run,
                       .rank = rank};
  if (spec.machines > 0) {
    const int machine = place ? place->machine : machine_of(spec, trainer);
    options.label_selector[kNodeRankLabel] = std::to_string(machine);
    options.awaits_nodes = spec.elastic();
  } else if (place) {
    options.node_affinity = place->node;
  }
  options.environment = spec.trainer_variables;
  if (!spare) {
    options.resources = spec.resources_per_trainer;
    if (!spec.bundles.empty()) {
      options.placement_group = spec.places;
      options.bundle_index = spec.bundles[static_cast<std::size_t>(rank)];
    }
  }
  // It holds nothing of the GPU before it has a rank, which is one that its holder had.
  if (place && !place->gpu.empty()) {
    options.environment[kVisibleGpus] = place->gpu;
    options.environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID";
  }
  if (!spec.log_dir.empty()) {
    options.log_path =
        join_path(spec.log_dir, spare ? fmt::format("spare-{}.log", trainer - spec.world_size)
                                      : fmt::format("rank-{}.log", trainer));
  }
  return options;
}

RankSetup trainer_setup(const RunSpec& spec, int trainer) {
  return {.run = spec.run,
          .trainer = trainer,
          .rank = rank_at_start(spec, trainer),
          .world_size = spec.world_size,
          .ranks_per_node = spec.ranks_per_node,
          .threads = spec.threads,
          .overlaps = spec.overlaps,
          .own_core = spec.own_core,
          .resume_path = spec.resume_path,
          .output_locked_by = spec.output_locked_by,
          .started_unix_us = spec.started_unix_us,
          .wait_timeout_ms = spec.wait_timeout_ms,
          .on_gpu = spec.gpus_per_trainer > 0,
          .output_dir = spec.output_dir,
          .token_cache = spec.token_cache};
}

std::vector<SparePlace> spare_places(const RunSpec& spec,
                                     const std::vector<PlacedTrainer>& trainers) {
  std::vector<SparePlace> places;
  for (const PlacedTrainer& trainer : trainers) {
    SparePlace place{trainer.node, spec.machines > 0 ? machine_of(spec, trainer.rank) : 0,
                     trainer.gpu};
    if (std::find(places.begin(), places.end(), place) == places.end())
      places.push_back(std::move(place));
  }
  return places;
}

}  // namespace troupe::train
