#include "train/sharding/memory_plan.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/check.h"
#include "runtime/collective/shm_link.h"
#include "train/cpu/scratch_sizes.h"
#include "train/cuda/communicator/nccl_communicator.h"
#include "train/cuda/device/host_transfer.h"
#include "train/cuda/operators/gemm_algorithms.h"
#include "train/sharding/buddy_plan.h"
#include "train/sharding/cuda_optimizer_device.h"
#include "train/sharding/device_scratch.h"
#include "train/sharding/gather_schedule.h"
#include "train/sharding/offloaded_optimizer_device.h"
#include "train/sharding/rank_layout.h"
#include "train/sharding/sharded_optimizer.h"

namespace troupe::train {
namespace {

// What a trainer's process takes beside all that is counted. Measured as the PSS, by kind of
// mapping, of one, two and four trainers on a machine, of models of 0.1 to 60 M parameters, minus
// the rest of the plan (Debian 12, x86-64, oneDNN 2.6, glibc's malloc). Anonymous memory does not
// depend on the number of trainers; of pages of files each process has its share.
constexpr std::int64_t kPrivateBytes = 4'500'000;       // heap, stacks, relocated data
constexpr std::int64_t kThreadBytes = 256 << 10;        // another thread's stack and malloc arena
constexpr std::int64_t kTrainerCodeBytes = 3'700'000;   // pages that trainers alone use: oneDNN
constexpr std::int64_t kProgramCodeBytes = 22'000'000;  // of the program and other libraries
constexpr std::int64_t kOtherProcesses = 2;             // driver and controller map them, too
constexpr std::int64_t kOverheadBytes = 20 << 20;       // driver and controller, data set apart

std::int64_t size_of_type(DType type) { return static_cast<std::int64_t>(dtype_size(type)); }

ComputeOptions compute_options(const PlanRequest& request) {
  ComputeOptions options = request.compute;
  follow(options, request.strategy, request.offload, request.model.tie_word_embeddings);
  return options;
}

ReductionOptions reduction_options(const PlanRequest& request) {
  ReductionOptions options = request.reduction;
  options.tied = request.model.tie_word_embeddings;
  return options;
}

std::int64_t activation_bytes(const PlanRequest& request) {
  return static_cast<std::int64_t>(
      Activations::bytes_needed(request.model, request.activations, request.evaluation));
}

// The most that `bytes_of(options)` says of a run's passes.
template <typename F>
std::int64_t most_of_passes(const PlanRequest& request, F bytes_of) {
  const std::int64_t training = bytes_of(request.activations);
  return request.evaluation ? std::max(training, bytes_of(*request.evaluation)) : training;
}

// Of the optimizer, of what a rank updates.
std::int64_t optimizer_bytes(const PlanRequest& request, const RankLayout& rank) {
  if (request.optimizer) return slot_bytes(rank, *request.optimizer, request.compute.state);
  return request.optimizer_slots * rank.elements(Region::kOptimizer) *
         size_of_type(request.compute.state);
}

// What takes the place of the gradients of whole tensors while they are updated, of all threads.
std::int64_t direction_bytes(const PlanRequest& request, const RankLayout& rank) {
  if (!rank.layout().has_whole_tensors()) return 0;
  std::int64_t largest = 0;
  for (const UpdateBlock& block : OptimizerShard::blocks_of(rank, OptimizerShard::ranges_of(rank)))
    if (!block.tensors.empty()) largest = std::max(largest, block.tiles * kTileElements);
  return request.threads * largest * size_of_type(DType::kF32);
}

int heaviest_rank(const ModelLayout& layout, const Mesh& mesh) {
  const ShardMap shards(layout.trained(), mesh.dp_shard);
  int heaviest = 0;
  for (int member = 1; member < shards.members(); ++member)
    if (shards.shard_elements(member) > shards.shard_elements(heaviest)) heaviest = member;
  return mesh.rank_at(0, heaviest);
}

// The frozen parameters that a rank holds.
std::int64_t frozen_bytes(const PlanRequest& request, const RankLayout& rank) {
  return rank.frozen()
             ? rank.frozen()->elements(Region::kParameters) * size_of_type(request.compute.frozen)
             : 0;
}

std::int64_t chunk_bytes(const PlanRequest& request) {
  return static_cast<std::int64_t>(ShardedOptimizer::chunk_bytes(
      request.compute.state, static_cast<std::size_t>(request.optimizer_slots)));
}

// Of the optimizer: a word for every chunk, that says whether it is updated (train/transaction).
std::int64_t mark_bytes(const RankLayout& rank) {
  return ShardedOptimizer::chunk_count(rank) * static_cast<std::int64_t>(sizeof(std::uint64_t));
}

// That, and a chunk's old bytes for each thread.
std::int64_t update_log_bytes(const PlanRequest& request, const RankLayout& rank) {
  return mark_bytes(rank) + request.threads * chunk_bytes(request);
}

// What a trainer with a GPU keeps in memory of the host for it: what it saves, copied, and pinned
// memory for copies.
std::int64_t gpu_host_bytes(const PlanRequest& request, const RankLayout& rank) {
  std::int64_t saved = 0;
  if (request.offload == Offload::kNothing) {
    for (int unit = 0; unit < rank.units(); ++unit) saved += rank.reduced(unit).size();
    saved *= size_of_type(request.compute.state) *
             (request.saves_optimizer ? 1 + request.optimizer_slots : 1);
  } else {
    // Saved from where it lies; pieces on their way, and what the host updates with.
    saved = OffloadedOptimizerDevice::pinned_bytes(rank, request.compute.compute, request.offload) +
            update_log_bytes(request, rank);
  }
  constexpr std::int64_t kTransfers = 2;  // the operators' and the optimizer's, of two pieces each
  return saved + kTransfers * 2 * HostTransfer::kPieceBytes + 4 * NcclOptions().chunk_bytes +
         request.save_buffer_bytes;
}

std::int64_t workspace_bytes(const PlanRequest& request, const ActivationOptions& batch) {
  const ModelConfig& model = request.model;
  const bool bf16 = request.compute.compute == DType::kBF16;
  const std::int64_t widest =
      std::max({model.hidden_size, model.intermediate_size, model.qkv_width()});
  const CpuScratchSizes sizes = cpu_scratch_sizes();
  const std::int64_t depth = std::min(sizes.tile_depth, widest);
  const std::int64_t gemm =
      bf16 || request.compute.fp16
          ? (std::min(sizes.tile_rows, widest) + std::min(sizes.tile_columns, widest)) * depth
          : sizes.packed_floats;
  const std::int64_t row = (request.ragged ? batch.rows_max : 1) * batch.length_max;
  // Queries that begin in one sample and end in others see its keys and their own. In bf16 a whole
  // row is worked on.
  const std::int64_t keys =
      bf16 ? row : std::min(row, batch.length_max + sizes.query_rows + sizes.key_group - 1);
  // Scores and their gradients, and the transposed queries and gradients.
  const std::int64_t attention_rows = 2 * sizes.query_rows;
  const std::int64_t attention = attention_rows * (keys + model.head_dim);
  // In bf16 attention packs its operands: three of a head's keys and values, two of the scores.
  const std::int64_t packed = bf16 ? 2 * keys * (3 * model.head_dim + attention_rows) : 0;
  // Of the optimizer: a chunk's old bytes for each thread (train/transaction).
  const std::int64_t undo = chunk_bytes(request);
  return request.threads * (4 * (gemm + attention) + packed + undo) + request.staging_bytes +
         request.save_buffer_bytes;
}

// A ring each way with every peer of the machine. Each is mapped twice by both ends, so that half
// of it is this rank's.
std::int64_t ring_bytes(const PlanRequest& request) {
  const auto peers = static_cast<std::size_t>(std::max(1, request.ranks_on_node) - 1);
  if (peers == 0) return 0;
  return static_cast<std::int64_t>(collective::SegmentPlan::for_peers(peers).size_bytes());
}

std::int64_t runtime_bytes(const PlanRequest& request) {
  const std::int64_t ranks = std::max(1, request.ranks_on_node);
  return kPrivateBytes + kTrainerCodeBytes / ranks + kProgramCodeBytes / (ranks + kOtherProcesses) +
         request.threads * kThreadBytes;
}

// "Ψ", "2Ψ".
std::string times_psi(std::int64_t count) { return count == 1 ? "Ψ" : fmt::format("{}Ψ", count); }

// Bytes that a rank sends of parameters that are gathered for the passes of a step, with so many
// forward passes alone of each micro-batch.
double gathered_bytes(const RankLayout& rank, const GatherOptions& options, double micro_batches,
                      int forward_passes) {
  std::vector<std::int64_t> sizes;
  for (int unit = 0; unit < rank.units(); ++unit) sizes.push_back(rank.unit_elements(unit));
  double gathered = 0;
  const auto add = [&](const GatherSchedule& schedule, double times) {
    for (const GatherStep& step : schedule.steps())
      for (const int unit : step.gathers)
        gathered += times * static_cast<double>(sizes[static_cast<std::size_t>(unit)]);
  };
  const GatherSchedule schedule(
      sizes, training_events(rank.units(), options.tied, rank.first_backward_unit()),
      options.limits);
  add(schedule, micro_batches);
  if (forward_passes > 0)
    add(GatherSchedule(sizes, forward_events(rank.units(), options.tied), options.limits),
        micro_batches * forward_passes);
  // Those that stay gathered change with an update, once a step.
  for (const int unit : schedule.persistent())
    gathered += static_cast<double>(sizes[static_cast<std::size_t>(unit)]);
  const double group = rank.mesh().dp_shard;
  return gathered * (group - 1) / group * size_of_type(options.compute);
}

// Of a micro-batch, before the pass that trains: by the reference, and of answers to other
// questions by both.
int asked_passes(const Objective& objective) {
  return objective.asks_drift() ? 3 : objective.asks() ? 1 : 0;
}

// Whole gradients grow over the micro-batches and leave once.
bool reduces_once(const PlanRequest& request) {
  return request.reduction.order == ReductionOrder::kOff &&
         (!row_of(request.strategy).shards_gradients || request.mesh.dp_shard == 1);
}

// Bytes that a rank sends on the mean of an element that is reduced: (N − 1)/N elements. A shard
// group's sums go to the replicas in fp32; leaves of the tree over all micro-batches to their owner
// at once.
double reduction_bytes(const PlanRequest& request) {
  const auto size = static_cast<double>(size_of_type(request.reduction.reduce));
  const double world = request.mesh.size(), group = request.mesh.dp_shard;
  const bool two_stages = request.reduction.order != ReductionOrder::kAcrossWorldSizes &&
                          group > 1 && request.mesh.dp_replicate > 1;
  if (!two_stages) return size * (world - 1) / world;
  return size * (group - 1) / group + 4 * (request.mesh.dp_replicate - 1) / world;
}

}  // namespace

bool keeps_copies(const PlanRequest& request) {
  if (!request.copies || request.on_gpu) return false;
  std::vector<std::uint64_t> machines;
  for (int rank = 0; rank < request.mesh.size(); ++rank)
    machines.push_back(static_cast<std::uint64_t>(rank / std::max(1, request.ranks_on_node)));
  return !BuddyPlan::make(request.mesh.replicas(), machines).none();
}

int machines_of(const PlanRequest& request) {
  const int ranks = std::max(1, request.ranks_on_node);
  return (request.mesh.size() + ranks - 1) / ranks;
}

namespace {

// The world before may have had a machine more, which left or was lost; that of all machines comes
// from one that had one fewer. Nothing: there is none.
std::optional<PlanRequest> world_before(const PlanRequest& request) {
  const int machines = machines_of(request);
  const int before = machines < request.machines_max ? machines + 1 : machines - 1;
  if (request.machines_max == 0 || before < 1) return std::nullopt;
  PlanRequest former = request;
  former.machines_max = 0;
  const auto mesh = make_mesh(request.strategy, before * std::max(1, request.ranks_on_node),
                              request.ranks_on_node, 0, 0);
  if (!mesh.ok()) return std::nullopt;  // a world that this strategy does not have
  former.mesh = *mesh;
  return former;
}

}  // namespace

MemoryPlan plan_memory(const PlanRequest& request) {
  const ModelLayout layout(request.model, request.trainables);
  const RankLayout rank(layout, request.strategy, request.mesh,
                        heaviest_rank(layout, request.mesh));
  const std::int64_t state_size = size_of_type(request.compute.state);
  if (request.on_gpu) {
    MemoryPlan host;
    if (request.offload != Offload::kNothing) {
      host.parameters = rank.elements(Region::kOptimizer) * state_size;
      host.optimizer = optimizer_bytes(request, rank);
    }
    if (request.offload == Offload::kParameters)
      host.gathered = rank.elements(Region::kParameters) * size_of_type(request.compute.compute);
    host.workspaces = gpu_host_bytes(request, rank);
    host.rings = ring_bytes(request);
    host.dataset = request.dataset_bytes;
    host.runtime = runtime_bytes(request);
    return host;
  }
  const UnitBuffers gathered = UnitBuffers::plan(rank, compute_options(request));
  MemoryPlan plan;
  plan.parameters = rank.elements(Region::kParameters) * state_size + frozen_bytes(request, rank);
  plan.gradients = rank.elements(Region::kGradients) * size_of_type(DType::kF32);
  plan.optimizer = optimizer_bytes(request, rank);
  plan.gathered = gathered.bytes();
  plan.reduction = ReductionBuffers::plan(rank, reduction_options(request)).bytes();
  plan.activations = activation_bytes(request);
  plan.workspaces = mark_bytes(rank) + direction_bytes(request, rank) +
                    most_of_passes(request, [&](const ActivationOptions& batch) {
                      return workspace_bytes(request, batch);
                    });
  plan.rings = ring_bytes(request);
  if (keeps_copies(request)) {
    plan.kept = rank.elements(Region::kOptimizer) * (size_of_type(DType::kF32) + state_size) +
                optimizer_bytes(request, rank) + update_log_bytes(request, rank);
  }
  if (const auto before = world_before(request)) {
    const MemoryPlan former = plan_memory(*before);
    plan.former = former.state() + former.kept;
  }
  plan.dataset = request.dataset_bytes;
  plan.runtime = runtime_bytes(request);
  return plan;
}

DevicePlan plan_device_memory(const PlanRequest& request) {
  TROUPE_CHECK(request.on_gpu);
  const ModelLayout layout(request.model, request.trainables);
  const RankLayout rank(layout, request.strategy, request.mesh,
                        heaviest_rank(layout, request.mesh));
  const bool offloads = request.offload != Offload::kNothing;
  // As CudaCompute opens its operators.
  const CudaOptions options{
      .fp8 = request.fp8,
      .attention = {.ordered = request.reduction.order != ReductionOrder::kOff}};
  const std::int64_t scratch = most_of_passes(request, [&](const ActivationOptions& passes) {
    const auto bytes = device_scratch_bytes(nullptr, request.model, *request.objective, passes,
                                            kGemmWorkspaceBytes, options, request.ragged);
    TROUPE_CHECK(bytes.ok(), "{}", bytes.status().to_string());
    return *bytes;
  });
  DevicePlan plan;
  if (request.offload != Offload::kParameters)
    plan.parameters =
        rank.elements(Region::kParameters) * size_of_type(compute_options(request).state);
  plan.parameters += frozen_bytes(request, rank);
  plan.gradients = rank.elements(Region::kGradients) * size_of_type(DType::kF32);
  if (!offloads) {
    plan.optimizer = request.optimizer_slots * rank.elements(Region::kOptimizer) *
                         size_of_type(request.compute.state) +
                     CudaOptimizerDevice::log_bytes(rank, request.compute.state);
  }
  const UnitBuffers gathered = UnitBuffers::plan(rank, compute_options(request));
  plan.gathered = gathered.bytes();
  plan.reduction = ReductionBuffers::plan(rank, reduction_options(request)).bytes();
  plan.activations = activation_bytes(request);
  plan.workspaces = scratch + (offloads ? OffloadedOptimizerDevice::scratch_bytes(rank)
                                        : CudaOptimizerDevice::scratch_bytes(rank));
  // What sums over ranks are received in.
  if (request.mesh.size() > 1) plan.communication = NcclOptions().scratch_bytes;
  return plan;
}

std::int64_t gpu_bytes(const PlanRequest& request) {
  return request.ranks_on_gpu * plan_device_memory(request).total() +
         request.spares_on_gpu * kSpareDeviceBytes;
}

Formula state_formula(const PlanRequest& request) {
  const StrategyRow& row = row_of(request.strategy);
  const ModelLayout layout(request.model, request.trainables);
  const auto elements = static_cast<double>(layout.trained().total_elements());
  const auto frozen = static_cast<double>(layout.frozen().total_elements());
  const std::int64_t state = size_of_type(request.compute.state);
  double whole = 0, sharded = 0;  // bytes of an element
  (row.shards_parameters ? sharded : whole) += static_cast<double>(state);
  (row.shards_gradients ? sharded : whole) += static_cast<double>(size_of_type(DType::kF32));
  const RankLayout everything(layout, Strategy::kDdp, Mesh{}, 0);
  if (elements > 0)
    (row.shards_optimizer ? sharded : whole) +=
        static_cast<double>(optimizer_bytes(request, everything)) / elements;
  std::string text = whole > 0 ? fmt::format("{:.3g}Ψ", whole) : "";
  if (whole > 0 && sharded > 0) text += " + ";
  const char* const members = row.hybrid ? "n" : "N";
  if (sharded > 0) text += fmt::format("{:.3g}Ψ/{}", sharded, members);
  double bytes = elements * (whole + sharded / request.mesh.dp_shard);
  if (frozen > 0) {
    const std::int64_t size = size_of_type(request.compute.frozen);
    text += row.shards_parameters ? fmt::format(" + {}Φ/{}", size, members)
                                  : fmt::format(" + {}Φ", size);
    bytes +=
        frozen * static_cast<double>(size) / (row.shards_parameters ? request.mesh.dp_shard : 1);
  }
  return {text, bytes};
}

TrafficPlan plan_traffic(const PlanRequest& request) {
  const ModelLayout layout(request.model, request.trainables);
  const StrategyRow& row = row_of(request.strategy);
  const Mesh& mesh = request.mesh;
  const auto elements = static_cast<double>(layout.trained().total_elements());
  const double world = mesh.size(), group = mesh.dp_shard;
  const auto micro_batches = static_cast<double>(request.reduction.micro_batches);
  TrafficPlan plan;
  const double reductions = reduces_once(request) ? 1 : micro_batches;
  plan.gradients = reductions * elements * reduction_bytes(request) +
                   4 * elements * (mesh.dp_replicate - 1) / world;
  if (keeps_copies(request)) plan.copies = 4 * elements / group;
  const ComputeOptions compute = compute_options(request);
  if (row.shards_parameters) {
    const RankLayout rank(layout, request.strategy, mesh, 0);
    const int asked = asked_passes(*request.objective);
    plan.gathered_parameters = gathered_bytes(rank, compute.of_trained(), micro_batches, asked);
    if (rank.frozen())
      plan.gathered_parameters +=
          gathered_bytes(*rank.frozen(), compute.of_frozen(), micro_batches, asked);
  } else if (row.shards_optimizer) {
    plan.updated_parameters = elements * (group - 1) / group * size_of_type(compute.state);
  }
  return plan;
}

Formula traffic_formula(const PlanRequest& request) {
  const StrategyRow& row = row_of(request.strategy);
  const Mesh& mesh = request.mesh;
  const ModelLayout layout(request.model, request.trainables);
  const auto elements = static_cast<double>(layout.trained().total_elements());
  const auto frozen = static_cast<double>(layout.frozen().total_elements());
  const double world = mesh.size(), group = mesh.dp_shard;
  const std::int64_t micro_batches = request.reduction.micro_batches;
  const std::int64_t reductions = reduces_once(request) ? 1 : micro_batches;
  const double reduced = elements * reduction_bytes(request) * static_cast<double>(reductions);
  if (!row.shards_parameters) {
    // The sums, or the parameters that were updated with them, go to everybody.
    const DType last = row.shards_optimizer ? compute_options(request).state : DType::kF32;
    return {times_psi(reductions + 1) + "·(N−1)/N",
            reduced + elements * (world - 1) / world * size_of_type(last)};
  }
  const std::int64_t gathers = row.reshards_after_forward ? 2 * micro_batches : micro_batches;
  const double gathered = (elements * size_of_type(request.compute.compute) +
                           frozen * size_of_type(request.compute.frozen)) *
                          (group - 1) / group * gathers;
  const double shared = 4 * elements * (mesh.dp_replicate - 1) / world;
  const std::string text = mesh.dp_replicate == 1
                               ? times_psi(reductions + gathers) + "·(N−1)/N"
                               : fmt::format("{}·(N−1)/N + {}·(n−1)/n + Ψ·(R−1)/N",
                                             times_psi(reductions), times_psi(gathers));
  const std::string of_frozen =
      frozen > 0
          ? fmt::format(" + {}Φ·({}−1)/{}", gathers > 1 ? fmt::format("{}", gathers) : "",
                        mesh.dp_replicate == 1 ? "N" : "n", mesh.dp_replicate == 1 ? "N" : "n")
          : "";
  return {text + of_frozen, reduced + gathered + shared};
}

std::int64_t run_overhead_bytes() { return kOverheadBytes; }

}  // namespace troupe::train
