#include "tests/train/cuda/fake/host_gpu.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/base/check.h"
#include "tests/train/cuda/fake/fake_state.h"
#include "tests/train/cuda/fake/host_threads.h"
#include "train/cuda/library/launches.h"

namespace troupe::tests::host_gpu {
namespace {

thread_local std::uint64_t blocks_run = 0;
thread_local float* shared_memory = nullptr;
thread_local std::string failure;

std::mutex allowed_mutex;
std::map<const void*, int> allowed;  // bytes of shared memory, by kernel

int allowed_bytes(const void* kernel) {
  std::lock_guard lock(allowed_mutex);
  const auto found = allowed.find(kernel);
  return found == allowed.end() ? kSharedBytesUnasked : found->second;
}

// Threads without a word between them.
class Alone final : public train::cuda::HostThread {
 public:
  explicit Alone(std::string& wrong) : wrong_(wrong) { train::cuda::host_thread = this; }
  ~Alone() { train::cuda::host_thread = nullptr; }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
  int index(int) override { return static_cast<int>(threadIdx.x); }
  void barrier() override { wrong_ = "a barrier between threads that were started as alone"; }

 private:
  std::string& wrong_;
};

// What a launch asked for, and behind it what nobody may write.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes) : bytes_(bytes), memory_(bytes / sizeof(Line) + 3) {
    shared_memory = memory_.front().floats;
  }
  ~SharedMemory() { shared_memory = nullptr; }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  void begin_block() {
    if (bytes_ > 0) std::memset(memory_.data(), 0xff, memory_.size() * sizeof(Line));
  }
  // Rubbish behind the end is still as it was.
  bool whole() const {
    const auto* bytes = reinterpret_cast<const unsigned char*>(memory_.data());
    for (std::size_t i = bytes_; bytes_ > 0 && i < memory_.size() * sizeof(Line); ++i)
      if (bytes[i] != 0xff) return false;
    return true;
  }

 private:
  struct alignas(64) Line {
    float floats[16];
  };
  std::size_t bytes_;
  std::vector<Line> memory_;
};

}  // namespace

std::string run(const Launch& launch, std::uint64_t order) {
  thread_local HostThreads threads_apart;
  std::string wrong;
  if (launch.how == Threads::kApart && !why_not_apart().empty()) return why_not_apart();
  SharedMemory shared(launch.shared_bytes);
  gridDim = launch.grid;
  const std::int64_t across = launch.grid.x, down = std::int64_t{launch.grid.y};
  Order blocks(across * down * launch.grid.z, order), threads(launch.threads, order);
  for (const std::int64_t block : blocks.next()) {
    ++blocks_run;
    shared.begin_block();
    blockIdx =
        dim3(static_cast<unsigned>(block % across), static_cast<unsigned>(block / across % down),
             static_cast<unsigned>(block / across / down));
    threadIdx = dim3(0, 0, 0);
    if (launch.how == Threads::kAlone) {
      const Alone alone(wrong);
      for (const std::int64_t thread : threads.next()) {
        threadIdx.x = static_cast<unsigned>(thread);
        launch.body();
      }
    } else if (launch.how == Threads::kApart) {
      wrong = threads_apart.run(launch.threads, threads, launch.body);
    } else {
      launch.body();
    }
    if (wrong.empty() && !shared.whole())
      wrong =
          fmt::format("shared memory was written behind its end, {} bytes", launch.shared_bytes);
    if (!wrong.empty())
      return fmt::format("block {}, {}, {}: {}", blockIdx.x, blockIdx.y, blockIdx.z, wrong);
  }
  return wrong;
}

void enqueue(TroupeCudaStream* stream, Launch launch) {
  const auto refuse = [&](const char* why) {
    failure = fmt::format(
        "a launch of {} x {} x {} blocks of {} threads, {} bytes of shared "
        "memory: {}",
        launch.grid.x, launch.grid.y, launch.grid.z, launch.threads, launch.shared_bytes, why);
  };
  const auto within = [](unsigned value, unsigned most) { return value > 0 && value <= most; };
  if (!within(launch.grid.x, INT32_MAX) || !within(launch.grid.y, 65535) ||
      !within(launch.grid.z, 65535))
    return refuse("a GPU has no such grid");
  if (launch.threads < 1 || launch.threads > 1024) return refuse("a GPU has no such block");
  if (launch.shared_bytes > static_cast<std::size_t>(allowed_bytes(launch.kernel)))
    return refuse("the kernel may not have as much shared memory");
  stream->enqueue({.run =
                       [launch = std::move(launch)]() mutable {
                         const FakeCudaOptions options = fake::state().options();
                         Launch now = launch;
                         if (now.how != Threads::kAlone)
                           now.how = options.kernels == FakeKernels::kByThreads
                                         ? Threads::kApart
                                         : Threads::kInPhases;
                         const std::string wrong = run(now, options.kernel_order);
                         TROUPE_CHECK(wrong.empty(), "a kernel of the library's: {}", wrong);
                       },
                   .function = "a kernel"});
}

std::string take_launch_failure() { return std::exchange(failure, {}); }

bool allow_shared_bytes(const void* kernel, int bytes) {
  if (bytes < 0 || bytes > kSharedBytesPerBlock) return false;
  std::lock_guard lock(allowed_mutex);
  int& most = allowed[kernel];
  most = std::max(bytes, kSharedBytesUnasked);
  return true;
}

std::uint64_t block_number() { return blocks_run; }
float* launch_shared() { return shared_memory; }

}  // namespace troupe::tests::host_gpu

// What the library's sources of kernels use of the rest of it, for streams of the tests'.
namespace troupe::train::cuda {

int fail(TroupeCudaCode code, std::string text) {
  return tests::fake::state().fail(code, std::move(text));
}

int check(cudaError_t error, const std::string& what) {
  return error == cudaSuccess ? TROUPE_CUDA_OK : fail(TROUPE_CUDA_INVALID, what);
}

int need_positive(const char* what, const char* name, long long value) {
  if (value > 0) return TROUPE_CUDA_OK;
  return fail(TROUPE_CUDA_INVALID, fmt::format("{}: {} is {}", what, name, value));
}

// The fake's function of the same call was there before.
int enter(const char* what, const TroupeCudaStream* stream) {
  return stream ? TROUPE_CUDA_OK : fail(TROUPE_CUDA_INVALID, std::string(what) + ": no stream");
}

int launched(const char* what, long long rows, long long width) {
  const std::string failure = tests::host_gpu::take_launch_failure();
  if (failure.empty()) return TROUPE_CUDA_OK;
  return fail(TROUPE_CUDA_INVALID, fmt::format("{} of {} x {}: {}", what, rows, width, failure));
}

int shared_bytes_per_block(const TroupeCudaStream*) {
  return tests::host_gpu::kSharedBytesPerBlock;
}

int multiprocessors(const TroupeCudaStream*) { return tests::host_gpu::kMultiprocessors; }

}  // namespace troupe::train::cuda
