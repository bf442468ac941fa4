#include "train/sharding/memory_fit.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

namespace troupe::train {
namespace {

constexpr int kMachinesMax = 1024;

std::string readable(std::int64_t bytes) {
  const auto count = static_cast<double>(bytes);
  return bytes < std::int64_t{4} << 30 ? fmt::format("{:.0f} MiB", count / (1 << 20))
                                       : fmt::format("{:.1f} GiB", count / (1 << 30));
}

// Of a GPU's memory, where it is known and matters.
bool fits_device(const PlanRequest& request, const NodeMemory& memory) {
  return !request.on_gpu || memory.device_bytes == 0 || gpu_bytes(request) <= memory.device_bytes;
}

bool fits(const PlanRequest& request, const NodeMemory& memory) {
  return node_bytes(request) <= memory.available_bytes && fits_device(request, memory);
}

// A given mesh keeps its shard groups where whole ones make up the world; else the mesh is what the
// strategy makes of it.
Result<Mesh> mesh_with_ranks(const PlanRequest& request, Strategy strategy, int ranks_on_node,
                             int world) {
  const int shard = request.mesh.dp_shard;
  if (request.mesh_given && row_of(strategy).hybrid && world % shard == 0)
    return make_mesh(strategy, world, ranks_on_node, world / shard, shard);
  return make_mesh(strategy, world, ranks_on_node, 0, 0);
}

// What has to be said about the mesh for a changed request: where one is given it must follow.
std::string mesh_text(const PlanRequest& changed, const PlanRequest& request) {
  if (!request.mesh_given || changed.mesh == request.mesh) return {};
  return fmt::format(" troupe.mesh={},{}", changed.mesh.dp_replicate, changed.mesh.dp_shard);
}

// The request for another number of ranks.
std::optional<PlanRequest> with_ranks(PlanRequest request, Strategy strategy, int ranks_on_node,
                                      int machines) {
  const int world = ranks_on_node * machines;
  const auto mesh = mesh_with_ranks(request, strategy, ranks_on_node, world);
  if (!mesh.ok()) return std::nullopt;
  request.strategy = strategy;
  request.mesh = *mesh;
  request.ranks_on_node = ranks_on_node;
  return request;
}

PlanRequest with_rows(PlanRequest request, std::int64_t rows) {
  const std::int64_t sequences = request.activations.rows_max * request.reduction.micro_batches;
  if (request.evaluation)
    request.evaluation->rows_max = std::min(request.evaluation->rows_max, rows);
  rows = std::min(request.activations.rows_max, rows);
  request.activations.rows_max = rows;
  request.reduction.micro_batches = (sequences + rows - 1) / rows;
  return request;
}

std::string rows_text(const PlanRequest& request) {
  std::string text = fmt::format("per_device_train_batch_size={} gradient_accumulation_steps={}",
                                 request.activations.rows_max, request.reduction.micro_batches);
  if (request.evaluation)
    text += fmt::format(" per_device_eval_batch_size={}", request.evaluation->rows_max);
  return text;
}

// Fewer trainers on the machine take more micro-batches each, so that the step keeps its size.
std::optional<PlanRequest> with_fewer_ranks(const PlanRequest& request, Strategy strategy,
                                            int ranks) {
  auto changed = with_ranks(request, strategy, ranks, machines_of(request));
  if (!changed) return std::nullopt;
  changed->reduction.micro_batches =
      (request.reduction.micro_batches * request.ranks_on_node + ranks - 1) / ranks;
  return changed;
}

// Collects what fits.
class Search {
 public:
  Search(const PlanRequest& request, const NodeMemory& memory)
      : request_(request), memory_(memory), device_is_short_(!fits_device(request, memory)) {}

  std::vector<FittingChange> run() {
    try_more_machines();
    try_strategies();
    try_offload();
    try_without_spares();
    try_without_copies();
    try_recomputation();
    try_rows();
    try_fewer_ranks();
    if (found_.empty()) try_everything();
    return std::move(found_);
  }

 private:
  bool add(const std::optional<PlanRequest>& changed, std::string settings, std::string note = {}) {
    if (!changed || !fits(*changed, memory_)) return false;
    found_.push_back(
        {std::move(settings), std::move(note),
         device_is_short_ ? plan_device_memory(*changed).total() : node_bytes(*changed)});
    return true;
  }

  // A world that may not shrink so far.
  void try_more_machines() {
    for (int machines = machines_of(request_) + 1; machines <= request_.machines_max; ++machines) {
      const auto changed =
          with_ranks(request_, request_.strategy, std::max(1, request_.ranks_on_node), machines);
      if (add(changed, fmt::format("MIN_NNODES={}", machines), "as it is configured")) return;
    }
  }

  void try_strategies() {
    const int machines = machines_of(request_);
    if (request_.mesh.size() == 1) return;
    for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kZero3}) {
      if (strategy == request_.strategy) continue;
      if (request_.offload == Offload::kParameters && !offloads_parameters(strategy)) continue;
      const auto changed = with_ranks(request_, strategy, request_.ranks_on_node, machines);
      if (!changed) continue;
      add(changed, fmt::format("troupe.strategy={}{}", row_of(strategy).name,
                               mesh_text(*changed, request_)));
    }
  }

  // A GPU that is short gives to the machine, or the other way round.
  void try_offload() {
    if (!request_.on_gpu) return;
    PlanRequest changed = request_;
    if (!device_is_short_) {
      if (request_.offload == Offload::kNothing) return;
      changed.offload = Offload::kNothing;
      add(changed, "troupe.offload=none");
      return;
    }
    const auto settings = [](const char* what) { return fmt::format("troupe.offload={}", what); };
    constexpr const char* kNote = "the host updates: slower steps";
    if (request_.offload == Offload::kNothing) {
      changed.offload = Offload::kOptimizer;
      if (add(changed, settings("optimizer"), kNote)) return;
    }
    if (request_.offload == Offload::kParameters || !offloads_parameters(request_.strategy)) return;
    changed.offload = Offload::kParameters;
    add(changed, settings("parameters"), kNote);
  }

  void try_without_spares() {
    if (!request_.on_gpu || request_.spares_on_gpu == 0) return;
    PlanRequest changed = request_;
    changed.spares_on_gpu = 0;
    add(changed, "troupe.spares=0", "a dead trainer's rank waits for a new process");
  }

  void try_without_copies() {
    // Where machines come and go, none could without a copy of what it holds.
    if (!keeps_copies(request_) || changes_world()) return;
    PlanRequest changed = request_;
    changed.copies = false;
    add(changed, "troupe.replicas=0", "a lost machine costs the steps since the last checkpoint");
  }

  void try_recomputation() {
    if (request_.activations.recompute == Recompute::kLayers) return;
    PlanRequest changed = request_;
    changed.activations.recompute = Recompute::kLayers;
    add(changed, "troupe.activation_checkpointing=full", "a third more arithmetic");
  }

  void try_rows() {
    const std::int64_t rows_max =
        std::max(request_.activations.rows_max,
                 request_.evaluation ? request_.evaluation->rows_max : std::int64_t{0});
    for (std::int64_t rows = rows_max / 2; rows >= 1; rows /= 2) {
      const PlanRequest changed = with_rows(request_, rows);
      if (add(changed, rows_text(changed), "the step keeps its size")) return;
    }
  }

  void try_fewer_ranks() {
    for (int ranks = request_.ranks_on_node / 2; ranks >= 1; ranks /= 2) {
      const auto changed = with_fewer_ranks(request_, request_.strategy, ranks);
      if (!changed) continue;
      const int world = changed->mesh.size();
      const std::string trainers = changes_world() ? fmt::format("NPROC_PER_NODE={}", ranks)
                                                   : fmt::format("troupe.workers={}", world);
      if (add(changed,
              fmt::format("{} gradient_accumulation_steps={}{}", trainers,
                          changed->reduction.micro_batches, mesh_text(*changed, request_))))
        return;
    }
  }

  // The least that a machine can do with, on one or more of them.
  void try_everything() {
    PlanRequest least = with_rows(request_, 1);
    least.activations.recompute = Recompute::kLayers;
    // As it is, and with all that a GPU can do without in the machine's memory.
    std::vector<Offload> offloads = {request_.offload};
    if (request_.on_gpu && device_is_short_ && request_.offload != Offload::kParameters)
      offloads.push_back(Offload::kParameters);
    const auto settings = [&](const PlanRequest& changed) {
      std::string text = fmt::format("troupe.strategy=zero3{} {}", mesh_text(changed, request_),
                                     rows_text(changed));
      if (request_.activations.recompute != Recompute::kLayers)
        text += " troupe.activation_checkpointing=full";
      if (changed.offload != request_.offload) text += " troupe.offload=parameters";
      return text;
    };
    for (int machines = machines_of(request_); machines <= kMachinesMax; machines *= 2) {
      for (const Offload offload : offloads) {
        least.offload = offload;
        const auto changed =
            with_ranks(least, Strategy::kZero3, std::max(1, request_.ranks_on_node), machines);
        std::string text = changed ? settings(*changed) : "";
        if (machines > machines_of(request_)) text += on_machines(machines);
        if (add(changed, text)) return;
      }
    }
    least.offload = request_.offload;
    const auto alone = with_ranks(least, Strategy::kZero3, 1, kMachinesMax);
    add(alone, alone ? settings(*alone) + fmt::format(" on {} machines", kMachinesMax) : "");
  }

  bool changes_world() const { return request_.machines_max > 0; }
  std::string on_machines(int machines) const {
    if (!changes_world()) return fmt::format(" on {0} machines (NNODES={0})", machines);
    return machines <= request_.machines_max
               ? fmt::format(" MIN_NNODES={}", machines)
               : fmt::format(" on {0} machines (MIN_NNODES={0}, MAX_NNODES above it)", machines);
  }

  const PlanRequest& request_;
  const NodeMemory& memory_;
  const bool device_is_short_;
  std::vector<FittingChange> found_;
};

std::string device_shortage(const PlanRequest& request, const NodeMemory& memory) {
  const DevicePlan plan = plan_device_memory(request);
  std::string sharers;
  if (request.ranks_on_gpu > 1) sharers += fmt::format(" for {} trainers", request.ranks_on_gpu);
  if (request.spares_on_gpu > 0)
    sharers +=
        fmt::format("{} {} of {} each",
                    sharers.empty() ? " for it and spares:" : " and spares:", request.spares_on_gpu,
                    readable(kSpareDeviceBytes));
  return fmt::format(
      "a trainer needs {} of its GPU's memory ({} for parameters, {} for gradients, {} for the "
      "optimizer, {} for activations, {} for the rest, with {}, {} rows of {} tokens), the GPU has "
      "{}{}",
      readable(plan.total()), readable(plan.parameters), readable(plan.gradients),
      readable(plan.optimizer), readable(plan.activations),
      readable(plan.gathered + plan.reduction + plan.workspaces + plan.communication),
      describe(request.strategy, request.mesh), request.activations.rows_max,
      request.activations.length_max, readable(memory.device_bytes), sharers);
}

}  // namespace

std::int64_t node_bytes(const PlanRequest& request) {
  // The driver keeps the data set and the block of bytes that it sends.
  return request.ranks_on_node * plan_memory(request).total() + run_overhead_bytes() +
         2 * request.dataset_bytes;
}

std::vector<FittingChange> fitting_changes(const PlanRequest& request, const NodeMemory& memory) {
  return Search(request, memory).run();
}

Status check_fits(const PlanRequest& request, const NodeMemory& memory) {
  if (fits(request, memory)) return {};
  std::string text;
  if (!fits_device(request, memory)) {
    text = device_shortage(request, memory);
  } else {
    const MemoryPlan plan = plan_memory(request);
    text = fmt::format(
        "the run needs {} of a machine's memory ({} trainers of {}{} with {}, {} rows of {} "
        "tokens), {} of {} are available{}",
        readable(node_bytes(request)), request.ranks_on_node, readable(plan.total()),
        plan.former > 0
            ? fmt::format(
                  ", {} of it held of the world before until a step of the next one stands,",
                  readable(plan.former))
            : "",
        describe(request.strategy, request.mesh), request.activations.rows_max,
        request.activations.length_max, readable(memory.available_bytes),
        readable(memory.total_bytes), memory.limit.empty() ? "" : " (" + memory.limit + ")");
  }
  const auto changes = fitting_changes(request, memory);
  if (changes.empty()) {
    text += "; a smaller model or a shorter cutoff_len is needed";
    return Status(Code::kOutOfMemory, text);
  }
  text += "; what would fit: ";
  for (std::size_t i = 0; i < changes.size(); ++i) {
    if (i > 0) text += ", or ";
    text += fmt::format("{} ({}{}{})", changes[i].settings, readable(changes[i].bytes),
                        changes[i].note.empty() ? "" : "; ", changes[i].note);
  }
  return Status(Code::kOutOfMemory, text);
}

}  // namespace troupe::train
