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
    // On a busy machine a line may be told when only its beginning has been read.
    return {.on_line =
                [this](const OutputPiece& piece) {
                  if (piece.end != wire::LineEnd::kOpen) seen.emplace_back(piece.text);
                },
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

TEST_CASE("a carriage return ends a piece, and a line that waits for its end is told so far") {
  using wire::LineEnd;
  const auto loop = net::make_event_loop();
  auto pipe = make_pipe().value();
  std::vector<std::string> seen;
  const auto say = [&](std::string_view text) {
    REQUIRE(::write(pipe.writer.get(), text.data(), text.size()) ==
            static_cast<ssize_t>(text.size()));
  };
  const auto name = [](LineEnd end) {
    return end == LineEnd::kNewline  ? "newline"
           : end == LineEnd::kReturn ? "return"
           : end == LineEnd::kOpen   ? "open"
                                     : "none";
  };
  LineReader reader(*loop, std::move(pipe.reader),
                    {.on_line =
                         [&](const OutputPiece& piece) {
                           seen.push_back(std::string(piece.text.substr(0, piece.shown_bytes)) +
                                          "|" + std::string(piece.text.substr(piece.shown_bytes)) +
                                          "|" + name(piece.end));
                           // Answers to what waits.
                           if (seen.back() == "|name? |open") say("Ada\r");
                           if (seen.back() == "name? |Ada|return") say("\nend");
                           if (seen.back() == "|end|open") loop->stop();
                         },
                     .on_end = nullptr});
  say("\r10%\r100%\r\nname? ");
  loop->run();
  reader.drain();
  CHECK(seen == std::vector<std::string>{"||return", "|10%|return", "|100%\r|newline",
                                         "|name? |open", "name? |Ada|return", "||newline",
                                         "|end|open", "end||none"});
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
                                                                 [&](const OutputPiece&) {
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
