// The fake GPU does what its users' tests stand on.

#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "tests/train/cuda/fake/fake_cuda.h"

namespace troupe::tests {
namespace {

struct Device {
  explicit Device(const FakeCudaOptions& options = {}) {
    fake_cuda_reset(options);
    REQUIRE(table.context_open(0, &context) == TROUPE_CUDA_OK);
  }
  ~Device() {
    table.context_close(context);
    CHECK(fake_cuda_left().empty());
  }
  const TroupeCudaTable& table = fake_cuda_table();
  TroupeCudaContext* context = nullptr;
};

TEST_CASE("an exported allocation keeps its bytes when handle and mapping are gone") {
  Device device({.memory_bytes = 1 << 20});
  const TroupeCudaTable& t = device.table;
  constexpr std::int64_t kBytes = 1 << 17;
  TroupeCudaMemory* memory = nullptr;
  REQUIRE(t.memory_create(device.context, kBytes, 1, &memory) == TROUPE_CUDA_OK);
  CHECK(fake_cuda_allocated_bytes() == kBytes);
  std::int32_t descriptor = -1;
  REQUIRE(t.memory_export(memory, &descriptor) == TROUPE_CUDA_OK);
  void* at = nullptr;
  REQUIRE(t.memory_map(memory, &at) == TROUPE_CUDA_OK);
  std::memset(at, 7, kBytes);
  CHECK(t.memory_release(memory) == TROUPE_CUDA_OK);
  CHECK(fake_cuda_allocated_bytes() == kBytes);
  CHECK(t.memory_unmap(device.context, at, kBytes) == TROUPE_CUDA_OK);
  CHECK(fake_cuda_allocated_bytes() == 0);

  CHECK(t.memory_import(device.context, descriptor, 2 * kBytes, &memory) == TROUPE_CUDA_INVALID);
  REQUIRE(t.memory_import(device.context, descriptor, kBytes, &memory) == TROUPE_CUDA_OK);
  ::close(descriptor);
  REQUIRE(t.memory_map(memory, &at) == TROUPE_CUDA_OK);
  CHECK(static_cast<const unsigned char*>(at)[kBytes - 1] == 7);
  CHECK(t.memory_release(memory) == TROUPE_CUDA_OK);
  CHECK(t.memory_unmap(device.context, at, kBytes) == TROUPE_CUDA_OK);
}

TEST_CASE("memory ends, and faults are told once they are due") {
  Device device({.memory_bytes = 1 << 17, .granularity_bytes = 1 << 16});
  const TroupeCudaTable& t = device.table;
  TroupeCudaMemory *first = nullptr, *second = nullptr;
  CHECK(t.memory_create(device.context, 100, 0, &first) == TROUPE_CUDA_INVALID);
  REQUIRE(t.memory_create(device.context, 1 << 16, 0, &first) == TROUPE_CUDA_OK);
  CHECK(t.memory_create(device.context, 1 << 17, 0, &second) == TROUPE_CUDA_OUT_OF_MEMORY);
  CHECK(std::string(t.error_text()) == "65536 bytes of 131072 are taken, 131072 were asked for");
  fake_cuda_inject({.function = "memory_create", .after_calls = 1, .text = "a fault"});
  REQUIRE(t.memory_create(device.context, 1 << 16, 0, &second) == TROUPE_CUDA_OK);
  t.memory_release(second);
  CHECK(t.memory_create(device.context, 1 << 16, 0, &second) == TROUPE_CUDA_FAILED);
  CHECK(fake_cuda_calls("memory_create") == 5);
  t.memory_release(first);
  fake_cuda_lose_device(0);
  CHECK(t.memory_create(device.context, 1 << 16, 0, &second) == TROUPE_CUDA_DEVICE_LOST);
}

TEST_CASE("streams run behind their caller, in order, and wait for events of others") {
  Device device;
  const TroupeCudaTable& t = device.table;
  TroupeCudaStream *a = nullptr, *b = nullptr;
  TroupeCudaEvent* event = nullptr;
  void *from = nullptr, *to = nullptr;
  constexpr std::int64_t kBytes = 1 << 16;
  REQUIRE(t.stream_create(device.context, 0, &a) == TROUPE_CUDA_OK);
  REQUIRE(t.stream_create(device.context, 1, &b) == TROUPE_CUDA_OK);
  REQUIRE(t.event_create(device.context, 0, &event) == TROUPE_CUDA_OK);
  REQUIRE(t.host_allocate(device.context, kBytes, &from) == TROUPE_CUDA_OK);
  REQUIRE(t.host_allocate(device.context, kBytes, &to) == TROUPE_CUDA_OK);
  std::memset(from, 1, kBytes);
  std::memset(to, 0, kBytes);
  CHECK(t.event_query(event) == TROUPE_CUDA_OK);
  for (int i = 0; i < 100; ++i) CHECK(t.copy(a, from, to, kBytes) == TROUPE_CUDA_OK);
  CHECK(t.event_record(event, a) == TROUPE_CUDA_OK);
  CHECK(t.stream_wait(b, event) == TROUPE_CUDA_OK);
  CHECK(t.copy(b, to, from, kBytes) == TROUPE_CUDA_OK);
  CHECK(t.stream_synchronize(b) == TROUPE_CUDA_OK);
  CHECK(t.event_query(event) == TROUPE_CUDA_OK);
  CHECK(static_cast<const char*>(to)[kBytes - 1] == 1);
  float elapsed = 0;
  CHECK(t.event_elapsed_ms(event, event, &elapsed) == TROUPE_CUDA_INVALID);  // it has no times
  // Ordinary memory of the host: done when the call returns.
  std::vector<char> ordinary(kBytes, 0);
  CHECK(t.copy(a, from, ordinary.data(), kBytes) == TROUPE_CUDA_OK);
  CHECK(ordinary.back() == 1);
  CHECK(t.fill(a, ordinary.data(), 0, kBytes) == TROUPE_CUDA_INVALID);
  t.host_free(device.context, from);
  t.host_free(device.context, to);
  t.event_destroy(event);
  t.stream_destroy(a);
  t.stream_destroy(b);
}

// Two streams: one fills, the other one copies what is there.
struct TwoStreams {
  TwoStreams(const TroupeCudaTable& table, TroupeCudaContext* in) : t(table), context(in) {
    REQUIRE(t.memory_create(context, 1 << 16, 0, &memory) == TROUPE_CUDA_OK);
    REQUIRE(t.memory_map(memory, &filled) == TROUPE_CUDA_OK);
    std::memset(filled, 0, 1 << 16);
    copied = static_cast<unsigned char*>(filled) + 4096;
    REQUIRE(t.stream_create(context, 0, &first) == TROUPE_CUDA_OK);
    REQUIRE(t.stream_create(context, 0, &second) == TROUPE_CUDA_OK);
    REQUIRE(t.event_create(context, 0, &event) == TROUPE_CUDA_OK);
  }
  ~TwoStreams() {
    t.stream_destroy(first), t.stream_destroy(second), t.event_destroy(event);
    t.memory_release(memory), t.memory_unmap(context, filled, 1 << 16);
  }
  // What the second stream has copied, which is waited for alone.
  int copy(bool waits) {
    REQUIRE(t.fill(first, filled, 1, 1) == TROUPE_CUDA_OK);
    REQUIRE(t.event_record(event, first) == TROUPE_CUDA_OK);
    if (waits) REQUIRE(t.stream_wait(second, event) == TROUPE_CUDA_OK);
    REQUIRE(t.copy(second, filled, copied, 1) == TROUPE_CUDA_OK);
    REQUIRE(t.stream_synchronize(second) == TROUPE_CUDA_OK);
    const int found = *copied;
    REQUIRE(t.stream_synchronize(first) == TROUPE_CUDA_OK);
    return found;
  }

  const TroupeCudaTable& t;
  TroupeCudaContext* const context;
  TroupeCudaMemory* memory = nullptr;
  void* filled = nullptr;
  unsigned char* copied = nullptr;
  TroupeCudaStream *first = nullptr, *second = nullptr;
  TroupeCudaEvent* event = nullptr;
};

#if !defined(__SANITIZE_THREAD__)  // which tells of who does not wait: that is what these do
TEST_CASE("a lazy stream is behind one that does not wait for it, and never behind one that does") {
  int behind = 0;
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    for (const bool waits : {false, true}) {
      Device device({.lazy_streams_seed = seed});
      TwoStreams streams(device.table, device.context);
      const int found = streams.copy(waits);
      if (waits)
        CHECK(found == 1);
      else
        behind += found == 0;
    }
  }
  CHECK(behind > 0);
}

TEST_CASE("a lazy stream does its work though nobody waits for it") {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Device device({.lazy_streams_seed = seed});
    TwoStreams streams(device.table, device.context);
    // Asked of memory: asking the stream is waiting for it.
    void* pinned = nullptr;
    REQUIRE(device.table.host_allocate(device.context, 1, &pinned) == TROUPE_CUDA_OK);
    std::atomic_ref<unsigned char> done(*static_cast<unsigned char*>(pinned));
    done = 0;
    REQUIRE(device.table.fill(streams.first, streams.filled, 1, 1) == TROUPE_CUDA_OK);
    REQUIRE(device.table.copy(streams.first, streams.filled, pinned, 1) == TROUPE_CUDA_OK);
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    while (done != 1 && !deadline.passed()) std::this_thread::yield();
    CHECK(done == 1);
    REQUIRE(device.table.stream_synchronize(streams.first) == TROUPE_CUDA_OK);
    CHECK(device.table.host_free(device.context, pinned) == TROUPE_CUDA_OK);
  }
}
#endif

}  // namespace
}  // namespace troupe::tests
