#pragma once
// Grids of blocks of threads, played by the host: how the tests' GPU runs the library's own
// kernels.
//
// A launch is work of a stream. Its blocks run one after another, in an order that a seed chooses.
// What a GPU leaves undefined is rubbish at the beginning of each block: its shared memory. What
// would be undefined behaviour there ends the program here, with the reason: a block whose threads
// do not all come to a barrier, shared memory that is written behind its end, a barrier between
// threads that were started as having nothing to do with one another.
//
// Private to this folder and to the library's sources that it compiles, but for run() and what it
// takes, which tests of this itself use.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>

struct TroupeCudaStream;

namespace troupe::tests::host_gpu {

// As CUDA's.
struct dim3 {  // NOLINT(readability-identifier-naming)
  // NOLINTNEXTLINE(google-explicit-constructor)
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
  unsigned x, y, z;
};
// NOLINTBEGIN(readability-identifier-naming)
inline thread_local dim3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0}, gridDim{0, 0, 0};
// NOLINTEND(readability-identifier-naming)

// What a device of the tests' has.
inline constexpr int kSharedBytesPerBlock = 227 << 10;
inline constexpr int kSharedBytesUnasked = 48 << 10;  // without allow_shared_bytes
inline constexpr int kMultiprocessors = 1;

// How the threads of a block are played.
enum class Threads {
  kAlone,     // one after another: they have nothing to do with one another
  kInPhases,  // by one that goes through the body once: see Block of train/cuda/kernels/block.h
  kApart      // each by itself up to the next barrier, in turns
};

struct Launch {
  const void* kernel = nullptr;
  dim3 grid;
  int threads = 0;  // of a block
  std::size_t shared_bytes = 0;
  Threads how = Threads::kInPhases;
  std::function<void()> body;  // of one thread, or of a block in phases
};

// Runs all of it. order: of blocks, and of threads apart between two barriers: 0: ascending, 1:
// descending, else by chance, of this seed. What was wrong; empty: nothing.
std::string run(const Launch& launch, std::uint64_t order);

// Why no threads can be played apart in this build; empty: they can.
std::string why_not_apart();

// Enqueues it, with the threads that the options of the tests' GPU ask for where they are not
// alone. What a GPU refuses is told by launch_failure().
void enqueue(TroupeCudaStream* stream, Launch launch);
// Of the calling thread's last launches; forgotten with the call.
std::string take_launch_failure();
// Lets blocks of a kernel have more than kSharedBytesUnasked. False: a device has less.
bool allow_shared_bytes(const void* kernel, int bytes);

// --- what kernels ask, of the block that the calling thread runs

// Counts blocks.
std::uint64_t block_number();
float* launch_shared();

template <class T>
T& block_shared() {
  static_assert(std::is_trivial_v<T> && sizeof(T) <= kSharedBytesUnasked);
  struct Shared {
    std::uint64_t block = 0;
    alignas(16) T value;
  };
  thread_local Shared shared;
  if (shared.block != block_number()) {
    shared.block = block_number();
    std::memset(&shared.value, 0xff, sizeof(T));  // floats that are no numbers
  }
  return shared.value;
}

template <class... Parameters, class... Args>
void start(TroupeCudaStream* stream, void (*kernel)(Parameters...), Launch launch,
           const Args&... args) {
  launch.kernel = reinterpret_cast<const void*>(kernel);
  launch.body = [kernel, ... given = static_cast<Parameters>(args)] { kernel(given...); };
  enqueue(stream, std::move(launch));
}
template <class... Parameters, class... Args>
void start_blocks(TroupeCudaStream* stream, void (*kernel)(Parameters...), dim3 grid, int threads,
                  std::size_t shared_bytes, const Args&... args) {
  start(stream, kernel, {.grid = grid, .threads = threads, .shared_bytes = shared_bytes}, args...);
}
template <class... Parameters, class... Args>
void start_threads(TroupeCudaStream* stream, void (*kernel)(Parameters...), dim3 grid, int threads,
                   const Args&... args) {
  start(stream, kernel, {.grid = grid, .threads = threads, .how = Threads::kAlone}, args...);
}

}  // namespace troupe::tests::host_gpu
