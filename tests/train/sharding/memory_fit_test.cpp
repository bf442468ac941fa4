#include "train/sharding/memory_fit.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

// About 1 G parameters: 16 GiB of state under DDP.
PlanRequest large_request(Strategy strategy, int ranks, std::int64_t rows = 8) {
  PlanRequest made;
  made.model.vocab_size = 32000;
  made.model.hidden_size = 2048;
  made.model.intermediate_size = 5632;
  made.model.num_hidden_layers = 22;
  made.model.num_attention_heads = 32;
  made.model.num_key_value_heads = 4;
  made.model.head_dim = 64;
  made.strategy = strategy;
  made.mesh = make_mesh(strategy, ranks, ranks, 0, 0).value();
  made.activations = {.rows_max = rows, .length_max = 2048};
  made.ranks_on_node = ranks;
  return made;
}

NodeMemory memory_of(std::int64_t bytes) {
  return {.available_bytes = bytes, .total_bytes = bytes + (1 << 30)};
}

bool offers(const std::vector<FittingChange>& changes, std::string_view settings) {
  for (const FittingChange& change : changes)
    if (change.settings.find(settings) != std::string::npos) return true;
  return false;
}

TEST_CASE("a run that fits is let through") {
  const PlanRequest run = large_request(Strategy::kDdp, 2);
  CHECK(check_fits(run, memory_of(node_bytes(run))).ok());
  CHECK(!check_fits(run, memory_of(node_bytes(run) - 1)).ok());
}

TEST_CASE("the refusal says what is needed, what there is and what would fit") {
  const PlanRequest run = large_request(Strategy::kDdp, 2);
  NodeMemory memory = memory_of(node_bytes(large_request(Strategy::kZero2, 2)));
  memory.limit = "the control group's memory.max";
  const Status refused = check_fits(run, memory);
  CHECK(refused.code() == Code::kOutOfMemory);
  CHECK(exit_code(refused.code()) > 0);
  const std::string& text = refused.message();
  CAPTURE(text);
  CHECK(text.find("2 trainers of ") != std::string::npos);
  CHECK(text.find("with ddp, 8 rows of 2048 tokens") != std::string::npos);
  CHECK(text.find("the control group's memory.max") != std::string::npos);
  CHECK(text.find("troupe.strategy=zero2") != std::string::npos);
  CHECK(text.find("troupe.strategy=zero3") != std::string::npos);
  CHECK(text.find("troupe.strategy=zero1") == std::string::npos);
}

TEST_CASE("where machines come and go, what a rank held in the world before is counted") {
  // Of one machine of up to three.
  PlanRequest run = large_request(Strategy::kZero3, 2);
  run.copies = true;
  const auto on_machines = [&](int machines) {
    PlanRequest changed = run;
    changed.mesh = make_mesh(run.strategy, 2 * machines, 2, 0, 0).value();
    return changed;
  };
  const auto held = [](const PlanRequest& request) {
    const MemoryPlan plan = plan_memory(request);
    return plan.state() + plan.kept;
  };
  const MemoryPlan fixed = plan_memory(run);
  const std::int64_t of_two = held(on_machines(2));
  CHECK(fixed.former == 0);
  run.machines_max = 3;
  const MemoryPlan plan = plan_memory(run);
  CHECK(plan.former == of_two);
  CHECK(plan.total() == fixed.total() + of_two);
  // The largest world is come to from that of a machine less.
  CHECK(plan_memory(on_machines(3)).former == of_two);

  // One that may not shrink so far would fit, and no copy can be gone without.
  const Status refused = check_fits(run, memory_of(node_bytes(on_machines(3))));
  for (const char* words : {"of the world before until a step", "what would fit: MIN_NNODES=",
                            "as it is configured", "NPROC_PER_NODE=1 "})
    CHECK_MESSAGE(refused.message().find(words) != std::string::npos, refused.message());
  CHECK(refused.message().find("troupe.replicas=0") == std::string::npos);
  CHECK(refused.message().find("troupe.workers") == std::string::npos);
}

TEST_CASE("a GPU's memory is asked for where it is known, the host's for what stays there") {
  PlanRequest run = large_request(Strategy::kDdp, 2);
  run.on_gpu = true;
  const DevicePlan device = plan_device_memory(run);
  CHECK(device.parameters == plan_memory(large_request(Strategy::kDdp, 2)).parameters);
  CHECK(device.total() > 16'000'000'000);
  // The host holds what is saved: a share of parameters and moments.
  const MemoryPlan host = plan_memory(run);
  CHECK(host.state() == 0);
  CHECK(host.workspaces > 3 * device.parameters / 2);
  CHECK(host.workspaces < 3 * device.parameters / 2 + (64 << 20));
  run.saves_optimizer = false;
  CHECK(plan_memory(run).workspaces < host.workspaces / 2);

  NodeMemory memory = memory_of(node_bytes(run));
  CHECK(check_fits(run, memory).ok());
  memory.device_bytes = device.total();
  CHECK(check_fits(run, memory).ok());
  memory = memory_of(2 * node_bytes(run));
  memory.device_bytes = device.total() - 1;
  const Status refused = check_fits(run, memory);
  CHECK(refused.code() == Code::kOutOfMemory);
  for (const char* words : {"of its GPU's memory", "for parameters", "for the optimizer",
                            "with ddp, 8 rows of 2048 tokens", "troupe.strategy=zero3"})
    CHECK_MESSAGE(refused.message().find(words) != std::string::npos, refused.message());
}

TEST_CASE("spares are counted in a GPU's memory, and none is a way out") {
  PlanRequest run = large_request(Strategy::kDdp, 2);
  run.on_gpu = true;
  run.ranks_on_gpu = 2;
  run.spares_on_gpu = 1;
  NodeMemory memory = memory_of(2 * node_bytes(run));
  memory.device_bytes = gpu_bytes(run);
  CHECK(memory.device_bytes == 2 * plan_device_memory(run).total() + kSpareDeviceBytes);
  CHECK(check_fits(run, memory).ok());
  --memory.device_bytes;
  const Status refused = check_fits(run, memory);
  CHECK(refused.code() == Code::kOutOfMemory);
  for (const char* words : {"for 2 trainers and spares: 1 of 768 MiB each", "troupe.spares=0 ("})
    CHECK_MESSAGE(refused.message().find(words) != std::string::npos, refused.message());
}

TEST_CASE("offload is offered where a GPU's memory is short and the host's is not") {
  PlanRequest run = large_request(Strategy::kZero3, 2);
  run.on_gpu = true;
  const auto with = [&](Offload offload) {
    PlanRequest changed = run;
    changed.offload = offload;
    return changed;
  };
  const PlanRequest optimizer = with(Offload::kOptimizer), parameters = with(Offload::kParameters);
  NodeMemory memory = memory_of(2 * node_bytes(parameters));
  memory.device_bytes = plan_device_memory(optimizer).total();
  CHECK(offers(fitting_changes(run, memory), "troupe.offload=optimizer"));
  memory.device_bytes = plan_device_memory(parameters).total();
  CHECK_FALSE(offers(fitting_changes(run, memory), "troupe.offload=optimizer"));
  CHECK(offers(fitting_changes(run, memory), "troupe.offload=parameters"));
  CHECK(offers(fitting_changes(optimizer, memory), "troupe.offload=parameters"));
  CHECK_FALSE(offers(fitting_changes(parameters, memory), "troupe.offload=parameters"));
  // Not by itself, but with everything else.
  PlanRequest all = parameters;
  all.activations.rows_max = 1;
  all.activations.recompute = Recompute::kLayers;
  run.activations.recompute = Recompute::kNothing;
  memory.device_bytes = plan_device_memory(all).total() + (1 << 20);
  const auto everything = fitting_changes(run, memory);
  REQUIRE(everything.size() == 1);
  CHECK(offers(everything, "troupe.offload=parameters"));
  CHECK(offers(everything, "per_device_train_batch_size=1 "));
  // Parameters that every GPU has whole and an update gathers stay there.
  run = large_request(Strategy::kZero2, 2);
  run.on_gpu = true;
  memory.device_bytes = plan_device_memory(with(Offload::kOptimizer)).total() - 1;
  for (const FittingChange& change : fitting_changes(run, memory))
    CHECK_FALSE(change.settings == "troupe.offload=parameters");
  // Where it is the host that is short, the other way round; not on CPUs.
  const PlanRequest host_short = with(Offload::kOptimizer);
  CHECK(offers(fitting_changes(host_short, memory_of(node_bytes(host_short) - 1)),
               "troupe.offload=none"));
  CHECK_FALSE(offers(fitting_changes(run, memory_of(node_bytes(run) - 1)), "offload"));
  run.on_gpu = false;
  CHECK_FALSE(offers(fitting_changes(run, memory_of(node_bytes(run) - 1)), "offload"));
}

TEST_CASE("each change that is offered is enough by itself") {
  const PlanRequest run = large_request(Strategy::kZero3, 4, 16);
  const NodeMemory memory = memory_of(node_bytes(run) * 3 / 4);
  const auto changes = fitting_changes(run, memory);
  CHECK(offers(changes, "per_device_train_batch_size="));
  CHECK(offers(changes, "troupe.workers="));
  for (const FittingChange& change : changes) CHECK(change.bytes <= memory.available_bytes);
}

TEST_CASE("smaller micro-batches keep the size of the step") {
  PlanRequest run = large_request(Strategy::kZero3, 1, 16);
  run.reduction.micro_batches = 2;
  PlanRequest half = run;
  half.activations.rows_max = 8;
  half.reduction.micro_batches = 4;
  const auto changes = fitting_changes(run, memory_of(node_bytes(half)));
  CHECK(offers(changes, "per_device_train_batch_size=8 gradient_accumulation_steps=4"));
}

TEST_CASE("recomputation is offered where it is off") {
  PlanRequest run = large_request(Strategy::kZero3, 1, 1);
  CHECK(!offers(fitting_changes(run, memory_of(node_bytes(run) - 1)), "checkpointing"));
  run.activations.recompute = Recompute::kNothing;
  CHECK(offers(fitting_changes(run, memory_of(node_bytes(run) - 1)),
               "troupe.activation_checkpointing=full"));
}

TEST_CASE("where no change is enough by itself, all together, on more machines") {
  const PlanRequest run = large_request(Strategy::kDdp, 2);
  const auto changes = fitting_changes(run, memory_of(std::int64_t{6} << 30));
  REQUIRE(changes.size() == 1);
  CAPTURE(changes[0].settings);
  CHECK(changes[0].settings.find("troupe.strategy=zero3") == 0);
  CHECK(changes[0].settings.find("machines") != std::string::npos);
}

TEST_CASE("a given mesh keeps its shard groups, or the change says the new one") {
  PlanRequest run = large_request(Strategy::kHybridShard, 8, 16);
  run.mesh = make_mesh(Strategy::kHybridShard, 8, 8, 4, 2).value();
  run.mesh_given = true;
  PlanRequest fewer = run;
  fewer.mesh = make_mesh(Strategy::kHybridShard, 4, 4, 2, 2).value();
  fewer.ranks_on_node = 4;
  fewer.reduction.micro_batches *= 2;
  const auto changes = fitting_changes(run, memory_of(node_bytes(fewer)));
  CHECK(offers(fitting_changes(run, memory_of(node_bytes(run) - 1)),
               "troupe.strategy=zero3 troupe.mesh=1,8"));
  CHECK(offers(changes, "troupe.workers=4 gradient_accumulation_steps=2 troupe.mesh=2,2"));
  for (const FittingChange& change : changes)
    if (change.settings.find("troupe.workers=4") == 0) CHECK(change.bytes == node_bytes(fewer));
  // Shard groups of four do not fit into two trainers.
  PlanRequest wide = large_request(Strategy::kHybridShard, 4, 16);
  wide.mesh_given = true;
  const auto narrower = fitting_changes(wide, memory_of(node_bytes(wide) - 1));
  CHECK(offers(narrower, "troupe.workers=2 gradient_accumulation_steps=2 troupe.mesh=1,2"));
  // Where none is given there is nothing to say.
  run.mesh_given = false;
  CHECK_FALSE(offers(fitting_changes(run, memory_of(node_bytes(fewer))), "troupe.mesh"));
}

TEST_CASE("nothing fits into nothing") {
  const Status refused = check_fits(large_request(Strategy::kDdp, 2), memory_of(1 << 20));
  CHECK(refused.code() == Code::kOutOfMemory);
  CHECK(refused.message().find("a smaller model") != std::string::npos);
}

}  // namespace
}  // namespace troupe::train
