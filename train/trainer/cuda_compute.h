#pragma once
// A process's arithmetic, and a rank's memory and communicators, on a GPU.
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

  std::string memory_text() const override;
  std::vector<NamedBytes> memory_growth() override;
  Arena& threads() override { return arena_; }
  Operators& operators() override { return *operators_; }
  HostAccess& access() override { return *access_; }
  Status settle() override { return operators_->synchronize(); }
  Status alive() override;
  Status warm_up() override;
  Result<std::unique_ptr<RankCompute>> hold(const RankTask& rank) override;

 private:
  class Rank;

  CudaCompute(std::shared_ptr<CudaDevice> device, const ComputeTask& task,
              const Environment& environment, Logger log)
      : environment_(environment),
        log_(std::move(log)),
        device_(std::move(device)),
        offload_(task.offload),
        model_(task.model),
        objective_(task.objective),
        ragged_(task.ragged),
        memory_patience_(task.memory_patience),
        arena_(task.threads) {}
  Status prepare(const ComputeChoice& choice, const ComputeTask& task);
  // The memory of passes, where it is not held yet.
  Status hold_passes();
  // Waits for memory as the task says.
  Result<DeviceArena> allocate(const ArenaPlan& plan);

  const Environment& environment_;
  Logger log_;
  const std::shared_ptr<CudaDevice> device_;
  const Offload offload_;
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
  std::int64_t told_peak_ = 0;  // by memory_growth()
};

}  // namespace troupe::train
