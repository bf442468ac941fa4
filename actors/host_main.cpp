#include <fcntl.h>

#include <cstdio>
#include <cstring>

#include "actors/head_directory.h"
#include "actors/host.h"
#include "runtime/process/keeper.h"

namespace troupe::detail {
namespace {

constexpr int kNodeSocket = 3;

}  // namespace

bool is_host_command(int argc, char** argv) {
  if (process::is_keeper_command(argc, argv)) return true;
  return argc >= 4 && std::strcmp(argv[1], "host") == 0 && std::strcmp(argv[2], "--actor") == 0;
}

std::optional<int> host_main(int argc, char** argv, std::vector<ActorClass> classes) {
  if (!is_host_command(argc, argv)) return std::nullopt;
  if (const auto exit_code = process::keeper_main(argc, argv)) return exit_code;
  if (::fcntl(kNodeSocket, F_SETFD, FD_CLOEXEC) != 0) {
    std::fprintf(stderr,
                 "troupe host: started by hand; actor processes are started by a node, with a "
                 "socket to it as descriptor 3\n");
    return 2;
  }
  return run_host(std::move(classes), UniqueFd(kNodeSocket), make_head_directory);
}

}  // namespace troupe::detail
