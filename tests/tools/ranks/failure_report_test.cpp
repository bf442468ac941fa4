// The summary of failed ranks.

#include "tools/ranks/failure_report.h"

#include <doctest/doctest.h>

#include "tests/support/text.h"

namespace troupe::tools::failure_report_tests {
namespace {

using troupe::tests::contains;

TEST_CASE("the file that @record writes, in both of its forms") {
  const auto error = parse_error_file(
      R"({"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack": "Traceback …\nValueError: boom", "timestamp": "1795365965"}}})");
  REQUIRE(error);
  CHECK(contains(error->message, "boom"));
  CHECK(error->timestamp_s == 1795365965);
  const auto plain = parse_error_file(R"({"message": "gone", "timestamp": 12})");
  REQUIRE(plain);
  CHECK(plain->message == "gone");
  CHECK(plain->timestamp_s == 12);
  for (const char* text : {"", "{}", "[1]", "{\"message\": ", "nonsense"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_error_file(text));
  }
}

FailedRank failed(int rank, std::int64_t unix_s, const char* file) {
  FailedRank one;
  one.rank = one.local_rank = rank;
  one.host = "node-a";
  one.pid = 100 + rank;
  one.exit_code = 7;
  one.unix_s = unix_s;
  one.error_file = file;
  return one;
}

TEST_CASE("the root cause is the earliest that a rank recorded, else the first that was seen") {
  CHECK(root_cause({failed(0, 50, ""), failed(1, 40, "")}) == 0);
  CHECK(root_cause({failed(0, 50, "a"), failed(1, 40, "b"), failed(2, 45, "c")}) == 1);
  // A rank without a file: the time of its end is not that of its fault.
  CHECK(root_cause({failed(0, 50, "a"), failed(1, 40, "")}) == 0);
}

TEST_CASE("torchrun's block, with the root cause's last lines first") {
  auto root = failed(1, 40, "/tmp/e.json");
  root.traceback = "ValueError: boom";
  root.last_lines = "one\ntwo\n";
  auto other = failed(0, 50, "");
  other.exit_code = 0;
  other.signal = 15;
  const std::string text = failure_report("train.py", {root, other});
  CHECK(text.starts_with("The last lines of rank 1's standard error:\none\ntwo\n====="));
  CHECK(contains(text, "\ntrain.py FAILED\n"));
  CHECK(contains(text, "Failures:\n[1]:\n"));
  CHECK(contains(text, "Root Cause (first observed failure):\n[0]:\n"));
  CHECK(contains(text,
                 "  rank      : 1 (local_rank: 1)\n  exitcode  : 7 (pid: 101)\n"
                 "  error_file: /tmp/e.json\n  traceback : ValueError: boom\n"));
  CHECK(contains(text,
                 "  exitcode  : -15 (pid: 100)\n  error_file: <N/A>\n"
                 "  traceback : Signal 15 (SIGTERM) received by PID 100\n"));
  const std::string alone = failure_report("train.py", {root});
  CHECK(contains(alone, "  <NO_OTHER_FAILURES>\n"));
  CHECK(failure_report("train.py", {}).empty());
}

TEST_CASE("the traceback of the error file is left out of standard error's last lines") {
  auto root = failed(1, 40, "/tmp/e.json");
  const std::string header = "Traceback (most recent call last):\n";
  const std::string frames = "  File \"x.py\", line 3, in main\n    raise E\nE: boom\n";
  root.traceback = header + frames;
  const auto report = [&](const std::string& last_lines) {
    root.last_lines = last_lines;
    return failure_report("x.py", {root});
  };
  const std::string outer = "  File \"x.py\", line 9, in <module>\n    main()\n";
  CHECK(report("before\n" + header + outer + frames + "after\n")
            .starts_with("The last lines of rank 1's standard error:\nbefore\nafter\n===="));
  // Nothing else is there, or its beginning is not among the last lines any more.
  CHECK(report(header + outer + frames).starts_with("===="));
  CHECK(report("    raise E\nE: boom\n").starts_with("===="));
  CHECK(contains(report(header + outer + "E: another\n"), "E: another"));
}

TEST_CASE("ranks that never ran are told together, by reason") {
  auto one = failed(0, 1, ""), two = failed(2, 1, ""), other = failed(1, 1, "");
  one.started = two.started = other.started = false;
  one.death = two.death = "no program 'x'";
  other.death = "no folder";
  CHECK(start_failure({one, two, other}) ==
        "ranks 0, 2 could not be started: no program 'x'; rank 1 could not be started: no folder");
  other.started = true;
  CHECK_FALSE(start_failure({one, other}).has_value());
  CHECK_FALSE(start_failure({}).has_value());
}

TEST_CASE("a rank whose end nobody saw says why, and one without a file how to have one") {
  auto lost = failed(0, 1, "");
  lost.death = "its node was lost";
  CHECK(contains(failure_report("x", {lost}), "traceback : its node was lost\n"));
  CHECK(contains(failure_report("x", {failed(0, 1, "")}), "To enable traceback see: https://"));
}

}  // namespace
}  // namespace troupe::tools::failure_report_tests
