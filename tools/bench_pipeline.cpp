// What a hop between two stages of a pipeline takes, beside a hop between two bare processes that
// sleep on futexes, in the same run: `tools/bench pipeline`. A hop is from one process's having the
// item to the next one's: an item that goes through S stages and back to its owner takes S + 1.
//
// The bare processes pass a number through shared memory in a ring: with a core each they look
// again and again; where there are more of them than cores each sleeps in a futex until it is
// woken.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <new>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/memory/futex.h"
#include "troupe/actor.h"
#include "troupe/cluster.h"
#include "troupe/pipeline.h"

namespace {

using namespace troupe;
using namespace std::chrono_literals;

constexpr int kRounds = 21;
constexpr int kItems = 4'000;

class Stage {
 public:
  std::int64_t add(std::int64_t n) { return n + 1; }
  std::uint64_t count(BytesView bytes) { return bytes.size(); }
  std::vector<std::byte> fill(std::uint64_t bytes) { return std::vector<std::byte>(bytes); }
  static constexpr auto methods = troupe::methods<&Stage::add, &Stage::count, &Stage::fill>;
};

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "bench_pipeline: %s\n", result.status().to_string().c_str());
  std::exit(exit_code(result.status().code()));
}

double us_since(TimePoint start) {
  return std::chrono::duration<double, std::micro>(SystemClock().now() - start).count();
}

struct Bare {
  alignas(128) std::atomic<std::uint32_t> word;
};

// Waits until the word is `wanted`.
void await(std::atomic<std::uint32_t>& word, std::uint32_t wanted, bool spins) {
  for (;;) {
    const std::uint32_t seen = word.load();
    if (seen == wanted) return;
    if (!spins) (void)memory::futex_wait(word, seen, 1s);
  }
}

void pass(std::atomic<std::uint32_t>& word, std::uint32_t number, bool spins) {
  word.store(number);
  if (!spins) memory::futex_wake(word, 1);
}

// Processes in a ring, this one among them.
class BareRing {
 public:
  BareRing(std::size_t processes, bool spins) : count_(processes), spins_(spins) {
    words_ = static_cast<Bare*>(::mmap(nullptr, sizeof(Bare) * count_, PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (std::size_t i = 1; i < count_; ++i) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        for (std::uint32_t number = 1;; ++number) {
          await(words_[i].word, number, spins_);
          pass(words_[(i + 1) % count_].word, number, spins_);
          if (number == kItems * (kRounds + 1)) ::_exit(0);
        }
      }
    }
  }
  ~BareRing() {
    for (std::size_t i = 1; i < count_; ++i) ::wait(nullptr);
    ::munmap(words_, sizeof(Bare) * count_);
  }
  void round() {
    ++number_;
    pass(words_[1].word, number_, spins_);
    await(words_[0].word, number_, spins_);
  }

 private:
  const std::size_t count_;
  const bool spins_;
  Bare* words_ = nullptr;
  std::uint32_t number_ = 0;
};

// One item after the other through a pipeline of `stages`, and through as many bare processes, in
// turn; medians of a hop in µs, and of the rounds' ratios.
void bench_hops(Cluster& cluster, std::size_t stages, bool spins) {
  PipelineBuilder<std::int64_t> plan(cluster);
  auto port = plan.stage<&Stage::add>("1", must(cluster.spawn<Stage>({.num_cpus = 0})));
  for (std::size_t i = 2; i <= stages; ++i) {
    port = port.stage<&Stage::add>(std::to_string(i), must(cluster.spawn<Stage>({.num_cpus = 0})));
  }
  const auto pipeline = must(port.build());
  BareRing bare(stages + 1, spins);
  std::vector<double> hops, bare_hops;
  for (int round = 0; round <= kRounds; ++round) {
    TimePoint start = SystemClock().now();
    for (int i = 0; i < kItems; ++i) bare.round();
    const double bare_us = us_since(start) / (kItems * (stages + 1.0));
    start = SystemClock().now();
    for (int i = 0; i < kItems; ++i) must(must(pipeline.push(i)).get(20s));
    const double us = us_since(start) / (kItems * (stages + 1.0));
    if (round == 0) continue;  // warms up
    hops.push_back(us);
    bare_hops.push_back(bare_us);
  }
  std::vector<double> ratios;
  for (int i = 0; i < kRounds; ++i) ratios.push_back(hops[i] / bare_hops[i]);
  for (auto* figures : {&hops, &bare_hops, &ratios}) std::sort(figures->begin(), figures->end());
  std::printf(
      "hop, %zu stage(s) and their owner, %-27s %6.2f µs (at best %.2f); bare, by %s %6.2f µs "
      "(%.2f); ratio %.2f\n",
      stages, spins ? "a core each" : "fewer cores than processes", hops[kRounds / 2], hops[0],
      spins ? "spinning" : "futexes ", bare_hops[kRounds / 2], bare_hops[0], ratios[kRounds / 2]);
  std::fflush(stdout);
}

// Many items under way.
void bench_many(Cluster& cluster, std::size_t stages) {
  PipelineBuilder<std::int64_t> plan(cluster);
  auto port = plan.stage<&Stage::add>("1", must(cluster.spawn<Stage>({.num_cpus = 0})));
  for (std::size_t i = 2; i <= stages; ++i) {
    port = port.stage<&Stage::add>(std::to_string(i), must(cluster.spawn<Stage>({.num_cpus = 0})));
  }
  const auto pipeline = must(port.build({.in_flight = 64}));
  std::vector<double> rates;
  for (int round = 0; round < kRounds; ++round) {
    const TimePoint start = SystemClock().now();
    std::deque<Future<std::int64_t>> open;
    for (int i = 0; i < 10 * kItems; ++i) {
      if (open.size() == 64) {
        must(open.front().get(20s));
        open.pop_front();
      }
      open.push_back(must(pipeline.push(i)));
    }
    for (auto& one : open) must(one.get(20s));
    rates.push_back(10 * kItems / us_since(start) * 1e6);
  }
  std::sort(rates.begin(), rates.end());
  std::printf("items through %zu stage(s), 64 under way: %10.0f per s\n", stages,
              rates[kRounds / 2]);
  std::fflush(stdout);
}

void bench_large(Cluster& cluster) {
  constexpr std::uint64_t kBytes = 1u << 20;
  PipelineBuilder<std::uint64_t> plan(cluster);
  const auto pipeline =
      must(plan.stage<&Stage::fill>("fill", must(cluster.spawn<Stage>({.num_cpus = 0})))
               .stage<&Stage::count>("count", must(cluster.spawn<Stage>({.num_cpus = 0})))
               .build({.in_flight = 4, .item_bytes_max = 2 * kBytes}));
  std::vector<double> times;
  for (int i = 0; i < 200; ++i) {
    const TimePoint start = SystemClock().now();
    must(must(pipeline.push(kBytes)).get(20s));
    times.push_back(us_since(start));
  }
  std::sort(times.begin(), times.end());
  std::printf("1 MiB made by a stage and read in place by the next: %8.1f µs\n",
              times[times.size() / 2]);
}

}  // namespace

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Stage>)) return *code;
  auto cluster = must(Cluster::start_embedded({.num_cpus = 1}));
  const auto cores = static_cast<std::size_t>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (cores >= 2) bench_hops(cluster, 1, /*spins=*/true);
  bench_hops(cluster, cores < 2 ? 1 : cores, /*spins=*/false);
  bench_hops(cluster, 2 * cores + 1, /*spins=*/false);
  bench_many(cluster, 1);
  bench_many(cluster, 3);
  bench_large(cluster);
  return 0;
}
