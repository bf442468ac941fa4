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

}  // namespace
}  // namespace troupe::train
