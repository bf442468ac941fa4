// A caller's words to an actor, byte by byte: binding, repeated calls, what is out of turn.

#include "actors/call_server.h"

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <optional>

#include "actors/caller_ring.h"
#include "actors/host_ring.h"
#include "actors/session/kept_answers.h"
#include "runtime/base/limits.h"
#include "runtime/memory/unix_socket.h"
#include "tests/actors/call_fixture.h"
#include "tests/actors/raw_caller.h"
#include "tests/scheduler/support.h"
#include "troupe/future.h"

namespace troupe::detail::call_server_test {
namespace {

using namespace std::chrono_literals;
using tests::hear;
using tests::say;

constexpr MethodSignature kMethods[] = {{"first", 1}, {"second", 2, "int (Thing::*)()"}};
constexpr ActorInterface kInterface{"Thing", kMethods};
constexpr ActorId kActor{1, 2};
constexpr ClientId kCaller{3, 4};

struct Server {
  net::LoopThread thread{"test"};
  std::shared_ptr<Mailbox> mailbox = std::make_shared<Mailbox>();
  std::shared_ptr<CallServer> server;
  explicit Server(const net::ConnectionOptions& connections = call_connection_options(),
                  std::shared_ptr<HostPageSegment> page = nullptr)
      : server(std::make_shared<CallServer>(thread.loop(), kActor, 7, kInterface, mailbox,
                                            std::move(page), connections)) {}
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
  UniqueFd bound(ClientId caller = kCaller, std::uint64_t attempt = 0);
  // What becomes of a ring that is offered for the caller's connection of that number.
  Status offer_ring(std::uint64_t attempt) {
    const SystemClock clock;
    const auto ring = CallerRing::create(0ns).value();
    auto pair = memory::socket_pair().value();
    REQUIRE(ring->send_offer(pair.first.get(), kCaller, attempt, clock).ok());
    thread.loop().post([server = server, fd = std::make_shared<UniqueFd>(std::move(pair.second))] {
      server->accept_ring(std::move(*fd));
    });
    return ring->receive_reply(pair.first.get());
  }
};

wire::Bind bind_of(ClientId caller) {
  return {kActor, "Thing", caller, {{"second", 2}, {"first", 1}}};
}

UniqueFd Server::bound(ClientId caller, std::uint64_t attempt) {
  UniqueFd socket = connect();
  wire::Bind bind = bind_of(caller);
  bind.attempt = attempt;
  say(socket, bind);
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

TEST_CASE("binding to another actor or class is refused") {
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
}

TEST_CASE("of two method tables what matches works, what differs is refused at its call") {
  Server server;
  wire::Bind bind = bind_of(kCaller);
  bind.methods = {{"second", 99}, {"third", 3}, {"first", 1}};
  const UniqueFd socket = server.connect();
  say(socket, bind);
  REQUIRE(std::get<wire::BindReply>(hear(socket).value()).status.ok());
  const auto refusal_of = [&](std::uint64_t sequence, std::uint32_t method) {
    say(socket, call_of(sequence, method));
    const auto reply = std::get<wire::CallReply>(hear(socket).value());
    CHECK(reply.sequence == sequence);
    return reply.status;
  };
  const Status differs = refusal_of(1, 0);
  CHECK(differs.code() == Code::kFailedPrecondition);
  CHECK(differs.message().find("Thing::second") != std::string::npos);
  CHECK(differs.context(kInActorsProgram) == "int (Thing::*)()");
  const Status unknown = refusal_of(2, 1);
  CHECK(unknown.code() == Code::kFailedPrecondition);
  CHECK(unknown.message().find("Thing::third is unknown") != std::string::npos);
  say(socket, call_of(3, 2));
  CHECK(next_call(server).method == 0);  // "first"
  CHECK(refusal_of(4, 3).code() == Code::kProtocol);
}

TEST_CASE("who knows a later process of the actor is refused, and this one hears that it is over") {
  tests::Inbox<Status> superseded;
  Server server;
  const auto any = [](const Status&) { return true; };
  server.server->set_on_superseded([&](const Status& why) { superseded.put(why); });
  const auto reply_to = [&](std::uint64_t generation) {
    wire::Bind bind = bind_of(kCaller);
    bind.generation = generation;
    const UniqueFd socket = server.connect();
    say(socket, bind);
    return std::get<wire::BindReply>(hear(socket).value());
  };
  CHECK(reply_to(6).status.ok());  // it has not heard of this one yet
  CHECK(reply_to(7).status.ok());
  CHECK_FALSE(superseded.has(any));
  // Kept for callers of another actor: nothing is said of this one.
  wire::Bind strange = bind_of(kCaller);
  strange.actor_id.low++;
  strange.generation = 9;
  const UniqueFd socket = server.connect();
  say(socket, strange);
  CHECK(std::get<wire::BindReply>(hear(socket).value()).status.code() == Code::kNotFound);
  CHECK_FALSE(superseded.has(any));
  const auto reply = reply_to(8);
  CHECK(reply.status.code() == Code::kUnavailable);  // the caller looks for the other one
  CHECK(reply.generation == 7);
  const Status why = superseded.take();
  CHECK(why.message().find("process 7") != std::string::npos);
  CHECK(why.message().find("process 8") != std::string::npos);
}

TEST_CASE("a process that calls is refused once a later one of the same actor has called") {
  Server server;
  const ActorId actor{5, 6};
  const auto bind_from = [&](ClientId caller, ActorId caller_actor, std::uint64_t generation) {
    wire::Bind bind = bind_of(caller);
    bind.caller_actor = caller_actor;
    bind.caller_generation = generation;
    UniqueFd socket = server.connect();
    say(socket, bind);
    const auto reply = std::get<wire::BindReply>(hear(socket).value());
    return std::pair(std::move(socket), reply.status);
  };
  const auto [old, ok] = bind_from({1, 1}, actor, 1);
  REQUIRE(ok.ok());
  const auto [driver, taken] = bind_from({1, 2}, {}, 0);
  const auto [other, too] = bind_from({1, 3}, {5, 7}, 1);
  REQUIRE(taken.ok());
  REQUIRE(too.ok());
  say(old, call_of(1, 0));
  CHECK(next_call(server).caller == ClientId{1, 1});
  const auto [young, newer] = bind_from({1, 4}, actor, 2);
  REQUIRE(newer.ok());
  CHECK_FALSE(hear(old));  // closed
  const Status refused = bind_from({1, 1}, actor, 1).second;
  CHECK(refused.code() == Code::kAborted);
  CHECK(refused.message().find("process 1 of actor") != std::string::npos);
  // Everybody else goes on, and the newer process may connect as often as it likes.
  CHECK(bind_from({1, 5}, actor, 2).second.ok());
  for (const UniqueFd* socket : {&young, &driver, &other}) {
    say(*socket, call_of(1, 0));
    CHECK(next_call(server).sequence == 1);
  }
}

TEST_CASE("of callers the newest generation is remembered, up to a number of callers") {
  CallerGenerations callers(2);
  CHECK(callers.note({1, 1}, 3) == 3);
  CHECK(callers.note({1, 1}, 2) == 3);
  CHECK(callers.note({1, 2}, 1) == 1);
  CHECK(callers.note({1, 1}, 1) == 3);  // binds again: the other one is the older now
  CHECK(callers.note({1, 3}, 1) == 1);
  CHECK(callers.size() == 2);
  CHECK(callers.note({1, 1}, 1) == 3);
  CHECK(callers.note({1, 2}, 0) == 0);  // forgotten
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

TEST_CASE("a ring is taken once, and for the connection that it was offered for only") {
  Server server(call_connection_options(), HostPageSegment::create().value());
  UniqueFd socket = server.bound(kCaller, 3);
  socket = server.bound(kCaller, 4);
  CHECK_FALSE(server.offer_ring(3).ok());  // it comes late
  CHECK_FALSE(server.offer_ring(5).ok());
  CHECK(server.offer_ring(4).ok());
  CHECK_FALSE(server.offer_ring(4).ok());
  // A caller that named no number offers no ring.
  socket = server.bound();
  CHECK_FALSE(server.offer_ring(0).ok());
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
    saved = server.server->answered(next_call(server), wire::Bytes(1, std::byte{2}),
                                    SavedAnswers::kAll);
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

TEST_CASE("kept answers are bounded for each caller, over all, and in a save") {
  const auto caller = [](std::uint64_t number) { return ClientId{1, number}; };
  KeptAnswers kept;
  for (std::uint64_t i = 1; i <= 200; ++i) kept.add(caller(1), i, wire::Bytes(10));
  CHECK(kept.find(caller(1), 200 - KeptAnswers::kOfCallerMax) == nullptr);
  CHECK(kept.find(caller(1), 200 - KeptAnswers::kOfCallerMax + 1) != nullptr);
  CHECK(kept.bytes() == KeptAnswers::kOfCallerMax * 10);
  // Large ones of many callers push out what is oldest, whoever's it is.
  const wire::Bytes large(KeptAnswers::kAnswerBytesMax);
  for (std::uint64_t i = 2; i < 300; ++i) kept.add(caller(i), 1, large);
  CHECK(kept.bytes() <= KeptAnswers::kAllBytesMax);
  CHECK(kept.find(caller(1), 200) == nullptr);
  CHECK(kept.find(caller(299), 1) != nullptr);
  std::size_t saved_bytes = 0;
  std::uint64_t last = 300;
  kept.for_saved([&](ClientId of, std::uint64_t, const wire::Bytes& frame) {
    CHECK(of == caller(--last));
    saved_bytes += frame.size();
  });
  CHECK(saved_bytes == KeptAnswers::kSavedBytesMax);
  kept.forget(caller(299));
  CHECK(kept.find(caller(299), 1) == nullptr);
  for (std::uint64_t i = 1000; i < 1200; ++i) {
    for (std::uint64_t k = 0; k < 10; ++k) kept.add(caller(i), k, wire::Bytes(1));
  }
  std::size_t saved_count = 0;
  kept.for_saved([&](ClientId, std::uint64_t, const wire::Bytes&) { ++saved_count; });
  CHECK(saved_count == KeptAnswers::kSavedMax);
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

TEST_CASE("answers of calls that ran at once all leave; their caller is held back until it reads") {
  const auto held = std::make_shared<Held>();
  auto reads = held->reads.future();
  // A hundredth of the usual.
  net::ConnectionOptions connections = call_connection_options();
  connections.queue_bytes_max = 5u << 19;
  connections.low_water_bytes = 320u << 10;
  Server server(connections);
  server.server->set_held(held);
  const UniqueFd socket = server.bound();
  const UniqueFd other = server.bound({9, 9});
  // As if all of them ran at once: more than small messages may fill.
  constexpr std::size_t kAnswerBytes = 480u << 10;
  constexpr std::uint64_t kCalls = 7;
  for (std::uint64_t i = 1; i <= kCalls; ++i) say(socket, call_of(i, 0));
  bool held_before = false;
  for (std::uint64_t i = 1; i <= kCalls; ++i) {
    server.server->answer(next_call(server), wire::Bytes(kAnswerBytes, std::byte{7}));
    // How many answers fit into the socket is the kernel's affair; nobody reads them meanwhile.
    const bool holds = server.server->holds_back(kCaller);
    CHECK((i > 1 || !holds));
    CHECK((holds || !held_before));
    held_before = holds;
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
    REQUIRE_MESSAGE(reply.status.ok(), reply.status.to_string());
    CHECK(reply.result.size() == kAnswerBytes);
  }
  // The kernel may have made room once before, while answers were still given.
  CHECK(reads.get(10s).value() == kCaller);
  CHECK(tests::eventually([&] { return !server.server->holds_back(kCaller); }));
}

TEST_CASE("arguments above what the process takes are refused by size, and nothing else is lost") {
  net::ConnectionOptions connections;
  connections.attachment_bytes_max = 100'000;
  Server server(connections);
  const UniqueFd socket = server.bound();
  for (std::uint64_t i = 1; i <= 3; ++i) {
    wire::Call call = call_of(i, 0);
    call.arguments.clear();
    say(socket, std::move(call), wire::Bytes(i == 2 ? 100'001 : 100'000));
  }
  for (const std::uint64_t sequence : {1u, 3u}) {
    const QueuedCall call = next_call(server);
    CHECK(call.sequence == sequence);
    CHECK(call.arguments.size() == 100'000);
  }
  const auto reply = std::get<wire::CallReply>(hear(socket).value());
  CHECK(reply.sequence == 2);
  CHECK(reply.status.code() == Code::kResourceExhausted);
  CHECK(
      reply.status.message() ==
      "arguments of 100001 bytes: a process here takes at most 100000 at once, half of the memory "
      "that it may use. Pass it in pieces");
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
}  // namespace troupe::detail::call_server_test
