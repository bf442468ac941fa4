// The head goes away and comes back: handles, watches and actors' own requests go on.

#include <doctest/doctest.h>
#include <signal.h>

#include <future>
#include <optional>
#include <thread>

#include "actors/client.h"
#include "actors/head_directory.h"
#include "runtime/base/file_system.h"
#include "scheduler/head/head_daemon.h"
#include "scheduler/head/journal.h"
#include "scheduler/node/node_daemon.h"
#include "tests/actors/lives_actors.h"
#include "tests/support/on_loop.h"
#include "tests/support/test_data.h"
#include "troupe/spawn.h"

namespace troupe::tests::head_away_test {
namespace {

using namespace std::chrono_literals;
using Handle = ActorHandle<Life>;

const ActorOptions kFree{.num_cpus = 0};

// A head and a node in threads of their own; the head may be stopped as kill -9 would, and started
// again where it was.
class HeadAndNode {
 public:
  HeadAndNode() {
    start_head();
    std::promise<void> joined;
    on_loop(node_thread_.loop(), [&] {
      scheduler::NodeOptions options;
      options.head = address_;
      options.token = token_;
      options.resources = {{"CPU", 4 * wire::kResourceUnit}};
      options.log_sink = [](LogLevel, std::string_view) {};
      options.on_output = [](const wire::OutputLine&) {};
      options.on_registered = [&](const std::string&) { joined.set_value(); };
      options.on_stopped = [](const Status&) {};
      node_ = scheduler::NodeDaemon::start(node_thread_.loop(), std::move(options)).value();
      return 0;
    });
    REQUIRE(joined.get_future().wait_for(20s) == std::future_status::ready);
  }
  ~HeadAndNode() {
    on_loop(node_thread_.loop(), [this] {
      node_.reset();
      return 0;
    });
    stop_head();
  }

  void start_head() {
    on_loop(head_thread_.loop(), [this] {
      scheduler::HeadOptions options;
      options.token = token_;
      options.port = address_.port;
      options.config.heartbeats = false;
      journal_.emplace(files_, directory_.file("journal"));
      head_ = scheduler::HeadDaemon::start(head_thread_.loop(), options, *journal_, random_,
                                           Logger::discard(), [](const std::string&) {})
                  .value();
      address_ = head_->address();
      return 0;
    });
  }
  void stop_head() {
    on_loop(head_thread_.loop(), [this] {
      head_.reset();
      journal_.reset();
      return 0;
    });
  }
  // Of all actors, dead ones too.
  std::size_t head_watchers() {
    return on_loop(head_thread_.loop(), [this] { return head_->state().actor_watch_count(); });
  }

  std::shared_ptr<detail::ActorClient> client(Duration reconnect_timeout) {
    wire::ClientHello hello;
    hello.client_id = ClientId::make(random_);
    hello.job_id = JobId{1, 2};
    hello.kind = "driver";
    auto environment = std::make_shared<detail::ChannelEnvironment>();
    environment->loop = &client_thread_.loop();
    environment->token = token_;
    environment->directory = std::make_shared<detail::HeadDirectory>(scheduler::HeadClient::make(
        client_thread_.loop(), address_, token_, hello, {.reconnect_timeout = reconnect_timeout}));
    detail::ClientOptions options;
    options.environment = std::move(environment);
    options.job_id = hello.job_id;
    options.client_id = hello.client_id;
    options.image = []() -> Result<wire::Image> {
      return wire::Image{bin_dir() + "/test_actors_lives_host", 0};
    };
    options.random = std::make_shared<SystemRandom>();
    return std::make_shared<detail::ActorClient>(std::move(options));
  }

 private:
  SystemRandom random_;
  const net::Token token_{std::vector<std::byte>(32, std::byte{7})};
  net::Address address_{"127.0.0.1", 0, {}};
  TemporaryDirectory directory_;
  PosixFileSystem files_;
  std::optional<scheduler::FileJournal> journal_;
  std::unique_ptr<scheduler::HeadDaemon> head_;
  std::unique_ptr<scheduler::NodeDaemon> node_;
  net::LoopThread head_thread_{"head"};
  net::LoopThread node_thread_{"node"};
  net::LoopThread client_thread_{"client"};
};

// Asks until `done()`, at most for a while.
template <typename Done>
bool eventually(Done done) {
  const Deadline patience = Deadline::after(20s);
  while (!done()) {
    if (patience.passed()) return false;
    std::this_thread::yield();
  }
  return true;
}

Handle handle_of(const std::shared_ptr<detail::ActorClient>& client, ActorId id) {
  return detail::handle_to<Life>(client, id);
}

TEST_CASE("handles and watches outlive a head that was away for longer than they wait") {
  HeadAndNode cluster;
  auto client = cluster.client(100ms);
  auto life = detail::spawn<Life>(client, kFree).value();
  REQUIRE(life.call<&Life::pid>().get(20s).ok());
  std::promise<void> died;
  std::atomic<bool> told{false};
  const auto watch = detail::watch(client, life, [&](const wire::ActorInfo& info) {
    if (info.state == wire::ActorState::kDead && !told.exchange(true)) died.set_value();
  });
  auto others = cluster.client(100ms);
  const Handle unknown = handle_of(others, life.id());

  cluster.stop_head();
  CHECK(life.call<&Life::pid>().get(20s).ok());  // connected: it does not need the head
  CHECK(unknown.with({.timeout = 1ms}).call<&Life::pid>().get(20s).status().code() ==
        Code::kDeadlineExceeded);
  CHECK(unknown.call<&Life::pid>().get(20s).status().code() == Code::kUnavailable);
  auto late = detail::spawn<Life>(client, kFree).value();
  CHECK(late.call<&Life::pid>().get(20s).status().code() == Code::kUnavailable);

  cluster.start_head();
  // A call waits 100 ms for the head, which may take longer to be there on a busy machine.
  CHECK(eventually([&] { return unknown.call<&Life::pid>().get(20s).ok(); }));
  CHECK(eventually([&] { return late.call<&Life::pid>().get(20s).ok(); }));
  CHECK(life.call<&Life::generation>().get(20s).value() == 1);
  CHECK(eventually([&] { return detail::kill(others, life, {}).ok(); }));
  CHECK(died.get_future().wait_for(20s) == std::future_status::ready);
  client->close();
  others->close();
}

TEST_CASE("an actor's first question to the head waits for a head that is away") {
  HeadAndNode cluster;
  auto client = cluster.client(20s);
  auto life = detail::spawn<Life>(client, kFree).value();
  REQUIRE(life.call<&Life::pid>().get(20s).ok());
  cluster.stop_head();
  auto child = life.call<&Life::have_child>(static_cast<int>(Owner::kProcess), false);
  CHECK(child.get(100ms).status().code() == Code::kDeadlineExceeded);
  cluster.start_head();
  CHECK(child.get(20s).ok());
  client->close();
}

TEST_CASE("of actors that have ended nobody keeps channels or watches") {
  HeadAndNode cluster;
  auto client = cluster.client(20s);
  auto lasting = detail::spawn<Life>(client, kFree).value();
  REQUIRE(lasting.call<&Life::pid>().get(20s).ok());
  constexpr int kActors = 30;
  std::vector<Handle> handles;
  for (int i = 0; i < kActors; ++i) {
    handles.push_back(detail::spawn<Life>(client, kFree).value());
  }
  for (const Handle& handle : handles) REQUIRE(handle.call<&Life::pid>().get(20s).ok());
  CHECK(client->channel_count() == kActors + 1);
  CHECK(cluster.head_watchers() == kActors + 1);
  for (const Handle& handle : handles) REQUIRE(detail::kill(client, handle, {}).ok());
  for (const Handle& handle : handles) {
    CHECK(handle.call<&Life::pid>().get(20s).status().code() == Code::kActorDied);
  }
  // (The last answers of those that were connected may take a moment.)
  CHECK(eventually([&] { return client->channel_count() == 1; }));
  CHECK(cluster.head_watchers() == 1);
  // Handles go on saying so, also those that are made now.
  CHECK(handle_of(client, handles[0].id()).call<&Life::pid>().get(20s).status().code() ==
        Code::kActorDied);
  CHECK(lasting.call<&Life::pid>().get(20s).ok());
  client->close();
}

// A directory that says what the test wants.
class ToldDirectory final : public detail::Directory {
 public:
  WatchId watch(ActorId, const std::string&, OnActor on_actor) override {
    watched.set_value(std::move(on_actor));
    return 1;
  }
  void unwatch(WatchId) override {}
  void create(std::vector<wire::ActorSpec>, bool, bool, OnDone) override {}
  void kill(ActorId, bool, std::int64_t, const std::string&, OnDone) override {}
  void list_nodes(OnNodes) override {}
  void close() override {}
  std::promise<OnActor> watched;
};

TEST_CASE("what a directory says of itself ends the calls that wait, of the actor also the rest") {
  net::LoopThread thread("client");
  const auto directory = std::make_shared<ToldDirectory>();
  auto environment = std::make_shared<detail::ChannelEnvironment>();
  environment->loop = &thread.loop();
  environment->directory = directory;
  detail::ClientOptions options;
  options.environment = std::move(environment);
  options.random = std::make_shared<SystemRandom>();
  auto client = std::make_shared<detail::ActorClient>(std::move(options));
  const Handle handle = handle_of(client, ActorId{1, 2});
  auto call = handle.call<&Life::pid>();
  const auto on_actor = directory->watched.get_future().get();
  const auto tell = [&](Code code) {
    on_loop(thread.loop(), [&] {
      on_actor(Status(code, "because"));
      return 0;
    });
    return call.get(20s).status().code();
  };
  for (const Code code : {Code::kUnavailable, Code::kUnauthenticated, Code::kUnavailable}) {
    CHECK(tell(code) == code);
    CHECK_FALSE(detail::Access::channel(handle)->ended());
    call = handle.call<&Life::pid>();
  }
  CHECK(tell(Code::kNotFound) == Code::kNotFound);
  CHECK(detail::Access::channel(handle)->ended());
  CHECK(handle.call<&Life::pid>().get(20s).status().code() == Code::kNotFound);
  // Whoever gets a handle now asks anew.
  CHECK_FALSE(detail::Access::channel(handle_of(client, ActorId{1, 2}))->ended());
  client->close();
}

}  // namespace
}  // namespace troupe::tests::head_away_test
