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
  return task.stands_by ? Status() : hold_memory();
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

Status CudaCompute::hold_memory() {
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

Activations& CudaCompute::activations() {
  TROUPE_CHECK(activations_, "a pass without memory for it");
  return *activations_;
}

CudaCompute::~CudaCompute() {
  // Before the memory that its work uses.
  activations_.reset();
  operators_.reset();
}

Result<TrainingState> CudaCompute::open_state(const RankLayout& layout, DType state, DType frozen,
                                              const Optimizer& optimizer, SurvivingMemory& memory,
                                              const std::string& name, const std::string& label) {
  return TrainingState::open_on_device(layout,
                                       {.state = state,
                                        .frozen = frozen,
                                        .slots = optimizer.slots(),
                                        .threads = threads_,
                                        .offload = offload_,
                                        .used = activations_->options().compute},
                                       device_, memory, name, label, log_);
}

Status CudaCompute::reserve(const RankLayout& layout, const EngineOptions& options) {
  ArenaPlan plan;
  plan.add(kEngine, MemoryPurpose::kCommunication, engine_bytes(layout, options));
  plan.add(kSums, MemoryPurpose::kWorkspace,
           offload_ == Offload::kNothing ? CudaOptimizerDevice::scratch_bytes(layout)
                                         : OffloadedOptimizerDevice::scratch_bytes(layout));
  engine_memory_ = TROUPE_TRY(allocate(plan));
  return {};
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

Result<std::unique_ptr<OptimizerDevice>> CudaCompute::optimizer_device(const RankLayout& layout,
                                                                       TrainingState& state,
                                                                       const Optimizer& optimizer,
                                                                       UpdateObserver observer) {
  TROUPE_CHECK(engine_memory_);
  if (offload_ != Offload::kNothing) {
    const auto parallel_for = [this](std::int64_t count,
                                     const std::function<void(std::int64_t, int)>& fn) {
      arena_.parallel_for(count, [&](std::int64_t i, int slot) { fn(i, slot); });
    };
    return std::unique_ptr<OptimizerDevice>(TROUPE_TRY(OffloadedOptimizerDevice::create(
        *stream_, layout,
        {.kept = state.kept(),
         .parameters = state.buffers().parameters,
         .used = state.buffers().state,
         .offload = offload_},
        optimizer, parallel_for, kRecovery ? &state.update_log() : nullptr,
        engine_memory_->part(kSums), std::move(observer))));
  }
  return std::unique_ptr<OptimizerDevice>(TROUPE_TRY(
      CudaOptimizerDevice::create(*stream_, OptimizerShard::of(layout, state.buffers(), optimizer),
                                  kRecovery ? state.device_log() : std::span<std::byte>(),
                                  engine_memory_->part(kSums), std::move(observer))));
}

Result<std::unique_ptr<DeviceCommunicator>> CudaCompute::connect(collective::Communicator& world,
                                                                 const DeviceLinks& links) {
  const NcclTimeout timeout = TROUPE_TRY(nccl_timeout(environment_, links.timeout));
  for (const std::string& notice : timeout.notices) links.notice(notice);
  DeviceCommunicatorOptions options;
  options.nccl.library = device_->library();
  options.nccl.context = device_->context();
  options.nccl.host = &world;
  options.nccl.operation_timeout = timeout.limit;
  options.nccl.reduction = links.deterministic ? DeviceReduction::kTree : DeviceReduction::kLibrary;
  options.device_index = device_->index();
  options.node = links.node;
  options.environment = &environment_;
  options.without_peer_access =
      split_words(environment_.get(kGpusWithoutPeerAccess).value_or(std::string()), ',');
  options.notice = links.notice;
  return make_device_communicator(options);
}

std::unique_ptr<EngineDevice> CudaCompute::engine_device(collective::Communicator&,
                                                         DeviceCommunicator* communicator) {
  TROUPE_CHECK(communicator && engine_memory_);
  return std::make_unique<CudaEngineDevice>(
      CudaEngineDeviceOptions{.device = device_,
                              .communicator = communicator,
                              .compute = &*stream_,
                              .memory = engine_memory_->part(kEngine)});
}

double CudaCompute::gemm_rate(const Clock& clock, const ModelConfig& model, Arithmetic arithmetic) {
  const ActivationOptions& options = activations_->options();
  const GemmProbe probe = gemm_probe(model, options.rows_max * options.length_max);
  auto memory = DeviceMemory::allocate(
      device_, probe.bytes(), "operands of products that are timed", MemoryPurpose::kOther);
  if (!memory.ok()) {
    log_.warning("how fast products are is not measured: {}", memory.status().to_string());
    return 0;
  }
  const double rate = measure_gemm_rate(*operators_, clock, probe, arithmetic, memory->bytes(),
                                        [this] { static_cast<void>(operators_->synchronize()); });
  return operators_->failure().ok() ? rate : 0;
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

}  // namespace troupe::train
