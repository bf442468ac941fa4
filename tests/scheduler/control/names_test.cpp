// Names in namespaces, and getting or creating.

#include "desk.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace troupe::scheduler::tests;

namespace {

constexpr PeerId kOtherDriver = 2;

void hello(Desk& desk, PeerId peer, std::uint64_t number, const std::string& namespace_name) {
  wire::ClientHello message;
  message.request_id = 1;
  message.client_id = ClientId{number, number};
  message.job_id = JobId{number, number};
  message.namespace_name = namespace_name;
  desk.say(peer, message);
}

Status create(Desk& desk, PeerId peer, wire::ActorSpec spec) {
  wire::CreateActors message;
  message.request_id = 3;
  message.specs = {std::move(spec)};
  desk.say(peer, message);
  return desk.sent<wire::Reply>(peer).at(0).status;
}

wire::Reply get_or_create(Desk& desk, PeerId peer, wire::ActorSpec spec) {
  wire::CreateActors message;
  message.request_id = 3;
  message.specs = {std::move(spec)};
  message.get_if_exists = true;
  desk.say(peer, message);
  return desk.sent<wire::Reply>(peer).at(0);
}

// Whom the name leads to; empty: nobody.
ActorId look_up(Desk& desk, PeerId peer, const std::string& name,
                const std::string& namespace_name = {}) {
  desk.say(peer, wire::WatchActor{4, {}, name, false, namespace_name});
  const auto updates = desk.sent<wire::ActorUpdate>(peer);
  return updates.empty() ? ActorId{} : updates[0].actor.actor_id;
}

wire::ActorSpec named(ActorId id, const std::string& name = "counter") {
  wire::ActorSpec spec = Desk::spec(id);
  spec.name = name;
  return spec;
}

}  // namespace

// peer: NamespaceTest
TEST_CASE("a name is unique in its namespace, and found from elsewhere by both") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 8);
  hello(desk, kDriver, 9, "shop");
  hello(desk, kOtherDriver, 8, "");
  REQUIRE(create(desk, kDriver, named({1, 1})).ok());
  CHECK(desk.info({1, 1}).namespace_name == "shop");
  CHECK(create(desk, kDriver, named({1, 2})).code() == Code::kAlreadyExists);
  CHECK(create(desk, kDriver, named({1, 2})).message().find("'shop'") != std::string::npos);
  // Another namespace is another world: the other driver's is its job's own.
  CHECK(look_up(desk, kOtherDriver, "counter") == ActorId{});
  REQUIRE(create(desk, kOtherDriver, named({1, 3})).ok());
  CHECK(look_up(desk, kOtherDriver, "counter") == ActorId{1, 3});
  CHECK(desk.info({1, 3}).namespace_name == wire::namespace_of_job(JobId{8, 8}));
  CHECK(look_up(desk, kDriver, "counter") == ActorId{1, 1});
  CHECK(look_up(desk, kOtherDriver, "counter", "shop") == ActorId{1, 1});
  // A namespace may be named for one actor.
  wire::ActorSpec visitor = named({1, 4}, "visitor");
  visitor.namespace_name = "shop";
  REQUIRE(create(desk, kOtherDriver, visitor).ok());
  CHECK(look_up(desk, kDriver, "visitor") == ActorId{1, 4});
}

TEST_CASE("drivers of one namespace share names") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 8);
  hello(desk, kDriver, 9, "shop");
  hello(desk, kOtherDriver, 8, "shop");
  REQUIRE(create(desk, kDriver, named({1, 1})).ok());
  CHECK(create(desk, kOtherDriver, named({1, 2})).code() == Code::kAlreadyExists);
  CHECK(look_up(desk, kOtherDriver, "counter") == ActorId{1, 1});
}

// peer: KillForGood
TEST_CASE("an actor that was told to end has lost its name; one that restarts keeps it") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 8);
  wire::ActorSpec spec = named(kActor);
  spec.restart.max_restarts = 1;
  REQUIRE(create(desk, kDriver, spec).ok());
  desk.ready(kNodeOne, kActor, 1);
  desk.say(kDriver, wire::KillActor{5, kActor, true, 0, "again"});
  CHECK(look_up(desk, kDriver, "counter") == kActor);
  desk.killed(kNodeOne, kActor, 1);
  CHECK(look_up(desk, kDriver, "counter") == kActor);
  desk.pass(milliseconds(20), {{kNodeOne, kIdOne}});
  desk.ready(kNodeOne, kActor, 2);
  desk.say(kDriver, wire::KillActor{5, kActor, false, 0, "enough"});
  CHECK(desk.info().state == wire::ActorState::kAlive);  // its process is not gone yet
  CHECK(look_up(desk, kDriver, "counter") == ActorId{});
  REQUIRE(create(desk, kDriver, named({1, 2})).ok());
  SUBCASE("and the old one's end takes nothing from the new one") {
    desk.killed(kNodeOne, kActor, 2);
  }
  SUBCASE("also for a head that comes back") {
    desk.restart();
    desk.introduce_driver();
  }
  CHECK(look_up(desk, kDriver, "counter") == ActorId{1, 2});
}

TEST_CASE("getting or creating: the first one creates, the others get that one") {
  Desk desk;
  desk.node(kNodeOne, kIdOne, 8);
  hello(desk, kDriver, 9, "shop");
  hello(desk, kOtherDriver, 8, "shop");
  const wire::Reply first = get_or_create(desk, kDriver, named({1, 1}));
  CHECK(first.status.ok());
  CHECK(first.actor_id == ActorId{1, 1});
  const wire::Reply second = get_or_create(desk, kOtherDriver, named({1, 2}));
  CHECK(second.status.ok());
  CHECK(second.actor_id == ActorId{1, 1});
  CHECK(desk.head.actors().size() == 1);
  // Said again over a new connection.
  CHECK(get_or_create(desk, kDriver, named({1, 1})).actor_id == ActorId{1, 1});
  SUBCASE("of another class") {
    wire::ActorSpec other = named({1, 3});
    other.type = "Ledger";
    const wire::Reply refused = get_or_create(desk, kOtherDriver, other);
    CHECK(refused.status.code() == Code::kInvalidArgument);
    CHECK(refused.status.message().find("is a Counter, not a Ledger") != std::string::npos);
  }
  SUBCASE("with other arguments") {
    wire::ActorSpec other = named({1, 3});
    other.constructor_arguments = {std::byte{1}};
    CHECK(get_or_create(desk, kOtherDriver, other).status.code() == Code::kInvalidArgument);
  }
  SUBCASE("without a name") {
    CHECK(get_or_create(desk, kOtherDriver, Desk::spec({1, 3})).status.code() ==
          Code::kInvalidArgument);
  }
  SUBCASE("when that one has ended") {
    desk.say(kDriver, wire::KillActor{5, {1, 1}, false, 0, "enough"});
    CHECK(get_or_create(desk, kOtherDriver, named({1, 3})).actor_id == ActorId{1, 3});
  }
}
