#include "train/sharding/memory_plan.h"

#include <doctest/doctest.h>

#include <cmath>

#include "train/cuda/operators/gemm_algorithms.h"

namespace troupe::train {
namespace {

// 15 M parameters, 9 M of them in the tied embedding; the embedding's tiles divide by 4.
ModelConfig model_config(bool tied = true) {
  ModelConfig config;
  config.vocab_size = 32768;
  config.hidden_size = 256;
  config.intermediate_size = 768;
  config.num_hidden_layers = 6;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 4;
  config.head_dim = 64;
  config.tie_word_embeddings = tied;
  return config;
}

PlanRequest request(Strategy strategy, int world, std::int64_t micro_batches = 1) {
  PlanRequest made;
  made.model = model_config();
  made.strategy = strategy;
  made.mesh = make_mesh(strategy, world, world, 0, 0).value();
  made.reduction.micro_batches = micro_batches;
  made.activations = {.rows_max = 2, .length_max = 64};
  made.ranks_on_node = world;
  return made;
}

PlanRequest hybrid(Strategy strategy, int replicate, int shard, std::int64_t micro_batches = 1) {
  PlanRequest made = request(strategy, replicate * shard, micro_batches);
  made.mesh = make_mesh(strategy, replicate * shard, shard, replicate, shard).value();
  return made;
}

// Ψ: whole tiles of all units.
std::int64_t psi() { return ParameterLayout(model_config()).total_elements(); }

// `bytes` is `expected`, but for a tile of each of the four buffers that does not divide.
void check_near(std::int64_t bytes, double expected) {
  CHECK(std::abs(static_cast<double>(bytes) - expected) <= 4.0 * 4 * kTileElements);
}

TEST_CASE("a reference's copies are parameters that are neither trained nor reduced") {
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero3}) {
    PlanRequest compared = request(strategy, 4);
    const MemoryPlan alone = plan_memory(compared);
    const double sent = plan_traffic(compared).gathered_parameters;
    compared.trainables.reference = Reference::kBase;
    compared.objective = make_pair_objective({});
    const MemoryPlan plan = plan_memory(compared);
    CHECK(plan.parameters == 2 * alone.parameters);
    CHECK(plan.gradients == alone.gradients);
    CHECK(plan.optimizer == alone.optimizer);
    // Both are gathered for the reference's forward pass, and for the pass that trains.
    CHECK(plan_traffic(compared).gathered_parameters >= 3 * sent);
    CHECK(plan_traffic(compared).gathered_parameters <= 4 * sent);
  }
}

TEST_CASE("state by the formulas of ZeRO in fp32") {
  const auto parameters = static_cast<double>(psi());
  for (const int world : {1, 2, 3, 4, 8}) {
    CAPTURE(world);
    const auto state = [&](Strategy strategy) {
      return plan_memory(request(strategy, world)).state();
    };
    check_near(state(Strategy::kDdp), 16 * parameters);
    check_near(state(Strategy::kZero1), 8 * parameters + 8 * parameters / world);
    check_near(state(Strategy::kZero2), 4 * parameters + 12 * parameters / world);
    check_near(state(Strategy::kShardGradOp), 16 * parameters / world);
    check_near(state(Strategy::kZero3), 16 * parameters / world);
  }
  check_near(plan_memory(hybrid(Strategy::kHybridShard, 2, 4)).state(), 16 * parameters / 4);
}

TEST_CASE("the formula says what the plan comes to") {
  CHECK(state_formula(request(Strategy::kDdp, 4)).text == "16Ψ");
  CHECK(state_formula(request(Strategy::kZero1, 4)).text == "8Ψ + 8Ψ/N");
  CHECK(state_formula(request(Strategy::kZero2, 4)).text == "4Ψ + 12Ψ/N");
  CHECK(state_formula(request(Strategy::kZero3, 4)).text == "16Ψ/N");
  CHECK(state_formula(hybrid(Strategy::kHybridShard, 2, 2)).text == "16Ψ/n");
  for (const StrategyRow& row : strategy_table()) {
    PlanRequest each = request(row.strategy, 4);
    check_near(plan_memory(each).state(), state_formula(each).bytes);
    each.compute.state = each.compute.compute = DType::kBF16;
    check_near(plan_memory(each).state(), state_formula(each).bytes);
  }
}

TEST_CASE("pure bf16 halves parameters and moments, gradients stay fp32") {
  PlanRequest bf16 = request(Strategy::kZero3, 4);
  bf16.compute.state = bf16.compute.compute = DType::kBF16;
  const MemoryPlan narrow = plan_memory(bf16), wide = plan_memory(request(Strategy::kZero3, 4));
  CHECK(2 * narrow.parameters == wide.parameters);
  CHECK(2 * narrow.optimizer == wide.optimizer);
  CHECK(narrow.gradients == wide.gradients);
  CHECK(narrow.gathered < wide.gathered);
}

TEST_CASE("buffers exist where a strategy needs them") {
  const MemoryPlan ddp = plan_memory(request(Strategy::kDdp, 2));
  CHECK(ddp.gathered == 0);
  // One micro-batch is reduced where it lies.
  CHECK(ddp.reduction == 0);
  CHECK(plan_memory(request(Strategy::kDdp, 2, 2)).reduction > 0);
  const MemoryPlan zero3 = plan_memory(request(Strategy::kZero3, 2));
  CHECK(zero3.gathered > 0);
  CHECK(zero3.reduction > 0);
  // Units kept from forward to backward: the whole model.
  CHECK(plan_memory(request(Strategy::kShardGradOp, 2)).gathered >= 4 * psi());
  CHECK(zero3.gathered < 4 * psi());
  // bf16 products of fp32 parameters need a copy, whole or not.
  PlanRequest mixed = request(Strategy::kDdp, 2);
  mixed.compute.compute = DType::kBF16;
  CHECK(plan_memory(mixed).gathered > 0);
}

TEST_CASE("one trainer has no rings, several share them") {
  CHECK(plan_memory(request(Strategy::kDdp, 1)).rings == 0);
  const auto two = plan_memory(request(Strategy::kDdp, 2)).rings;
  const auto four = plan_memory(request(Strategy::kDdp, 4)).rings;
  CHECK(two >= 512 * 1024);
  CHECK(four > 2 * two);
  PlanRequest apart = request(Strategy::kDdp, 4);
  apart.ranks_on_node = 1;
  CHECK(plan_memory(apart).rings == 0);
}

TEST_CASE("what grows with batch, threads and data") {
  const PlanRequest base = request(Strategy::kZero3, 2);
  const MemoryPlan plan = plan_memory(base);
  PlanRequest more = base;
  more.activations.rows_max *= 2;
  CHECK(plan_memory(more).activations > plan.activations);
  more = base;
  more.threads = 2;
  const std::int64_t of_a_thread = plan_memory(more).workspaces - plan.workspaces;
  CHECK(of_a_thread > 0);
  CHECK(plan_memory(more).runtime > plan.runtime);
  more.threads = 3;
  CHECK(plan_memory(more).workspaces == plan.workspaces + 2 * of_a_thread);
  more = base;
  more.staging_bytes = 5000;
  CHECK(plan_memory(more).workspaces == plan.workspaces + 5000);
  more = base;
  more.dataset_bytes = 1000;
  CHECK(plan_memory(more).dataset == plan.dataset + 1000);
  more = base;
  more.activations.recompute = Recompute::kNothing;
  CHECK(plan_memory(more).activations > plan.activations);
  CHECK(plan.total() == plan.state() + plan.gathered + plan.activations + plan.rest());
}

TEST_CASE("the optimizer's marks: a word for every chunk that a rank updates") {
  // What is there besides the threads' own: 8 bytes for 1,024 elements.
  const auto marks = [](const PlanRequest& one) {
    PlanRequest two = one;
    two.threads = 2;
    return 2 * plan_memory(one).workspaces - plan_memory(two).workspaces;
  };
  const auto elements = [](const PlanRequest& of) {
    return plan_memory(of).optimizer / 2 / static_cast<std::int64_t>(sizeof(float));
  };
  const PlanRequest whole = request(Strategy::kDdp, 2), shared = request(Strategy::kZero1, 2);
  CHECK(marks(whole) == 8 * (psi() / 1024));
  CHECK(marks(shared) == 8 * (elements(shared) / 1024));
  CHECK(marks(shared) < marks(whole));
}

TEST_CASE("samples that share a row are more keys to attend to, in fp32 hardly") {
  PlanRequest rows = request(Strategy::kDdp, 1);
  rows.activations = {.rows_max = 8, .length_max = 512};
  PlanRequest ragged = rows;
  ragged.ragged = true;
  // Scores and their gradients of 64 queries: some keys of the sample before.
  CHECK(plan_memory(ragged).workspaces == plan_memory(rows).workspaces + 4 * 2 * 64 * (64 + 15));
  for (PlanRequest* both : {&rows, &ragged}) both->compute.compute = DType::kBF16;
  // Besides, packed: keys twice and values, both scores; 2 bytes each.
  CHECK(plan_memory(ragged).workspaces ==
        plan_memory(rows).workspaces + 7 * 512 * (4 * 2 * 64 + 2 * (3 * 64 + 2 * 64)));
  // A sample alone has the row for itself; batches that are evaluated may have more of them.
  for (PlanRequest* both : {&rows, &ragged}) both->activations.rows_max = 1;
  CHECK(plan_memory(ragged).workspaces == plan_memory(rows).workspaces);
  ragged.evaluation = ragged.activations;
  ragged.evaluation->rows_max = 2;
  CHECK(plan_memory(ragged).workspaces > plan_memory(rows).workspaces);
}

TEST_CASE("evaluation takes training's place in one arena, forward passes alone") {
  PlanRequest trains = request(Strategy::kDdp, 1);
  trains.activations = {.rows_max = 4, .length_max = 64, .recompute = Recompute::kNothing};
  PlanRequest evaluates = trains;
  evaluates.evaluation = trains.activations;
  evaluates.evaluation->training = false;
  // As many rows take less without what the backward pass wants.
  CHECK(plan_memory(evaluates).activations == plan_memory(trains).activations);
  evaluates.evaluation->rows_max = 64;
  const auto bytes = [&](const ActivationOptions& options) {
    return static_cast<std::int64_t>(Activations::bytes_needed(evaluates.model, options));
  };
  CHECK(plan_memory(evaluates).activations == bytes(*evaluates.evaluation));
  ActivationOptions as_training = *evaluates.evaluation;
  as_training.training = true;
  CHECK(plan_memory(evaluates).activations < bytes(as_training) / 2);
}

TEST_CASE("the sums over all micro-batches take a stack, and fewer for larger worlds") {
  PlanRequest across = request(Strategy::kZero3, 2, 8);
  across.reduction.order = ReductionOrder::kAcrossWorldSizes;
  const auto of_two = plan_memory(across).reduction;
  CHECK(of_two > plan_memory(request(Strategy::kZero3, 2, 8)).reduction);
  PlanRequest larger = across;
  larger.mesh = make_mesh(Strategy::kZero3, 4, 4, 0, 0).value();
  larger.reduction.micro_batches = 4;
  CHECK(plan_memory(larger).reduction < of_two);
}

// --- bytes sent

// In units of Ψ·4·(N − 1)/N bytes.
double sent(const PlanRequest& request) {
  const double world = request.mesh.size();
  return plan_traffic(request).total() / (4 * static_cast<double>(psi()) * (world - 1) / world);
}

TEST_CASE("bytes sent by the formula") {
  for (const int world : {2, 3, 4}) {
    CAPTURE(world);
    for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2}) {
      CHECK(sent(request(strategy, world)) == doctest::Approx(2));
      CHECK(sent(request(strategy, world, 4)) == doctest::Approx(5));
      CHECK(traffic_formula(request(strategy, world)).text == "2Ψ·(N−1)/N");
    }
    CHECK(sent(request(Strategy::kShardGradOp, world)) == doctest::Approx(2));
    // The final norm, a tile of Ψ, is gathered once: the head's forward pass is its backward pass.
    CHECK(sent(request(Strategy::kZero3, world)) == doctest::Approx(3).epsilon(0.001));
    CHECK(sent(request(Strategy::kZero3, world, 4)) == doctest::Approx(12).epsilon(0.001));
    CHECK(traffic_formula(request(Strategy::kZero3, world, 4)).text == "12Ψ·(N−1)/N");
  }
  CHECK(plan_traffic(request(Strategy::kZero3, 1)).total() == 0);
  CHECK(traffic_formula(request(Strategy::kZero3, 1)).bytes == 0);
}

TEST_CASE("plan and formula agree for every strategy") {
  std::vector<PlanRequest> requests = {hybrid(Strategy::kHybridShard, 2, 2),
                                       hybrid(Strategy::kHybridShardZero2, 2, 2, 3),
                                       hybrid(Strategy::kHybridShard, 4, 2, 2)};
  for (const StrategyRow& row : strategy_table()) requests.push_back(request(row.strategy, 4, 2));
  for (PlanRequest& each : requests) {
    for (const auto order :
         {ReductionOrder::kStrategy, ReductionOrder::kAcrossWorldSizes, ReductionOrder::kOff}) {
      each.reduction.order = order;
      for (const DType reduce : {DType::kF32, DType::kBF16}) {
        each.reduction.reduce = reduce;
        for (const DType compute : {DType::kF32, DType::kBF16}) {
          each.compute.compute = compute;
          CAPTURE(describe(each.strategy, each.mesh));
          const double planned = plan_traffic(each).total();
          CHECK(traffic_formula(each).bytes == doctest::Approx(planned).epsilon(0.001));
        }
      }
    }
  }
}

TEST_CASE("without determinism whole gradients travel once a step") {
  PlanRequest off = request(Strategy::kDdp, 4, 8);
  off.reduction.order = ReductionOrder::kOff;
  CHECK(sent(off) == doctest::Approx(2));
  CHECK(traffic_formula(off).text == "2Ψ·(N−1)/N");
  // In bf16 they do, too: sums at half the bytes, shared in fp32. A shard group of one holds whole
  // gradients, larger ones do not.
  off.reduction.reduce = DType::kBF16;
  CHECK(sent(off) == doctest::Approx(1.5));
  PlanRequest replicated = hybrid(Strategy::kHybridShard, 4, 1, 8);
  replicated.reduction.order = ReductionOrder::kOff;
  CHECK(sent(replicated) == doctest::Approx(2));
  CHECK(plan_memory(replicated).reduction == 0);
  PlanRequest grouped = hybrid(Strategy::kHybridShardZero2, 2, 2, 8);
  const double every_time = plan_traffic(grouped).gradients;
  grouped.reduction.order = ReductionOrder::kOff;
  CHECK(plan_traffic(grouped).gradients == every_time);
}

TEST_CASE("bf16 reduction halves what travels, leaves of the tree included") {
  PlanRequest wide = request(Strategy::kZero3, 4, 8);
  for (const auto order : {ReductionOrder::kStrategy, ReductionOrder::kAcrossWorldSizes}) {
    wide.reduction.order = order;
    PlanRequest narrow = wide;
    narrow.reduction.reduce = DType::kBF16;
    CHECK(2 * plan_traffic(narrow).gradients == doctest::Approx(plan_traffic(wide).gradients));
  }
  // Groups' sums go to their replicas in fp32.
  PlanRequest groups = hybrid(Strategy::kHybridShard, 2, 4);
  groups.reduction.reduce = DType::kBF16;
  const double elements = static_cast<double>(psi());
  CHECK(plan_traffic(groups).gradients ==
        doctest::Approx(elements * (2 * 3.0 / 4 + 4 * 1.0 / 8 + 4 * 1.0 / 8)));
}

TEST_CASE("untied models gather the embedding once") {
  PlanRequest untied = request(Strategy::kZero3, 4);
  untied.model = model_config(false);
  CHECK(plan_traffic(untied).total() < traffic_formula(untied).bytes);
}

TEST_CASE("a GPU's plan counts the operands of products of 8 bits") {
  PlanRequest run = request(Strategy::kDdp, 1);
  run.on_gpu = true;
  run.activations = {.rows_max = 4, .length_max = 64};
  run.compute.compute = run.activations.compute = run.activations.type = DType::kBF16;
  const DevicePlan wide = plan_device_memory(run);
  run.fp8 = true;
  const DevicePlan narrow = plan_device_memory(run);
  // Beside the library's workspace: an activation and a weight at least.
  const std::int64_t operands =
      4 * 64 * run.model.hidden_size + run.model.intermediate_size * run.model.hidden_size;
  CHECK(narrow.workspaces >= kGemmWorkspaceBytes + operands);
  CHECK(narrow.workspaces > wide.workspaces);
  CHECK(narrow.total() - narrow.workspaces == wide.total() - wide.workspaces);
}

TEST_CASE("what is offloaded is counted where it lies") {
  for (const Strategy strategy : {Strategy::kZero1, Strategy::kZero3}) {
    PlanRequest run = request(strategy, 4);
    run.on_gpu = true;
    run.compute.compute = run.activations.compute = DType::kBF16;
    const DevicePlan without = plan_device_memory(run);
    const MemoryPlan host_without = plan_memory(run);
    CHECK(host_without.state() == 0);
    run.offload = Offload::kOptimizer;
    const DevicePlan device = plan_device_memory(run);
    const MemoryPlan host = plan_memory(run);
    // Parameters are there as products take them; nothing of the optimizer's is.
    CHECK(2 * device.parameters == without.parameters);
    CHECK(device.optimizer == 0);
    CHECK(device.gradients == without.gradients);
    if (strategy == Strategy::kZero1) CHECK(device.gathered < without.gathered);
    check_near(host.state(), 12 * static_cast<double>(psi()) / 4);
    // Copies of what is saved are not needed.
    CHECK(host.workspaces < host_without.workspaces + (64 << 20));
    if (strategy == Strategy::kZero1) continue;
    run.offload = Offload::kParameters;
    CHECK(plan_device_memory(run).parameters == 0);
    check_near(plan_memory(run).gathered, 2 * static_cast<double>(psi()) / 4);
  }
}

TEST_CASE("a GPU's plan counts the workspace of cuDNN's attention") {
  PlanRequest run = request(Strategy::kDdp, 1);
  run.on_gpu = true;
  run.activations = {.rows_max = 4, .length_max = 2048};
  const std::int64_t fp32 = plan_device_memory(run).workspaces;
  run.compute.compute = run.activations.compute = DType::kBF16;
  const std::int64_t ordered = plan_device_memory(run).workspaces;
  // Products of every pair of a row's tokens and every head in bf16.
  CHECK(ordered - fp32 > 4 * 4 * 2048 * 2048 * 2);
  run.reduction.order = ReductionOrder::kOff;
  const std::int64_t any_order = plan_device_memory(run).workspaces;
  CHECK(any_order < ordered / 2);
  // All tokens in one row: a longer one.
  run.ragged = true;
  CHECK(plan_device_memory(run).workspaces > any_order);
}

}  // namespace
}  // namespace troupe::train
