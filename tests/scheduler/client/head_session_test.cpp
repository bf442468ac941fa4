// The client's conversation with the head, event by event, without a socket.

#include "scheduler/client/head_session.h"

#include <doctest/doctest.h>

#include <deque>

#include "runtime/base/limits.h"
#include "runtime/wire/request_id.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace std::chrono_literals;

namespace head_session_test {
namespace {

const ActorId kActor{0xac, 1};
const JobId kJob{2, 3};

// The session with whoever drives it: what is sent is kept, and so is what it wants done.
struct Talk {
  HeadSession session{
      wire::ClientHello{
          .client_id = ClientId{0xc1, 1}, .job_id = kJob, .name = "driver", .kind = "driver"},
      "head:7", HeadClientOptions{.reconnect_timeout = 10s, .attempt_timeout = 2s}};
  TimePoint now{1h};
  Status send_result;
  std::deque<wire::ControlMessage> sent;
  std::deque<HeadCommand> commands;

  void settle() {
    while (auto command = session.next()) {
      if (const auto* send = get_if<head_command::Send>(&*command)) {
        if (send_result.ok()) sent.push_back(wire::decode_control(send->frame).value());
        session.sent(send_result, now);
      } else {
        commands.push_back(std::move(*command));
      }
    }
  }
  HeadRequestId ask(wire::ControlMessage message = wire::ListNodes{}) {
    const HeadRequestId id = session.ask(std::move(message), now);
    settle();
    return id;
  }
  void connect() {
    session.connected(now);
    settle();
  }
  void lose(Status why = Status(Code::kUnavailable, "it is gone")) {
    session.disconnected(why, now);
    settle();
  }
  void hear(wire::ControlMessage message) {
    session.received(std::move(message), now);
    settle();
  }
  // The clock goes on to each time at which the session wants to be called.
  void pass(Duration time) {
    const TimePoint end = now + time;
    for (auto due = session.next_deadline(); due && *due <= end; due = session.next_deadline()) {
      now = std::max(now, *due);
      session.tick(now);
      settle();
    }
    now = end;
  }
  // Takes the next command, which is of this kind.
  template <typename Command>
  Command take() {
    REQUIRE_FALSE(commands.empty());
    REQUIRE(holds_alternative<Command>(commands.front()));
    Command command = get<Command>(std::move(commands.front()));
    commands.pop_front();
    return command;
  }
  template <typename Message>
  Message take_sent() {
    REQUIRE_FALSE(sent.empty());
    REQUIRE(holds_alternative<Message>(sent.front()));
    Message message = get<Message>(std::move(sent.front()));
    sent.pop_front();
    return message;
  }
  bool quiet() const { return commands.empty() && sent.empty(); }
  // The connection that was asked for is made, and the head takes the client in.
  wire::ClientHello introduce() {
    take<head_command::Connect>();
    connect();
    const auto hello = take_sent<wire::ClientHello>();
    hear(wire::Reply{hello.request_id, {}});
    CHECK(take<head_command::Attempted>().status.ok());
    return hello;
  }
  void come_back() {
    pass(50ms);
    CHECK(introduce().reconnect);
  }
};

Talk introduced() {
  Talk t;
  t.session.connect(2s, t.now);
  t.settle();
  t.introduce();
  return t;
}

wire::ActorInfo info(wire::ActorState state, std::uint64_t generation = 1, std::string name = {}) {
  wire::ActorInfo info;
  info.actor_id = kActor;
  info.state = state;
  info.generation = generation;
  info.name = std::move(name);
  info.namespace_name = wire::namespace_of_job(kJob);
  return info;
}

using Told = head_command::Update;

const wire::ActorInfo& actor_of(const Told& told) {
  return get<wire::ActorUpdate>(told.update).actor;
}

}  // namespace

TEST_CASE("the first request connects, the client says who it is, then what it wants") {
  Talk t;
  CHECK_FALSE(t.session.next_deadline());
  const auto id = t.ask();
  CHECK(t.sent.empty());
  CHECK(t.take<head_command::Connect>().timeout == 2s);
  t.connect();
  const auto hello = t.take_sent<wire::ClientHello>();
  CHECK_FALSE(hello.reconnect);
  CHECK(hello.client_id == ClientId{0xc1, 1});
  CHECK(t.quiet());
  t.hear(wire::Reply{hello.request_id, {}});
  CHECK(t.take_sent<wire::ListNodes>().request_id == id);
  CHECK(t.take<head_command::Attempted>().status.ok());
  t.hear(wire::NodeList{id, {}});
  const auto answer = t.take<head_command::Answer>();
  CHECK(answer.request == id);
  CHECK(holds_alternative<wire::NodeList>(*answer.answer));
  t.hear(wire::NodeList{id, {}});  // a second answer is nobody's
  CHECK(t.quiet());
  CHECK_FALSE(t.session.next_deadline());
}

TEST_CASE("what is unanswered is sent again in its order, with its numbers, and answered once") {
  Talk t = introduced();
  const auto first = t.ask();
  const auto second = t.ask(wire::ListActors{});
  const auto third = t.ask();
  t.hear(wire::ActorList{second, {}});
  t.take<head_command::Answer>();
  t.sent.clear();
  t.lose();
  const auto fourth = t.ask();
  CHECK(t.quiet());
  t.come_back();
  for (const auto id : {first, third, fourth}) {
    CHECK(t.take_sent<wire::ListNodes>().request_id == id);
    t.hear(wire::NodeList{id, {}});
    CHECK(t.take<head_command::Answer>().request == id);
  }
  t.lose();
  t.come_back();
  CHECK(t.quiet());
}

TEST_CASE("no number is used twice, introductions' included") {
  Talk t;
  std::vector<HeadRequestId> numbers{t.ask()};
  for (int i = 0; i < 3; ++i) {
    if (i > 0) t.pass(50ms);
    numbers.push_back(t.introduce().request_id);
    numbers.push_back(t.ask());
    t.lose();
    numbers.push_back(t.ask());
    t.sent.clear();
  }
  for (std::size_t i = 1; i < numbers.size(); ++i) CHECK(numbers[i] > numbers[i - 1]);
}

TEST_CASE("while the head is away a request ends when it has waited for as long as it may") {
  Talk t = introduced();
  t.pass(1h);  // no time is too long for a head that is there
  const auto first = t.ask();
  t.pass(1h);
  t.sent.clear();
  t.lose();
  t.pass(4s);
  const auto second = t.ask();
  const auto answered_after = [&](Duration time) {
    t.pass(time - 1ns);
    while (!t.commands.empty()) {
      t.take<head_command::Connect>();
      t.lose(Status(Code::kUnavailable, "nobody listens"));
      t.take<head_command::Attempted>();
    }
    t.pass(1ns);
    while (!holds_alternative<head_command::Answer>(t.commands.front())) t.commands.pop_front();
    return t.take<head_command::Answer>();
  };
  const auto one = answered_after(6s);
  CHECK(one.request == first);
  CHECK(one.answer.status().code() == Code::kUnavailable);
  CHECK(one.answer.status().message().starts_with("the head at head:7 has been away for 10.0 s: "));
  CHECK(answered_after(4s).request == second);
}

TEST_CASE("attempts follow each other in pauses that double, until the head is back") {
  Talk t = introduced();
  t.lose();
  for (const Duration pause : {50ms, 100ms, 200ms, 400ms, 800ms, 1000ms, 1000ms}) {
    t.pass(pause - 1ns);
    CHECK(t.quiet());
    t.pass(1ns);
    t.take<head_command::Connect>();
    t.lose();
    t.take<head_command::Attempted>();
  }
  t.pass(1s);
  t.introduce();
  t.lose();
  t.come_back();  // after the first pause again
}

TEST_CASE("a head that takes the connection and says nothing is given up in time") {
  Talk t;
  t.ask();
  t.take<head_command::Connect>();
  t.connect();
  t.pass(2s - 1ns);
  CHECK(t.commands.empty());
  t.pass(1ns);
  t.take<head_command::Disconnect>();
  CHECK(t.take<head_command::Attempted>().status.code() == Code::kUnavailable);
  // What comes of the old connection now is not heard.
  t.hear(wire::Reply{t.take_sent<wire::ClientHello>().request_id, {}});
  CHECK_FALSE(t.session.introduced());
  t.pass(50ms);
  t.introduce();
}

TEST_CASE("a head that refuses the client ends everything; a later request asks it again") {
  Talk t;
  const auto id = t.ask();
  t.session.watch(1, kActor, {}, t.now);
  t.session.watch(2, GroupId{4, 4}, {}, t.now);
  t.settle();
  t.take<head_command::Connect>();
  t.connect();
  const Status other(Code::kProtocol, "another version");
  t.hear(wire::Reply{t.take_sent<wire::ClientHello>().request_id, other});
  t.take<head_command::Disconnect>();
  CHECK(t.take<head_command::Attempted>().status == other);
  const auto answer = t.take<head_command::Answer>();
  CHECK(answer.request == id);
  CHECK(answer.answer.status() == other);
  for (const WatchId watch : {1, 2}) {
    const auto failed = t.take<head_command::WatchFailed>();
    CHECK(failed.watch == watch);
    CHECK(failed.last);
  }
  CHECK(t.quiet());
  CHECK_FALSE(t.session.next_deadline());
  t.ask();
  t.introduce();
}

TEST_CASE("somebody else's token is told of at once, and watches stay") {
  Talk t = introduced();
  t.session.watch(1, kActor, {}, t.now);
  t.settle();
  const auto id = t.ask();
  t.sent.clear();
  t.lose();
  t.pass(50ms);
  t.take<head_command::Connect>();
  const Status stranger(Code::kUnauthenticated, "another token");
  t.lose(stranger);
  t.take<head_command::Attempted>();
  CHECK(t.take<head_command::Answer>().request == id);
  const auto failed = t.take<head_command::WatchFailed>();
  CHECK(failed.why == stranger);
  CHECK_FALSE(failed.last);
  t.pass(100ms);
  t.introduce();
  CHECK(t.take_sent<wire::WatchActor>().actor_id == kActor);
}

TEST_CASE("what fits into no message is refused where it is asked") {
  Talk t = introduced();
  wire::CreateActors create;
  create.specs.resize(1);
  create.specs[0].constructor_arguments.resize(limits::kFrameBytesMax);
  const auto id = t.ask(create);
  const auto answer = t.take<head_command::Answer>();
  CHECK(answer.request == id);
  CHECK(answer.answer.status().code() == Code::kInvalidArgument);
  t.session.watch(1, ActorId{}, {"", std::string(limits::kFrameBytesMax, 'n')}, t.now);
  t.settle();
  const auto failed = t.take<head_command::WatchFailed>();
  CHECK(failed.why.code() == Code::kInvalidArgument);
  CHECK(failed.last);
  CHECK(t.quiet());
}

TEST_CASE("a full connection is waited for, and what follows keeps its place") {
  Talk t = introduced();
  t.send_result = Status(Code::kOverloaded, "too much waits");
  const auto first = t.ask();
  t.send_result = {};
  const auto second = t.ask();
  CHECK(t.quiet());
  t.session.drained();
  t.settle();
  CHECK(t.take_sent<wire::ListNodes>().request_id == first);
  CHECK(t.take_sent<wire::ListNodes>().request_id == second);
}

TEST_CASE("a connection that refuses a message for another reason is made again") {
  Talk t = introduced();
  t.send_result = Status(Code::kInternal, "it broke");
  const auto id = t.ask();
  t.send_result = {};
  t.take<head_command::Disconnect>();
  t.come_back();
  CHECK(t.take_sent<wire::ListNodes>().request_id == id);
}

TEST_CASE("a watch is renewed by the id that its name had, and ends with the last update") {
  Talk t = introduced();
  t.session.watch(1, ActorId{}, {"", "db"}, t.now);
  t.settle();
  const auto asked = t.take_sent<wire::WatchActor>();
  CHECK(asked.name == "db");
  CHECK(asked.namespace_name == wire::namespace_of_job(kJob));
  t.hear(wire::Reply{asked.request_id, {}});
  t.hear(wire::ActorUpdate{info(wire::ActorState::kAlive, 1, "db")});
  CHECK(t.take<Told>().watches == std::vector<WatchId>{1});
  t.lose();
  t.come_back();
  CHECK(t.take_sent<wire::WatchActor>().actor_id == kActor);
  t.hear(wire::ActorUpdate{info(wire::ActorState::kDead, 1, "db")});
  CHECK(t.take<Told>().last);
  t.lose();
  t.come_back();
  CHECK(t.take_sent<wire::WatchActor>().actor_id == kActor);  // it was not answered
  CHECK(t.quiet());
}

TEST_CASE("a watch is not told of an earlier generation than before") {
  Talk t = introduced();
  t.session.watch(1, kActor, {}, t.now);
  t.settle();
  t.hear(wire::ActorUpdate{info(wire::ActorState::kStarting, 2)});
  CHECK(actor_of(t.take<Told>()).generation == 2);
  t.hear(wire::ActorUpdate{info(wire::ActorState::kAlive, 1)});
  CHECK(t.commands.empty());
  t.hear(wire::ActorUpdate{info(wire::ActorState::kAlive, 2)});
  CHECK(actor_of(t.take<Told>()).state == wire::ActorState::kAlive);
}

TEST_CASE("a watch that the head refuses ends; one that waits for it is told so, again and again") {
  Talk t = introduced();
  t.session.watch(1, kActor, {}, t.now);
  t.settle();
  t.hear(wire::Reply{t.take_sent<wire::WatchActor>().request_id, Status(Code::kNotFound, "who?")});
  const auto refused = t.take<head_command::WatchFailed>();
  CHECK(refused.why.code() == Code::kNotFound);
  CHECK(refused.last);

  t.session.watch(2, kActor, {}, t.now);
  t.settle();
  t.hear(wire::Reply{t.take_sent<wire::WatchActor>().request_id, {}});
  t.lose();
  t.pass(50ms);
  t.take<head_command::Connect>();  // and it hangs
  for (int i = 0; i < 3; ++i) {
    t.pass(10s);
    const auto failed = t.take<head_command::WatchFailed>();
    CHECK(failed.watch == 2);
    CHECK(failed.why.code() == Code::kUnavailable);
    CHECK_FALSE(failed.last);
  }
}

TEST_CASE("the last watch of something takes the head's back, where the head knows of it") {
  Talk t = introduced();
  for (const WatchId watch : {1, 2, 3}) {
    t.session.watch(watch, kActor, {}, t.now);
    t.settle();
    t.hear(wire::Reply{t.take_sent<wire::WatchActor>().request_id, {}});
  }
  const auto unwatch = [&](WatchId watch) {
    t.session.unwatch(watch, t.now);
    t.settle();
  };
  unwatch(1);
  unwatch(2);
  unwatch(2);
  CHECK(t.quiet());
  unwatch(3);
  CHECK(t.take_sent<wire::WatchActor>().stop);
  t.session.watch(4, kActor, {}, t.now);
  t.settle();
  t.sent.clear();
  t.lose();
  unwatch(4);
  t.come_back();
  CHECK(t.take_sent<wire::WatchActor>().stop);  // of the third, which was not answered
  CHECK(t.quiet());
}

TEST_CASE("nodes are watched again on each connection, by one request at a time") {
  Talk t = introduced();
  t.session.watch_nodes(t.now);
  t.settle();
  const auto first = t.take_sent<wire::WatchNodes>();
  t.lose();
  t.come_back();
  CHECK(t.take_sent<wire::WatchNodes>().request_id == first.request_id);
  CHECK(t.quiet());
  t.hear(wire::Reply{first.request_id, {}});
  t.hear(wire::NodeUpdate{});
  CHECK(holds_alternative<wire::NodeUpdate>(t.take<Told>().update));
  t.lose();
  t.come_back();
  CHECK(t.take_sent<wire::WatchNodes>().request_id > first.request_id);
}

TEST_CASE("what is under way is told again on each connection, and only the last of it") {
  Talk t = introduced();
  const auto report = [&](std::uint64_t items) {
    wire::Work work;
    work.items_done = items;
    t.session.report(std::move(work), t.now);
    t.settle();
  };
  report(1);
  const auto first = t.take_sent<wire::ReportWork>();
  CHECK(first.work.items_done == 1);
  t.hear(wire::Reply{first.request_id, {}});
  t.lose();
  t.come_back();
  CHECK(t.take_sent<wire::ReportWork>().work.items_done == 1);
  t.lose();
  report(2);
  report(3);
  t.come_back();
  CHECK(t.take_sent<wire::ReportWork>().work.items_done == 3);
  CHECK(t.quiet());
}

TEST_CASE("that CPUs are lent is told again on each connection, as it is then") {
  Talk t = introduced();
  const auto lend = [&](bool back) {
    t.session.lend({0, kActor, 1, back}, t.now);
    t.settle();
  };
  lend(false);
  t.hear(wire::Reply{t.take_sent<wire::LendCpus>().request_id, {}});
  t.lose();
  t.come_back();
  CHECK_FALSE(t.take_sent<wire::LendCpus>().back);
  t.lose();
  lend(true);
  t.come_back();
  CHECK(t.take_sent<wire::LendCpus>().back);
  CHECK(t.quiet());
}

TEST_CASE("an attempt that nobody waits for is the only one") {
  Talk t;
  t.session.connect(7s, t.now);
  t.settle();
  CHECK(t.take<head_command::Connect>().timeout == 7s);
  t.lose();
  CHECK_FALSE(t.take<head_command::Attempted>().status.ok());
  CHECK(t.quiet());
  CHECK_FALSE(t.session.next_deadline());
}

TEST_CASE("after close nothing is answered, told or sent") {
  Talk t = introduced();
  const auto id = t.ask();
  t.session.watch(1, kActor, {}, t.now);
  t.settle();
  t.sent.clear();
  t.session.close();
  t.settle();
  t.take<head_command::Disconnect>();
  t.hear(wire::NodeList{id, {}});
  t.hear(wire::ActorUpdate{info(wire::ActorState::kAlive)});
  t.ask();
  t.session.watch(2, kActor, {}, t.now);
  t.session.unwatch(1, t.now);
  t.session.watch_nodes(t.now);
  t.lose();
  t.connect();
  t.pass(1h);
  t.session.close();
  t.settle();
  CHECK(t.quiet());
}

}  // namespace head_session_test
