// Labels that the head numbers: first_free(N).

#include "desk.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace troupe::scheduler::tests;

namespace {

struct Numbered : Desk {
  void join(PeerId peer, NodeId id, const std::string& seat = "first_free(2)") {
    now.unix_us += 1;
    node(peer, id, "machine", cpus(4), {{"seat", seat}});
  }
  // The node's number; empty: it has none.
  std::string seat(NodeId id) {
    const auto& labels = head.nodes().at(id).info.labels;
    const auto found = labels.find("seat");
    return found == labels.end() ? "" : found->second;
  }
  static wire::ActorSpec seated(ActorId id, const std::string& number) {
    wire::ActorSpec wanted = spec(id, 1, 5);
    wanted.label_selector.push_back({.key = "seat", .values = {number}});
    return wanted;
  }
};

}  // namespace

TEST_CASE("nodes are numbered in the order in which they come; who finds none free stands by") {
  Numbered desk;
  desk.join(kNodeTwo, kIdTwo);
  desk.join(kNodeOne, kIdOne);
  desk.join(kNodeThree, kIdThree);
  CHECK(desk.seat(kIdTwo) == "0");
  CHECK(desk.seat(kIdOne) == "1");
  CHECK(desk.seat(kIdThree) == "");
}

TEST_CASE("a number that was given by hand is taken") {
  Numbered desk;
  desk.join(kNodeOne, kIdOne, "0");
  desk.join(kNodeTwo, kIdTwo);
  CHECK(desk.seat(kIdTwo) == "1");
}

TEST_CASE("who stands by gets a lost node's number, and with it the actors that ask for it") {
  Numbered desk;
  desk.join(kNodeOne, kIdOne);
  desk.join(kNodeTwo, kIdTwo);
  desk.join(kNodeThree, kIdThree);
  desk.create({Numbered::seated(kActor, "1")});
  desk.ready(kNodeTwo, kActor, 1);
  desk.say(kDriver, wire::DrainNode{16, kIdOne, 5'000, "a new disk"});
  CHECK(desk.seat(kIdThree) == "");  // a drained node is there still
  desk.lose(kNodeTwo);
  desk.pass(milliseconds(60'000), {{kNodeOne, kIdOne}, {kNodeThree, kIdThree}});
  CHECK(desk.head.nodes().at(kIdTwo).dead());
  CHECK(desk.seat(kIdThree) == "1");
  CHECK(desk.info().node_id == kIdThree);
  // The lost one comes back, and stands by.
  desk.join(kNodeTwo, kIdTwo);
  CHECK(desk.seat(kIdTwo) == "");
}

TEST_CASE("a node that comes back keeps its number, also to a head that was started again") {
  Numbered desk;
  desk.join(kNodeOne, kIdOne);
  desk.join(kNodeTwo, kIdTwo);
  desk.lose(kNodeTwo);
  desk.join(22, kIdTwo);
  CHECK(desk.seat(kIdTwo) == "1");
  HeadState second;
  for (const Delta& delta : desk.journal) REQUIRE(second.replay(delta).ok());
  second.resume(desk.now);
  desk.head = std::move(second);
  desk.join(32, kIdTwo);
  desk.join(33, kIdThree);
  desk.join(31, kIdOne);
  CHECK(desk.seat(kIdOne) == "0");
  CHECK(desk.seat(kIdTwo) == "1");
  CHECK(desk.seat(kIdThree) == "");
}

TEST_CASE("what is no bound is refused with the label's name") {
  for (const char* wrong : {"first_free()", "first_free(0)", "first_free(2", "first_free(-1)",
                            "first_free(2x)", "first_free(99999999999999999999)"}) {
    Numbered desk;
    desk.join(kNodeOne, kIdOne, wrong);
    const auto replies = desk.sent<wire::RegisterNodeReply>(kNodeOne);
    REQUIRE(replies.size() == 1);
    CHECK(replies[0].status.code() == Code::kInvalidArgument);
    CHECK(replies[0].status.message().find("label 'seat'") != std::string::npos);
  }
}
