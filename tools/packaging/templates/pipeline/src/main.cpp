#include <cstdio>
#include <string>

#include "pipeline.h"

int main(int argc, char** argv) {
  // The processes of the actors are this program, too.
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Source, Worker, Store>))
    return *code;

  // A cluster inside of this program. On a running one: Cluster::connect(), and `troupe submit`.
  auto cluster = troupe::Cluster::start_embedded().value();
  // They ask for no CPU of their own (the default is 1), so that all run where there are fewer.
  auto source = cluster.spawn<Source>({.name = "source", .num_cpus = 0}).value();
  auto store = cluster.spawn<Store>({.name = "store", .num_cpus = 0, .max_restarts = -1}).value();
  std::vector<troupe::ActorHandle<Worker>> workers;
  for (int i = 0; i < 2; ++i) {
    const std::string name = "worker-" + std::to_string(i);
    workers.push_back(
        cluster.spawn<Worker>({.name = name, .num_cpus = 0, .max_restarts = -1}, store).value());
  }
  const troupe::Status status = run_pipeline(source, workers, 1000);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.to_string().c_str());
    return 1;
  }
  std::printf("%zu results\n", store.call<&Store::results>().get().value().size());
}
