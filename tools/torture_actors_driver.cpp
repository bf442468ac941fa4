// The driver of `tools/torture actors`: a cluster that runs gets COUNT actors of one CPU each, more
// than it has CPUs, so that every CPU that comes free is wanted by somebody.
//
//   torture_actors_driver HOST PORT TOKEN_FILE COUNT
//
// Each actor has a child process in its process group that outlives a kill of the actor alone.
// Prints "ready" when all were accepted, and ends with its standard input.

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "actors/actor_class.h"
#include "actors/cluster.h"
#include "actors/host.h"
#include "runtime/base/file_system.h"
#include "runtime/net/token.h"

namespace {

using namespace troupe;

class Parent {
 public:
  Parent() {
    if (::fork() != 0) return;
    ::signal(SIGTERM, SIG_IGN);
    ::signal(SIGHUP, SIG_IGN);
    for (;;) ::pause();
  }
  std::int64_t pid() const { return ::getpid(); }
  static constexpr auto methods = troupe::methods<&Parent::pid>;
};

Status run(const char* host, int port, const char* token_file, int count) {
  PosixFileSystem files;
  ConnectOptions options;
  options.host = host;
  options.port = static_cast<std::uint16_t>(port);
  options.token = TROUPE_TRY(net::read_token_file(files, token_file));
  auto cluster = TROUPE_TRY(Cluster::connect(options));
  std::vector<ActorHandle<Parent>> actors;
  for (int i = 0; i < count; ++i) {
    actors.push_back(
        TROUPE_TRY(cluster.spawn<Parent>({.num_cpus = 1,
                                          .max_restarts = -1,
                                          .backoff_initial = std::chrono::milliseconds(1),
                                          .backoff_max = std::chrono::milliseconds(5)})));
  }
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = host_main(argc, argv, actors<Parent>)) return *code;
  if (argc != 5) {
    std::fprintf(stderr, "usage: torture_actors_driver HOST PORT TOKEN_FILE COUNT\n");
    return 2;
  }
  const Status status = run(argv[1], std::atoi(argv[2]), argv[3], std::atoi(argv[4]));
  if (status.ok()) return 0;
  std::fprintf(stderr, "torture_actors_driver: %s\n", status.to_string().c_str());
  return exit_code(status.code());
}
