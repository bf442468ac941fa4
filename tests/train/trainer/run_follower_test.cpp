// A run is followed while its program does something else.

#include "train/trainer/run_follower.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <string>
#include <vector>

namespace troupe::train {
namespace {

// The controller's end of a connection, and the driver's.
struct ProgressLink {
  ProgressLink() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    controller = UniqueFd(ends[0]);
    driver = UniqueFd(ends[1]);
  }
  void tell(const std::string& lines) const {
    REQUIRE(::write(controller.get(), lines.data(), lines.size()) ==
            static_cast<ssize_t>(lines.size()));
  }
  UniqueFd controller;
  UniqueFd driver;
};

std::string told_step(int number) {
  return R"({"kind": "step", "total_steps": 9, "loss": 1, "step": )" + std::to_string(number) +
         "}\n";
}
const std::string kToldEnd =
    R"({"kind": "end", "code": 0, "message": "", "failures": 1, "last_step": 9, "last_checkpoint": ""})"
    "\n";

TEST_CASE("a controller gets the run's data again while the program waits for something else") {
  ProgressLink first, second;
  std::promise<void> handed_over;
  std::vector<std::int64_t> steps;
  SystemClock clock;
  RunFollower follower(
      std::move(first.driver), clock,
      {.connect = [&](Deadline) -> Result<ByteStream> {
         return ByteStream(std::move(second.driver));
       },
       .tell = [](Interrupt) {},
       .hand_over =
           [&] {
             handed_over.set_value();
             return Status();
           }},
      [](const json::Value& line, const std::string&) {
        return std::optional(TrainingEvent{.kind = TrainingEvent::Kind::kStep,
                                           .step = json::find_integer(line, "step").value_or(-1)});
      });
  const auto take = [&](const TrainingEvent& event) { steps.push_back(event.step); };
  first.tell(told_step(1));
  first.controller.reset();  // with its machine
  second.tell(R"({"kind": "snapshot", "total_steps": 9, "step": 1, "wants_bundle": true})"
              "\n");
  // This thread does not call wait().
  REQUIRE(handed_over.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready);

  CHECK(follower.wait(Deadline::after(std::chrono::milliseconds(0)), take).status().code() ==
        Code::kDeadlineExceeded);
  CHECK(steps == std::vector<std::int64_t>{1});
  second.tell(told_step(2) + kToldEnd);
  for (int again = 0; again < 2; ++again) {
    const auto end = follower.wait(Deadline::after(std::chrono::seconds(20)), take);
    REQUIRE(end.ok());
    CHECK(end->last_step == 9);
  }
  CHECK(steps == std::vector<std::int64_t>{1, 2});
}

TEST_CASE("a program may leave a run that goes on") {
  ProgressLink link;
  SystemClock clock;
  RunFollower follower(std::move(link.driver), clock, {}, {});
  link.tell(told_step(1));
  CHECK(follower.wait(Deadline::after(std::chrono::milliseconds(1)), {}).status().code() ==
        Code::kDeadlineExceeded);
}

}  // namespace
}  // namespace troupe::train
