// A node's connection to its head: one attempt at a time, each with one end.

#include "scheduler/node/head_link.h"

#include "tests/scheduler/support.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace std::chrono_literals;
using troupe::tests::Inbox;
using troupe::tests::on_loop;

namespace {

struct LinkFixture {
  troupe::tests::FakeHead head{
      [](const wire::ControlMessage&) { return std::vector<wire::ControlMessage>(); }};
  net::Token token = troupe::tests::kToken;
  Inbox<std::string> told;
  std::unique_ptr<HeadLink> link;
  net::LoopThread thread{"node"};  // ends first

  ~LinkFixture() {
    on_loop(thread.loop(), [this] {
      link.reset();
      return 0;
    });
  }
  void connect(int times = 1) {
    on_loop(thread.loop(), [&] {
      if (!link) {
        link = std::make_unique<HeadLink>(
            thread.loop(), head.address(), token,
            HeadLink::Handlers{.on_up = [this] { told.put("up"); },
                               .on_down =
                                   [this](Status why) {
                                     told.put(std::string("down ") +
                                              std::string(code_name(why.code())) + " " +
                                              why.to_string());
                                   },
                               .on_message =
                                   [this](wire::ControlMessage message) {
                                     told.put("message " + std::to_string(message.index()));
                                   }});
      }
      for (int i = 0; i < times; ++i) link->connect();
      return 0;
    });
  }
  bool quiet() {
    return !told.take_within(50ms, [](const auto&) { return true; }).has_value();
  }
};

}  // namespace

TEST_CASE("a link goes up, carries messages both ways, and says that it went down") {
  LinkFixture f;
  f.connect();
  CHECK(f.told.take() == "up");
  on_loop(f.thread.loop(), [&] {
    CHECK(f.link->send(wire::ActorReady{ActorId{1, 2}, 3}).ok());
    return 0;
  });
  CHECK(f.head.take<wire::ActorReady>().generation == 3);
  const wire::ControlMessage shutdown = wire::ShutdownNode{"enough"};
  f.head.send(shutdown);
  CHECK(f.told.take() == "message " + std::to_string(shutdown.index()));
  f.head.drop_connection();
  CHECK(f.told.take().find("down Unavailable") == 0);
  f.connect();
  CHECK(f.told.take() == "up");
}

TEST_CASE("an attempt that fails says why and whom it tried") {
  LinkFixture f;
  f.head.away();
  f.connect();
  const std::string nobody = f.told.take();
  CHECK(nobody.find("down Unavailable") == 0);
  CHECK(nobody.find(f.head.address().to_string()) != std::string::npos);

  LinkFixture stranger;
  stranger.token = net::Token(32, std::byte{1});
  stranger.connect();
  CHECK(stranger.told.take().find("down Unauthenticated") == 0);
  CHECK(stranger.quiet());
}

TEST_CASE("after drop nothing is told of what was") {
  LinkFixture f;
  f.connect();
  CHECK(f.told.take() == "up");
  on_loop(f.thread.loop(), [&] {
    f.link->drop();
    CHECK(f.link->send(wire::ActorReady{}).code() == Code::kUnavailable);
    return 0;
  });
  f.head.drop_connection();
  CHECK(f.quiet());
  // An attempt that was not finished is forgotten too; the new one counts.
  f.connect(2);
  CHECK(f.told.take() == "up");
  CHECK(f.quiet());
  CHECK_FALSE(f.head.has<wire::ActorReady>());
}

TEST_CASE("what was queued leaves before the link closes for good") {
  LinkFixture f;
  f.connect();
  CHECK(f.told.take() == "up");
  on_loop(f.thread.loop(), [&] {
    for (std::uint64_t i = 1; i <= 100; ++i)
      CHECK(f.link->send(wire::ActorReady{ActorId{1, 2}, i}).ok());
    f.link->flush_and_close(1000);
    return 0;
  });
  f.head.take<wire::ActorReady>([](const auto& ready) { return ready.generation == 100; });
  CHECK(f.quiet());
}

TEST_CASE("a head that sends what is no message is left") {
  LinkFixture f;
  SystemRandom random;
  std::shared_ptr<net::Connection> connection;
  std::unique_ptr<net::Listener> listener;
  net::LoopThread thread("strange-head");
  f.head.away();
  on_loop(thread.loop(), [&] {
    net::ListenOptions options;
    options.host = "127.0.0.1";
    options.port = f.head.address().port;
    listener =
        net::listen(thread.loop(), options, troupe::tests::kToken, random, Logger::discard(),
                    [&](net::AcceptedSocket accepted) {
                      connection = net::make_connection(thread.loop(), std::move(accepted.socket),
                                                        accepted.peer);
                      connection->start({.on_frame = [](auto) {}, .on_close = [](Status) {}});
                      static_cast<void>(connection->send(net::Bytes(64, std::byte{0x7f})));
                    })
            .value();
    return 0;
  });
  f.connect();
  CHECK(f.told.take() == "up");
  const std::string down = f.told.take();
  CHECK(down.find("down Unavailable") == 0);
  CHECK(down.find("what is no message") != std::string::npos);
  CHECK(f.quiet());
  on_loop(thread.loop(), [&] {
    listener.reset();
    connection.reset();
    return 0;
  });
}
