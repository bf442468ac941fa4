// The tests' GPU finds what a GPU would suffer from: barriers that are missing, threads that miss
// one, shared memory that nobody wrote, or that nobody has.

#include "tests/train/cuda/fake/host_gpu.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>
#include <vector>

#include "tests/train/cuda/kernels/device_call.h"
#include "train/cuda/kernels/block.h"

namespace troupe::train::tests {
namespace {

namespace host_gpu = troupe::tests::host_gpu;
using host_gpu::Threads;

constexpr int kThreads = 64;
using TestBlock = cuda::Block<kThreads>;

struct Shared {
  float values[kThreads];
};

// to[t] = the neighbour's value, which it put into shared memory: with a barrier in between, or
// not.
template <bool kBarrier>
void exchange(float* to) {
  const TestBlock block{host_gpu::blockIdx.x};
  auto& shared = host_gpu::block_shared<Shared>();
  const auto put = [&](int t) { shared.values[t] = static_cast<float>(t + block.x * kThreads); };
  if constexpr (kBarrier)
    block.phase(put);
  else
    block.each(put);
  block.phase([&](int t) { to[block.x * kThreads + t] = shared.values[(t + 1) % kThreads]; });
}

template <bool kBarrier>
std::vector<float> exchanged(Threads how, std::uint64_t order) {
  std::vector<float> to(3 * kThreads, -1.0f);
  const std::string wrong = host_gpu::run(
      {.grid = 3, .threads = kThreads, .how = how, .body = [&] { exchange<kBarrier>(to.data()); }},
      order);
  CHECK(wrong == "");
  return to;
}

bool apart_is_there() {
  if (host_gpu::why_not_apart().empty()) return true;
  MESSAGE("skipped: " << host_gpu::why_not_apart());
  return false;
}

TEST_CASE("a barrier that is missing shows in the bits of some order of threads") {
  const auto expected = exchanged<true>(Threads::kInPhases, 0);
  CHECK(expected[0] == 1.0f);
  CHECK(expected[3 * kThreads - 1] == 2 * kThreads);
  // Phase by phase it does not show.
  CHECK(exchanged<false>(Threads::kInPhases, 0) == expected);
  if (!apart_is_there()) return;
  for (const std::uint64_t order : {0, 1, 2, 77}) {
    CAPTURE(order);
    CHECK(exchanged<true>(Threads::kApart, order) == expected);
    const auto found = exchanged<false>(Threads::kApart, order);
    CHECK(found != expected);
    // What was not written yet is no number.
    int unknown = 0;
    for (const float x : found) unknown += std::isnan(x);
    CHECK(unknown > 0);
  }
}

TEST_CASE("threads come in the order that was asked for, each with its number and its own values") {
  if (!apart_is_there()) return;
  std::vector<int> came;
  const auto body = [&] {
    const TestBlock block;
    cuda::PerThread<int, kThreads> mine;
    block.each([&](int t) { mine[t] = 100 + t; });
    block.phase([&](int t) {
      came.push_back(t);
      CHECK(t == static_cast<int>(host_gpu::threadIdx.x));
    });
    block.phase([&](int t) { CHECK(mine[t] == 100 + t); });
  };
  const auto order_of = [&](std::uint64_t seed) {
    came.clear();
    CHECK(host_gpu::run({.threads = kThreads, .how = Threads::kApart, .body = body}, seed) == "");
    return came;
  };
  const std::vector<int> up = order_of(0), down = order_of(1), one = order_of(2);
  CHECK(up.front() == 0);
  CHECK(up.back() == kThreads - 1);
  CHECK(down == std::vector<int>(up.rbegin(), up.rend()));
  CHECK(one != up);
  CHECK(one != down);
  CHECK(std::set<int>(one.begin(), one.end()).size() == kThreads);
  CHECK(order_of(2) == one);
  CHECK(order_of(3) != one);
}

TEST_CASE("a barrier that not all threads come to is told, and a block of another size") {
  if (!apart_is_there()) return;
  const auto early = [] {
    const TestBlock block;
    if (host_gpu::threadIdx.x == 5) return;
    block.phase([](int) {});
  };
  CHECK(host_gpu::run({.threads = kThreads, .how = Threads::kApart, .body = early}, 0) ==
        "block 0, 0, 0: 1 of a block's 64 threads ended, the others wait at a barrier");
  const auto whole = [] { TestBlock().phase([](int) {}); };
  CHECK(host_gpu::run({.threads = 32, .how = Threads::kApart, .body = whole}, 0) ==
        "block 0, 0, 0: a body of blocks of 64 threads was started with 32");
  // All of it goes on afterwards.
  CHECK(host_gpu::run({.threads = kThreads, .how = Threads::kApart, .body = whole}, 1) == "");
}

TEST_CASE("threads that are alone have no barrier, and all of a grid's run") {
  const auto whole = [] { TestBlock().phase([](int) {}); };
  CHECK(host_gpu::run({.threads = kThreads, .how = Threads::kAlone, .body = whole}, 0) ==
        "block 0, 0, 0: a barrier between threads that were started as alone");
  std::set<unsigned> seen;
  const host_gpu::dim3 grid(2, 3, 4);
  const auto note = [&] {
    using namespace host_gpu;
    seen.insert(((blockIdx.z * 3 + blockIdx.y) * gridDim.x + blockIdx.x) * 8 + threadIdx.x);
  };
  for (const std::uint64_t order : {0, 1, 5}) {
    seen.clear();
    CHECK(host_gpu::run({.grid = grid, .threads = 8, .how = Threads::kAlone, .body = note},
                        order) == "");
    CHECK(seen.size() == 2 * 3 * 4 * 8);
    CHECK(*seen.rbegin() == 2 * 3 * 4 * 8 - 1);
  }
}

TEST_CASE("shared memory is no number to begin with, block by block, and ends where it ends") {
  const auto used = [](std::size_t at) {
    return [at] {
      float* memory = host_gpu::launch_shared();
      CHECK(std::isnan(memory[0]));
      CHECK(std::isnan(host_gpu::block_shared<Shared>().values[kThreads - 1]));
      memory[0] = memory[at] = 1.0f;
      host_gpu::block_shared<Shared>().values[kThreads - 1] = 1.0f;
    };
  };
  CHECK(host_gpu::run({.grid = 2, .threads = 1, .shared_bytes = 40, .body = used(9)}, 0) == "");
  CHECK(host_gpu::run({.grid = 2, .threads = 1, .shared_bytes = 40, .body = used(10)}, 0) ==
        "block 0, 0, 0: shared memory was written behind its end, 40 bytes");
}

TEST_CASE("launches that a GPU refuses are refused") {
  CallDevice device;
  const int kernel = 0;  // any address
  int ran = 0;
  const auto told = [&](const host_gpu::dim3& grid, int threads, std::size_t shared_bytes) {
    host_gpu::enqueue(device.stream.get(), {.kernel = &kernel,
                                            .grid = grid,
                                            .threads = threads,
                                            .shared_bytes = shared_bytes,
                                            .body = [&] { ++ran; }});
    REQUIRE(device.device->table().stream_synchronize(device.stream.get()) == TROUPE_CUDA_OK);
    return host_gpu::take_launch_failure();
  };
  CHECK(
      told({1, 65536, 1}, 32, 0) ==
      "a launch of 1 x 65536 x 1 blocks of 32 threads, 0 bytes of shared memory: a GPU has no such "
      "grid");
  CHECK(told(0, 32, 0).ends_with("a GPU has no such grid"));
  CHECK(told(1, 1025, 0).ends_with("a GPU has no such block"));
  const int more = host_gpu::kSharedBytesUnasked + 16;
  const auto bytes = static_cast<std::size_t>(more);
  CHECK(told(1, 32, bytes).ends_with("the kernel may not have as much shared memory"));
  CHECK(ran == 0);
  CHECK_FALSE(host_gpu::allow_shared_bytes(&kernel, host_gpu::kSharedBytesPerBlock + 1));
  CHECK(host_gpu::allow_shared_bytes(&kernel, more));
  CHECK(told(1, 32, bytes) == "");
  CHECK(told(3, 32, 0) == "");
  CHECK(ran == 4);
}

}  // namespace
}  // namespace troupe::train::tests
