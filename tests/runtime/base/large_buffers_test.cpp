#include "runtime/base/large_buffers.h"

#include <doctest/doctest.h>

#include <thread>

#include "tests/support/no_threads.h"

namespace troupe {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMiB = 1u << 20;

void wait_until_none_is_idle() {
  const Deadline patience = Deadline::after(20s);
  while (idle_large_bytes() > 0 && !patience.passed()) std::this_thread::yield();
  REQUIRE(idle_large_bytes() == 0);
}

TEST_CASE("a buffer is used again as it was left, by who wants about so many bytes") {
  wait_until_none_is_idle();
  auto buffer = take_large_buffer(8 * kMiB);
  CHECK(buffer.empty());
  buffer.assign(8 * kMiB, std::byte{7});
  const auto* const data = buffer.data();
  give_back_large_buffer(std::move(buffer));
  CHECK(idle_large_bytes() >= 8 * kMiB);

  const auto larger = take_large_buffer(9 * kMiB);
  CHECK(larger.empty());
  CHECK(take_large_buffer(kMiB).data() != data);  // far too large for it
  CHECK(take_large_buffer(kLargeBufferBytesMin - 1).data() != data);
  const auto again = take_large_buffer(6 * kMiB);
  CHECK(again.data() == data);
  CHECK(again.size() == 8 * kMiB);
  CHECK(again.back() == std::byte{7});
  CHECK(idle_large_bytes() == 0);
}

TEST_CASE("shared bytes are given back by the last who holds them; small ones are not kept") {
  wait_until_none_is_idle();
  auto first = share_large_buffer(std::vector<std::byte>(8 * kMiB));
  auto second = first;
  first.reset();
  CHECK(idle_large_bytes() == 0);
  second.reset();
  CHECK(idle_large_bytes() == 8 * kMiB);
  share_large_buffer(std::vector<std::byte>(kMiB)).reset();
  give_back_large_buffer(std::vector<std::byte>(kMiB));
  CHECK(idle_large_bytes() == 8 * kMiB);
}

TEST_CASE("where no thread could free it later, nothing is kept") {
  wait_until_none_is_idle();
  const tests::NoThreads none;
  // (The thread of the buffers before may not have ended yet.)
  const Deadline patience = Deadline::after(20s);
  do {
    give_back_large_buffer(std::vector<std::byte>(8 * kMiB));
    REQUIRE_FALSE(patience.passed());
  } while (idle_large_bytes() > 0 && (wait_until_none_is_idle(), true));
}

TEST_CASE("what waits is bounded, the oldest goes first, and all of it goes in time") {
  wait_until_none_is_idle();
  std::vector<std::byte> oldest;
  oldest.reserve(kIdleLargeBytesMax / 2);
  const auto* const data = oldest.data();
  give_back_large_buffer(std::move(oldest));
  for (int i = 0; i < 4; ++i) {
    std::vector<std::byte> buffer;
    buffer.reserve(kIdleLargeBytesMax / 4);
    give_back_large_buffer(std::move(buffer));
    CHECK(idle_large_bytes() <= kIdleLargeBytesMax);
  }
  CHECK(idle_large_bytes() == kIdleLargeBytesMax);
  CHECK(take_large_buffer(kIdleLargeBytesMax / 2).data() != data);
  wait_until_none_is_idle();
}

}  // namespace
}  // namespace troupe
