#pragma once
// What one trainer's process will need in memory, and what it will send: arithmetic alone, before
// anything exists.
//
// A plan is the proportional share that the operating system attributes to the process (PSS) in the
// steady state of training, its surviving segment counted once. Everything that grows with the
// model, the batch or the ranks comes from the code that allocates it; what is left, the program
// itself, is measured (kRuntime… in memory_plan.cpp).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "train/model/activations.h"
#include "train/model/model_layout.h"
#include "train/objectives/objectives.h"
#include "train/optimizer/optimizer.h"
#include "train/sharding/gradient_reducer.h"
#include "train/sharding/offload.h"
#include "train/sharding/sharded_units.h"
#include "train/sharding/strategy.h"

namespace troupe::train {

// What a plan depends on. The strategy decides compute.limits.reshard_after_forward; tied comes
// from the model.
struct PlanRequest {
  ModelConfig model;
  Trainables trainables = {};
  Strategy strategy = Strategy::kDdp;
  Mesh mesh;
  bool mesh_given = false;  // by the user (troupe.mesh); else it is what the strategy makes of it
  // Types of what is updated and of products, limits of gathered parameters. What follows from
  // `offload` the plan adds.
  ComputeOptions compute;
  Offload offload = Offload::kNothing;  // of trainers on GPUs
  ReductionOptions reduction;           // order, type, micro-batches of a step
  ActivationOptions activations;        // of training
  std::shared_ptr<const Objective> objective = make_objective();
  // Of evaluation, whose passes take training's place in one arena; nothing: there is none.
  std::optional<ActivationOptions> evaluation = std::nullopt;
  // Samples may differ in length: those of a micro-batch lie in one row then, one behind the other.
  bool ragged = false;
  int threads = 1;
  // Operands of bf16 products that are converted, and values of quantised ones, of all threads.
  std::int64_t staging_bytes = 0;
  std::int64_t save_buffer_bytes = 0;  // what checkpoints are written through
  // Trainers on one machine: they share rings, the program's pages and the data set's.
  int ranks_on_node = 1;
  std::int64_t dataset_bytes = 0;  // tokens, labels and their index, as a trainer holds them
  // Trainers compute on GPUs: state, passes and communication are in its memory.
  bool on_gpu = false;
  int ranks_on_gpu = 1;     // that share one
  int spares_on_gpu = 0;    // processes that stand by on each
  bool fp8 = false;         // products of 8 bits, on GPUs
  int optimizer_slots = 2;  // Optimizer::slots(), an element of each for every parameter
  // Null: such slots; else one whose slots are its own to count, by its rule.
  std::shared_ptr<const Optimizer> optimizer = nullptr;
  bool saves_optimizer = true;  // in checkpoints; with a GPU it is copied to the host first
  bool copies = false;          // what only one machine holds has a copy on another (BuddyPlan)
  // > 0: machines come and go, up to so many. A rank keeps what it held in the world before until a
  // step of the present one stands.
  int machines_max = 0;
};

// Bytes of one trainer, in the host's memory. With a GPU the first six are 0, see DevicePlan, but
// for what is offloaded.
struct MemoryPlan {
  std::int64_t parameters = 0;  // trained and frozen
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;  // its slots
  std::int64_t gathered = 0;   // units materialised for use, in the type of the products
  std::int64_t reduction = 0;  // local gradients on their way, partial sums
  std::int64_t activations = 0;
  std::int64_t workspaces = 0;  // of the threads: attention scores, packed operands, saves
  std::int64_t rings = 0;       // shared memory between the ranks of a machine
  std::int64_t kept = 0;        // of the state of another machine's rank, with its gradients
  std::int64_t former = 0;      // of the world before: its state and what it kept
  std::int64_t dataset = 0;
  std::int64_t runtime = 0;  // the program: code, libraries, threads, heap

  // The four that the formulas of ZeRO are about, and all.
  std::int64_t state() const { return parameters + gradients + optimizer; }
  std::int64_t rest() const {
    return reduction + workspaces + rings + kept + former + dataset + runtime;
  }
  std::int64_t total() const { return state() + gathered + activations + rest(); }
};

// Whether ranks keep copies of each other's states: they are asked for, and BuddyPlan has some.
bool keeps_copies(const PlanRequest& request);

// Machines of the request's world.
int machines_of(const PlanRequest& request);

// Of the rank that owns most.
MemoryPlan plan_memory(const PlanRequest& request);

// Bytes of one trainer in its GPU's memory, whole granules apart. What the driver, the context and
// NCCL take for themselves is not known before it is there, and not counted.
struct DevicePlan {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer = 0;  // its slots, and the log of the updates
  std::int64_t gathered = 0;
  std::int64_t reduction = 0;
  std::int64_t activations = 0;
  std::int64_t workspaces = 0;  // of products and sums
  std::int64_t communication = 0;

  std::int64_t total() const {
    return parameters + gradients + optimizer + gathered + reduction + activations + workspaces +
           communication;
  }
};
// Of a request that is on_gpu.
DevicePlan plan_device_memory(const PlanRequest& request);

// What a process that stands by takes of a GPU's memory: a context, kernels, the vendor's
// libraries. That is theirs to decide and no sum of ours: a round figure that is more than they
// took so far.
inline constexpr std::int64_t kSpareDeviceBytes = std::int64_t{768} << 20;
// Of one GPU, with all that run or stand by there.
std::int64_t gpu_bytes(const PlanRequest& request);

// What the ZeRO paper says of the state, with Ψ the elements that are trained: bytes of parameters,
// gradients and slots, with two of them in fp32 16Ψ whole, (8 + 8/N)Ψ, (4 + 12/N)Ψ, 16Ψ/N (n: the
// shard group); and with Φ those that are frozen, their parameters alone (of quantised ones the
// elements that they take).
struct Formula {
  std::string text;  // "8Ψ + 8Ψ/N"
  double bytes = 0;
};
Formula state_formula(const PlanRequest& request);

// Bytes that a rank sends in one optimizer step, headers and scalars not counted.
struct TrafficPlan {
  double gradients = 0;            // reduced, and shared among those who keep them whole
  double gathered_parameters = 0;  // of the micro-batches' passes
  double updated_parameters = 0;   // after the optimizer, where parameters are whole
  double copies = 0;               // gradients of what another machine's rank keeps
  double total() const { return gradients + gathered_parameters + updated_parameters + copies; }
};
// The mean over all ranks, by the same decisions that the run takes.
TrafficPlan plan_traffic(const PlanRequest& request);

// The textbook's figure beside it, with Ψ the elements that are trained, Φ those that are frozen, N
// the world size, M the micro-batches of a rank and step: DDP, ZeRO-1 and ZeRO-2 send (M + 1)·Ψ·(N
// − 1)/N elements, ZeRO-3 3·M·Ψ·(N − 1)/N. Shard groups gather over their own n ranks.
Formula traffic_formula(const PlanRequest& request);

// Bytes that the machine needs beside its trainers, the data set apart: the driver, which is head
// and node, too, and the controller.
std::int64_t run_overhead_bytes();

}  // namespace troupe::train
