// A process's side of the object stores, with a store that does what the test says.

#include "actors/objects/object_client.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "scheduler/objects/object_store.h"
#include "tests/actors/objects/fake_store.h"

namespace troupe::tests {
namespace {

using namespace std::chrono_literals;

Deadline client_deadline() { return Deadline::after(10s); }

struct Process {
  FakeStore store;
  const std::shared_ptr<detail::ObjectClient> client = store.client();

  Result<detail::HeldObjectPtr> put(std::byte value, std::size_t bytes = 1000) {
    auto room = TROUPE_TRY(client->make_room(bytes, client_deadline()));
    std::ranges::fill(room->bytes(), value);
    return room->seal(/*type_hash=*/1);
  }
  // Whether it is read, and is what was put.
  bool reads(const detail::HeldObjectPtr& object, std::byte value) {
    const auto read = client->read(*object, client_deadline());
    return read.ok() && std::ranges::all_of(read->bytes, [=](std::byte b) { return b == value; });
  }
};

TEST_CASE_FIXTURE(Process,
                  "an object of a store that has ended is lost, and never another's bytes") {
  auto first = put(std::byte{1}).value();
  REQUIRE(reads(first, std::byte{1}));
  store.end_connection();
  // (What is put before the process hears of it is lost as well.)
  auto second = put(std::byte{2}, 500);
  for (const Deadline patience = client_deadline();
       !(second.ok() && reads(*second, std::byte{2})) && !patience.passed();) {
    second = put(std::byte{2}, 500);
  }
  REQUIRE(second.ok());
  // It comes again, and the new store counts it: where it lay, another one lies.
  detail::ObjectIntake intake;
  REQUIRE(client->arrived(first->record, intake) == first);
  REQUIRE(client->hold_all(intake, client_deadline()).ok());
  CHECK(client->read(*first, client_deadline()).status().code() == Code::kObjectLost);
  // Nor is the other one's memory given back with it.
  intake.objects.clear();
  first.reset();
  const auto third = put(std::byte{3}, 500).value();
  CHECK(reads(*second, std::byte{2}));
  CHECK(reads(third, std::byte{3}));
}

TEST_CASE_FIXTURE(Process, "a get that is given up is forgotten by the store, too") {
  const wire::ObjectRecord record{
      .object_id = {1, 2}, .home = store.node_id(), .bytes = 10, .type_hash = 1};
  REQUIRE(client->make_room(1, client_deadline()).ok());
  store.set_pending(true);
  detail::ObjectIntake intake;
  const auto object = client->arrived(record, intake);
  REQUIRE(client->hold_all(intake, client_deadline()).ok());
  CHECK(client->read(*object, Deadline::after(0s)).status().code() == Code::kDeadlineExceeded);
  const auto get = store.next<wire::GetObject>();
  const auto forget = store.next<wire::ForgetObjectRequest>();
  REQUIRE((get && forget));
  CHECK(forget->request == get->request);
  CHECK(forget->object_id == record.object_id);
}

TEST_CASE_FIXTURE(Process, "memory that is granted when nobody waits for it is given back") {
  REQUIRE(client->make_room(1, client_deadline()).ok());
  const auto first = store.next<wire::NewSegment>();
  store.set_pending(true);
  CHECK(client->make_room(1u << 20, Deadline::after(0s)).status().code() ==
        Code::kDeadlineExceeded);
  const auto asked = store.next<wire::NewSegment>();
  REQUIRE((first && asked));
  store.grant(*asked);
  // And a store that decides by itself has it again with what is said then.
  scheduler::ObjectStore real({.memory_max_bytes = 64u << 20});
  const auto tell = [&](const auto& message) {
    REQUIRE(message.has_value());
    CHECK(real.on_process(1, wire::ObjectMessage(*message), TimePoint()).ok());
  };
  real.process_joined(1, "test");
  tell(first);
  tell(asked);
  CHECK(real.totals().memory_bytes == first->bytes + asked->bytes);
  tell(store.next<wire::PutObject>());
  tell(store.next<wire::SegmentsRevoked>());
  tell(store.next<wire::ReleaseObjects>());
  real.begin_settling();
  real.settle();
  CHECK(real.totals().memory_bytes == first->bytes);
  CHECK(real.inconsistency().empty());
}

}  // namespace
}  // namespace troupe::tests
