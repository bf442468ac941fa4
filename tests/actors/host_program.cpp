// The program that hosts the tests' actors. Argument 5 of the fake node's command line is unused;
// the actors' own calls to others need a directory, which this one does not have: it knows no
// actor.

#include <signal.h>
#include <unistd.h>

#include "actors/host.h"
#include "runtime/base/status.h"
#include "runtime/net/event_loop.h"
#include "runtime/wire/types.h"
#include "tests/actors/call_actors.h"
#include "tests/actors/test_actors.h"
#include "troupe/unique_fd.h"

namespace {

// Knows that every actor lives on the node that started this process.
class LocalDirectory final : public troupe::detail::Directory {
 public:
  LocalDirectory(troupe::net::EventLoop& loop, const troupe::wire::HostStart& start)
      : loop_(loop), node_id_(start.node_id), endpoint_(start.node_endpoint) {}
  WatchId watch(troupe::ActorId actor_id, const std::string&, OnActor on_actor) override {
    troupe::wire::ActorInfo info;
    info.actor_id = actor_id;
    info.state = troupe::wire::ActorState::kAlive;
    info.generation = 1;
    info.node_id = node_id_;
    info.endpoint = endpoint_;
    loop_.post([info, on_actor = std::move(on_actor)] { on_actor(info); });
    return 1;
  }
  void unwatch(WatchId) override {}
  void create(std::vector<troupe::wire::ActorSpec>, bool, bool, OnDone done) override {
    done(troupe::error(troupe::Code::kUnsupported, "no actors are created here"));
  }
  void kill(troupe::ActorId, bool, std::int64_t, const std::string&, OnDone done) override {
    done(troupe::error(troupe::Code::kUnsupported, "no actors are ended here"));
  }
  void list_nodes(OnNodes done) override {
    done(troupe::error(troupe::Code::kUnsupported, "no nodes are listed here"));
  }
  void close() override {}

 private:
  troupe::net::EventLoop& loop_;
  const troupe::NodeId node_id_;
  const troupe::wire::Endpoint endpoint_;
};

template <typename... A, typename... B>
std::vector<troupe::detail::ActorClass> classes(troupe::ActorList<A...>, troupe::ActorList<B...>) {
  return troupe::detail::actor_classes(troupe::actors<A..., B...>);
}

void on_saved(const troupe::wire::ActorSpec& spec, std::uint64_t generation) {
  static int saved = 0;
  if (spec.run != troupe::tests::kDieBeforeThirdAnswer || generation != 1) return;
  if (++saved == 3) ::kill(::getpid(), SIGKILL);
}

}  // namespace

int main() {
  return troupe::detail::run_host(
      classes(troupe::tests::kTestActors, troupe::tests::kCallActors), troupe::UniqueFd(3),
      [](troupe::net::EventLoop& loop, const troupe::wire::HostStart& start) {
        return std::make_shared<LocalDirectory>(loop, start);
      },
      &on_saved);
}
