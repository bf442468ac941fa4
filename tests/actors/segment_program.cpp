// The program whose processes host the actors of segments_test.cpp.

#include <cstdio>
#include <cstdlib>

#include "tests/actors/segment_actors.h"
#include "troupe/actor.h"
#include "troupe/cluster.h"

namespace {

// A program whose main() never comes to host_main (host_main_test.cpp).
int drive() {
  troupe::EmbeddedOptions options;
  options.num_cpus = 1;
  const auto cluster = troupe::Cluster::start_embedded(options);
  std::puts(cluster.ok() ? "it drives" : cluster.status().to_string().c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (std::getenv("TROUPE_TEST_FORGETS_HOST_MAIN") != nullptr) return drive();
  return troupe::host_main(argc, argv, troupe::actors<troupe::tests::Memory>).value_or(2);
}
