// A driver for the tests of the tools, and the process of its actor.
//
//   test_tools_driver HOST:PORT TOKEN_FILE NAME [groups]
//   test_tools_driver NAME [EXIT_CODE]
//
// The second form, as a job's program, finds the cluster in its environment; it ends with the exit
// code after its actor has spoken, or stays.
//
// With "groups" the actor runs in bundle 1 of the placement group "train" under the supervisor
// "crew", and the group "huge" waits for what no node has.
//
// Spawns the actor NAME on a running cluster, lets it say something, prints "ready", and stays
// until it is killed or, without "groups", its standard input ends.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/net/parse_address.h"
#include "runtime/net/token.h"
#include "troupe/actor.h"
#include "troupe/cluster.h"

namespace {

class Talker {
 public:
  int say(const std::string& words) {
    std::printf("the actor says %s\n", words.c_str());
    std::fflush(stdout);
    return 0;
  }
  static constexpr auto methods = troupe::methods<&Talker::say>;
};

}  // namespace

// In whatever the environment names.
int main_of_job(int argc, char** argv) {
  using namespace std::chrono_literals;
  try {
    auto cluster = troupe::Cluster::connect().value();
    auto talker = cluster.spawn<Talker>({.name = argv[1], .num_cpus = 0.5}).value();
    talker.call<&Talker::say>("hello from " + std::string(argv[1])).get(20s).value();
    cluster.create_placement_group({.bundles = {{{"CPU", 0.5}}}, .name = argv[1]}).value();
    std::puts("ready");
    std::fflush(stdout);
    if (argc == 3) return std::atoi(argv[2]);
    while (true) ::pause();
  } catch (const troupe::StatusError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return troupe::exit_code(e.status().code());
  }
}

int main(int argc, char** argv) {
  if (const auto code = troupe::host_main(argc, argv, troupe::actors<Talker>)) return *code;
  if (argc == 2 || argc == 3) return main_of_job(argc, argv);
  if (argc != 4 && argc != 5) return 2;
  using namespace std::chrono_literals;
  try {
    troupe::PosixFileSystem files;
    const auto head = troupe::net::parse_address(argv[1], "HEAD").value();
    auto cluster =
        troupe::Cluster::connect({.host = head.host,
                                  .port = head.port,
                                  .token = troupe::net::read_token_file(files, argv[2]).value(),
                                  .job_name = "test driver"})
            .value();
    troupe::ActorOptions options{.name = argv[3]};
    if (argc == 5) {
      auto train =
          cluster
              .create_placement_group({.bundles = {{{"CPU", 0.5}}, {{"CPU", 1}}}, .name = "train"})
              .value();
      cluster.create_placement_group({.bundles = {{{"CPU", 10'000}}}, .name = "huge"}).value();
      options.placement_group = train.id();
      options.bundle_index = 1;
      options.supervisor = cluster.supervise({.name = "crew"}).value().id();
    }
    auto talker = cluster.spawn<Talker>(options).value();
    talker.call<&Talker::say>("hello from " + std::string(argv[3])).get(20s).value();
    std::puts("ready");
    std::fflush(stdout);
    if (argc == 5) ::pause();  // until it is killed
    std::cin.get();
  } catch (const troupe::StatusError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return troupe::exit_code(e.status().code());
  }
}
