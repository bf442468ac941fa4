// Callers of an actor that has two processes, since its node was lost to the head and lives on.

#include <doctest/doctest.h>

#include <optional>
#include <thread>

#include "actors/actor_channel.h"
#include "actors/call_server.h"
#include "runtime/base/random.h"
#include "runtime/memory/unix_socket.h"
#include "tests/actors/call_fixture.h"
#include "tests/actors/test_actors.h"
#include "tests/scheduler/support.h"
#include "troupe/detail/call_sink.h"

namespace troupe::detail::generations_test {
namespace {

using namespace std::chrono_literals;
using tests::Inbox;
using tests::on_loop;

constexpr MethodSignature kMethods[] = {{"which", 1}};
constexpr ActorInterface kInterface{"Thing", kMethods};
constexpr ActorId kActor{1, 2};

// Says where the actor is, as the test wants it.
class ScriptedHead final : public Directory {
 public:
  explicit ScriptedHead(net::EventLoop& loop) : loop_(loop) {}
  void tell(wire::ActorInfo info) {
    on_loop(loop_, [&] {
      info_ = info;
      if (on_actor_) on_actor_(*info_);
      return 0;
    });
  }
  WatchId watch(ActorId, const std::string&, OnActor on_actor) override {
    loop_.post([this, on_actor = std::move(on_actor)] {
      on_actor_ = on_actor;
      if (info_) on_actor_(*info_);
    });
    return 1;
  }
  void unwatch(WatchId) override {}
  void create(std::vector<wire::ActorSpec>, bool, bool, OnDone) override {}
  void kill(ActorId, bool, std::int64_t, const std::string&, OnDone) override {}
  void list_nodes(OnNodes) override {}
  void close() override {}

 private:
  net::EventLoop& loop_;
  std::optional<wire::ActorInfo> info_;  // loop thread, as the next
  OnActor on_actor_;
};

// A process of the actor at a port of its own, which answers with its generation.
struct ProcessOf {
  net::EventLoop& loop;
  const std::uint64_t generation;
  SystemRandom random;
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();
  std::shared_ptr<CallServer> server;
  std::unique_ptr<net::Listener> listener;
  Inbox<Status> superseded;
  std::thread thread;

  ProcessOf(net::EventLoop& l, std::uint64_t g) : loop(l), generation(g) {
    server = std::make_shared<CallServer>(loop, kActor, generation, kInterface, mailbox);
    server->set_on_superseded([this](const Status& why) { superseded.put(why); });
    on_loop(loop, [this] {
      net::ListenOptions options;
      options.host = "127.0.0.1";
      listener = net::listen(loop, options, tests::kToken, random, Logger::discard(),
                             [this](net::AcceptedSocket accepted) {
                               server->accept(std::move(accepted.socket), accepted.peer);
                             })
                     .value();
      return 0;
    });
    thread = std::thread([this] {
      mailbox->adopt_thread();
      while (auto item = mailbox->next()) {
        if (auto* call = std::get_if<QueuedCall>(&*item)) {
          server->answer(*call, wire::Bytes(1, static_cast<std::byte>(generation)));
        }
      }
    });
  }
  ~ProcessOf() {
    mailbox->stop();
    thread.join();
    on_loop(loop, [this] {
      listener.reset();
      server->close(0);
      return 0;
    });
  }
  // As the head tells of it.
  wire::ActorInfo info(wire::ActorState state = wire::ActorState::kAlive) const {
    wire::ActorInfo info;
    info.actor_id = kActor;
    info.state = state;
    info.generation = generation;
    info.node_id = {9, generation};
    info.endpoint = {listener->address().host, listener->address().port, {}};
    return info;
  }
};

struct Answer final : CallSink {
  Inbox<Result<std::uint64_t>> inbox;
  void answer(const Status& status, std::span<const std::byte> result, Continuations*) override {
    if (status.ok()) {
      inbox.put(static_cast<std::uint64_t>(result[0]));
    } else {
      inbox.put(status);
    }
  }
  void abandon() override {}
};

struct Callers {
  net::LoopThread thread{"test"};
  net::EventLoop& loop = thread.loop();
  std::shared_ptr<ScriptedHead> head = std::make_shared<ScriptedHead>(loop);
  Inbox<Status> superseded;
  ProcessOf first{loop, 1};
  ProcessOf second{loop, 2};
  std::vector<std::shared_ptr<ActorChannel>> channels;

  ~Callers() {
    for (const auto& channel : channels) channel->close(Status(Code::kCancelled, "over"));
  }
  // From a driver, or from a process of an actor.
  std::shared_ptr<ActorChannel> channel(ActorId self = {}, std::uint64_t generation = 0) {
    auto environment = std::make_shared<ChannelEnvironment>();
    environment->loop = &loop;
    environment->token = tests::kToken;
    environment->directory = head;
    if (!self.empty()) {
      environment->self = self;
      environment->self_generation = generation;
      environment->on_superseded = [this](const Status& why) { superseded.put(why); };
    }
    channels.push_back(std::make_shared<ActorChannel>(environment, kActor, kInterface,
                                                      ClientId{3, channels.size() + 1}));
    return channels.back();
  }
  // Which process answers.
  static Result<std::uint64_t> which(ActorChannel& channel) {
    auto answer = std::make_shared<Answer>();
    static_cast<void>(channel.call({.method = 0,
                                    .arguments = {},
                                    .deadline = Deadline::after(20s),
                                    .sink = CallSinkRef(answer)}));
    return answer->inbox.take();
  }
};

TEST_CASE_FIXTURE(Callers,
                  "a channel leaves a living process when the head tells of its successor") {
  const auto channel = this->channel();
  head->tell(first.info());
  CHECK(which(*channel).value() == 1);
  SUBCASE("which is being started") { head->tell(second.info(wire::ActorState::kStarting)); }
  SUBCASE("which runs") {}
  head->tell(second.info());
  CHECK(which(*channel).value() == 2);
  // And never goes back, whatever it is told then: the older process hears that it is over.
  wire::ActorInfo wrong = second.info();
  wrong.endpoint = first.info().endpoint;
  wrong.node_id = first.info().node_id;
  wrong.generation = 3;
  head->tell(wrong);
  CHECK(first.superseded.take().code() == Code::kUnavailable);
  CHECK_FALSE(second.superseded.has([](const Status&) { return true; }));
}

TEST_CASE_FIXTURE(Callers,
                  "a caller that knows the later process ends the earlier one, and finds it") {
  wire::ActorInfo late = second.info();
  late.endpoint = first.info().endpoint;  // it was told of the process, and not yet of its place
  head->tell(late);
  const auto channel = this->channel();
  auto answer = std::make_shared<Answer>();
  static_cast<void>(channel->call({.method = 0,
                                   .arguments = {},
                                   .deadline = Deadline::after(20s),
                                   .sink = CallSinkRef(answer)}));
  CHECK(first.superseded.take().code() == Code::kUnavailable);
  head->tell(second.info());
  CHECK(answer->inbox.take().value() == 2);
}

TEST_CASE_FIXTURE(Callers, "a process whose successor has called hears that it is over") {
  const ActorId caller{5, 6};
  head->tell(first.info());
  const auto older = channel(caller, 1);
  CHECK(which(*older).value() == 1);
  const auto newer = channel(caller, 2);
  CHECK(which(*newer).value() == 1);
  // Its connection was closed, and it binds again.
  CHECK(superseded.take().code() == Code::kAborted);
  CHECK(which(*older).status().code() == Code::kAborted);
  CHECK(which(*newer).value() == 1);
  CHECK(which(*channel()).value() == 1);  // a driver
}

// The same with real processes. The test says what another process would say.
struct Successors : tests::CallFixture {
  // What becomes of binding to the actor as that process.
  template <typename T>
  Status bind(const ActorHandle<T>& actor, wire::Bind bind) {
    const ActorInterface& interface = kActorInterface<T>;
    bind.actor_id = actor.id();
    bind.type = interface.type;
    bind.caller = ClientId{77, ++bound};
    for (const auto& method : interface.methods) {
      bind.methods.push_back({std::string(method.name), method.hash});
    }
    const auto deadline = Deadline::after(20s);
    const UniqueFd socket =
        net::connect_blocking(node->address(), fmt::format("actor/{}", bind.actor_id),
                              node->token(), deadline)
            .value()
            .take_socket();
    const auto body = wire::encode(wire::CallMessage(std::move(bind)));
    auto length = static_cast<std::uint32_t>(body.size());
    const auto header = std::as_writable_bytes(std::span(&length, 1));
    REQUIRE(memory::send_all(socket.get(), header, deadline).ok());
    REQUIRE(memory::send_all(socket.get(), body, deadline).ok());
    const Status heard = memory::receive_all(socket.get(), header, deadline);
    if (!heard.ok()) return heard;  // it ended before its answer had left
    wire::Bytes answer(length);
    REQUIRE(memory::receive_all(socket.get(), answer, deadline).ok());
    return std::get<wire::BindReply>(wire::decode_call(answer).value()).status;
  }
  bool restarted(ActorId id) {
    return tests::eventually([&] { return node->info(id).generation == 2; });
  }
  std::uint64_t bound = 0;
};

TEST_CASE_FIXTURE(Successors, "a process ends when a caller knows of its successor") {
  const auto counter = spawn<tests::Counter>({.max_restarts = 1}, 0);
  const auto pid = counter.call<&tests::Counter::pid>().get(20s).value();
  CHECK(bind(counter, {.generation = 1}).ok());
  CHECK(counter.call<&tests::Counter::pid>().get(20s).value() == pid);
  CHECK_FALSE(bind(counter, {.generation = 2}).ok());
  REQUIRE(restarted(counter.id()));
  const auto later = counter.with({.retry = true}).call<&tests::Counter::pid>().get(20s);
  CHECK(later.value() != pid);
}

TEST_CASE_FIXTURE(Successors, "a process ends when it calls whom its successor has called") {
  const auto counter = spawn<tests::Counter>({}, 0);
  const auto relay = spawn<tests::Relay>({.max_restarts = 1});
  const auto add = [&] {
    return relay.with({.retry = true}).call<&tests::Relay::add>(counter, 1).get(20s).value();
  };
  CHECK(add() == 1);
  CHECK(bind(counter, {.caller_actor = relay.id(), .caller_generation = 2}).ok());
  REQUIRE(restarted(relay.id()));
  CHECK(add() == 2);
  CHECK(node->info(counter.id()).generation == 1);
}

}  // namespace
}  // namespace troupe::detail::generations_test
