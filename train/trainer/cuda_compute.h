#pragma once
// A rank's arithmetic, memory and communicators on a GPU.
//
// One compute stream. Memory of the device in four allocations: activations with the operators'
// scratch, the state (which outlives the process where the device can export it), the engine's
// working buffers, and what a communicator takes for itself. What is offloaded of the state lies in
// the host's segment and is updated by the host's threads.

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "train/cuda/device/device.h"
#include "train/cuda/device/device_arena.h"
#include "train/cuda/device/stream.h"
#include "train/cuda/operators/cuda_operators.h"
#include "train/cuda/operators/gemm_algorithms.h"
#include "train/trainer/compute_device.h"

namespace troupe::train {

class CudaCompute final : public ComputeDevice {
 public:
  static Result<std::unique_ptr<ComputeDevice>> open(const ComputeChoice& choice,
                                                     const ComputeTask& task,
                                                     const Environment& environment, Logger log);
  // Waits for the device's work.
  ~CudaCompute() override;

  std::string name() const override { return device_->name(); }
  std::string memory_text() const override;
  std::vector<NamedBytes> memory_growth() override;
  Arena& threads() override { return arena_; }
  Operators& operators() override { return *operators_; }
  Activations& activations() override;
  HostAccess& access() override { return *access_; }
  HostAccess& kept_access() override {
    return offload_ == Offload::kNothing ? *access_ : host_access_;
  }

  Status warm_up() override;
  Status hold_memory() override;
  Result<TrainingState> open_state(const RankLayout& layout, DType state, DType frozen,
                                   const Optimizer& optimizer, SurvivingMemory& memory,
                                   const std::string& name, const std::string& label) override;
  Status reserve(const RankLayout& layout, const EngineOptions& options) override;
  Result<std::unique_ptr<OptimizerDevice>> optimizer_device(const RankLayout& layout,
                                                            TrainingState& state,
                                                            const Optimizer& optimizer,
                                                            UpdateObserver observer) override;
  Result<std::unique_ptr<DeviceCommunicator>> connect(collective::Communicator& world,
                                                      const DeviceLinks& links) override;
  std::unique_ptr<EngineDevice> engine_device(collective::Communicator& world,
                                              DeviceCommunicator* communicator) override;

  Status settle() override { return operators_->synchronize(); }
  double gemm_rate(const Clock& clock, const ModelConfig& model, Arithmetic arithmetic) override;
  Status alive() override;

 private:
  CudaCompute(std::shared_ptr<CudaDevice> device, const ComputeTask& task,
              const Environment& environment, Logger log)
      : environment_(environment),
        log_(std::move(log)),
        device_(std::move(device)),
        offload_(task.offload),
        threads_(task.threads),
        model_(task.model),
        objective_(task.objective),
        ragged_(task.ragged),
        memory_patience_(task.memory_patience),
        arena_(task.threads) {}
  Status prepare(const ComputeChoice& choice, const ComputeTask& task);
  // Waits for memory as the task says.
  Result<DeviceArena> allocate(const ArenaPlan& plan);

  const Environment& environment_;
  Logger log_;
  const std::shared_ptr<CudaDevice> device_;
  const Offload offload_;
  const int threads_;
  const ModelConfig model_;
  const std::shared_ptr<const Objective> objective_;
  const bool ragged_;
  const Duration memory_patience_;
  ActivationOptions activation_options_;
  std::optional<ActivationOptions> evaluation_options_;
  CudaOptions cuda_options_;
  std::int64_t scratch_bytes_ = 0;
  Arena arena_;  // of the host's threads
  std::optional<CudaStream> stream_;
  std::optional<GemmAlgorithms> algorithms_;
  std::optional<DeviceArena> memory_;  // activations and scratch
  std::unique_ptr<CudaOperators> operators_;
  std::optional<HostAccess> access_;
  HostAccess host_access_;  // to what is offloaded
  std::unique_ptr<Activations> activations_;
  std::optional<DeviceArena> engine_memory_;
  std::int64_t told_peak_ = 0;  // by memory_growth()
};

}  // namespace troupe::train
