// The counter's process is killed while words are counted: each counts once.

#include <cstdio>
#include <vector>

#include <troupe/chaos.h>
#include <troupe/cluster.h>

#include "actors.h"

using namespace std::chrono_literals;
using troupe::Deadline;

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Counter, Reader>)) return *code;

  auto cluster = troupe::Cluster::start_embedded().value();
  auto counter = cluster.spawn<Counter>({.name = "counter", .num_cpus = 0, .max_restarts = -1}).value();
  auto reader = cluster.spawn<Reader>({.name = "reader", .num_cpus = 0}, counter).value();

  // One kill by hand, half-way through the lines; and a seeded killer beside all of them.
  troupe::RandomKiller killer(cluster, std::vector{counter}, {.seed = 1, .strikes_max = 5, .pause = 20ms});
  for (int i = 0; i < 200; ++i) {
    if (i == 100) {
      const auto process = troupe::process_of(counter, Deadline::after(10s)).value();
      if (!troupe::strike(process, troupe::ActorFault::kKill).ok()) std::printf("it died before the strike\n");
    }
    const auto words = reader.call<&Reader::read>("the cat saw the dog").get();
    if (!words.ok() || *words != 5) {
      std::fprintf(stderr, "line %d: %s\n", i, words.status().to_string().c_str());
      return 1;
    }
  }
  const auto report = killer.finish(Deadline::after(60s));
  if (!report.ok()) {
    std::fprintf(stderr, "%s\n", report.status().to_string().c_str());
    return 1;
  }
  const auto counts = counter.with({.retry = true}).call<&Counter::counts>().get().value();
  std::printf("%s\nthe %d, cat %d\n", report->to_string().c_str(), counts.at("the"), counts.at("cat"));
  return counts.at("the") == 400 && counts.at("cat") == 200 ? 0 : 1;
}
