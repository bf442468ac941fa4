// The driver of `tools/bench idle`: a cluster that runs gets COUNT actors that have nothing to do.
//
//   bench_idle_driver HOST PORT TOKEN_FILE COUNT
//
// Prints "ready" when each has answered once, and ends with its standard input.

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

constexpr std::chrono::seconds kPatience{60};

class Idler {
 public:
  std::int64_t number() const { return 7; }
  static constexpr auto methods = troupe::methods<&Idler::number>;
};

Status run(const char* host, int port, const char* token_file, int count) {
  PosixFileSystem files;
  ConnectOptions options;
  options.host = host;
  options.port = static_cast<std::uint16_t>(port);
  options.token = TROUPE_TRY(net::read_token_file(files, token_file));
  auto cluster = TROUPE_TRY(Cluster::connect(options));
  std::vector<ActorHandle<Idler>> actors;
  for (int i = 0; i < count; ++i) {
    actors.push_back(TROUPE_TRY(cluster.spawn<Idler>(ActorOptions{})));
  }
  for (const auto& actor : actors) {
    TROUPE_RETURN_IF_ERROR(actor.call<&Idler::number>().get(kPatience).status());
  }
  std::puts("ready");
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = host_main(argc, argv, actors<Idler>)) return *code;
  if (argc != 5) {
    std::fprintf(stderr, "usage: bench_idle_driver HOST PORT TOKEN_FILE COUNT\n");
    return 2;
  }
  const Status status = run(argv[1], std::atoi(argv[2]), argv[3], std::atoi(argv[4]));
  if (status.ok()) return 0;
  std::fprintf(stderr, "bench_idle_driver: %s\n", status.to_string().c_str());
  return exit_code(status.code());
}
