// A head that stands still under running actors, and a node that it takes for lost and that is not.

#include <doctest/doctest.h>
#include <signal.h>

#include <future>

#include "scheduler/head/head_daemon.h"
#include "scheduler/node/node_daemon.h"
#include "tests/actors/call_fixture.h"
#include "tests/actors/driver_client.h"
#include "tests/actors/lives_actors.h"
#include "tests/scheduler/support.h"
#include "troupe/spawn.h"

namespace troupe::tests::head_loss_test {
namespace {

using namespace std::chrono_literals;
using Handle = ActorHandle<Life>;

// Keeps a loop's thread, as SIGSTOP keeps a process, until it is let go.
class Standstill {
 public:
  explicit Standstill(net::EventLoop& loop) {
    std::promise<void> stands;
    auto standing = stands.get_future();
    loop.post([&stands, until = until_.get_future().share()] {
      stands.set_value();
      until.wait_for(20s);
    });
    REQUIRE(standing.wait_for(20s) == std::future_status::ready);
  }
  ~Standstill() { end(); }
  void end() {
    if (!std::exchange(over_, true)) until_.set_value();
  }

 private:
  std::promise<void> until_;
  bool over_ = false;
};

// A worker node of its own; its actors' processes are this process's children.
struct WorkerNode {
  net::LoopThread thread{"node"};
  std::unique_ptr<scheduler::NodeDaemon> daemon;

  explicit WorkerNode(const net::Address& head) {
    std::promise<void> joined;
    auto done = joined.get_future();
    on_loop(thread.loop(), [&] {
      scheduler::NodeOptions options;
      options.name = "worker";
      options.head = head;
      options.token = kToken;
      options.resources = {{"CPU", 4 * wire::kResourceUnit}};
      options.log_sink = [](LogLevel, std::string_view) {};
      options.fence_grace = 50ms;
      options.on_registered = [&joined](const std::string&) { joined.set_value(); };
      daemon = scheduler::NodeDaemon::start(thread.loop(), std::move(options)).value();
      return 0;
    });
    REQUIRE(done.wait_for(20s) == std::future_status::ready);
  }
  ~WorkerNode() {
    on_loop(thread.loop(), [this] {
      daemon.reset();
      return 0;
    });
  }
  NodeId id() const { return daemon->info().node_id; }
};

struct HeadLoss {
  SystemRandom random;
  scheduler::MemoryJournal journal;
  net::LoopThread head_thread{"head"};
  std::unique_ptr<scheduler::HeadDaemon> head;
  net::Address address;
  net::LoopThread driver_thread{"driver"};
  DriverClient driver;

  HeadLoss() {
    scheduler::HeadOptions options{.token = kToken};
    options.config.heartbeat_interval = 50ms;
    options.config.heartbeat_timeout = 300ms;
    options.config.fence_grace = 50ms;
    options.config.fence_delay = 100ms;
    options.config.keeper_replace_timeout = 200ms;
    on_loop(head_thread.loop(), [&] {
      head = scheduler::HeadDaemon::start(head_thread.loop(), options, journal, random,
                                          Logger::discard(), [](const std::string&) {})
                 .value();
      address = head->address();
      return 0;
    });
    driver = connect_driver(address, kToken, {}, driver_thread, "test_actors_lives_host");
  }
  ~HeadLoss() {
    driver.client->close();
    on_loop(head_thread.loop(), [this] {
      head.reset();
      return 0;
    });
  }
  Handle spawn(OnHeadLoss on_head_loss, std::optional<NodeId> first_on = {}) {
    return detail::spawn<Life>(driver.client, {.num_cpus = 0,
                                               .max_restarts = -1,
                                               .node_affinity = first_on,
                                               .node_affinity_soft = first_on.has_value(),
                                               .on_head_loss = on_head_loss})
        .value();
  }
  static pid_t pid_of(const Handle& handle) {
    return static_cast<pid_t>(handle.call<&Life::pid>().get(20s).value());
  }
  static std::uint64_t generation_of(const Handle& handle) {
    return handle.with({.retry = true}).call<&Life::generation>().get(20s).value();
  }
};

bool runs(pid_t pid) { return ::kill(pid, 0) == 0; }

TEST_CASE_FIXTURE(HeadLoss, "a head that stands still ends the actors that want it, and no other") {
  WorkerNode node(address);
  const Handle kept = spawn(OnHeadLoss::kKeep);
  const Handle fenced = spawn(OnHeadLoss::kFence);
  const pid_t pid = pid_of(kept);
  const pid_t fenced_pid = pid_of(fenced);
  Standstill silence(head_thread.loop());
  CHECK(eventually([&] {
    CHECK(pid_of(kept) == pid);  // answers all the time
    return !runs(fenced_pid);
  }));
  for (int i = 0; i < 10; ++i) CHECK(pid_of(kept) == pid);
  silence.end();
  CHECK(generation_of(fenced) == 2);
  CHECK(pid_of(kept) == pid);
  CHECK(generation_of(kept) == 1);
}

TEST_CASE_FIXTURE(HeadLoss, "an actor of a lost node is one for its callers, and in the end") {
  WorkerNode first(address);
  std::optional<WorkerNode> second;
  const Handle actor = spawn(OnHeadLoss::kKeep, first.id());
  const pid_t pid = pid_of(actor);
  second.emplace(address);
  // Nothing of the node is heard: its daemon stands still, and the actor does not.
  Standstill silence(first.thread.loop());
  CHECK(eventually([&] { return generation_of(actor) == 2; }));
  const pid_t later = pid_of(actor);
  CHECK(later != pid);
  CHECK(runs(pid));
  silence.end();
  CHECK(eventually([&] { return !runs(pid); }));
  CHECK(pid_of(actor) == later);
}

}  // namespace
}  // namespace troupe::tests::head_loss_test
