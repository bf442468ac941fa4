#include "tests/train/cuda/fake/fake_cuda.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

#include "runtime/base/check.h"
#include "tests/train/cuda/fake/fake_state.h"
#include "tests/train/cuda/fake/host_gpu.h"

namespace troupe::tests {
namespace fake {
namespace {

thread_local std::string last_error_text;

int versions(TroupeCudaVersions* to) {
  if (const int code = state().enter("versions")) return code;
  *to = {};
  to->runtime = 13000;
  to->cublaslt = state().options().cublaslt_version;
  to->cudnn = state().options().cudnn_version;
  static const char* const nccl = std::getenv("TROUPE_FAKE_CUDA_NCCL");
  to->nccl = nccl ? std::atoi(nccl) : state().options().nccl_version;
  return TROUPE_CUDA_OK;
}

int device_count(std::int32_t* count) {
  if (const int code = state().enter("device_count")) return code;
  *count = state().options().devices;
  return TROUPE_CUDA_OK;
}

int device_info(std::int32_t index, TroupeCudaDevice* device) {
  if (const int code = state().enter("device_info", index)) return code;
  const FakeCudaOptions options = state().options();
  if (index < 0 || index >= options.devices)
    return state().fail(TROUPE_CUDA_INVALID, fmt::format("there is no device {}", index));
  *device = {};
  std::strncpy(device->name, "Fake GPU of tests", sizeof device->name - 1);
  fmt::format_to_n(device->uuid, sizeof device->uuid - 1, "GPU-fa4e0000-0000-0000-0000-{:012d}",
                   index);
  fmt::format_to_n(device->pci_bus, sizeof device->pci_bus - 1, "00000000:{:02X}:00.0", index + 1);
  device->compute_major = options.compute_major;
  device->compute_minor = options.compute_minor;
  device->multiprocessors = host_gpu::kMultiprocessors;
  device->memory_bytes = options.memory_bytes;
  device->l2_cache_bytes = 1 << 20;
  device->shared_bytes_per_block = host_gpu::kSharedBytesPerBlock;
  device->can_export_memory = options.can_export_memory;
  device->has_bf16 = 1;
  device->driver_version = 13000;
  return TROUPE_CUDA_OK;
}

// What of TROUPE_FAKE_CUDA_EXCLUSIVE stands for the devices that this process sees is its own until
// it ends.
bool take_exclusive_device() {
  static const char* const folder = std::getenv("TROUPE_FAKE_CUDA_EXCLUSIVE");
  if (!folder) return true;
  static const bool taken = [] {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    const std::string path = fmt::format("{}/device-{}", folder, visible ? visible : "");
    const int lock = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    return lock >= 0 && ::flock(lock, LOCK_EX | LOCK_NB) == 0;
  }();
  return taken;
}

int context_open(std::int32_t index, TroupeCudaContext** context) {
  if (const int code = state().enter("context_open", index)) return code;
  if (index < 0 || index >= state().options().devices)
    return state().fail(TROUPE_CUDA_INVALID, fmt::format("there is no device {}", index));
  if (!take_exclusive_device())
    return state().fail(TROUPE_CUDA_UNAVAILABLE,
                        "the device is in exclusive compute mode, and another process has it");
  *context = new TroupeCudaContext{index};
  state().count_object("context", 1);
  return TROUPE_CUDA_OK;
}

int context_close(TroupeCudaContext* context) {
  const int code = state().enter("context_close");
  state().count_object("context", -1);
  delete context;
  return code;
}

}  // namespace

State::State() {
  if (const char* version = std::getenv("TROUPE_FAKE_CUDA_CUDNN"))
    options_.cudnn_version = std::atoi(version);
  if (const char* kernels = std::getenv("TROUPE_FAKE_CUDA_KERNELS")) {
    const std::string_view how = kernels;
    TROUPE_CHECK(how == "phases" || how == "threads",
                 "TROUPE_FAKE_CUDA_KERNELS is '{}', not 'phases' or 'threads'", how);
    options_.kernels = how == "phases" ? FakeKernels::kByPhases : FakeKernels::kByThreads;
  }
}

std::uint64_t State::next_stream_seed() {
  static const char* const named = std::getenv("TROUPE_FAKE_CUDA_LAZY_STREAMS");
  std::lock_guard lock(mutex_);
  std::uint64_t seed = options_.lazy_streams_seed;
  if (seed == 0 && named) seed = std::strtoull(named, nullptr, 10);
  return seed == 0 ? 0 : seed * 1'000'003 + ++streams_made_;
}

State& state() {
  static State only;
  return only;
}

int State::enter(const char* function, int device) {
  static const char* const aborting = std::getenv("TROUPE_FAKE_CUDA_ABORT");
  if (aborting && std::strcmp(aborting, function) == 0) std::abort();
  // Who takes the file away loses all of its devices.
  static const char* const losing = std::getenv("TROUPE_FAKE_CUDA_LOSE");
  std::lock_guard lock(mutex_);
  if (losing && ::unlink(losing) == 0) {
    for (int lost = 0; lost < options_.devices; ++lost) lost_.insert(lost);
  }
  const std::int64_t before = calls_[function]++;
  if (lost_.contains(device)) return fail(TROUPE_CUDA_DEVICE_LOST, "the device was lost");
  for (const FakeCudaFault& fault : faults_) {
    if (fault.function == function && before >= fault.after_calls &&
        (fault.device < 0 || fault.device == device))
      return fail(fault.code, fault.text);
  }
  return TROUPE_CUDA_OK;
}

int State::fail(int code, std::string text) {
  last_error_text = std::move(text);
  return code;
}

const char* State::last_text() const { return last_error_text.c_str(); }

void State::reset(const FakeCudaOptions& options) {
  std::lock_guard lock(mutex_);
  options_ = options;
  guards_memory_ = options.guards_memory;
  streams_made_ = 0;
  faults_.clear();
  lost_.clear();
  calls_.clear();
  group_failures_.clear();
  update_end_.reset();
  objects_.erase(kWaitingAbort);
}

void State::inject(FakeCudaFault fault) {
  std::lock_guard lock(mutex_);
  fault.after_calls += static_cast<int>(calls_[fault.function]);
  faults_.push_back(std::move(fault));
}

void State::lose(int device) {
  std::lock_guard lock(mutex_);
  lost_.insert(device);
}

bool State::lost(int device) {
  std::lock_guard lock(mutex_);
  return lost_.contains(device);
}

void State::fail_groups(int rank, int code, std::string text) {
  std::lock_guard lock(mutex_);
  group_failures_[rank] = {code, std::move(text)};
}

std::optional<std::pair<int, std::string>> State::group_failure(int rank) {
  std::lock_guard lock(mutex_);
  const auto found = group_failures_.find(rank);
  if (found == group_failures_.end()) return std::nullopt;
  return found->second;
}

void State::end_update(const FakeUpdateEnd& end) {
  std::lock_guard lock(mutex_);
  update_end_ = end;
}

bool State::ends_update() {
  std::lock_guard lock(mutex_);
  return update_end_.has_value();
}

std::optional<FakeUpdateEnd> State::take_update_end() {
  std::lock_guard lock(mutex_);
  return std::exchange(update_end_, std::nullopt);
}

void State::updated(std::int64_t moments) {
  std::lock_guard lock(mutex_);
  update_moments_ = moments;
}

std::int64_t State::update_moments() {
  std::lock_guard lock(mutex_);
  return update_moments_;
}

std::int64_t State::add_plan() {
  std::lock_guard lock(mutex_);
  plans_.insert(++plans_made_);
  return plans_made_;
}

void State::remove_plan(std::int64_t plan) {
  std::lock_guard lock(mutex_);
  plans_.erase(plan);
}

bool State::has_plan(std::int64_t plan) {
  std::lock_guard lock(mutex_);
  return plans_.contains(plan);
}

std::int64_t State::calls(const std::string& function) {
  std::lock_guard lock(mutex_);
  const auto found = calls_.find(function);
  return found == calls_.end() ? 0 : found->second;
}

std::vector<std::string> State::left() {
  std::lock_guard lock(mutex_);
  std::vector<std::string> lines;
  for (const auto& [kind, count] : objects_) {
    if (count != 0) lines.push_back(fmt::format("{} of kind {}", count, kind));
  }
  return lines;
}

FakeCudaOptions State::options() {
  std::lock_guard lock(mutex_);
  return options_;
}

std::shared_ptr<void> State::charge(int device, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  auto& held = allocated_[device];
  if (!held) held = std::make_shared<std::int64_t>(0);
  if (*held + bytes > options_.memory_bytes) return nullptr;
  *held += bytes;
  return std::shared_ptr<void>(held.get(), [this, held, bytes](void*) {
    std::lock_guard inner(mutex_);
    *held -= bytes;
  });
}

std::int64_t State::allocated(int device) {
  std::lock_guard lock(mutex_);
  const auto found = allocated_.find(device);
  return found == allocated_.end() ? 0 : *found->second;
}

void State::protect(bool open) {
  for (const auto& [begin, range] : ranges_)
    if (!range.pinned)
      ::mprotect(reinterpret_cast<void*>(begin), static_cast<std::size_t>(range.bytes),
                 open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void State::begin_work() {
  std::lock_guard lock(mutex_);
  if (working_++ == 0) protect(true);
}

void State::end_work() {
  std::lock_guard lock(mutex_);
  if (--working_ == 0) protect(false);
}

void State::add_range(void* begin, Range range) {
  std::lock_guard lock(mutex_);
  ranges_[reinterpret_cast<std::uintptr_t>(begin)] = std::move(range);
  if (options_.guards_memory && working_ == 0) protect(false);
}

bool State::remove_range(void* begin) {
  Range gone;  // its charge ends outside of the lock
  std::lock_guard lock(mutex_);
  const auto found = ranges_.find(reinterpret_cast<std::uintptr_t>(begin));
  if (found == ranges_.end()) return false;
  gone = std::move(found->second);
  ranges_.erase(found);
  return true;
}

const Range* State::find(const void* at, std::int64_t bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return nullptr;
  const auto& [begin, range] = *--after;
  const bool inside = address + static_cast<std::uintptr_t>(bytes) <=
                      begin + static_cast<std::uintptr_t>(range.bytes);
  return inside ? &range : nullptr;
}

bool State::known(const void* at, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  return find(at, bytes) != nullptr;
}

bool State::on_device(const void* at, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  const Range* range = find(at, bytes);
  return range && !range->pinned;
}

void State::count_object(const char* kind, int by) {
  std::lock_guard lock(mutex_);
  objects_[kind] += by;
}

}  // namespace fake

const TroupeCudaTable& fake_cuda_table() {
  static const TroupeCudaTable table = [] {
    TroupeCudaTable made{};
    made.version = TROUPE_CUDA_TABLE_VERSION;
    made.bytes = sizeof made;
    made.error_text = [] { return fake::state().last_text(); };
    made.versions = fake::versions;
    made.device_count = fake::device_count;
    made.device_info = fake::device_info;
    made.context_open = fake::context_open;
    made.context_close = fake::context_close;
    fake::fill_memory(made);
    fake::fill_streams(made);
    fake::fill_operators(made);
    fake::fill_products(made);
    fake::fill_optimizer(made);
    fake::fill_groups(made);
    fake::fill_attention(made);
    fake::fill_graphs(made);
    fake::compose_with_kernels(made);
    return made;
  }();
  return table;
}

void fake_cuda_reset(const FakeCudaOptions& options) { fake::state().reset(options); }
void fake_cuda_inject(FakeCudaFault fault) { fake::state().inject(std::move(fault)); }
void fake_cuda_lose_device(int index) { fake::state().lose(index); }
void fake_cuda_fail_groups(int rank, TroupeCudaCode code, const std::string& text) {
  fake::state().fail_groups(rank, code, text);
}
void fake_cuda_end_update(const FakeUpdateEnd& end) { fake::state().end_update(end); }
std::int64_t fake_cuda_update_moments() { return fake::state().update_moments(); }
std::int64_t fake_cuda_calls(const std::string& function) { return fake::state().calls(function); }
std::int64_t fake_cuda_allocated_bytes(int index) { return fake::state().allocated(index); }
std::vector<std::string> fake_cuda_left() { return fake::state().left(); }

}  // namespace troupe::tests

// What a program finds that loads the fake as a library.
extern "C" __attribute__((visibility("default"))) const TroupeCudaTable* troupe_cuda_table(
    std::uint32_t version) {
  return version == TROUPE_CUDA_TABLE_VERSION ? &troupe::tests::fake_cuda_table() : nullptr;
}
