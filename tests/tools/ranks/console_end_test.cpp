// Which of a rank's last words stand at the console's end.

#include "tools/ranks/console_end.h"

#include <doctest/doctest.h>

#include <string>

#include "runtime/base/random.h"

namespace troupe::tools::console_end_tests {
namespace {

struct Fixture {
  SystemRandom random;
  const ActorId rank = ActorId::make(random), other = ActorId::make(random);
  ConsoleEnd end;

  void error(const ActorId& who, const std::string& text, std::uint32_t shown_bytes = 0) {
    wire::OutputLine line{.actor_id = who, .label = {}, .text = text, .error_stream = true};
    line.shown_bytes = shown_bytes;
    end.show(line);
  }
  void part(const ActorId& who, const std::string& text) {
    wire::OutputLine line{.actor_id = who, .label = {}, .text = text, .error_stream = true};
    line.end = wire::LineEnd::kOpen;
    end.show(line);
  }
  void output(const ActorId& who) { end.show({.actor_id = who, .label = {}, .text = "epoch"}); }
};

TEST_CASE("lines stand at the console's end until another rank writes") {
  Fixture f;
  CHECK_FALSE(f.end.holds(f.rank, "one\n"));
  f.error(f.rank, "one");
  f.error(f.rank, "two");
  CHECK(f.end.holds(f.rank, "one\ntwo\n"));
  CHECK_FALSE(f.end.holds(f.other, "one\ntwo\n"));
  f.output(f.other);
  CHECK_FALSE(f.end.holds(f.rank, "one\ntwo\n"));
  // Only what is behind it counts then.
  f.error(f.rank, "three");
  CHECK(f.end.holds(f.rank, "three\n"));
  CHECK_FALSE(f.end.holds(f.rank, "one\ntwo\nthree\n"));
}

TEST_CASE("much standard output of the rank itself hides its lines") {
  Fixture f;
  f.error(f.rank, "cause");
  for (int i = 0; i < 3; ++i) f.output(f.rank);
  CHECK(f.end.holds(f.rank, "cause\n"));
  for (int i = 0; i < 100; ++i) f.output(f.rank);
  CHECK_FALSE(f.end.holds(f.rank, "cause\n"));
  f.error(f.rank, "end");
  CHECK(f.end.holds(f.rank, "end\n"));
}

TEST_CASE("of a line that another rank interrupted the first part stands further up") {
  Fixture f;
  f.part(f.rank, "disk is full");
  f.output(f.other);
  f.error(f.rank, "disk is full", 12);
  CHECK_FALSE(f.end.holds(f.rank, "disk is full\n"));
  // Where nobody interrupts, parts are the line.
  f.part(f.rank, "disk is");
  f.error(f.rank, "disk is full", 7);
  CHECK(f.end.holds(f.rank, "disk is full\n"));
}

TEST_CASE("a traceback is enough, a chain of them whole") {
  Fixture f;
  const std::string header = "Traceback (most recent call last):";
  f.error(f.rank, "warning");
  f.output(f.other);
  f.error(f.rank, header);
  f.error(f.rank, "OSError: the cause");
  const std::string first = header + "\nOSError: the cause\n";
  CHECK(f.end.holds(f.rank, "warning\n" + first));
  f.output(f.other);
  f.error(f.rank, header);
  f.error(f.rank, "RuntimeError: secondary");
  CHECK_FALSE(f.end.holds(f.rank, first + header + "\nRuntimeError: secondary\n"));
}

}  // namespace
}  // namespace troupe::tools::console_end_tests
