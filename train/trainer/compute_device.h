#pragma once
// What a rank computes on: all that a training run does differently on a CPU and on a GPU.
//
// Made once a process, before the process has a rank: the arithmetic of the model and the memory of
// its passes. With the rank come the state's memory and that of the engine; each generation has
// communicators and an engine device of its own.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/environment.h"
#include "runtime/base/log.h"
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
  // memory of the device before hold_memory().
  bool stands_by = false;
  // So long it waits for memory of the device: what a process had that died is free a moment later.
  Duration memory_patience{};
};

// What forming a device's communicators needs to know.
struct DeviceLinks {
  std::string node;  // equal where ranks may share a GPU: the node's name
  // Of waits in collectives, as ddp_timeout says; the environment's where it does not.
  std::optional<Duration> timeout;
  bool deterministic = true;  // sums by the fixed tree; else in the library's own order
  // What was chosen and set, and why: log lines.
  std::function<void(const std::string&)> notice = [](const std::string&) {};
};

// One thread, the loop's, unless said otherwise.
class ComputeDevice {
 public:
  // `environment` names the library and the devices and outlives the object. Errors: kOutOfMemory
  // (what to make smaller), kUnavailable (no library, no driver, no device: the way out).
  static Result<std::unique_ptr<ComputeDevice>> open(const ComputeChoice& choice,
                                                     const ComputeTask& task,
                                                     const Environment& environment, Logger log);
  virtual ~ComputeDevice() = default;

  // "CPU", "GPU 0 (NVIDIA H200)".
  virtual std::string name() const = 0;
  // For the log, once everything is reserved: what this process holds of the device's memory. Empty
  // where there is nothing to say.
  virtual std::string memory_text() const = 0;
  // What this process has held of the device's memory at most, as StepRecord::device_bytes: where
  // that is more than when it was last asked, else nothing. Nothing without such memory.
  virtual std::vector<NamedBytes> memory_growth() = 0;
  // Of the host; for what is made there on all of them.
  virtual Arena& threads() = 0;
  virtual Operators& operators() = 0;
  // For training, in the operators' memory. Where it stands by: after hold_memory().
  virtual Activations& activations() = 0;
  // To the buffers that the engine works on.
  virtual HostAccess& access() = 0;
  // To those that are updated, loaded and saved: TrainingState::kept().
  virtual HostAccess& kept_access() = 0;

  // --- standing by, once
  // What the first pass would load, make and choose is there then, and no memory of the device is
  // held for it afterwards. Nothing depends on it; a failure is what that pass may meet.
  virtual Status warm_up() = 0;

  // --- with the rank, once
  // The memory of passes, where open() has not taken it. kOutOfMemory.
  virtual Status hold_memory() = 0;
  // TrainingState::open() in this device's memory; the log says what a death will cost where it
  // cannot outlive the process. Layout and optimizer outlive it, here and below.
  virtual Result<TrainingState> open_state(const RankLayout& layout, DType state, DType frozen,
                                           const Optimizer& optimizer, SurvivingMemory& memory,
                                           const std::string& name, const std::string& label) = 0;
  // Memory for the engines of this rank. kOutOfMemory.
  virtual Status reserve(const RankLayout& layout, const EngineOptions& options) = 0;
  // Updates that state, which outlives it. `observer`: as OptimizerDevice's.
  virtual Result<std::unique_ptr<OptimizerDevice>> optimizer_device(const RankLayout& layout,
                                                                    TrainingState& state,
                                                                    const Optimizer& optimizer,
                                                                    UpdateObserver observer) = 0;

  // --- by generation
  // What carries buffers between the ranks beside `world`, which outlives it; null where `world`
  // does. Collective.
  virtual Result<std::unique_ptr<DeviceCommunicator>> connect(collective::Communicator& world,
                                                              const DeviceLinks& links) = 0;
  // For engines of one generation; `communicator`: what connect() gave. Both outlive it.
  virtual std::unique_ptr<EngineDevice> engine_device(collective::Communicator& world,
                                                      DeviceCommunicator* communicator) = 0;

  // --- in the loop
  // Until all arithmetic that was asked for is done: what a clock may be read after. The first
  // failure that it met.
  virtual Status settle() = 0;
  // As measure_gemm_rate() of gemm_rate.h; 0 where there is no memory for it.
  virtual double gemm_rate(const Clock& clock, const ModelConfig& model, Arithmetic arithmetic) = 0;
  // Ok, or why nothing can be computed in this process any more: the device is lost. Asked after a
  // failure.
  virtual Status alive() = 0;
};

}  // namespace troupe::train
