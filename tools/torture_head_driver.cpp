// The driver of `tools/torture head` (cluster_driver.h): a load under which the head is killed,
// stopped and slowed down.
//
// COUNT actors count what they are told, exactly once each, and are called all the time over the
// handles that were made at the beginning. Beside them actors are made, called and ended, one after
// the other. With the end of its standard input the load stops, and one line of JSON says what
// became of it: calls that did not succeed by their code, counts that differ from what was
// acknowledged, processes that are not those of the beginning.

#include <unistd.h>

#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actors/actor_class.h"
#include "actors/host.h"
#include "tools/cluster_driver.h"

namespace {

using namespace troupe;
using namespace std::chrono_literals;

// Longer than any strike, so that a call which ends by its deadline has met a fault.
constexpr auto kCallTimeout = 45s;
constexpr auto kPause = 2ms;

class Counter {
 public:
  std::int64_t add(std::int64_t n) { return count_ += n; }
  std::int64_t count() const { return count_; }
  std::int64_t pid() const { return ::getpid(); }
  std::int64_t save() const { return count_; }
  void load(std::int64_t count) { count_ = count; }
  static constexpr bool kExactlyOnce = true;
  static constexpr auto methods = troupe::methods<&Counter::add, &Counter::count, &Counter::pid>;

 private:
  std::int64_t count_ = 0;
};

class Passing {
 public:
  std::int64_t twice(std::int64_t n) const { return 2 * n; }
  static constexpr auto methods = troupe::methods<&Passing::twice>;
};

const CallOptions kPatient{.timeout = kCallTimeout, .retry = true};

// What one thread has seen.
struct Seen {
  std::int64_t calls = 0;
  std::int64_t acknowledged = 0;
  std::map<std::string, std::int64_t> failures;  // by what they say, without numbers
  Duration longest{};

  void failed(const Status& why) { ++failures[why.to_string()]; }
};

struct Load {
  explicit Load(Cluster& c) : cluster(&c) {}
  Load(Load&&) = delete;
  ~Load() { report(); }

  void call(std::size_t index);
  void make_and_end();
  void report();

  Cluster* cluster;
  std::atomic<bool> ending = false;
  std::vector<ActorHandle<Counter>> counters;
  std::vector<std::int64_t> pids;
  std::vector<Seen> called;
  Seen made;
  std::vector<std::thread> threads;
};

// Each counter has a thread of its own: one that waits does not keep the others from being called.
void Load::call(std::size_t index) {
  const auto counter = counters[index].with(kPatient);
  Seen& seen = called[index];
  while (!ending) {
    const auto begin = std::chrono::steady_clock::now();
    const auto count = counter.call<&Counter::add>(1).get(kCallTimeout + 5s);
    seen.longest = std::max<Duration>(seen.longest, std::chrono::steady_clock::now() - begin);
    ++seen.calls;
    if (!count.ok()) {
      seen.failed(count.status());
    } else if (*count != ++seen.acknowledged) {
      seen.failed(error(Code::kDataLoss, "a counter is not where its caller is"));
      seen.acknowledged = *count;
    }
    std::this_thread::sleep_for(kPause);
  }
}

void Load::make_and_end() {
  for (std::int64_t n = 0; !ending; ++n) {
    const auto begin = std::chrono::steady_clock::now();
    ++made.calls;
    auto actor = cluster->spawn<Passing>({.num_cpus = 0});
    if (!actor.ok()) {
      made.failed(actor.status());
      continue;
    }
    const auto twice = actor->with(kPatient).call<&Passing::twice>(n).get(kCallTimeout + 5s);
    if (!twice.ok()) {
      made.failed(twice.status());
    } else if (*twice != 2 * n) {
      made.failed(error(Code::kInternal, "a wrong answer"));
    } else {
      ++made.acknowledged;
    }
    if (const Status ended = cluster->kill(*actor); !ended.ok()) {
      made.failed(ended.prefixed("kill"));
    }
    made.longest = std::max<Duration>(made.longest, std::chrono::steady_clock::now() - begin);
    std::this_thread::sleep_for(kPause);
  }
}

boost::json::object described(const Seen& seen) {
  boost::json::object failures;
  for (const auto& [what, count] : seen.failures) failures[what] = count;
  return {{"calls", seen.calls},
          {"acknowledged", seen.acknowledged},
          {"longest_ms", seen.longest / 1ms},
          {"failures", std::move(failures)}};
}

void Load::report() {
  ending = true;
  for (std::thread& thread : threads) thread.join();
  boost::json::array rows;
  for (std::size_t i = 0; i < counters.size(); ++i) {
    boost::json::object row = described(called[i]);
    const auto count = counters[i].with(kPatient).call<&Counter::count>().get(kCallTimeout);
    const auto pid = counters[i].with(kPatient).call<&Counter::pid>().get(kCallTimeout);
    row["count"] = count.ok() ? *count : -1;
    row["same_process"] = pid.ok() && *pid == pids[i];
    rows.push_back(std::move(row));
  }
  std::cout << boost::json::serialize(
                   boost::json::object{{"counters", std::move(rows)}, {"made", described(made)}})
            << std::endl;
}

Result<std::unique_ptr<Load>> start(Cluster& cluster, int count) {
  auto load = std::make_unique<Load>(cluster);
  load->called.resize(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const auto counter = TROUPE_TRY(cluster.spawn<Counter>(
        {.name = "counter-" + std::to_string(i), .num_cpus = 0, .max_restarts = -1}));
    load->pids.push_back(TROUPE_TRY(counter.call<&Counter::pid>().get(kCallTimeout)));
    load->counters.push_back(counter);
  }
  for (std::size_t i = 0; i < load->counters.size(); ++i) {
    load->threads.emplace_back([&load = *load, i] { load.call(i); });
  }
  load->threads.emplace_back([&load = *load] { load.make_and_end(); });
  return load;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = host_main(argc, argv, actors<Counter, Passing>)) return *code;
  return tools::cluster_driver(argc, argv, "torture_head_driver", start);
}
