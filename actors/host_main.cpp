#include <fcntl.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <vector>

#include "actors/head_directory.h"
#include "actors/host.h"
#include "actors/state_copy.h"
#include "runtime/base/file_system.h"
#include "runtime/process/keeper.h"
#include "troupe/actor.h"

namespace troupe::detail {
namespace {

constexpr int kNodeSocket = 3;

// Whether the program has come to host_main, in a process that is to host an actor.
std::atomic<bool> hosting{false};

}  // namespace

Status check_may_drive() {
  if (hosting) return {};
  PosixFileSystem files;
  auto command = files.read("/proc/self/cmdline", 1 << 20);
  if (!command.ok()) return {};
  std::vector<char*> words;
  for (std::size_t at = 0; at < command->size(); at += std::strlen(words.back()) + 1)
    words.push_back(command->data() + at);
  if (!is_host_command(static_cast<int>(words.size()), words.data())) return {};
  return Status(Code::kFailedPrecondition,
                "this process was started to host an actor of this program, and its main() has not "
                "called troupe::host_main: call it before anything else, whatever the arguments");
}

bool is_host_command(int argc, char** argv) {
  if (process::is_keeper_command(argc, argv)) return true;
  return argc >= 4 && std::strcmp(argv[1], "host") == 0 && std::strcmp(argv[2], "--actor") == 0;
}

std::optional<int> host_main(int argc, char** argv, std::vector<ActorClass> classes) {
  if (!is_host_command(argc, argv)) return std::nullopt;
  hosting = true;
  if (const auto exit_code = process::keeper_main(argc, argv)) return exit_code;
  if (::fcntl(kNodeSocket, F_SETFD, FD_CLOEXEC) != 0) {
    std::fprintf(stderr,
                 "troupe host: started by hand; actor processes are started by a node, with a "
                 "socket to it as descriptor 3\n");
    return 2;
  }
  for (ActorClass& own : actor_classes(actors<StateCopy>)) classes.push_back(std::move(own));
  return run_host(std::move(classes), UniqueFd(kNodeSocket), make_head_directory);
}

}  // namespace troupe::detail
