#include "train/trainer/run_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "train/checkpoint/part_writer.h"
#include "train/cpu/arena.h"
#include "train/cpu/cpu_operators.h"
#include "train/data/dataset_info.h"
#include "train/data/records.h"
#include "train/data/row_dataset.h"
#include "train/report/format.h"
#include "train/trainer/device_choice.h"
#include "train/trainer/sharding_setup.h"

namespace troupe::train {
namespace {

PlanFacts launch_facts(const LoadedConfig& loaded, std::int64_t machines, std::int64_t cores) {
  PlanFacts facts;
  facts.world_size = static_cast<int>(loaded.world_size.value);
  facts.machines = static_cast<int>(std::max<std::int64_t>(1, machines));
  facts.machines_max = loaded.launch.elastic() ? static_cast<int>(loaded.launch.node_count()) : 0;
  facts.cores = cores;
  facts.threads =
      static_cast<int>(resolve_threads_per_worker(loaded.config, cores, facts.ranks_on_machine()));
  return facts;
}

Result<std::int64_t> data_file_bytes(FileSystem& files, const DataSection& data) {
  std::int64_t sum = 0;
  for (const std::string& path : TROUPE_TRY(row_dataset_files(files, data.rows.datasets)))
    sum += static_cast<std::int64_t>(TROUPE_TRY(files.size(path)));
  if (data.dataset.empty()) return sum;
  for (const auto& attributes :
       TROUPE_TRY(read_dataset_info(files, data.dataset_dir, data.dataset, data.hub_files))) {
    const auto found = TROUPE_TRY(find_data_files(files, data.dataset_dir, attributes));
    for (const std::string& path : found.paths)
      sum += static_cast<std::int64_t>(TROUPE_TRY(files.size(path)));
  }
  return sum;
}

// What products in bf16 or fp16, or with quantised weights, take here for their operands.
std::int64_t staging_bytes(const ComputeOptions& compute, const Trainables& trainables,
                           int threads) {
  const std::int64_t values = trainables.base.quantization ? cpu_quantized_scratch_bytes() : 0;
  if (compute.fp16) return values + static_cast<std::int64_t>(cpu_fp16_scratch_bytes(threads));
  if (compute.compute != DType::kBF16) return values;
  Arena arena(1);
  return values +
         static_cast<std::int64_t>(cpu_bf16_scratch_bytes(*make_cpu_operators(arena), threads));
}

PlanRequest request_of(const TrainConfig& config, const ModelConfig& model, const PlanFacts& facts,
                       Strategy strategy, const Mesh& mesh) {
  const int ranks = std::min(facts.ranks_on_machine(), mesh.size());
  const bool overlaps = facts.on_gpus || ranks * (facts.threads + 1) <= facts.cores;
  const EngineOptions engine = engine_options(config, model, strategy, overlaps, Offload::kNothing);
  PlanRequest request;
  request.objective = objective_of(config);
  request.model = model;
  request.trainables = with_rule(facts.trainables, config, model);
  request.strategy = strategy;
  request.mesh = mesh;
  request.compute = engine.compute;
  request.offload = offload_of(config, facts.on_gpus);
  // Parameters that every GPU has whole are not offloaded: another strategy's plan, for comparison.
  if (request.offload == Offload::kParameters && !offloads_parameters(strategy))
    request.offload = Offload::kOptimizer;
  request.reduction = engine.reduction;
  request.activations = activation_options(config, model, facts.trainables, facts.length_max);
  if (facts.evaluation_rows > 0)
    request.evaluation = evaluation_options(config, model, facts.trainables, facts.evaluation_rows,
                                            facts.evaluation_length_max);
  // As CudaCompute keeps them.
  if (facts.on_gpus && engine.compute.compute == DType::kBF16) {
    request.activations.type = DType::kBF16;
    if (request.evaluation) request.evaluation->type = DType::kBF16;
  }
  request.ragged = facts.ragged;
  request.threads = facts.threads;
  request.staging_bytes = staging_bytes(engine.compute, facts.trainables, facts.threads);
  if (request.objective->asks_reference_logits()) {
    std::int64_t tokens = request.activations.rows_max * request.activations.length_max;
    if (request.evaluation)
      tokens = std::max(tokens, request.evaluation->rows_max * request.evaluation->length_max);
    request.staging_bytes += tokens * model.vocab_size * static_cast<std::int64_t>(sizeof(float));
  }
  // Whatever save_strategy says: the model is written at the end, a checkpoint when told to leave.
  request.save_buffer_bytes = kWriteBufferBytes;
  request.ranks_on_node = ranks;
  request.dataset_bytes = facts.dataset_bytes;
  request.on_gpu = facts.on_gpus;
  request.fp8 = config.model.fp8;
  request.ranks_on_gpu = std::min(ranks, trainers_per_gpu(config));
  request.spares_on_gpu = facts.on_gpus ? static_cast<int>(config.troupe.spares) : 0;
  request.optimizer = optimizer_of(config, model);
  request.saves_optimizer = !config.training.save_only_model;
  request.copies = config.troupe.replicas != "0";
  request.machines_max = facts.machines_max;
  return request;
}

}  // namespace

Result<PlanFacts> facts_of(FileSystem& files, const LoadedConfig& loaded, std::int64_t cores) {
  const DataSection& data = loaded.config.data;
  PlanFacts facts = launch_facts(loaded, loaded.launch.node_count(), cores);
  // Samples are mapped; what a trainer has of its own is the order of an epoch, four bytes for
  // each.
  constexpr std::int64_t kRowBytesLeast = 200;
  const bool known = data.is_named() && !data.tokenized_path;
  if (known) facts.dataset_bytes = 4 * (TROUPE_TRY(data_file_bytes(files, data)) / kRowBytesLeast);
  // Two answers, each behind its question, are one sample.
  const bool pairs = loaded.config.method.compares_answers();
  facts.length_max = pairs ? 2 * data.cutoff_len : data.cutoff_len;
  if (loaded.config.evaluation.is_wanted()) {
    facts.evaluation_length_max = facts.length_max;
    facts.evaluation_rows = loaded.config.evaluation.per_device_eval_batch_size;
  }
  facts.ragged = !data.packing;
  facts.length_from = data.packing ? "cutoff_len: packed rows are that long"
                      : pairs      ? "twice cutoff_len: two answers may be shorter"
                                   : "cutoff_len: rows may be shorter";
  return facts;
}

PlanFacts facts_of(const RunBundle& bundle, const LoadedConfig& loaded, std::int64_t machines,
                   std::int64_t cores) {
  PlanFacts facts = launch_facts(loaded, machines, cores);
  const TokenDataset* evaluation = bundle.eval ? &*bundle.eval : nullptr;
  facts.trainables = bundle.trainables;
  facts.length_max = length_max(bundle);
  if (evaluation) {
    facts.evaluation_length_max = longest_collated_length(*evaluation);
    facts.evaluation_rows = evaluation->size();
  }
  facts.length_from = "the longest row of the data set";
  facts.ragged = lengths_differ(bundle) || (evaluation && !equal_lengths(*evaluation));
  facts.dataset_bytes = memory_bytes(bundle.dataset);
  if (evaluation) facts.dataset_bytes += memory_bytes(*evaluation);
  // Every trainer's own, whatever is mapped.
  if (bundle.config.asks_reference_before()) {
    constexpr std::int64_t kFloatBytes = sizeof(float);
    facts.dataset_bytes += kFloatBytes * bundle.dataset.token_count();
    if (evaluation) facts.dataset_bytes += kFloatBytes * evaluation->token_count();
  }
  return facts;
}

Result<PlanRequest> plan_request(const TrainConfig& config, const ModelConfig& model,
                                 const PlanFacts& facts) {
  const Strategy strategy = TROUPE_TRY(strategy_of(config));
  const Mesh mesh = TROUPE_TRY(mesh_of(config, facts.world_size, facts.ranks_on_machine()));
  PlanRequest request = request_of(config, model, facts, strategy, mesh);
  request.mesh_given = config.sharding.mesh_replicate > 0;
  return request;
}

Result<PlanRequest> plan_request(const TrainConfig& config, const ModelConfig& model,
                                 const PlanFacts& facts, Strategy strategy, int world_size) {
  PlanFacts changed = facts;
  changed.world_size = world_size;
  changed.threads =
      static_cast<int>(resolve_threads_per_worker(config, facts.cores, changed.ranks_on_machine()));
  const Mesh mesh = TROUPE_TRY(make_mesh(strategy, world_size, changed.ranks_on_machine(), 0, 0));
  return request_of(config, model, changed, strategy, mesh);
}

namespace {

// Refuses what is not supported where machines, with so many ranks each, come and go.
Status check_changing_world(const LoadedConfig& loaded, int ranks_per_machine, bool on_gpus) {
  const TrainConfig& config = loaded.config;
  const auto refused = [&](const std::string& what) {
    return error(Code::kUnsupported,
                 "{}: {}; use NNODES (with RDZV_ID, machines beyond it stand by for lost ones)",
                 loaded.launch.nodes_from, what)
        .with("key", "MIN_NNODES");
  };
  if (on_gpus)
    return refused("the number of machines may not change yet where trainers are on GPUs");
  if (loaded.world_size.value % loaded.launch.node_count() != 0) {
    return refused(fmt::format("{} trainers ({}) are not the same number on each of {} machines",
                               loaded.world_size.value, loaded.world_size.from,
                               loaded.launch.node_count()));
  }
  if (config.troupe.spares > 0) {
    return refused(fmt::format("trainers have no spare processes then, and troupe.spares is {}",
                               config.troupe.spares));
  }
  for (auto machines = static_cast<int>(*loaded.launch.nodes_min);
       machines <= loaded.launch.node_count(); ++machines) {
    const Status fits = mesh_of(config, machines * ranks_per_machine, ranks_per_machine).status();
    if (!fits.ok()) return refused(fmt::format("with {} machines: {}", machines, fits.message()));
  }
  if (config.troupe.replicas == "0" && TROUPE_TRY(strategy_of(config)) != Strategy::kDdp)
    return refused("no machine can go without a copy of its state (troupe.replicas=0)");
  return {};
}

}  // namespace

Status check_world(const LoadedConfig& loaded, bool on_gpus) {
  const TrainConfig& config = loaded.config;
  const int world_size = static_cast<int>(loaded.world_size.value);
  if (const Status ranks = check_ranks(config.troupe.chaos, world_size); !ranks.ok())
    return ranks.prefixed("troupe.chaos");
  TROUPE_RETURN_IF_ERROR(strategy_of(config));
  if (resolve_address(config, loaded.launch)) return {};
  const auto nodes = static_cast<int>(loaded.launch.node_count());
  if (config.troupe.replicas == "1" && nodes == 1)
    return error(Code::kInvalidArgument,
                 "troupe.replicas=1: all ranks are on one machine; use auto or 0")
        .with("key", "troupe.replicas");
  const int ranks_per_machine = (world_size + nodes - 1) / nodes;
  if (loaded.launch.elastic())
    TROUPE_RETURN_IF_ERROR(check_changing_world(loaded, ranks_per_machine, on_gpus));
  return mesh_of(config, world_size, ranks_per_machine).status();
}

Result<std::string> check_run_fits(RunBundle& bundle, const LoadedConfig& loaded,
                                   std::int64_t machines, std::int64_t cores,
                                   const NodeMemory& memory, bool on_gpus) {
  PlanFacts facts = facts_of(bundle, loaded, machines, cores);
  facts.on_gpus = on_gpus;
  TrainConfig config = loaded.config;
  config.troupe.replicas = bundle.config.troupe.replicas;
  PlanRequest request = TROUPE_TRY(plan_request(config, bundle.model, facts));
  const Status fits = check_fits(request, memory);
  if (fits.ok()) return std::string();
  if (!keeps_copies(request) || config.troupe.replicas != "auto" || loaded.launch.elastic())
    return fits;
  const std::int64_t kept = plan_memory(request).kept;
  request.copies = false;
  if (!check_fits(request, memory).ok()) return fits;
  bundle.config.troupe.replicas = "0";
  return fmt::format(
      "no trainer keeps a copy of another machine's state (troupe.replicas=auto): there is no room "
      "for {} more in each; a lost machine costs the steps since the last checkpoint",
      format_bytes(static_cast<std::uint64_t>(kept)));
}

std::int64_t memory_bytes(const TokenDataset& dataset) {
  // What is mapped is the kernel's to drop; the order of an epoch is not.
  if (dataset.is_mapped()) return dataset.size() * 4;
  const bool labelled = dataset.kind() != TokenDataset::Kind::kPretrain;
  std::int64_t bytes = dataset.token_count() * (labelled ? 8 : 4) + dataset.size() * 8;
  if (!labelled || dataset.kind() == TokenDataset::Kind::kSupervised) return bytes;
  for (std::int64_t sample = 0; sample < dataset.size(); ++sample)
    bytes += static_cast<std::int64_t>(dataset.part_lengths(sample).size()) * 4 + 8;
  return bytes;
}

}  // namespace troupe::train
