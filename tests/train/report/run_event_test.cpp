// events.jsonl: a line as it is written, and back.

#include "train/report/run_event.h"

#include <doctest/doctest.h>

#include "runtime/base/json.h"
#include "tests/support/test_data.h"

using namespace troupe;
using namespace troupe::train;

TEST_CASE("an event writes what it has, in one line of JSON") {
  RunEvent event{.event = "death", .generation = 1, .rank = 0, .node = "a1", .step = 40};
  CHECK(
      event_line(event, 1'770'404'400'000'000) ==
      R"({"time": "2026-02-06T19:00:00.000000Z", "event": "death", "generation": 1, "rank": 0, "node": "a1", "step": 40})");
  event.event = "recovered";
  event.lost_steps = 2;
  event.recovery_ms = 812.5;
  CHECK(event_line(event, 0).ends_with(R"("step": 40, "recovery_ms": 812.5, "lost_steps": 2})"));
  event.cause = "killed by SIGKILL\nat last";
  event.waited_for_by = {1, 2};
  const auto line = event_line(event, 0);
  CHECK(line.find('\n') == std::string::npos);
  CHECK(line.find(R"("waited_for_by": [1, 2])") != std::string::npos);
}

TEST_CASE("an event is read back as it was written") {
  const RunEvent event{.event = "hang",
                       .generation = 3,
                       .rank = 2,
                       .node = "b7",
                       .step = 41,
                       .cause = "no progress for 3001 ms",
                       .doing = "step 42, backward of unit 3, operator \"gemm\"",
                       .waited_for_by = {0, 1, 3},
                       .path = "out/checkpoint-40",
                       .fault = "stop@step=42",
                       .detected_after_ms = 3001.25,
                       .respawn_ms = 120,
                       .attach_ms = 3,
                       .reform_ms = 20.5,
                       .first_step_ms = 90,
                       .recovery_ms = 3234.75,
                       .recomputed_steps = 1,
                       .lost_steps = 0,
                       .run = "run-1",
                       .world_size = 4,
                       .total_steps = 100,
                       .code = 0,
                       .unix_time_us = 1'770'404'400'123'456};
  const auto back = parse_event_line(event_line(event, event.unix_time_us), "events.jsonl", 1);
  REQUIRE(back.ok());
  CHECK(*back == event);
  const RunEvent bare{.event = "start", .unix_time_us = 951'782'400'000'001};  // a leap day
  CHECK(parse_event_line(event_line(bare, bare.unix_time_us), "e", 1).value() == bare);
}

TEST_CASE("a damaged event names its file, its line and what is wrong") {
  const auto message = [](std::string_view line) {
    const auto event = parse_event_line(line, "out/events.jsonl", 7);
    REQUIRE_FALSE(event.ok());
    CHECK(event.status().code() == Code::kDataLoss);
    CHECK(event.status().message().starts_with("out/events.jsonl:7: "));
    return event.status().message();
  };
  const std::string head = R"({"time": "2026-02-06T19:00:00.000000Z", )";
  CHECK(message(R"({"time": "2026-)").ends_with("the line is no JSON object"));
  CHECK(message("[1]").ends_with("the line is no JSON object"));
  CHECK(message(R"({"time": "2026-02-06T19:00:00.000000Z"})").find("'event'") != std::string::npos);
  CHECK(message(R"({"event": "death"})").find("'time'") != std::string::npos);
  CHECK(message(R"({"event": "death", "time": "2026-02-30T19:00:00.000000Z"})").find("'time'") !=
        std::string::npos);
  CHECK(message(head + R"("event": "x", "step": "4"})").ends_with("'step' is no whole number"));
  CHECK(message(head + R"("event": "x", "cause": 4})").ends_with("'cause' is no text"));
  CHECK(
      message(head + R"("event": "x", "respawn_ms": "4"})").ends_with("'respawn_ms' is no number"));
  CHECK(message(head + R"("event": "x", "waited_for_by": [1, "2"]})").ends_with("list of ranks"));
  CHECK(message(head + R"("event": "x", "waited_for_by": 1})").ends_with("list of ranks"));
}

TEST_CASE("a file of events is read while it grows, past lines that are damaged") {
  tests::TemporaryDirectory directory;
  PosixFileSystem files;
  const std::string path = directory.file("events.jsonl");
  CHECK(read_events(files, path).status().code() == Code::kNotFound);
  const std::string start = event_line({.event = "start"}, 1);
  const std::string end = event_line({.event = "end"}, 2);
  REQUIRE(
      write_file_atomically(
          files, path, start + "\n" + start.substr(0, 9) + "\n\n" + end + "\n" + end.substr(0, 30))
          .ok());
  const auto read = read_events(files, path);
  REQUIRE(read.ok());
  REQUIRE(read->events.size() == 2);
  CHECK(read->events[1].event == "end");
  REQUIRE(read->damaged.size() == 1);
  CHECK(read->damaged[0].message() == path + ":2: the line is no JSON object");
}
