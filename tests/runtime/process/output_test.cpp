#include "runtime/process/output.h"

#include <optional>
#include <string>
#include <vector>

#include "tests/runtime/process/support.h"

namespace troupe::process {
namespace {

TEST_CASE("the tail keeps the last whole lines within its bytes") {
  LogTail tail(20);
  CHECK(tail.empty());
  for (int i = 0; i < 100; ++i) tail.append("line " + std::to_string(i));
  CHECK(tail.text() == "line 98\nline 99\n");
  CHECK(tail.text(10) == "line 99\n");
  CHECK(tail.text(3).empty());
  tail.append(std::string(1000, 'x'));
  CHECK(tail.text() == std::string(19, 'x') + "\n");
  tail.append("");
  CHECK(tail.text() == "\n");
}

struct Lines {
  std::unique_ptr<net::RunnableLoop> loop = net::make_event_loop();
  std::vector<std::string> seen;
  LineReader::Handlers handlers() {
    return {.on_line = [this](std::string_view line) { seen.emplace_back(line); },
            .on_end = [this] { loop->stop(); }};
  }
};

TEST_CASE("output comes line by line, the last one without its end too") {
  Lines lines;
  auto pipe = make_pipe().value();
  LineReader reader(*lines.loop, std::move(pipe.reader), lines.handlers());
  auto options = tests::shell("echo one; echo; printf 'two\\nthree'");
  options.descriptors = {{pipe.writer.get(), 1}};
  const Child child = spawn(options).value();
  pipe.writer.reset();
  lines.loop->run();
  CHECK(lines.seen == std::vector<std::string>{"one", "", "two", "three"});
  CHECK(wait(child, tests::patience()).ok());
}

TEST_CASE("long lines come in pieces, a great deal of output completely") {
  Lines lines;
  auto pipe = make_pipe().value();
  LineReader reader(*lines.loop, std::move(pipe.reader), lines.handlers(), 4);
  REQUIRE(::write(pipe.writer.get(), "abcd\nabcdefghij\n\nabcdefgh", 25) == 25);
  pipe.writer.reset();
  lines.loop->run();
  CHECK(lines.seen == std::vector<std::string>{"abcd", "abcd", "efgh", "ij", "", "abcd", "efgh"});

  Lines many;
  auto wide = make_pipe().value();
  LineReader wide_reader(*many.loop, std::move(wide.reader), many.handlers());
  auto options = tests::shell("seq 1 200000");
  options.descriptors = {{wide.writer.get(), 1}};
  const Child child = spawn(options).value();
  wide.writer.reset();
  many.loop->run();
  REQUIRE(many.seen.size() == 200'000);
  CHECK(many.seen.back() == "200000");
  CHECK(wait(child, tests::patience()).ok());
}

TEST_CASE("what is in the pipe can be taken while somebody keeps it open") {
  Lines lines;
  auto pipe = make_pipe().value();
  LineReader reader(*lines.loop, std::move(pipe.reader), lines.handlers());
  REQUIRE(::write(pipe.writer.get(), "last words\nand a half", 21) == 21);
  reader.drain();
  CHECK(lines.seen == std::vector<std::string>{"last words", "and a half"});
  reader.drain();
  CHECK(lines.seen.size() == 2);
}

TEST_CASE("a handler may destroy its reader") {
  const auto loop = net::make_event_loop();
  auto pipe = make_pipe().value();
  std::unique_ptr<LineReader> reader;
  int lines = 0;
  reader = std::make_unique<LineReader>(*loop, std::move(pipe.reader),
                                        LineReader::Handlers{.on_line =
                                                                 [&](std::string_view) {
                                                                   ++lines;
                                                                   reader.reset();
                                                                   loop->stop();
                                                                 },
                                                             .on_end = nullptr});
  REQUIRE(::write(pipe.writer.get(), "one\ntwo\n", 8) == 8);
  loop->run();
  CHECK(lines == 1);
}

}  // namespace
}  // namespace troupe::process
