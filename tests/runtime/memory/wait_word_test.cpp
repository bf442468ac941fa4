// Sleeping on a word in shared memory, with producers that may be killed; regions of a segment.

#include "runtime/memory/wait_word.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <thread>
#include <vector>

#include "runtime/memory/adaptive_spin.h"
#include "runtime/memory/region_allocator.h"
#include "runtime/memory/segment.h"

namespace troupe::memory {
namespace {

using namespace std::chrono_literals;

struct SharedWords {
  std::atomic<std::uint32_t> word;
  alignas(64) std::atomic<std::uint64_t> published;
  alignas(64) std::atomic<std::uint32_t> go;
};

TEST_CASE("a producer acts once in each epoch, and not on one that is awake") {
  std::atomic<std::uint32_t> word{0};
  Sleeper sleeper(&word);
  Waker waker(&word), other(&word);
  CHECK_FALSE(waker.wake());
  sleeper.announce(WaitState::kEventFd);
  CHECK(waker.wake());
  CHECK_FALSE(waker.wake());
  CHECK(other.wake());  // each producer for itself: the first may have been killed before it rang
  sleeper.announce(WaitState::kEventFd);
  CHECK(waker.wake());
  sleeper.announce(WaitState::kAsleep);
  CHECK_FALSE(waker.wake());
  const TimePoint start = SystemClock().now();
  sleeper.sleep(10s);  // woken before it slept
  CHECK(SystemClock().now() - start < 5s);
  sleeper.awake();
  CHECK_FALSE(waker.wake());
}

TEST_CASE("no wake-up is lost between many producers and one sleeper") {
  auto segment = Segment::create("test", 4096).value();
  auto* shared = reinterpret_cast<SharedWords*>(segment.data());
  constexpr int kProducers = 3;
  constexpr std::uint64_t kEach = 3000;
  std::vector<std::thread> producers;
  for (int i = 0; i < kProducers; ++i) {
    producers.emplace_back([&] {
      Waker waker(&shared->word);
      for (std::uint64_t n = 0; n < kEach; ++n) {
        shared->published.fetch_add(1, std::memory_order_seq_cst);
        (void)waker.wake();
        if (n % 16 == 0) std::this_thread::yield();
      }
    });
  }
  Sleeper sleeper(&shared->word);
  const TimePoint start = SystemClock().now();
  std::uint64_t seen = 0;
  while (seen < kProducers * kEach && SystemClock().now() - start < 30s) {
    const std::uint64_t now = shared->published.load(std::memory_order_seq_cst);
    if (now != seen) {
      seen = now;
      continue;
    }
    sleeper.announce(WaitState::kAsleep);
    if (shared->published.load(std::memory_order_seq_cst) == seen) sleeper.sleep(10s);
    sleeper.awake();
  }
  for (auto& producer : producers) producer.join();
  CHECK(seen == kProducers * kEach);
  CHECK(SystemClock().now() - start < 9s);  // a lost one costs ten seconds
}

TEST_CASE("a producer that is killed while it wakes takes nobody else's wake-up with it") {
  auto segment = Segment::create("test", 4096).value();
  auto* shared = reinterpret_cast<SharedWords*>(segment.data());
  for (int round = 0; round < 20; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      Waker waker(&shared->word);
      for (;;) {
        shared->go.store(1);
        (void)waker.wake();
      }
    }
    Sleeper sleeper(&shared->word);
    while (shared->go.load() == 0) std::this_thread::yield();
    for (int i = 0; i < round * 10; ++i) {
      sleeper.announce(WaitState::kAsleep);
      sleeper.sleep(1ms);
      sleeper.awake();
    }
    sleeper.announce(WaitState::kAsleep);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    // Whatever the dead one left in the word, a living one still wakes.
    std::thread living([&] {
      Waker waker(&shared->word);
      (void)waker.wake();
    });
    const TimePoint start = SystemClock().now();
    sleeper.sleep(10s);
    CHECK(SystemClock().now() - start < 5s);
    living.join();
    sleeper.awake();
    shared->go.store(0);
  }
}

TEST_CASE("spinning that never finds anything becomes rare, and one success brings it back") {
  AdaptiveSpin spin;
  int tried = 0;
  for (int i = 0; i < 10'000; ++i) {
    if (!spin.worthwhile()) continue;
    ++tried;
    spin.ended(false);
  }
  CHECK(tried < 20);
  while (!spin.worthwhile()) {
  }
  spin.ended(true);
  CHECK(spin.worthwhile());
  ManualClock clock;
  CHECK(spin_until(0ns, clock, [] { return true; }));
  CHECK_FALSE(spin_until(0ns, clock, [] { return false; }));
}

TEST_CASE("regions do not overlap, and what is given back is whole again") {
  constexpr std::size_t kGranule = 64;
  RegionAllocator regions(100 * kGranule, kGranule);
  std::mt19937 random(1);
  std::vector<std::pair<std::size_t, std::size_t>> taken;
  std::vector<bool> used(100);
  const auto mark = [&](std::pair<std::size_t, std::size_t> region, bool value) {
    for (std::size_t i = region.first / kGranule;
         i < (region.first + region.second + kGranule - 1) / kGranule; ++i) {
      CHECK(used.at(i) != value);
      used.at(i) = value;
    }
  };
  for (int i = 0; i < 2000; ++i) {
    if (random() % 2 == 0 || taken.empty()) {
      const std::size_t bytes = 1 + random() % 1500;
      if (const auto offset = regions.take(bytes)) {
        taken.emplace_back(*offset, bytes);
        mark(taken.back(), true);
      }
    } else {
      std::swap(taken[random() % taken.size()], taken.back());
      mark(taken.back(), false);
      regions.give_back(taken.back().first, taken.back().second);
      taken.pop_back();
    }
  }
  for (const auto& region : taken) regions.give_back(region.first, region.second);
  CHECK(regions.free_bytes() == 100 * kGranule);
  CHECK(regions.take(100 * kGranule) == 0);
  CHECK_FALSE(regions.take(1));
}

}  // namespace
}  // namespace troupe::memory
