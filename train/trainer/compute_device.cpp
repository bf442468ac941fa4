#include "train/trainer/compute_device.h"

#include "runtime/base/build_options.h"
#include "train/cpu/cpu_operators.h"
#include "train/sharding/cpu_engine_device.h"
#include "train/trainer/cuda_compute.h"
#include "train/trainer/gemm_rate.h"

namespace troupe::train {
namespace {

class CpuCompute final : public ComputeDevice {
 public:
  static Result<std::unique_ptr<ComputeDevice>> open(const ComputeTask& task) {
    std::unique_ptr<CpuCompute> made(new CpuCompute(task.threads));
    made->activations_ = TROUPE_TRY(Activations::allocate(
        task.model, task.activations, *made->operators_,
        Activations::bytes_needed(task.model, task.activations, task.evaluation)));
    return std::unique_ptr<ComputeDevice>(std::move(made));
  }

  std::string name() const override { return "CPU"; }
  std::string memory_text() const override { return {}; }
  std::vector<NamedBytes> memory_growth() override { return {}; }
  Arena& threads() override { return arena_; }
  Operators& operators() override { return *operators_; }
  Activations& activations() override { return *activations_; }
  HostAccess& access() override { return access_; }
  HostAccess& kept_access() override { return access_; }

  Status warm_up() override { return {}; }
  Status hold_memory() override { return {}; }
  Result<TrainingState> open_state(const RankLayout& layout, DType state, DType frozen,
                                   const Optimizer& optimizer, SurvivingMemory& memory,
                                   const std::string& name, const std::string& label) override {
    return TrainingState::open(
        layout,
        {.state = state, .frozen = frozen, .slots = optimizer.slots(), .threads = arena_threads_},
        memory, name, label);
  }
  Status reserve(const RankLayout&, const EngineOptions&) override { return {}; }
  Result<std::unique_ptr<OptimizerDevice>> optimizer_device(const RankLayout& layout,
                                                            TrainingState& state,
                                                            const Optimizer& optimizer,
                                                            UpdateObserver observer) override {
    return make_cpu_optimizer_device(OptimizerShard::of(layout, state.buffers(), optimizer),
                                     parallel_for(), kRecovery ? &state.update_log() : nullptr,
                                     std::move(observer));
  }

  Result<std::unique_ptr<DeviceCommunicator>> connect(collective::Communicator&,
                                                      const DeviceLinks&) override {
    return std::unique_ptr<DeviceCommunicator>();
  }
  std::unique_ptr<EngineDevice> engine_device(collective::Communicator& world,
                                              DeviceCommunicator*) override {
    return std::make_unique<CpuEngineDevice>(world, *operators_);
  }

  Status settle() override { return {}; }
  double gemm_rate(const Clock& clock, const ModelConfig& model, Arithmetic arithmetic) override {
    return measure_gemm_rate(*operators_, clock, model, arithmetic);
  }
  Status alive() override { return {}; }

 private:
  explicit CpuCompute(int threads)
      : arena_threads_(threads), arena_(threads), operators_(make_cpu_operators(arena_)) {}

  ParallelFor parallel_for() {
    return [this](std::int64_t count, const std::function<void(std::int64_t, int)>& fn) {
      arena_.parallel_for(count, [&](std::int64_t i, int slot) { fn(i, slot); });
    };
  }

  const int arena_threads_;
  Arena arena_;
  std::unique_ptr<Operators> operators_;
  std::unique_ptr<Activations> activations_;
  HostAccess access_;
};

}  // namespace

Result<std::unique_ptr<ComputeDevice>> ComputeDevice::open(const ComputeChoice& choice,
                                                           const ComputeTask& task,
                                                           const Environment& environment,
                                                           Logger log) {
  if (choice.kind == ComputeKind::kCpu) return CpuCompute::open(task);
  return CudaCompute::open(choice, task, environment, std::move(log));
}

}  // namespace troupe::train
