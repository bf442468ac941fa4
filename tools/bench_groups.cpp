// Groups and pools of actors on four nodes of this machine, beside the same calls made one by one
// in the same run: `tools/bench groups`. Prints "name value unit" lines; each figure is the median
// of the rounds.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "troupe/actor.h"
#include "troupe/actor_group.h"
#include "troupe/actor_pool.h"
#include "troupe/chaos_cluster.h"

namespace {

using namespace troupe;
using namespace std::chrono_literals;

constexpr std::size_t kLights = 10'000;
constexpr int kNodes = 4;

class Cell {
 public:
  int add(int n) const { return n + 1; }
  std::vector<float> gradient(std::uint32_t count) const { return std::vector<float>(count, 0.5f); }
  static constexpr auto methods = troupe::methods<&Cell::add, &Cell::gradient>;
};

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "bench_groups: %s\n", result.status().to_string().c_str());
  std::exit(exit_code(result.status().code()));
}

double ms_of(const std::function<void()>& work) {
  const TimePoint start = SystemClock().now();
  work();
  return std::chrono::duration<double, std::milli>(SystemClock().now() - start).count();
}

// The median of `rounds` runs; the largest in brackets.
void measure(const char* name, int rounds, const std::function<void()>& work) {
  work();
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) times.push_back(ms_of(work));
  std::sort(times.begin(), times.end());
  std::printf("%-56s %10.3f ms (at most %.3f)\n", name, times[times.size() / 2], times.back());
  std::fflush(stdout);
}

void bench_lights(Cluster& cluster) {
  const auto group = must(ActorGroup<Cell>::spawn(
      cluster, {{"node", kNodes}, {"cell", kLights / kNodes}},
      {.isolation = Isolation::kShared, .light_per_host = kLights / kNodes}));
  must(group.gather<&Cell::add>(1).get(60s));
  measure("10,000 light actors on 4 nodes, a call after the other", 3, [&] {
    for (std::size_t rank = 0; rank < kLights; ++rank) must(group[rank].call<&Cell::add>(1).get());
  });
  measure("the same, all under way at once", 15, [&] {
    std::vector<Future<int>> answers;
    answers.reserve(kLights);
    for (std::size_t rank = 0; rank < kLights; ++rank) {
      answers.push_back(group[rank].call<&Cell::add>(1));
    }
    for (auto& answer : answers) must(answer.get());
  });
  measure("cast to them, and gather", 31, [&] { must(group.gather<&Cell::add>(1).get()); });
  measure("cast with arguments of each, and gather", 31, [&] {
    must(group.gather_each<&Cell::add>([](std::size_t rank) { return static_cast<int>(rank); })
             .get());
  });
  measure("reduce", 31, [&] { must(group.reduce<&Cell::add>(std::plus<int>(), 1).get()); });
  measure("gather of 250 floats from each", 15,
          [&] { must(group.gather<&Cell::gradient>(250).get()); });
}

// Calls by handles, and by a pool of the same size.
void bench_pool(Cluster& cluster) {
  const auto pool = must(ActorPool<Cell>::create(
      cluster, {.member = {.num_cpus = 0}, .members_min = kNodes, .members_max = kNodes}));
  std::vector<ActorHandle<Cell>> handles;
  for (int i = 0; i < kNodes; ++i) handles.push_back(must(cluster.spawn<Cell>({.num_cpus = 0})));
  measure("1,000 calls of an actor, one after the other", 7, [&] {
    for (int i = 0; i < 1'000; ++i) must(handles[0].call<&Cell::add>(i).get());
  });
  measure("the same by a pool of four", 7, [&] {
    for (int i = 0; i < 1'000; ++i) must(pool.call<&Cell::add>(i).get());
  });
  measure("10,000 calls of four actors in turn, 8 under way", 7, [&] {
    std::deque<Future<int>> open;
    for (std::size_t i = 0; i < 10'000; ++i) {
      if (open.size() == 8) {
        must(open.front().get());
        open.pop_front();
      }
      open.push_back(handles[i % kNodes].call<&Cell::add>(1));
    }
    for (auto& answer : open) must(answer.get());
  });
  measure("the same as a pool's map, window 8", 7,
          [&] { must(pool.map<&Cell::add>(std::vector<int>(10'000, 1)).all()); });
}

}  // namespace

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Cell>)) return *code;
  auto nodes =
      must(ChaosCluster::start({.nodes = kNodes, .cpus_per_node = 1}, Deadline::after(60s)));
  auto cluster = must(nodes->connect());
  bench_lights(cluster);
  bench_pool(cluster);
  return 0;
}
