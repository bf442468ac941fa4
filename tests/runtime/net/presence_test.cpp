#include "runtime/net/presence.h"

#include <optional>

#include "tests/runtime/net/support.h"

namespace troupe::net {
namespace {

using namespace std::chrono_literals;
using tests::on_loop;
using tests::Promise;

const Token kPresenceToken(32, std::byte{7});

struct Fixture {
  LoopThread thread{"probe"};
  SystemRandom random;
  std::unique_ptr<Listener> listener;
  std::unique_ptr<PresenceProbe> probe;

  Address listen(int listening_fd = -1) {
    return on_loop(thread.loop(), [&] {
      ListenOptions options;
      options.host = "127.0.0.1";
      options.listening_fd = listening_fd;
      listener = net::listen(thread.loop(), options, kPresenceToken, random, Logger::discard(),
                             [](AcceptedSocket) {})
                     .value();
      return listener->address();
    });
  }
  UniqueFd copy_of_socket() {
    return on_loop(thread.loop(), [&] { return UniqueFd(::dup(listener->tcp_fd())); });
  }
  void stop_listening() {
    on_loop(thread.loop(), [&] {
      listener.reset();
      return 0;
    });
  }
  void probe_it(const Address& address, Promise<bool>& gone) {
    on_loop(thread.loop(), [&] {
      probe = std::make_unique<PresenceProbe>(thread.loop(), address, Deadline::after(20s),
                                              [&gone] { gone.set(true); });
      return 0;
    });
  }
  ~Fixture() {
    on_loop(thread.loop(), [&] {
      probe.reset();
      listener.reset();
      return 0;
    });
  }
};

TEST_CASE("who listens is there, and gone when the last socket is closed") {
  Fixture f;
  Promise<bool> gone;
  const Address address = f.listen();
  UniqueFd kept = f.copy_of_socket();
  f.probe_it(address, gone);
  f.stop_listening();  // somebody else still has it: connections wait
  CHECK_FALSE(gone.is_set());
  kept.reset();
  CHECK(gone.get());
}

TEST_CASE("nobody was there from the beginning") {
  Fixture f;
  Promise<bool> gone;
  const Address address = f.listen();
  f.stop_listening();
  f.probe_it(address, gone);
  CHECK(gone.get());
}

TEST_CASE("a listener goes on with the socket of another one, and with those who wait there") {
  Fixture f;
  const Address before = f.listen();
  const UniqueFd kept = f.copy_of_socket();
  f.stop_listening();
  Promise<Status> connected;
  connect(f.thread.loop(), before, "head", kPresenceToken, Deadline::after(20s),
          [&](Result<ByteStream> socket) { connected.set(socket.status()); });
  CHECK(f.listen(kept.get()).port == before.port);
  CHECK(connected.get().ok());
}

TEST_CASE("what does not listen is not gone on with") {
  Fixture f;
  auto [one, two] = tests::socket_pair();
  const Status status = on_loop(f.thread.loop(), [&, fd = one.get()] {
    ListenOptions options;
    options.host = "127.0.0.1";
    options.listening_fd = fd;
    return net::listen(f.thread.loop(), options, kPresenceToken, f.random, Logger::discard(),
                       [](AcceptedSocket) {})
        .status();
  });
  CHECK(status.code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace troupe::net
