// Workers and store are killed while the pipeline runs: every item has its result.

#include <cstdio>
#include <string>

#include <troupe/chaos.h>

#include "pipeline.h"

using namespace std::chrono_literals;

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Source, Worker, Store>)) return *code;

  auto cluster = troupe::Cluster::start_embedded().value();
  auto source = cluster.spawn<Source>({.name = "source", .num_cpus = 0}).value();
  auto store = cluster.spawn<Store>({.name = "store", .num_cpus = 0, .max_restarts = -1}).value();
  std::vector<troupe::ActorHandle<Worker>> workers;
  for (int i = 0; i < 2; ++i) {
    const std::string name = "worker-" + std::to_string(i);
    workers.push_back(
        cluster.spawn<Worker>({.name = name, .num_cpus = 0, .max_restarts = -1}, store).value());
  }
  troupe::RandomKiller workers_killer(cluster, workers, {.seed = 1, .strikes_max = 5, .pause = 20ms});
  troupe::RandomKiller store_killer(cluster, std::vector{store}, {.seed = 2, .strikes_max = 3, .pause = 30ms});
  constexpr std::int64_t kItems = 2000;
  const troupe::Status status = run_pipeline(source, workers, kItems);
  for (auto* killer : {&workers_killer, &store_killer}) {
    const auto report = killer->finish(troupe::Deadline::after(60s));
    std::printf("%s\n", report.ok() ? report->to_string().c_str() : report.status().to_string().c_str());
    if (!report.ok()) return 1;
  }
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 1;
  }
  const auto results = store.with({.retry = true}).call<&Store::results>().get().value();
  for (std::int64_t i = 0; i < kItems; ++i) {
    const auto result = results.find(i);
    if (result == results.end() || result->second != i * i) {
      std::fprintf(stderr, "item %lld has no result, or a wrong one\n", static_cast<long long>(i));
      return 1;
    }
  }
  std::printf("%zu results\n", results.size());
}
