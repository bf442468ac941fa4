// The client's side of a control connection, against a head that the test plays.

#include "scheduler/client/head_client.h"

#include <atomic>
#include <thread>

#include "tests/scheduler/support.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace std::chrono_literals;
using tests::Answer;
using tests::Inbox;

namespace {

const ActorId kActor{0xac, 1};
const GroupId kGroup{0x96, 1};
const JobId kJob{2, 3};

wire::ActorInfo info_of(wire::ActorState state, ActorId id = kActor, std::string name = {}) {
  wire::ActorInfo info;
  info.actor_id = id;
  info.name = std::move(name);
  info.state = state;
  return info;
}

struct Fixture {
  std::atomic<bool> greets{true};   // ClientHello is answered
  std::atomic<bool> answers{true};  // requests are answered
  std::atomic<bool> knows{true};    // the actors that are watched
  std::function<std::vector<wire::ControlMessage>(const wire::ControlMessage&)> otherwise;
  tests::FakeHead head{[this](const wire::ControlMessage& message) { return answer(message); }};
  HeadClientOptions options;
  net::LoopThread thread{"client"};

  std::vector<wire::ControlMessage> answer(const wire::ControlMessage& message) {
    if (const auto* hello = get_if<wire::ClientHello>(&message)) {
      if (!greets) return {};
      return {wire::Reply{hello->request_id, {}}};
    }
    if (!answers) return {};
    if (const auto* watch = get_if<wire::WatchActor>(&message)) {
      if (!knows) {
        return {wire::Reply{watch->request_id, Status(Code::kNotFound, "no such actor")}};
      }
      if (watch->stop) return {wire::Reply{watch->request_id, {}}};
      wire::ActorInfo info = info_of(wire::ActorState::kAlive, kActor, watch->name);
      info.namespace_name = watch->namespace_name;
      return {wire::Reply{watch->request_id, {}}, wire::ActorUpdate{info}};
    }
    if (const auto* list = get_if<wire::ListNodes>(&message)) {
      wire::NodeInfo node;
      node.name = "n1";
      return {wire::NodeList{list->request_id, {node}}};
    }
    if (const auto* create = get_if<wire::CreateActors>(&message)) {
      return {wire::Reply{create->request_id, {}}};
    }
    if (const auto* kill = get_if<wire::KillActor>(&message)) {
      return {wire::Reply{kill->request_id, Status(Code::kNotFound, "there is no actor")}};
    }
    if (const auto* group = get_if<wire::CreatePlacementGroup>(&message)) {
      return {wire::Reply{group->request_id, Status(Code::kAlreadyExists, "that name")}};
    }
    if (const auto* remove = get_if<wire::RemovePlacementGroup>(&message)) {
      return {wire::Reply{remove->request_id, {}}};
    }
    if (const auto* watch = get_if<wire::WatchPlacementGroup>(&message)) {
      if (!knows) return {wire::Reply{watch->request_id, Status(Code::kNotFound, "no such")}};
      wire::PlacementGroupInfo info;
      info.group_id = kGroup;
      info.name = "train";
      if (watch->stop) return {wire::Reply{watch->request_id, {}}};
      return {wire::Reply{watch->request_id, {}}, wire::PlacementGroupUpdate{info}};
    }
    if (const auto* groups = get_if<wire::ListPlacementGroups>(&message)) {
      wire::PlacementGroupInfo info;
      info.name = groups->include_removed ? "all" : "living";
      return {wire::PlacementGroupList{groups->request_id, {info}}};
    }
    if (const auto* actors = get_if<wire::ListActors>(&message)) {
      // Two of five at once.
      wire::ActorList list{actors->request_id, {}};
      std::uint64_t number = actors->after.low;
      while (list.actors.size() < 2 && number < 5) {
        list.actors.push_back(info_of(wire::ActorState::kAlive, {0xac, ++number}, "a"));
      }
      list.more = number < 5;
      return {list};
    }
    if (const auto* end = get_if<wire::EndJob>(&message)) {
      return {wire::Reply{end->request_id, {}}};
    }
    if (const auto* events = get_if<wire::ListEvents>(&message)) {
      return {wire::ActorList{events->request_id, {}}};  // of another kind
    }
    return {};
  }
  Result<std::shared_ptr<HeadClient>> try_connect(Deadline deadline = tests::patience()) {
    const wire::ClientHello hello{
        .client_id = ClientId{0xc1, 1}, .job_id = kJob, .name = "driver 7", .kind = "driver"};
    return HeadClient::connect(thread.loop(), head.address(), tests::kToken, hello, deadline,
                               options);
  }
  std::shared_ptr<HeadClient> connect() {
    auto client = try_connect();
    REQUIRE_MESSAGE(client.ok(), client.status().to_string());
    return *client;
  }
};

Answer create(HeadClient& client, std::uint64_t number = 1) {
  Answer answer;
  wire::ActorSpec spec;
  spec.actor_id = ActorId{0xac, number};
  spec.type = "Counter";
  client.create_actors({spec}, false, false, answer.callback());
  return answer;
}

// What a watch tells.
struct Told {
  std::shared_ptr<Inbox<Result<wire::ActorInfo>>> inbox =
      std::make_shared<Inbox<Result<wire::ActorInfo>>>();
  HeadClient::OnActor callback() {
    return [inbox = inbox](Result<wire::ActorInfo> info) { inbox->put(std::move(info)); };
  }
  Result<wire::ActorInfo> next() { return inbox->take(); }
  bool quiet() {
    return !inbox->take_within(50ms, [](const auto&) { return true; }).has_value();
  }
};

}  // namespace

TEST_CASE("a request that fits into no message ends with its size, and the connection stays") {
  Fixture f;
  const auto client = f.connect();
  std::vector<wire::ActorSpec> specs(66);
  for (std::size_t i = 0; i < specs.size(); ++i) {
    specs[i].actor_id = ActorId{0xac, i + 1};
    specs[i].constructor_arguments.resize(1u << 20);
  }
  Answer answer;
  client->create_actors(std::move(specs), true, false, answer.callback());
  const Status refused = answer.get();
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK_MESSAGE(refused.message().find("above the limit of 67108864") != std::string::npos,
                refused.to_string());
  CHECK(refused.message().find("fewer actors") != std::string::npos);
  CHECK(create(*client).get().ok());
  CHECK(f.head.accepted() == 1);
}

TEST_CASE("a client says who it is, first and once") {
  Fixture f;
  const auto client = f.connect();
  const auto hello = f.head.take<wire::ClientHello>();
  CHECK(hello.client_id == ClientId{0xc1, 1});
  CHECK(hello.job_id == JobId{2, 3});
  CHECK(hello.name == "driver 7");
  CHECK(hello.kind == "driver");
  CHECK_FALSE(hello.reconnect);
  CHECK(create(*client).get().ok());
  CHECK_FALSE(f.head.has<wire::ClientHello>());
}

TEST_CASE("no head, a wrong token, a silent head: each by its name") {
  Fixture f;
  f.greets = false;
  f.options.attempt_timeout = 50ms;
  CHECK(f.try_connect(Deadline::after(100ms)).status().code() == Code::kDeadlineExceeded);
  const auto stranger = HeadClient::connect(f.thread.loop(), f.head.address(),
                                            net::Token(32, std::byte{1}), {}, tests::patience());
  CHECK(stranger.status().code() == Code::kUnauthenticated);
  f.head.away();
  CHECK(f.try_connect().status().code() == Code::kUnavailable);
}

TEST_CASE("who connects waits for a head that stands still for as long as it wants to") {
  Fixture f;
  f.options.attempt_timeout = 50ms;
  std::promise<void> stands_still;
  f.head.loop().post([&stands_still] {
    stands_still.set_value();
    std::this_thread::sleep_for(300ms);
  });
  stands_still.get_future().wait();
  CHECK(f.try_connect().status().code() == Code::kOk);
}

TEST_CASE("answers come to those who asked, refusals as they are") {
  Fixture f;
  const auto client = f.connect();
  CHECK(create(*client).get().ok());
  Answer killed, ended;
  client->kill_actor(kActor, true, 250, "why not", killed.callback());
  CHECK(killed.get().code() == Code::kNotFound);
  client->end_job(JobId{2, 3}, "done", ended.callback());
  CHECK(ended.get().ok());
  const auto kill = f.head.take<wire::KillActor>();
  CHECK(kill.allow_restart);
  CHECK(kill.grace_ms == 250);
  CHECK(kill.reason == "why not");
  CHECK(client->nodes(tests::patience()).value()[0].name == "n1");
  CHECK(client->events(0, 10, tests::patience()).status().code() == Code::kProtocol);
  f.answers = false;
  CHECK(client->actors(true, Deadline::after(50ms)).status().code() == Code::kDeadlineExceeded);
}

TEST_CASE("placement groups: asked for, removed, listed, watched by name and over connections") {
  Fixture f;
  const auto client = f.connect();
  Answer created, removed;
  wire::PlacementGroupSpec spec;
  spec.group_id = kGroup;
  client->create_group(spec, created.callback());
  CHECK(created.get().code() == Code::kAlreadyExists);
  client->remove_group(kGroup, "enough", removed.callback());
  CHECK(removed.get().ok());
  CHECK(f.head.take<wire::RemovePlacementGroup>().reason == "enough");
  const auto actors = client->actors(true, tests::patience());
  REQUIRE_MESSAGE(actors.ok(), actors.status().to_string());
  REQUIRE(actors->size() == 5);
  for (std::uint64_t i = 0; i < 5; ++i) CHECK((*actors)[i].actor_id == ActorId{0xac, i + 1});
  CHECK(client->groups(true, tests::patience()).value()[0].name == "all");
  CHECK(client->groups(false, tests::patience()).value()[0].name == "living");

  auto inbox = std::make_shared<Inbox<Result<wire::PlacementGroupInfo>>>();
  const auto watch = client->watch_group(
      {}, "train", [inbox](Result<wire::PlacementGroupInfo> i) { inbox->put(std::move(i)); });
  CHECK(inbox->take().value().group_id == kGroup);
  CHECK(f.head.take<wire::WatchPlacementGroup>().name == "train");
  f.head.drop_connection();
  CHECK(inbox->take().value().name == "train");
  CHECK(f.head.take<wire::WatchPlacementGroup>().group_id == kGroup);  // by its id from now on
  client->unwatch_group(watch);
  CHECK(f.head.take<wire::WatchPlacementGroup>().stop);
  f.knows = false;
  client->watch_group({}, "absent",
                      [inbox](Result<wire::PlacementGroupInfo> i) { inbox->put(std::move(i)); });
  CHECK(inbox->take().status().code() == Code::kNotFound);
}

TEST_CASE("a lost connection is made again, and the client says that it comes back") {
  Fixture f;
  const auto client = f.connect();
  f.head.take<wire::ClientHello>();
  f.head.drop_connection();
  const auto hello = f.head.take<wire::ClientHello>();
  CHECK(hello.reconnect);
  CHECK(hello.client_id == ClientId{0xc1, 1});
  CHECK(create(*client).get().ok());
}

TEST_CASE("unanswered requests are sent again in their order, answered ones are not") {
  Fixture f;
  const auto client = f.connect();
  CHECK(create(*client, 1).get().ok());
  f.head.take<wire::CreateActors>();
  f.answers = false;
  auto second = create(*client, 2);
  auto third = create(*client, 3);
  const auto id_of_second = f.head.take<wire::CreateActors>().request_id;
  const auto id_of_third = f.head.take<wire::CreateActors>().request_id;
  CHECK_FALSE(second.arrived());
  f.answers = true;
  f.head.drop_connection();
  CHECK(second.get().ok());
  CHECK(third.get().ok());
  const auto first_again = f.head.take<wire::CreateActors>();
  CHECK(first_again.request_id == id_of_second);
  CHECK(first_again.specs[0].actor_id == ActorId{0xac, 2});
  CHECK(f.head.take<wire::CreateActors>().request_id == id_of_third);
  CHECK_FALSE(f.head.has<wire::CreateActors>());
}

TEST_CASE("what is asked while the head is away waits for it, over one connection") {
  Fixture f;
  const auto client = f.connect();
  f.head.take<wire::ClientHello>();
  f.head.away();
  auto first = create(*client, 1);
  auto second = create(*client, 2);
  CHECK_FALSE(first.arrived());
  f.head.listen();
  CHECK(first.get().ok());
  CHECK(second.get().ok());
  CHECK(f.head.accepted() == 2);
  f.head.take<wire::ClientHello>();
  CHECK_FALSE(f.head.has<wire::ClientHello>());
}

TEST_CASE("a head that takes connections but says nothing is tried again") {
  Fixture f;
  f.options.attempt_timeout = 100ms;
  const auto client = f.connect();
  f.head.take<wire::ClientHello>();
  f.greets = false;
  f.head.drop_connection();
  f.head.take<wire::ClientHello>();
  auto waiting = create(*client);
  f.head.take<wire::ClientHello>();
  f.greets = true;
  CHECK(waiting.get().ok());
}

TEST_CASE("one name in two namespaces is two actors") {
  Fixture f;
  f.answers = false;  // the test does
  const auto client = f.connect();
  Told here, there;
  client->watch_actor({}, "db", here.callback());
  client->watch_actor({}, "db", there.callback(), "shop");
  for (const std::string& name_space : {wire::namespace_of_job(kJob), std::string("shop")}) {
    const auto asked = f.head.take<wire::WatchActor>();
    CHECK(asked.namespace_name == name_space);
    wire::ActorInfo info = info_of(wire::ActorState::kAlive, {7, asked.request_id}, "db");
    info.namespace_name = name_space;
    f.head.send(wire::ActorUpdate{info});
  }
  CHECK(here.next()->namespace_name == wire::namespace_of_job(kJob));
  CHECK(there.next()->namespace_name == "shop");
}

TEST_CASE("what the head tells of actors unasked comes to whoever follows them") {
  Fixture f;
  const auto client = f.connect();
  Told told;
  client->follow_actors(
      [on_actor = told.callback()](const wire::ActorInfo& info) { on_actor(info); });
  Told watched;
  client->watch_actor(kActor, "", watched.callback());
  CHECK(watched.next()->state == wire::ActorState::kAlive);
  CHECK(told.next()->state == wire::ActorState::kAlive);
  f.head.send(wire::ActorUpdate{info_of(wire::ActorState::kPending, ActorId{7, 70}, "unasked")});
  CHECK(told.next()->name == "unasked");
}

TEST_CASE("watches are renewed, by id once it is known, until they are taken back") {
  Fixture f;
  const auto client = f.connect();
  Told by_id, by_name;
  const auto watch = client->watch_actor(kActor, "", by_id.callback());
  CHECK(by_id.next()->state == wire::ActorState::kAlive);
  client->watch_actor({}, "trainer", by_name.callback());
  CHECK(by_name.next()->name == "trainer");
  CHECK(f.head.take<wire::WatchActor>().actor_id == kActor);
  const auto asked = f.head.take<wire::WatchActor>();
  CHECK(asked.actor_id.empty());
  CHECK(asked.name == "trainer");
  CHECK(asked.namespace_name == wire::namespace_of_job(kJob));

  f.head.drop_connection();
  CHECK(f.head.take<wire::WatchActor>().actor_id == kActor);
  CHECK(f.head.take<wire::WatchActor>().actor_id == kActor);
  f.head.send(wire::ActorUpdate{info_of(wire::ActorState::kRestarting, kActor, "trainer")});
  const auto restarting = [](const auto& info) {
    return info.ok() && info->state == wire::ActorState::kRestarting;
  };
  CHECK(by_id.inbox->take(restarting).ok());
  CHECK(by_name.inbox->take(restarting).ok());

  client->unwatch(watch);
  f.head.send(wire::ActorUpdate{info_of(wire::ActorState::kStarting, kActor, "trainer")});
  const auto starting = [](const auto& info) {
    return info.ok() && info->state == wire::ActorState::kStarting;
  };
  CHECK(by_name.inbox->take(starting).ok());
  CHECK_FALSE(by_id.inbox->has(starting));
  f.head.drop_connection();
  CHECK(f.head.take<wire::WatchActor>().actor_id == kActor);
  CHECK(create(*client).get().ok());
  CHECK_FALSE(f.head.has<wire::WatchActor>());
}

TEST_CASE("the last watch of an actor takes the head's watch back") {
  Fixture f;
  const auto client = f.connect();
  Told first, second;
  const auto one = client->watch_actor(kActor, "", first.callback());
  const auto two = client->watch_actor(kActor, "", second.callback());
  CHECK(first.next().ok());
  CHECK(second.next().ok());
  const auto stops = [](const wire::WatchActor& watch) { return watch.stop; };
  client->unwatch(one);
  CHECK(create(*client).get().ok());
  CHECK_FALSE(f.head.has<wire::WatchActor>(stops));
  client->unwatch(two);
  CHECK(f.head.take<wire::WatchActor>(stops).actor_id == kActor);
}

TEST_CASE("a watch of what nobody knows ends with kNotFound, once") {
  Fixture f;
  f.knows = false;
  const auto client = f.connect();
  Told told;
  client->watch_actor({}, "nobody", told.callback());
  CHECK(told.next().status().code() == Code::kNotFound);
  f.knows = true;
  f.head.send(wire::ActorUpdate{info_of(wire::ActorState::kAlive, kActor, "nobody")});
  CHECK(told.quiet());
}

TEST_CASE("a head that stays away ends what waits, with its address; a later request tries anew") {
  Fixture f;
  f.options.reconnect_timeout = 150ms;
  const auto client = f.connect();
  Told told;
  client->watch_actor(kActor, "", told.callback());
  CHECK(told.next().ok());
  f.head.away();
  auto waiting = create(*client);
  const Status why = waiting.get();
  CHECK(why.code() == Code::kUnavailable);
  CHECK(why.message().find(f.head.address().to_string()) != std::string::npos);
  const auto lost = told.inbox->take([](const auto& info) { return !info.ok(); });
  CHECK(lost.status().code() == Code::kUnavailable);
  CHECK(create(*client).get().code() == Code::kUnavailable);
  f.head.listen();
  CHECK(create(*client).get().ok());
}

TEST_CASE("a watch outlives a head that stays away, and is renewed without being asked") {
  Fixture f;
  f.options.reconnect_timeout = 100ms;
  const auto client = f.connect();
  Told told;
  client->watch_actor(kActor, "", told.callback());
  CHECK(told.next()->state == wire::ActorState::kAlive);
  f.head.away();
  for (int i = 0; i < 2; ++i) CHECK(told.next().status().code() == Code::kUnavailable);
  f.head.listen();
  CHECK(told.inbox->take([](const auto& info) { return info.ok(); }).ok());
  f.head.send(wire::ActorUpdate{info_of(wire::ActorState::kRestarting)});
  // It may have been told once more that the head is away, before the head was found again.
  CHECK(told.inbox->take([](const auto& info) { return info.ok(); })->state ==
        wire::ActorState::kRestarting);
}

TEST_CASE("who was a client once comes back, whatever it wants: what is its own ends otherwise") {
  Fixture f;
  f.options.reconnect_timeout = 50ms;
  const auto client = f.connect();
  f.head.take<wire::ClientHello>();
  f.head.away();
  CHECK(create(*client).get().code() == Code::kUnavailable);
  f.head.listen();
  CHECK(f.head.take<wire::ClientHello>().reconnect);
}

TEST_CASE("a watch ends with its last update") {
  Fixture f;
  const auto client = f.connect();
  Told told, other;
  const auto watch = client->watch_actor(kActor, "", told.callback());
  CHECK(told.next().ok());
  f.head.take<wire::WatchActor>();
  f.head.send(wire::ActorUpdate{info_of(wire::ActorState::kDead)});
  CHECK(told.next()->state == wire::ActorState::kDead);
  client->unwatch(watch);
  f.head.drop_connection();
  CHECK(create(*client).get().ok());
  CHECK_FALSE(f.head.has<wire::WatchActor>());
}

TEST_CASE(
    "a client that was only made connects when it is asked something, and waits as any other") {
  Fixture f;
  f.options.reconnect_timeout = 20s;
  const wire::ClientHello hello{.client_id = ClientId{0xc1, 2}, .job_id = kJob, .kind = "actor"};
  const auto client =
      HeadClient::make(f.thread.loop(), f.head.address(), tests::kToken, hello, f.options);
  CHECK(f.head.accepted() == 0);
  f.head.away();
  auto waiting = create(*client);
  CHECK_FALSE(waiting.arrived());
  f.head.listen();
  CHECK(waiting.get().ok());
  CHECK_FALSE(f.head.take<wire::ClientHello>().reconnect);
}

TEST_CASE("a head with another token ends what waits at once") {
  Fixture f;
  const auto client = f.connect();
  f.head.away();
  net::LoopThread thread("stranger");
  SystemRandom random;
  std::unique_ptr<net::Listener> listener;
  tests::on_loop(thread.loop(), [&] {
    net::ListenOptions options;
    options.host = "127.0.0.1";
    options.port = f.head.address().port;
    listener = net::listen(thread.loop(), options, net::Token(32, std::byte{1}), random,
                           Logger::discard(), [](net::AcceptedSocket) {})
                   .value();
    return 0;
  });
  CHECK(create(*client).get().code() == Code::kUnauthenticated);
  tests::on_loop(thread.loop(), [&] {
    listener.reset();
    return 0;
  });
}

TEST_CASE("after close nothing is called back") {
  Fixture f;
  const auto client = f.connect();
  Told told;
  client->watch_actor(kActor, "", told.callback());
  CHECK(told.next().ok());
  f.answers = false;
  auto waiting = create(*client);
  f.head.take<wire::CreateActors>();
  client->close();
  f.head.drop_connection();
  auto late = create(*client, 2);
  Told never;
  client->watch_actor(kActor, "", never.callback());
  client->close();  // again: no harm
  CHECK(never.quiet());
  CHECK(told.quiet());
  CHECK_FALSE(waiting.arrived());
  CHECK_FALSE(late.arrived());
  CHECK(f.head.accepted() == 1);
}

TEST_CASE("threads ask at once while connections break: each answer comes once") {
  Fixture f;
  const auto client = f.connect();
  constexpr int kThreads = 4;
  constexpr int kRequests = 50;
  std::atomic<int> answered{0};
  Inbox<bool> all;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRequests; ++i) {
        wire::ActorSpec spec;
        spec.actor_id = ActorId{static_cast<std::uint64_t>(t) + 1, static_cast<std::uint64_t>(i)};
        client->create_actors({spec}, false, false, [&](Status status) {
          if (status.ok() && ++answered == kThreads * kRequests) all.put(true);
        });
        if (i % 20 == 10) f.head.drop_connection();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  all.take();
  CHECK(client->nodes(tests::patience()).ok());
  CHECK(answered == kThreads * kRequests);
}
