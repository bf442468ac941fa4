// The driver of `tools/bench idle` and `tools/bench nodes` (cluster_driver.h): its actors have
// nothing to do. It is ready when each has answered once.

#include <vector>

#include "tools/cluster_driver.h"
#include "troupe/actor.h"

namespace {

using namespace troupe;

constexpr std::chrono::seconds kPatience{60};

class Idler {
 public:
  std::int64_t number() const { return 7; }
  static constexpr auto methods = troupe::methods<&Idler::number>;
};

Result<std::vector<ActorHandle<Idler>>> start(Cluster& cluster, int count) {
  std::vector<ActorHandle<Idler>> actors;
  for (int i = 0; i < count; ++i) {
    actors.push_back(TROUPE_TRY(cluster.spawn<Idler>(ActorOptions{})));
  }
  for (const auto& actor : actors) {
    TROUPE_RETURN_IF_ERROR(actor.call<&Idler::number>().get(kPatience).status());
  }
  return actors;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto code = host_main(argc, argv, actors<Idler>)) return *code;
  return tools::cluster_driver(argc, argv, "bench_idle_driver", start);
}
