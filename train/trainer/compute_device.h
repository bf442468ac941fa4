#pragma once
// What a rank computes on: all that a training run does differently on a CPU and on a GPU.
//
// Three lifetimes, each a type that only the one before it gives. ComputeDevice is made once a
// process, before the process has a rank: arithmetic. RankCompute is the memory of one rank's
// passes and state. GenerationCompute is that rank's communicators in one generation.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/environment.h"
#include "runtime/base/status.h"
#include "runtime/collective/communicator.h"
#include "train/cpu/arena.h"
#include "train/cuda/communicator/device_communicator.h"
#include "train/cuda/device/cuda_library.h"
#include "train/cuda/operators/block_graphs.h"
#include "train/model/activations.h"
#include "train/model/model_config.h"
#include "train/objectives/objectives.h"
#include "train/report/step_log.h"
#include "train/sharding/engine.h"
#include "train/sharding/engine_device.h"
#include "train/sharding/offload.h"
#include "train/sharding/optimizer_device.h"
#include "train/tensor/operators.h"
#include "train/trainer/host_access.h"
#include "train/trainer/surviving_memory.h"
#include "train/trainer/training_state.h"
#include "troupe/log.h"

namespace troupe::train {

enum class ComputeKind : std::uint8_t { kCpu = 0, kCuda = 1 };

// Which device a process computes on.
struct ComputeChoice {
  ComputeKind kind = ComputeKind::kCpu;
  // kCuda: of the devices that this process sees (CUDA_VISIBLE_DEVICES).
  int index = 0;
  // kCuda: fp32 products with operands that are rounded to TF32.
  bool tf32 = false;
  // kCuda: products in bf16 with operands of 8 bits, within blocks.
  bool fp8 = false;
  // kCuda: whether a layer's launches are one graph's.
  GraphOptions::Use graphs = GraphOptions::Use::kNever;
  // kCuda: null: CudaLibrary::load(). Tests bring theirs.
  std::shared_ptr<const CudaLibrary> library;
};

// What it is to compute.
struct ComputeTask {
  const ModelConfig& model;
  ActivationOptions activations;  // the type that they are kept in is the device's to choose
  std::shared_ptr<const Objective> objective = make_objective();
  // Of passes that the arena of the activations has room for, too (Activations::cut_for).
  std::optional<ActivationOptions> evaluation = std::nullopt;
  int threads = 1;  // of the host
  // Sums in a fixed order, wherever a device would be faster without.
  bool deterministic = true;
  // Samples may differ in length: all of a micro-batch may lie in one row.
  bool ragged = true;
  // kCuda: what lies in memory of the host all the same.
  Offload offload = Offload::kNothing;
  // The process has no rank yet and may wait for one for long, beside others that have: it takes no
  // memory of the device before hold().
  bool stands_by = false;
  // So long it waits for memory of the device: what a process had that died is free a moment later.
  Duration memory_patience{};
};

// What forming a device's communicators needs to know.
struct DeviceLinks {
  std::string node;     // equal where ranks may share a GPU: the machine as it was started
  std::string machine;  // equal where ranks' memories are lost together: the node
  std::map<std::string, std::string> labels;  // of the node (troupe.failure_domain)
  // Of waits in collectives, as ddp_timeout says; the environment's where it does not.
  std::optional<Duration> timeout;
  bool deterministic = true;  // sums by the fixed tree; else in the library's own order
  // What was chosen and set, and why: log lines.
  std::function<void(const std::string&)> notice = [](const std::string&) {};
};

// What it is to hold of a rank. Layout, optimizer and memory outlive what holds it.
struct RankTask {
  const RankLayout& layout;
  DType state = DType::kF32;  // of trained parameters and slots
  const EngineOptions& engine;
  const Optimizer& optimizer;
  // Where the state outlives the process, and what the system is to call it.
  SurvivingMemory& memory;
  std::string label;
  UpdateObserver observer;  // as OptimizerDevice's
};

// The means by which a rank computes in one generation.
struct GenerationCompute {
  std::shared_ptr<collective::Communicator> world;  // over memory of the host
  // Over the device's, keeps `world`; null: `world` carries it.
  std::shared_ptr<DeviceCommunicator> device;
  std::unique_ptr<EngineDevice> engine_device;  // uses both
};

// What a device holds for a rank. It outlives its generations. One thread, the loop's.
class RankCompute {
 public:
  virtual ~RankCompute() = default;
  RankCompute(const RankCompute&) = delete;
  RankCompute& operator=(const RankCompute&) = delete;

  // For training, in the operators' memory.
  Activations& activations() { return activations_; }
  TrainingState& state() { return state_; }
  // To the buffers that are updated, loaded and saved: those of state().kept().
  HostAccess& kept_access() { return kept_access_; }
  // Updates the state.
  OptimizerDevice& updates() { return *updates_; }
  // As measure_gemm_rate() of gemm_rate.h; 0 where there is no memory for it.
  virtual double gemm_rate(const Clock& clock, const ModelConfig& model, Arithmetic arithmetic) = 0;
  // For the generation of `world`. Collective.
  virtual Result<GenerationCompute> join(std::shared_ptr<collective::Communicator> world,
                                         const DeviceLinks& links) = 0;

 protected:
  RankCompute(Activations& activations, HostAccess& kept_access, TrainingState state)
      : activations_(activations), kept_access_(kept_access), state_(std::move(state)) {}

  Activations& activations_;
  HostAccess& kept_access_;
  TrainingState state_;
  std::unique_ptr<OptimizerDevice> updates_;
};

// What a process computes on. One thread, the loop's.
class ComputeDevice {
 public:
  // `environment` names the library and the devices and outlives the object. Errors: kOutOfMemory
  // (what to make smaller), kUnavailable (no library, no driver, no device: the way out).
  static Result<std::unique_ptr<ComputeDevice>> open(const ComputeChoice& choice,
                                                     const ComputeTask& task,
                                                     const Environment& environment, Logger log);
  virtual ~ComputeDevice() = default;

  // For the log, once everything is held: what this process holds of the device's memory. Empty
  // where there is nothing to say.
  virtual std::string memory_text() const = 0;
  // What this process has held of the device's memory at most, as StepRecord::device_bytes: where
  // that is more than when it was last asked, else nothing. Nothing without such memory.
  virtual std::vector<NamedBytes> memory_growth() = 0;
  // Of the host; for what is made there on all of them.
  virtual Arena& threads() = 0;
  virtual Operators& operators() = 0;
  // To the buffers that the engine works on.
  virtual HostAccess& access() = 0;
  // Until all arithmetic that was asked for is done: what a clock may be read after. The first
  // failure that it met.
  virtual Status settle() = 0;
  // Ok, or why nothing can be computed in this process any more: the device is lost. Asked after a
  // failure.
  virtual Status alive() = 0;
  // Where it stands by: what the first pass would load, make and choose is there then, and no
  // memory of the device is held for it afterwards. Nothing depends on it; a failure is what that
  // pass may meet.
  virtual Status warm_up() = 0;

  // Takes a rank's memory: that of its passes where open() has not, the state that a process before
  // left or a new one, the engines'. The device outlives what holds it. The log says what a death
  // will cost where the state cannot outlive the process. Errors: kOutOfMemory.
  virtual Result<std::unique_ptr<RankCompute>> hold(const RankTask& rank) = 0;
};

// kOutOfMemory for passes of this size with the way out; another status as it is.
Status with_way_out(const Status& status, const ActivationOptions& activations);
// `arena` outlives it.
ParallelFor parallel_for_on(Arena& arena);

}  // namespace troupe::train
