#include "train/trainer/cuda_compute.h"

#include <algorithm>
#include <thread>

#include "runtime/base/build_options.h"
#include "runtime/base/check.h"
#include "runtime/base/gpu_environment.h"
#include "runtime/base/suggest.h"
#include "train/cuda/communicator/communicator_choice.h"
#include "train/cuda/operators/fp8_products.h"
#include "train/sharding/cuda_engine_device.h"
#include "train/sharding/cuda_optimizer_device.h"
#include "train/sharding/device_scratch.h"
#include "train/sharding/device_warmth.h"
#include "train/sharding/offloaded_optimizer_device.h"
#include "train/trainer/gemm_rate.h"

namespace troupe::train {
namespace {

constexpr const char* kActivations = "activations";
constexpr const char* kScratch = "scratch";
constexpr const char* kEngine = "engine";
constexpr const char* kSums = "sums";
// While memory is waited for.
constexpr auto kAllocateAgain = std::chrono::milliseconds(10);

}  // namespace

Result<std::unique_ptr<ComputeDevice>> CudaCompute::open(const ComputeChoice& choice,
                                                         const ComputeTask& task,
                                                         const Environment& environment,
                                                         Logger log) {
  auto library = choice.library;
  if (!library) library = TROUPE_TRY(CudaLibrary::load(environment));
  auto device = TROUPE_TRY(CudaDevice::open(std::move(library), choice.index, environment));
  std::unique_ptr<CudaCompute> made(
      new CudaCompute(std::move(device), task, environment, std::move(log)));
  TROUPE_RETURN_IF_ERROR(made->prepare(choice, task));
  return std::unique_ptr<ComputeDevice>(std::move(made));
}

Status CudaCompute::prepare(const ComputeChoice& choice, const ComputeTask& task) {
  // Half the memory and traffic of fp32 ones, where products round to bf16 anyway.
  ActivationOptions& activations = activation_options_ = task.activations;
  if (activations.compute == DType::kBF16 && device_->info().has_bf16 != 0)
    activations.type = DType::kBF16;
  evaluation_options_ = task.evaluation;
  if (evaluation_options_) evaluation_options_->type = activations.type;
  stream_ = TROUPE_TRY(CudaStream::create(device_));
  algorithms_.emplace(device_, kGemmWorkspaceBytes);
  if (choice.fp8) TROUPE_RETURN_IF_ERROR(check_fp8(*device_));
  cuda_options_ = {
      .tf32 = choice.tf32, .fp8 = choice.fp8, .attention = {.ordered = task.deterministic}};
  scratch_bytes_ =
      TROUPE_TRY(device_scratch_bytes(device_->library(), model_, *objective_, activations,
                                      algorithms_->workspace_bytes(), cuda_options_, ragged_));
  if (evaluation_options_) {
    scratch_bytes_ =
        std::max(scratch_bytes_, TROUPE_TRY(device_scratch_bytes(
                                     device_->library(), model_, *objective_, *evaluation_options_,
                                     algorithms_->workspace_bytes(), cuda_options_, ragged_)));
  }
  CudaOptions telling = cuda_options_;
  telling.attention.notice =
      telling.fp8_notice = [this](const std::string& text) { log_.warning("{}", text); };
  telling.graphs = {.use = choice.graphs,
                    .notice = [this](const std::string& text) { log_.info("{}", text); }};
  operators_ = TROUPE_TRY(CudaOperators::create(*stream_, *algorithms_, {}, telling));
  access_.emplace(*operators_);
  return task.stands_by ? Status() : hold_passes();
}

Status CudaCompute::warm_up() {
  TROUPE_CHECK(!memory_);
  TROUPE_RETURN_IF_ERROR(
      warm_up_device(*stream_, model_, *objective_, activation_options_, cuda_options_));
  TROUPE_RETURN_IF_ERROR(plan_device_passes(*operators_, model_, *objective_, activation_options_,
                                            scratch_bytes_, ragged_));
  if (!evaluation_options_) return {};
  return plan_device_passes(*operators_, model_, *objective_, *evaluation_options_, scratch_bytes_,
                            ragged_);
}

Result<DeviceArena> CudaCompute::allocate(const ArenaPlan& plan) {
  const Deadline deadline = Deadline::after(memory_patience_);
  while (true) {
    auto made = DeviceArena::allocate(device_, plan);
    if (made.status().code() != Code::kOutOfMemory || deadline.passed()) return made;
    std::this_thread::sleep_for(kAllocateAgain);
  }
}

Status CudaCompute::hold_passes() {
  if (memory_) return {};
  ArenaPlan plan;
  plan.add(kActivations, MemoryPurpose::kActivations,
           static_cast<std::int64_t>(
               Activations::bytes_needed(model_, activation_options_, evaluation_options_)));
  plan.add(kScratch, MemoryPurpose::kWorkspace, scratch_bytes_);
  memory_ = TROUPE_TRY(allocate(plan));
  operators_->use_scratch(memory_->part(kScratch));
  activations_ = std::make_unique<Activations>(model_, activation_options_, *operators_,
                                               memory_->part(kActivations));
  return operators_->failure();
}

CudaCompute::~CudaCompute() {
  // Before the memory that its work uses.
  activations_.reset();
  operators_.reset();
}

std::string CudaCompute::memory_text() const {
  const auto use = device_->memory_use();
  if (!use.ok()) return use.status().to_string();
  return fmt::format("{}: {}; {} of {} free", device_->name(), describe_memory(use->held),
                     memory_size_text(use->free_bytes), memory_size_text(use->total_bytes));
}

std::vector<NamedBytes> CudaCompute::memory_growth() {
  const MemoryLedger::Bytes peak = device_->ledger().peak();
  if (total_bytes(peak) <= told_peak_) return {};
  // A device that is lost tells its next user.
  const auto use = device_->memory_use();
  if (!use.ok()) return {};
  told_peak_ = total_bytes(peak);
  std::vector<NamedBytes> bytes;
  for (int i = 0; i < kMemoryPurposes; ++i)
    bytes.push_back({std::string(memory_purpose_name(static_cast<MemoryPurpose>(i))),
                     peak[static_cast<std::size_t>(i)]});
  const std::int64_t given_back = total_bytes(peak) - total_bytes(use->held);
  bytes.push_back({kDeviceInUse, use->total_bytes - use->free_bytes + given_back});
  return bytes;
}

Status CudaCompute::alive() {
  // Too little memory is no fault of the device's, nor what it cannot do: another process would
  // fail as well, and the run is told why.
  const Status failure = operators_->failure();
  const bool of_device =
      failure.code() != Code::kOutOfMemory && failure.code() != Code::kUnsupported;
  if (!failure.ok() && of_device) return failure;
  // A context that a fault has ended answers nothing any more.
  return device_->memory_use().status();
}

// --- a rank's ------------------------------------------------------------------------------------

class CudaCompute::Rank final : public RankCompute {
 public:
  Rank(CudaCompute& device, TrainingState state, DeviceArena engine_memory)
      : RankCompute(*device.activations_,
                    device.offload_ == Offload::kNothing ? *device.access_ : device.host_access_,
                    std::move(state)),
        device_(device),
        engine_memory_(std::move(engine_memory)) {}
  ~Rank() override {
    // Before the memory that it uses, as work that is still enqueued does.
    updates_.reset();
    static_cast<void>(device_.settle());
  }

  // The last part of hold().
  Status make_updates(const RankTask& rank);
  double gemm_rate(const Clock& clock, const ModelConfig& model, Arithmetic arithmetic) override;
  Result<GenerationCompute> join(std::shared_ptr<collective::Communicator> world,
                                 const DeviceLinks& links) override;

 private:
  CudaCompute& device_;
  DeviceArena engine_memory_;
};

Result<std::unique_ptr<RankCompute>> CudaCompute::hold(const RankTask& rank) {
  if (const Status held = hold_passes(); !held.ok()) return with_way_out(held, activation_options_);
  auto state = TROUPE_TRY(TrainingState::open_on_device(rank.layout,
                                                        {.state = rank.state,
                                                         .frozen = rank.engine.compute.frozen,
                                                         .optimizer = &rank.optimizer,
                                                         .threads = arena_.threads(),
                                                         .offload = offload_,
                                                         .used = activation_options_.compute},
                                                        device_, rank.memory, rank.label, log_));
  ArenaPlan plan;
  plan.add(kEngine, MemoryPurpose::kCommunication, engine_bytes(rank.layout, rank.engine));
  plan.add(kSums, MemoryPurpose::kWorkspace,
           offload_ == Offload::kNothing ? CudaOptimizerDevice::scratch_bytes(rank.layout)
                                         : OffloadedOptimizerDevice::scratch_bytes(rank.layout));
  auto made = std::make_unique<Rank>(*this, std::move(state), TROUPE_TRY(allocate(plan)));
  TROUPE_RETURN_IF_ERROR(made->make_updates(rank));
  return std::unique_ptr<RankCompute>(std::move(made));
}

Status CudaCompute::Rank::make_updates(const RankTask& rank) {
  if (device_.offload_ == Offload::kNothing) {
    updates_ = TROUPE_TRY(CudaOptimizerDevice::create(
        *device_.stream_, OptimizerShard::of(rank.layout, state_.buffers(), rank.optimizer),
        kRecovery ? state_.device_log() : std::span<std::byte>(), engine_memory_.part(kSums),
        rank.observer));
    return {};
  }
  updates_ = TROUPE_TRY(OffloadedOptimizerDevice::create(
      *device_.stream_, rank.layout,
      {.kept = state_.kept(),
       .parameters = state_.buffers().parameters,
       .used = state_.buffers().state,
       .offload = device_.offload_},
      rank.optimizer, parallel_for_on(device_.arena_), kRecovery ? &state_.update_log() : nullptr,
      engine_memory_.part(kSums), rank.observer));
  return {};
}

double CudaCompute::Rank::gemm_rate(const Clock& clock, const ModelConfig& model,
                                    Arithmetic arithmetic) {
  const ActivationOptions& options = activations_.options();
  const GemmProbe probe = gemm_probe(model, options.rows_max * options.length_max);
  auto memory = DeviceMemory::allocate(
      device_.device_, probe.bytes(), "operands of products that are timed", MemoryPurpose::kOther);
  if (!memory.ok()) {
    device_.log_.warning("how fast products are is not measured: {}", memory.status().to_string());
    return 0;
  }
  const double rate =
      measure_gemm_rate(device_.operators(), clock, probe, arithmetic, memory->bytes(),
                        [this] { static_cast<void>(device_.settle()); });
  return device_.operators().failure().ok() ? rate : 0;
}

Result<GenerationCompute> CudaCompute::Rank::join(std::shared_ptr<collective::Communicator> world,
                                                  const DeviceLinks& links) {
  const CudaDevice& cuda = *device_.device_;
  const NcclTimeout timeout = TROUPE_TRY(nccl_timeout(device_.environment_, links.timeout));
  for (const std::string& notice : timeout.notices) links.notice(notice);
  DeviceCommunicatorOptions options;
  options.nccl.library = cuda.library();
  options.nccl.context = cuda.context();
  options.nccl.host = world.get();
  options.nccl.operation_timeout = timeout.limit;
  options.nccl.reduction = links.deterministic ? DeviceReduction::kTree : DeviceReduction::kLibrary;
  options.device_index = cuda.index();
  options.node = links.node;
  options.environment = &device_.environment_;
  options.without_peer_access =
      split_words(device_.environment_.get(kGpusWithoutPeerAccess).value_or(std::string()), ',');
  options.notice = links.notice;
  auto made = TROUPE_TRY(make_device_communicator(options));
  // It lives on `world`, whoever still ends it.
  std::shared_ptr<DeviceCommunicator> communicator(
      made.release(), [world](DeviceCommunicator* ended) { delete ended; });
  auto engine_device = std::make_unique<CudaEngineDevice>(
      CudaEngineDeviceOptions{.device = device_.device_,
                              .communicator = communicator.get(),
                              .compute = &*device_.stream_,
                              .memory = engine_memory_.part(kEngine)});
  return GenerationCompute{std::move(world), std::move(communicator), std::move(engine_device)};
}

}  // namespace troupe::train
