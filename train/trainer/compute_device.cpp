#include "train/trainer/compute_device.h"

#include "runtime/base/build_options.h"
#include "train/cpu/cpu_operators.h"
#include "train/sharding/cpu_engine_device.h"
#include "train/trainer/cuda_compute.h"
#include "train/trainer/gemm_rate.h"

namespace troupe::train {
namespace {

class CpuRank final : public RankCompute {
 public:
  CpuRank(Operators& operators, Activations& activations, HostAccess& access, TrainingState state,
          const RankTask& rank, Arena& arena)
      : RankCompute(activations, access, std::move(state)), operators_(operators) {
    updates_ = make_cpu_optimizer_device(
        OptimizerShard::of(rank.layout, state_.buffers(), rank.optimizer), parallel_for_on(arena),
        kRecovery ? &state_.update_log() : nullptr, rank.observer);
  }

  double gemm_rate(const Clock& clock, const ModelConfig& model, Arithmetic arithmetic) override {
    return measure_gemm_rate(operators_, clock, model, arithmetic);
  }
  Result<GenerationCompute> join(std::shared_ptr<collective::Communicator> world,
                                 const DeviceLinks&) override {
    auto device = std::make_unique<CpuEngineDevice>(*world, operators_);
    return GenerationCompute{std::move(world), nullptr, std::move(device)};
  }

 private:
  Operators& operators_;
};

class CpuCompute final : public ComputeDevice {
 public:
  static Result<std::unique_ptr<ComputeDevice>> open(const ComputeTask& task) {
    std::unique_ptr<CpuCompute> made(new CpuCompute(task.threads));
    made->activations_ = TROUPE_TRY(Activations::allocate(
        task.model, task.activations, *made->operators_,
        Activations::bytes_needed(task.model, task.activations, task.evaluation)));
    return std::unique_ptr<ComputeDevice>(std::move(made));
  }

  std::string memory_text() const override { return {}; }
  std::vector<NamedBytes> memory_growth() override { return {}; }
  Arena& threads() override { return arena_; }
  Operators& operators() override { return *operators_; }
  HostAccess& access() override { return access_; }
  Status settle() override { return {}; }
  Status alive() override { return {}; }
  Status warm_up() override { return {}; }

  Result<std::unique_ptr<RankCompute>> hold(const RankTask& rank) override {
    auto state = TROUPE_TRY(TrainingState::open(rank.layout,
                                                {.state = rank.state,
                                                 .frozen = rank.engine.compute.frozen,
                                                 .optimizer = &rank.optimizer,
                                                 .threads = arena_.threads()},
                                                rank.memory, rank.label));
    return std::unique_ptr<RankCompute>(std::make_unique<CpuRank>(
        *operators_, *activations_, access_, std::move(state), rank, arena_));
  }

 private:
  explicit CpuCompute(int threads) : arena_(threads), operators_(make_cpu_operators(arena_)) {}

  Arena arena_;
  std::unique_ptr<Operators> operators_;
  std::unique_ptr<Activations> activations_;
  HostAccess access_;
};

}  // namespace

ParallelFor parallel_for_on(Arena& arena) {
  return [&arena](std::int64_t count, const std::function<void(std::int64_t, int)>& fn) {
    arena.parallel_for(count, [&](std::int64_t i, int slot) { fn(i, slot); });
  };
}

Status with_way_out(const Status& status, const ActivationOptions& activations) {
  if (status.code() != Code::kOutOfMemory) return status;
  return Status(status).prefixed(
      fmt::format("{} rows of {} tokens: lower per_device_train_batch_size (with "
                  "gradient_accumulation_steps the step keeps its size) or cutoff_len",
                  activations.rows_max, activations.length_max));
}

Result<std::unique_ptr<ComputeDevice>> ComputeDevice::open(const ComputeChoice& choice,
                                                           const ComputeTask& task,
                                                           const Environment& environment,
                                                           Logger log) {
  auto opened = choice.kind == ComputeKind::kCpu
                    ? CpuCompute::open(task)
                    : CudaCompute::open(choice, task, environment, std::move(log));
  if (opened.ok()) return opened;
  return with_way_out(opened.status(), task.activations);
}

}  // namespace troupe::train
