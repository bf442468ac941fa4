#include <cstdio>

#include <troupe/cluster.h>

#include "actors.h"

int main(int argc, char** argv) {
  // The processes of the actors are this program, too.
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Counter, Reader>)) return *code;

  // A cluster inside of this program. On a running one: Cluster::connect(), and `troupe submit`.
  auto cluster = troupe::Cluster::start_embedded().value();
  // They ask for no CPU of their own (the default is 1), so that all run where there are fewer.
  auto counter =
      cluster.spawn<Counter>({.name = "counter", .num_cpus = 0, .max_restarts = -1}).value();
  auto reader = cluster.spawn<Reader>({.name = "reader", .num_cpus = 0}, counter).value();
  for (const char* line : {"the cat saw the dog", "the dog saw nothing"}) {
    const auto words = reader.call<&Reader::read>(line).get();
    if (!words.ok()) {
      std::fprintf(stderr, "%s\n", words.status().to_string().c_str());
      return 1;
    }
  }
  for (const auto& [word, count] : counter.call<&Counter::counts>().get().value()) {
    std::printf("%s %d\n", word.c_str(), count);
  }
}
