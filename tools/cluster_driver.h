#pragma once
// The drivers that measuring commands start beside a cluster (tools/harness/cluster.py):
//
//   PROGRAM HOST PORT TOKEN_FILE COUNT
//
// gives the cluster COUNT actors, prints "ready", and ends with its standard input.

#include <cstdio>
#include <cstdlib>

#include "runtime/base/file_system.h"
#include "runtime/net/token.h"
#include "troupe/cluster.h"

namespace troupe::tools {

// `start(cluster, count)` makes the actors and returns what holds them, in a Result.
template <typename Start>
Status drive(char** argv, Start start) {
  PosixFileSystem files;
  ConnectOptions options;
  options.host = argv[1];
  options.port = static_cast<std::uint16_t>(std::atoi(argv[2]));
  options.token = TROUPE_TRY(net::read_token_file(files, argv[3]));
  auto cluster = TROUPE_TRY(Cluster::connect(options));
  const auto actors = TROUPE_TRY(start(cluster, std::atoi(argv[4])));
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return {};
}

// What main() returns once it hosts no actor.
template <typename Start>
int cluster_driver(int argc, char** argv, const char* name, Start start) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s HOST PORT TOKEN_FILE COUNT\n", name);
    return 2;
  }
  const Status status = drive(argv, start);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s: %s\n", name, status.to_string().c_str());
  return exit_code(status.code());
}

}  // namespace troupe::tools
