// The driver of `tools/torture actors` (cluster_driver.h): actors of one CPU each, more than the
// cluster has CPUs, so that every CPU that comes free is wanted by somebody.
//
// Each has a child process in its process group that outlives a kill of the actor alone. It is
// ready when all were accepted.

#include <signal.h>
#include <unistd.h>

#include <vector>

#include "tools/cluster_driver.h"
#include "troupe/actor.h"

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

Result<std::vector<ActorHandle<Parent>>> start(Cluster& cluster, int count) {
  std::vector<ActorHandle<Parent>> actors;
  for (int i = 0; i < count; ++i) {
    actors.push_back(
        TROUPE_TRY(cluster.spawn<Parent>({.num_cpus = 1,
                                          .max_restarts = -1,
                                          .backoff_initial = std::chrono::milliseconds(1),
                                          .backoff_max = std::chrono::milliseconds(5)})));
  }
  return actors;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = host_main(argc, argv, actors<Parent>)) return *code;
  return tools::cluster_driver(argc, argv, "torture_actors_driver", start);
}
