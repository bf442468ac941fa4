// Tasks on one node: `tools/bench tasks`. Beside them, in the same run, calls of one actor: what a
// task costs more than a call. Prints "name value unit" lines; medians of the rounds.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "troupe/actor.h"
#include "troupe/cluster.h"
#include "troupe/tasks.h"

namespace {

using namespace troupe;

int plus_one(int n) { return n + 1; }
Result<std::vector<ObjectRef<int>>> many_objects(ActorContext& context, int count) {
  std::vector<ObjectRef<int>> refs;
  for (int i = 0; i < count; ++i) refs.push_back(TROUPE_TRY(context.put(i)));
  return refs;
}
std::vector<int> many_values(int count) {
  return std::vector<int>(static_cast<std::size_t>(count), 1);
}

class Adder {
 public:
  int plus_one(int n) const { return n + 1; }
  static constexpr auto methods = troupe::methods<&Adder::plus_one>;
};

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "bench_tasks: %s\n", result.status().to_string().c_str());
  std::exit(exit_code(result.status().code()));
}

double seconds_of(const std::function<void()>& work) {
  const TimePoint start = SystemClock().now();
  work();
  return std::chrono::duration<double>(SystemClock().now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print(const std::string& name, double value, const char* unit) {
  std::printf("%-64s %12.4g %s\n", name.c_str(), value, unit);
  std::fflush(stdout);
}

// One after the other, each waited for.
template <typename Call>
void sync(const char* name, int count, Call call) {
  for (int i = 0; i < 2'000; ++i) call(i);
  std::vector<double> us;
  for (int i = 0; i < count; ++i) us.push_back(1e6 * seconds_of([&] { call(i); }));
  print(std::string(name) + ", one after the other, p50", median(us), "us");
}

// `count` of them, at most `window` under way.
template <typename Call>
void async(const std::string& name, int rounds, int count, std::size_t window, Call call) {
  std::vector<double> rates;
  for (int round = 0; round < rounds; ++round) {
    rates.push_back(count / seconds_of([&] {
                      std::deque<Future<int>> open;
                      for (int i = 0; i < count; ++i) {
                        if (open.size() == window) {
                          (void)must(open.front().get());
                          open.pop_front();
                        }
                        open.push_back(call(i));
                      }
                      for (auto& future : open) (void)must(future.get());
                    }));
  }
  print(name, median(rates), "/s");
}

}  // namespace

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Adder>,
                                    troupe::tasks<&plus_one, &many_objects, &many_values>)) {
    return *code;
  }
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  const int queued = argc > 2 ? std::atoi(argv[2]) : 1'000'000;
  auto cluster = must(Cluster::start_embedded());
  {
    const auto adder = must(cluster.spawn<Adder>({}));
    sync("a call of an actor", 20'000,
         [&](int i) { (void)must(adder.call<&Adder::plus_one>(i).get()); });
    async("calls of one actor, 1,000 under way", rounds, 100'000, 1'000,
          [&](int i) { return adder.call<&Adder::plus_one>(i); });
    (void)cluster.kill(adder);
  }
  const double first = seconds_of([&] { (void)must(cluster.submit<&plus_one>(1).get()); });
  print("the first task, with the start of its worker", 1e3 * first, "ms");
  const Tasks tasks = cluster.tasks();
  sync("a task", 20'000, [&](int i) { (void)must(cluster.submit<&plus_one>(i).get()); });
  async("tasks, 1,000 under way", rounds, 100'000, 1'000,
        [&](int i) { return tasks.submit<&plus_one>(i); });
  std::vector<Future<int>> all;
  all.reserve(static_cast<std::size_t>(queued));
  double submitted = 0;
  const double whole = seconds_of([&] {
    submitted = seconds_of([&] {
      for (int i = 0; i < queued; ++i) all.push_back(tasks.submit<&plus_one>(i));
    });
    for (auto& future : all) (void)must(future.get());
  });
  print(std::to_string(queued) + " tasks queued: until all are submitted", submitted, "s");
  print(std::to_string(queued) + " tasks queued: until all are done", whole, "s");
  all.clear();
  std::vector<double> objects;
  std::vector<double> values;
  for (int i = 0; i < rounds; ++i) {
    objects.push_back(1e3 * seconds_of([&] {
                        const auto refs = must(tasks.submit<&many_objects>(3'000).get());
                        for (const auto& ref : refs) (void)must(ref.get());
                      }));
    values.push_back(1e3 *
                     seconds_of([&] { (void)must(tasks.submit<&many_values>(3'000).get()); }));
  }
  print("3,000 results of one task, each an object of its own, and read", median(objects), "ms");
  print("3,000 results of one task, in one vector", median(values), "ms");
}
