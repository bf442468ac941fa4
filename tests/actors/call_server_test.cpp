// A caller's words to an actor, byte by byte: binding, repeated calls, what is out of turn.

#include "actors/call_server.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <optional>

#include "actors/future.h"
#include "runtime/base/limits.h"
#include "runtime/memory/unix_socket.h"
#include "tests/actors/raw_caller.h"

namespace troupe::detail {
namespace {

using namespace std::chrono_literals;
using tests::hear;
using tests::say;

constexpr MethodSignature kMethods[] = {{"first", 1}, {"second", 2}};
constexpr ActorInterface kInterface{"Thing", kMethods};
constexpr ActorId kActor{1, 2};
constexpr ClientId kCaller{3, 4};

struct Server {
  net::LoopThread thread{"test"};
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();
  std::shared_ptr<CallServer> server;
  explicit Server(const net::ConnectionOptions& connections = {})
      : server(std::make_shared<CallServer>(thread.loop(), kActor, 7, kInterface, mailbox, nullptr,
                                            connections)) {}
  ~Server() {
    Promise<void> closed;
    auto done = closed.future();
    thread.loop().post([&] {
      server->close(0);
      closed.set(Status());
    });
    CHECK(done.get(10s).ok());
  }

  UniqueFd connect() {
    auto pair = memory::socket_pair().value();
    thread.loop().post([server = server, fd = std::make_shared<UniqueFd>(std::move(pair.first))] {
      server->accept(std::move(*fd), "test");
    });
    return std::move(pair.second);
  }
  // A connection that has bound.
  UniqueFd bound(ClientId caller = kCaller);
};

wire::Bind bind_of(ClientId caller) {
  return {kActor, "Thing", caller, {{"second", 2}, {"first", 1}}};
}

UniqueFd Server::bound(ClientId caller) {
  UniqueFd socket = connect();
  say(socket, bind_of(caller));
  const auto reply = std::get<wire::BindReply>(hear(socket).value());
  REQUIRE(reply.status.ok());
  CHECK(reply.generation == 7);
  return socket;
}

QueuedCall next_call(Server& server) {
  return std::get<QueuedCall>(server.mailbox->next().value());
}

wire::Call call_of(std::uint64_t sequence, std::uint32_t method) {
  return {sequence, method, 10'000'000, wire::Bytes(1, std::byte{5})};
}

TEST_CASE("the caller's method numbers are those of its own list") {
  Server server;
  const UniqueFd socket = server.bound();
  say(socket, call_of(1, 0));
  const QueuedCall call = next_call(server);
  CHECK(call.method == 1);  // "second"
  server.server->answer(call, wire::Bytes(1, std::byte{9}));
  const auto reply = std::get<wire::CallReply>(hear(socket).value());
  CHECK(reply.sequence == 1);
  CHECK(reply.result == wire::Bytes(1, std::byte{9}));
  say(socket, call_of(2, 2));
  CHECK(std::get<wire::CallReply>(hear(socket).value()).status.code() == Code::kProtocol);
}

TEST_CASE("binding to another actor, class or signature is refused") {
  Server server;
  const auto code_of = [&](auto change) {
    wire::Bind bind = bind_of(kCaller);
    change(bind);
    const UniqueFd socket = server.connect();
    say(socket, bind);
    return std::get<wire::BindReply>(hear(socket).value()).status.code();
  };
  CHECK(code_of([](wire::Bind& b) { b.actor_id.low++; }) == Code::kNotFound);
  CHECK(code_of([](wire::Bind& b) { b.type = "Other"; }) == Code::kInvalidArgument);
  CHECK(code_of([](wire::Bind& b) { b.methods[0].hash++; }) == Code::kFailedPrecondition);
  CHECK(code_of([](wire::Bind& b) { b.methods[0].name = "x"; }) == Code::kFailedPrecondition);
}

TEST_CASE("a call that is sent again after a broken connection runs once") {
  Server server;
  UniqueFd socket = server.bound();
  say(socket, call_of(1, 0));
  say(socket, call_of(2, 0));
  const QueuedCall first = next_call(server);
  socket = server.bound();  // the old connection is closed by it
  say(socket, call_of(1, 0));
  say(socket, call_of(2, 0));
  server.server->answer(first, wire::Bytes(1, std::byte{1}));
  // A repeated call that arrives after its answer was given is answered again: replies may come
  // twice.
  const auto reply_of = [&](std::uint64_t sequence) {
    for (;;) {
      const auto reply = std::get<wire::CallReply>(hear(socket).value());
      if (reply.sequence == sequence) return reply;
    }
  };
  CHECK(reply_of(1).result == wire::Bytes(1, std::byte{1}));
  const QueuedCall second = next_call(server);
  CHECK(second.sequence == 2);
  CHECK(server.mailbox->calls() == 0);
  server.server->answer(second, wire::Bytes(1, std::byte{2}));
  CHECK(reply_of(2).result == wire::Bytes(1, std::byte{2}));
  // Answered already: the answer is given again, without running.
  say(socket, call_of(1, 0));
  CHECK(reply_of(1).result == wire::Bytes(1, std::byte{1}));
  CHECK(server.mailbox->calls() == 0);
}

TEST_CASE("a queued call can be cancelled by its caller only") {
  Server server;
  const UniqueFd socket = server.bound();
  const UniqueFd other = server.bound({9, 9});
  say(socket, call_of(1, 0));
  say(other, wire::CancelCall{1});
  say(other, call_of(1, 1));
  // The cancellation of the other caller has been read when its call arrives.
  const QueuedCall first = next_call(server);
  const QueuedCall second = next_call(server);
  CHECK(((first.caller == kCaller) != (second.caller == kCaller)));
  say(socket, call_of(2, 0));
  say(socket, wire::CancelCall{2});
  const auto reply = std::get<wire::CallReply>(hear(socket).value());
  CHECK(reply.sequence == 2);
  CHECK(reply.status.code() == Code::kCancelled);
}

TEST_CASE("what was answered is saved with the state, and known to the next process") {
  wire::Bytes saved;
  {
    Server server;
    const UniqueFd socket = server.bound();
    for (std::uint64_t i = 1; i <= 3; ++i) say(socket, call_of(i, 0));
    const QueuedCall first = next_call(server);
    server.server->answer(first, wire::Bytes(1, std::byte{1}));
    // The second has run and is about to be answered; the third waits. Then the process dies.
    saved = server.server->answered(next_call(server), wire::Bytes(1, std::byte{2}));
  }
  Server next;
  REQUIRE(next.server->restore_answered(saved).ok());
  const UniqueFd socket = next.bound();
  for (std::uint64_t i = 1; i <= 3; ++i) say(socket, call_of(i, 0));
  CHECK(std::get<wire::CallReply>(hear(socket).value()).result == wire::Bytes(1, std::byte{1}));
  const auto second = std::get<wire::CallReply>(hear(socket).value());
  CHECK(second.sequence == 2);
  CHECK(second.result == wire::Bytes(1, std::byte{2}));
  CHECK(next_call(next).sequence == 3);
  CHECK(next.mailbox->calls() == 0);
  Server damaged;
  saved.resize(saved.size() / 2);
  CHECK_FALSE(damaged.server->restore_answered(saved).ok());
}

TEST_CASE("cancelling a call that runs requests its stop, for its caller only") {
  Server server;
  const UniqueFd socket = server.bound();
  const UniqueFd other = server.bound({9, 9});
  say(socket, call_of(1, 0));
  const QueuedCall call = next_call(server);
  const std::stop_token stop = server.server->stop_token_of(call.caller, call.sequence);
  CHECK_FALSE(stop.stop_requested());
  say(other, wire::CancelCall{1});
  say(other, call_of(1, 0));
  const QueuedCall later = next_call(server);  // after that cancellation
  CHECK_FALSE(stop.stop_requested());
  say(socket, wire::CancelCall{1});
  say(socket, call_of(2, 0));
  (void)next_call(server);
  CHECK(stop.stop_requested());
  // The token of a call that was cancelled before it asked says so, too; an answered one has none.
  say(other, wire::CancelCall{1});
  say(other, call_of(2, 0));
  (void)next_call(server);
  CHECK(server.server->stop_token_of(later.caller, later.sequence).stop_requested());
  server.server->answer(call, wire::Bytes{});
  CHECK_FALSE(server.server->stop_token_of(call.caller, call.sequence).stop_possible());
}

// Who runs its calls, as far as the server asks.
struct Held final : HeldCalls {
  Promise<ClientId> reads;
  bool remove(ClientId, std::uint64_t) override { return false; }
  void credit_changed(ClientId, std::uint64_t) override {}
  void caller_reads(ClientId caller) override { reads.set(caller); }
  void probed(ClientId, const wire::CallProbe&) override {}
};

TEST_CASE("an answer without room is answered by that; its caller is held back until it reads") {
  const auto held = std::make_shared<Held>();
  auto reads = held->reads.future();
  // A hundredth of the usual.
  net::ConnectionOptions connections;
  connections.queue_bytes_max = 5u << 19;
  connections.low_water_bytes = 320u << 10;
  Server server(connections);
  server.server->set_held(held);
  const UniqueFd socket = server.bound();
  const UniqueFd other = server.bound({9, 9});
  // As if all of them ran at once: more than a connection takes.
  constexpr std::size_t kAnswerBytes = 480u << 10;
  constexpr std::uint64_t kCalls = 7;
  for (std::uint64_t i = 1; i <= kCalls; ++i) say(socket, call_of(i, 0));
  for (std::uint64_t i = 1; i <= kCalls; ++i) {
    server.server->answer(next_call(server), wire::Bytes(kAnswerBytes, std::byte{7}));
    CHECK(server.server->holds_back(kCaller) == (i > 1));
  }
  CHECK(server.server->held_back() == std::vector<ClientId>{kCaller});
  say(other, call_of(1, 0));
  server.server->answer(next_call(server), wire::Bytes(1));
  CHECK(std::get<wire::CallReply>(hear(other).value()).status.ok());
  for (std::uint64_t i = 1; i <= kCalls; ++i) {
    const auto message = hear(socket);
    REQUIRE(message);
    const auto& reply = std::get<wire::CallReply>(*message);
    CHECK(reply.sequence == i);
    if (i <= 5) {
      REQUIRE_MESSAGE(reply.status.ok(), reply.status.to_string());
      CHECK(reply.result.size() == kAnswerBytes);
    } else {
      CHECK(reply.status.code() == Code::kOverloaded);
      CHECK(reply.status.message().find("its answer of 4915") != std::string::npos);
    }
  }
  CHECK(reads.get(10s).value() == kCaller);
  CHECK_FALSE(server.server->holds_back(kCaller));
}

TEST_CASE("whatever a method throws, its caller hears of it") {
  Server server;
  const UniqueFd socket = server.bound();
  say(socket, call_of(1, 0));
  Status why(Code::kActorError, std::string(limits::kFrameBytesMax + 1, 'x'));
  server.server->answer(next_call(server), why.with("file", std::string(1u << 20, 'y')));
  const auto message = hear(socket);
  REQUIRE(message);
  const Status status = std::get<wire::CallReply>(*message).status;
  CHECK(status.code() == Code::kActorError);
  CHECK(status.message().size() < limits::kStatusTextBytesMax + 100);
  CHECK(status.message().ends_with("bytes left out)"));
}

TEST_CASE("who speaks out of turn or nonsense is disconnected") {
  Server server;
  const UniqueFd early = server.connect();
  say(early, call_of(1, 0));
  CHECK_FALSE(hear(early));
  const UniqueFd twice = server.bound();
  say(twice, bind_of(kCaller));
  CHECK_FALSE(hear(twice));
  const UniqueFd noise = server.connect();
  const std::array<std::uint32_t, 3> junk{8, 0xdeadbeef, 0xffffffff};
  REQUIRE(memory::send_all(noise.get(), std::as_bytes(std::span(junk)), Deadline::after(5s)).ok());
  CHECK_FALSE(hear(noise));
}

}  // namespace
}  // namespace troupe::detail
