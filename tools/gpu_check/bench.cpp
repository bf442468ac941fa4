#include "tools/gpu_check/bench.h"

#include <algorithm>
#include <thread>

#include "train/cpu/cpu_operators.h"

namespace troupe::tools::gpu {
namespace {

constexpr std::int64_t kAlign = 256;
constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kTensorBytes = 49'152 * kMiB, kScratchBytes = 2'048 * kMiB;
constexpr std::int64_t kRehearsalTensorBytes = 192 * kMiB, kRehearsalScratchBytes = 64 * kMiB;
constexpr int kRepeats = 3;

}  // namespace

Result<std::unique_ptr<Gpu>> Gpu::open(std::shared_ptr<const train::CudaLibrary> library,
                                       const BenchOptions& options) {
  using train::MemoryPurpose;
  std::unique_ptr<Gpu> gpu(new Gpu());
  gpu->device =
      TROUPE_TRY(train::CudaDevice::open(std::move(library), options.device, SystemEnvironment()));
  const std::int64_t free = TROUPE_TRY(gpu->device->memory_use()).free_bytes;
  const auto part = [&](std::int64_t rehearsal, std::int64_t full) {
    return options.rehearsal ? rehearsal : std::min(full, free * 2 / 5);
  };
  gpu->memory_ = TROUPE_TRY(
      train::DeviceMemory::allocate(gpu->device, part(kRehearsalTensorBytes, kTensorBytes),
                                    "the checks' tensors", MemoryPurpose::kActivations));
  gpu->scratch_ = TROUPE_TRY(
      train::DeviceMemory::allocate(gpu->device, part(kRehearsalScratchBytes, kScratchBytes),
                                    "the operators' scratch", MemoryPurpose::kWorkspace));
  gpu->workspace = gpu->scratch_->data();
  gpu->stream = TROUPE_TRY(train::CudaStream::create(gpu->device));
  gpu->algorithms.emplace(gpu->device, train::kGemmWorkspaceBytes);
  // On one stream: what one of them leaves in the scratch memory the other may overwrite.
  gpu->operators = TROUPE_TRY(
      train::CudaOperators::create(*gpu->stream, *gpu->algorithms, gpu->scratch_->bytes()));
  gpu->tf32_operators = TROUPE_TRY(train::CudaOperators::create(
      *gpu->stream, *gpu->algorithms, gpu->scratch_->bytes(), {.tf32 = true}));
  const train::GraphOptions graphs{.use = train::GraphOptions::Use::kAlways};
  gpu->graph_operators = TROUPE_TRY(train::CudaOperators::create(
      *gpu->stream, *gpu->algorithms, gpu->scratch_->bytes(), {.graphs = graphs}));
  gpu->fp8_operators = TROUPE_TRY(train::CudaOperators::create(
      *gpu->stream, *gpu->algorithms, gpu->scratch_->bytes(), {.fp8 = true}));
  gpu->fp8_graph_operators = TROUPE_TRY(train::CudaOperators::create(
      *gpu->stream, *gpu->algorithms, gpu->scratch_->bytes(), {.fp8 = true, .graphs = graphs}));
  gpu->host_arena = std::make_unique<train::Arena>(
      static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 16u)));
  gpu->host = train::make_cpu_operators(*gpu->host_arena);
  return gpu;
}

Gpu::~Gpu() {
  operators.reset();
  tf32_operators.reset();
  graph_operators.reset();
  fp8_operators.reset();
  fp8_graph_operators.reset();
}

Result<std::byte*> Gpu::take(std::int64_t bytes) {
  const std::int64_t at = used_;
  used_ += (bytes + kAlign - 1) / kAlign * kAlign;
  if (used_ > memory_->size())
    return error(Code::kOutOfMemory, "this check's tensors need more than the {} that are there",
                 train::memory_size_text(memory_->size()));
  return memory_->data() + at;
}

Result<double> Gpu::milliseconds(const std::string& what, int times,
                                 const std::function<int()>& launch) {
  using train::CudaEvent;
  CudaEvent begin = TROUPE_TRY(CudaEvent::create(device, CudaEvent::Times::kTaken));
  CudaEvent end = TROUPE_TRY(CudaEvent::create(device, CudaEvent::Times::kTaken));
  double least = 0;
  for (int repeat = 0; repeat <= kRepeats; ++repeat) {
    TROUPE_RETURN_IF_ERROR(begin.record(*stream));
    for (int i = 0; i < times; ++i) TROUPE_RETURN_IF_ERROR(device->status(launch(), what));
    TROUPE_RETURN_IF_ERROR(end.record(*stream));
    TROUPE_RETURN_IF_ERROR(end.wait(what));
    const double each = TROUPE_TRY(end.milliseconds_since(begin)) / times;
    if (repeat == 1 || (repeat > 1 && each < least)) least = each;
  }
  return least;
}

Result<Gpu*> Bench::gpu() {
  if (!gpu_) gpu_ = TROUPE_TRY(Gpu::open(library_, options_));
  gpu_->reset();
  return gpu_.get();
}

Result<std::map<std::string, std::string>> Bench::device_environment() const {
  const auto devices = TROUPE_TRY(train::list_devices(*library_, SystemEnvironment()));
  const auto index = static_cast<std::size_t>(options_.device);
  std::map<std::string, std::string> environment;
  if (devices.size() > 1 && index < devices.size())
    environment["CUDA_VISIBLE_DEVICES"] = devices[index].uuid;
  return environment;
}

Result<double> Bench::copy_rate() {
  if (copy_rate_) return *copy_rate_;
  Gpu* gpu = TROUPE_TRY(this->gpu());
  const std::int64_t bytes = rehearsal() ? kMiB : std::min(1024 * kMiB, gpu->capacity() / 4);
  std::byte* from = TROUPE_TRY(gpu->take(bytes));
  std::byte* to = TROUPE_TRY(gpu->take(bytes));
  const double ms = TROUPE_TRY(gpu->milliseconds(
      "copies", 10, [&] { return gpu->table().copy(gpu->stream->get(), from, to, bytes); }));
  gpu->reset();
  copy_rate_ = 2.0 * static_cast<double>(bytes) / ms / 1e6;
  return *copy_rate_;
}

}  // namespace troupe::tools::gpu
