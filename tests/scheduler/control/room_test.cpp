// What the head's journal has room for: what is refused, what is forgotten, and what never is.

#include <doctest/doctest.h>

#include "scheduler/control/journal_bytes.h"
#include "tests/scheduler/control/desk.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace troupe::scheduler::tests;

namespace {

constexpr std::size_t kArgumentBytes = 10'000;

ActorId actor_id(std::uint64_t number) { return {7, number}; }

struct Room : Desk {
  HeadConfig config;
  explicit Room(std::uint64_t kept_bytes_max = 100'000) {
    config.kept_bytes_max = kept_bytes_max;
    head = HeadState(config);
    journal.clear();
    introduce_driver();
  }
  static wire::ActorSpec large(std::uint64_t number) {
    wire::ActorSpec made = spec(actor_id(number));
    made.constructor_arguments.assign(kArgumentBytes, std::byte{1});
    made.environment = {{"HOME", "/root"}};
    made.image.path = "/bin/program";
    return made;
  }
  Status make(std::uint64_t number) {
    create({large(number)});
    return answer();
  }
  // As many as there is room for.
  std::uint64_t fill() {
    std::uint64_t made = 0;
    while (make(made + 1).ok()) ++made;
    return made;
  }
  void kill(std::uint64_t number, const std::string& reason = "") {
    say(kDriver, wire::KillActor{5, actor_id(number), false, 0, reason, false});
  }
  int count(const std::string& kind) const {
    int found = 0;
    for (const Delta& delta : journal) {
      const auto* logged = get_if<EventLogged>(&delta);
      if (logged != nullptr && logged->event.kind == kind) ++found;
    }
    return found;
  }
  // What a rewrite would write now.
  std::size_t snapshot_bytes() const {
    std::size_t bytes = 0;
    for (const Delta& delta : head.snapshot()) bytes += encode_delta(delta).size();
    return bytes;
  }
  void restart() {
    HeadState second(config);
    for (const Delta& delta : journal) REQUIRE(second.replay(delta).ok());
    CHECK(second.snapshot() == head.snapshot());
    head = std::move(second);
    take(head.resume(now));
  }
};

}  // namespace

TEST_CASE("a full journal refuses what is new with a way out, and loses nothing that is old") {
  Room room;
  const std::uint64_t made = room.fill();
  CHECK(made >= 6);
  const Status refused = room.answer();
  CHECK(refused.code() == Code::kResourceExhausted);
  for (const char* part : {"its limit is 0.1 MiB", "end what is not needed", "in a call instead"}) {
    CHECK_MESSAGE(refused.message().find(part) != std::string::npos, refused.message());
  }
  // Several times, and said once among the events.
  CHECK_FALSE(room.make(99).ok());
  CHECK(room.count("journal_full") == 1);
  CHECK(room.head.kept_bytes() <= room.config.kept_bytes_max);
  CHECK(room.snapshot_bytes() < room.config.kept_bytes_max + 10'000);
  const auto all_there = [&] {
    for (std::uint64_t i = 1; i <= made; ++i) {
      CHECK(room.head.actors().at(actor_id(i)).spec.constructor_arguments.size() == kArgumentBytes);
    }
  };
  all_there();
  room.restart();
  room.introduce_driver();
  all_there();
  CHECK(room.make(99).code() == Code::kResourceExhausted);
  // Where one ends there is room for one.
  room.kill(1);
  CHECK(room.make(100).ok());
  CHECK(room.make(101).code() == Code::kResourceExhausted);
}

TEST_CASE("placement groups, supervisors and jobs are refused by a full journal, too") {
  Room room(11'000);
  const auto refused = [&] { return room.answer().code() == Code::kResourceExhausted; };
  REQUIRE_FALSE(room.make(1).ok());
  std::uint64_t made = 0;
  do {
    room.create(Desk::group({8, ++made}, {1}));
  } while (!refused());
  CHECK(made > 1);
  wire::CreateSupervisor supervisor;
  supervisor.request_id = 3;
  supervisor.spec.supervisor_id = {9, 9};
  supervisor.spec.name = std::string(2'000, 's');
  room.say(kDriver, supervisor);
  CHECK(refused());
  wire::SubmitJob job;
  job.request_id = 4;
  job.driver = Desk::spec({10, 10});
  job.driver.job_id = {11, 11};
  job.driver.program = {{"/bin/true"}, "/"};
  room.say(kDriver, job);
  CHECK(refused());
  CHECK(room.head.jobs().empty());
  room.remove({8, 1});
  room.remove({8, 2});
  supervisor.spec.name = "s";
  room.say(kDriver, supervisor);
  CHECK(room.answer().ok());
}

TEST_CASE("of the dead nobody keeps what only a process needs") {
  Room room;
  const std::uint64_t made = room.fill();
  CHECK(room.snapshot_bytes() > made * kArgumentBytes);
  for (std::uint64_t i = 1; i <= made; ++i) room.kill(i);
  CHECK(room.head.kept_bytes() == 0);
  CHECK(room.snapshot_bytes() < 2 * kArgumentBytes);
  const auto small = [&] {
    const wire::ActorSpec& rest = room.head.actors().at(actor_id(1)).spec;
    CHECK(rest.type == "Counter");
    CHECK(rest.constructor_arguments.empty());
    CHECK(rest.environment.empty());
    CHECK(rest.image.path.empty());
  };
  small();
  room.restart();
  small();
  CHECK(room.info(actor_id(1)).death.message().find("it was killed on request") !=
        std::string::npos);
}

TEST_CASE("what has ended, and events, are remembered within bytes, the oldest forgotten first") {
  Room room;
  room.config.ended_bytes_max = 50'000;
  room.config.event_bytes_max = 20'000;
  room.head = HeadState(room.config);
  room.journal.clear();
  room.introduce_driver();
  for (std::uint64_t i = 1; i <= 40; ++i) {
    wire::ActorSpec spec = Room::large(i);
    spec.name = std::string(1'000, 'n') + std::to_string(i);
    room.create({std::move(spec)});
    REQUIRE(room.answer().ok());
    room.kill(i);
    room.create(Desk::group({8, i}, std::vector<std::int64_t>(10, 1)));
    room.remove({8, i});
  }
  CHECK_FALSE(room.head.actors().contains(actor_id(1)));
  CHECK(room.head.actors().contains(actor_id(40)));
  CHECK_FALSE(room.head.groups().contains({8, 1}));
  CHECK(room.head.groups().contains({8, 40}));
  CHECK(room.snapshot_bytes() < 2 * 50'000 + 20'000);
  room.restart();
  CHECK(room.snapshot_bytes() < 2 * 50'000 + 20'000);
}

TEST_CASE("a reason as long as a book is cut where it is kept") {
  Room room;
  REQUIRE(room.make(1).ok());
  std::string reason;
  while (reason.size() < 1'000'000) reason += "\u00e9l\u00e9phants ";
  room.kill(1, reason);
  CHECK(room.info(actor_id(1)).death.message().size() <= kDeathTextBytes + 3);
  CHECK(room.snapshot_bytes() < 20'000);
  // Never within a character.
  CHECK(clipped("\u00e9\u00e9", 3) == "\u00e9...");
  CHECK(clipped("\u00e9\u00e9", 4) == "\u00e9\u00e9");
}

TEST_CASE("a node that tells a book about itself is refused") {
  Room room;
  room.node(kNodeOne, kIdOne, std::string(100'000, 'n'), Desk::cpus(1));
  const auto replies = room.sent<wire::RegisterNodeReply>(kNodeOne);
  REQUIRE(replies.size() == 1);
  CHECK(replies[0].status.code() == Code::kInvalidArgument);
  CHECK(room.head.nodes().empty());
}
