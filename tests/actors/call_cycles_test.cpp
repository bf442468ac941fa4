#include "actors/call_cycles.h"

#include <doctest/doctest.h>

#include <vector>

namespace troupe::detail {
namespace {

constexpr ClientId kDriver{1, 1}, kA{2, 2}, kB{3, 3};

struct Awaited final : AwaitedCall {
  void send_probe(wire::CallProbe probe) override { sent.push_back(std::move(probe)); }
  void give_up(Status why) override { given_up = std::move(why); }
  std::vector<wire::CallProbe> sent;
  Status given_up;
};

TEST_CASE("a probe that comes back ends the wait that sent it") {
  CallCycles at_a, at_b;
  Awaited a_waits, b_waits;
  // The driver's call 1 at a waits for a's call 1 at b, which waits for b's call 1 at a, which
  // waits in the lane of the first.
  at_a.begin_wait({kDriver, 1, 0, "x of a"}, a_waits);
  REQUIRE(a_waits.sent.size() == 1);
  at_b.arrived(kA, a_waits.sent[0], std::nullopt);  // it runs, and does not wait yet
  at_b.begin_wait({kA, 1, 0, "y of b"}, b_waits);
  REQUIRE(b_waits.sent.size() == 1);
  wire::CallProbe probe = b_waits.sent[0];
  probe.sequence = 1;
  at_a.arrived(kB, probe, 0);
  REQUIRE(a_waits.sent.size() == 2);
  CHECK(a_waits.given_up.ok());
  probe = a_waits.sent[1];
  probe.sequence = 1;
  CHECK(probe.path == std::vector<std::string>{"y of b", "x of a"});
  at_b.arrived(kA, probe, std::nullopt);
  CHECK(b_waits.given_up.code() == Code::kFailedPrecondition);
  CHECK(b_waits.given_up.message().find("y of b -> x of a -> y of b") != std::string::npos);
}

TEST_CASE("a probe ends where somebody goes on by himself") {
  CallCycles cycles;
  Awaited waits;
  cycles.begin_wait({kDriver, 1, 0, "x"}, waits);
  wire::CallProbe probe{7, kB, 9, {"y"}};
  cycles.arrived(kA, probe, std::nullopt);  // not known to wait
  cycles.arrived(kA, probe, 1);             // behind another lane
  CHECK(waits.sent.size() == 1);
  probe.path.assign(64, "y");
  cycles.arrived(kA, probe, 0);  // too long a way
  CHECK(waits.sent.size() == 1);
  cycles.end_wait(kDriver, 1);
  probe.path.resize(1);
  cycles.arrived(kA, probe, 0);
  CHECK(waits.sent.size() == 1);
}

}  // namespace
}  // namespace troupe::detail
