#include "train/trainer/told_reports.h"

#include <doctest/doctest.h>

namespace troupe::train {
namespace {

const RunPosition kAt{.generation = 3, .rank = 1, .last_step = 20};
const RunSpec kSpec{.run = "demo", .output_dir = "/out", .hold_timeout_s = 60};

TEST_CASE("a failed checkpoint is told with its folder and its own step, not the run's") {
  const auto told =
      to_event(CheckpointFailedReport{15, error(Code::kUnavailable, "disk full")}, kAt, kSpec);
  CHECK(told.event.event == events::kCheckpointFailed);
  CHECK(told.event.generation == 3);
  CHECK(told.event.rank == 1);
  CHECK(told.event.step == 15);
  CHECK(told.event.path == "/out/checkpoint-15");
  CHECK(told.event.cause.find("disk full") != std::string::npos);
  CHECK(told.text.starts_with("warning: checkpoint-15 was not written: "));
}

TEST_CASE("a model that found no room is told with the way out") {
  const auto told =
      to_event(ModelHeldReport{"/out", error(Code::kUnavailable, "disk full")}, kAt, kSpec);
  CHECK(told.event.step == 20);
  CHECK(told.event.path == "/out");
  CHECK(told.text.find("'troupe save demo DIR'") != std::string::npos);
}

TEST_CASE("a notice is of no rank") {
  const auto told = to_event(NoticeReport{"early stopping"}, kAt, kSpec);
  CHECK(told.event.rank == -1);
  CHECK(told.event.step == 20);
  CHECK(told.event.cause == "early stopping");
  CHECK(told.text == "early stopping");
}

TEST_CASE("a recovery's times become milliseconds where they are known") {
  RecordEvent command{};
  command.event = events::kRecovered;
  command.times.emplace();
  command.times->reform = std::chrono::microseconds(1500);
  const RunEvent event = to_event(command);
  CHECK(event.reform_ms == 1.5);
  CHECK_FALSE(event.attach_ms);
}

TEST_CASE("which worlds a run may go on from, as its events tell") {
  const World first{0, {0, 1}};
  const auto change = [](std::int64_t step, std::int32_t number,
                         std::vector<std::int32_t> trainers) {
    const RunEvent event = to_event(
        RecordEvent{.event = events::kResize, .step = step, .world = World{number, trainers}});
    CHECK(event.world_size == std::ssize(trainers));
    // As it is read.
    return parse_event_line(event_line(event, 0), "events.jsonl", 1).value();
  };
  const auto numbers = [&](const std::vector<RunEvent>& events, std::int64_t steps) {
    std::vector<std::int32_t> found;
    for (const World& world : worlds_told(events, first, steps)) found.push_back(world.number);
    return found;
  };
  using Numbers = std::vector<std::int32_t>;
  CHECK(numbers({}, 7) == Numbers{0});
  const auto to_four = change(5, 1, {0, 1, 2, 3});
  CHECK(numbers({to_four}, 5) == Numbers{1, 0});  // no step stood since
  CHECK(numbers({to_four}, 6) == Numbers{1});
  const auto back = change(5, 2, {0, 1});
  CHECK(numbers({to_four, back}, 5) == Numbers{2, 1, 0});
  CHECK(numbers({to_four, change(8, 2, {0, 1})}, 8) == Numbers{2, 1});
  CHECK(worlds_told({to_four}, first, 6).front().trainers == std::vector<std::int32_t>{0, 1, 2, 3});
  // What a run before wrote into the same folder.
  const RunEvent start{.event = events::kStart, .run = "next"};
  CHECK(numbers({to_four, start}, 6) == Numbers{0});
}

}  // namespace
}  // namespace troupe::train
