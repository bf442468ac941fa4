#include "train/trainer/tokenising_lines.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

namespace troupe::train {
namespace {

class WrittenLines final : public ProgressOutput {
 public:
  explicit WrittenLines(bool terminal) : terminal_(terminal) {}
  bool is_terminal() const override { return terminal_; }
  int width() const override { return 100; }
  void write(std::string_view text) override { all += text; }
  std::string all;

 private:
  const bool terminal_;
};

TEST_CASE("how far the tokenising is: a bar on a terminal, a line now and then elsewhere") {
  for (const bool terminal : {true, false}) {
    ManualClock clock;
    WrittenLines written(terminal);
    TokenisingLines lines(clock, written);
    SamplesMade made{.set = "train", .file_bytes = 4'000'000};
    for (int i = 1; i <= 7; ++i) {
      made.rows += 1000;
      made.tokens += 100'000;
      made.text_bytes += 500'000;
      lines.show(made);
      clock.advance(std::chrono::seconds(1));
    }
    made.set = "eval";
    lines.show(made);
    lines.finish();
    CAPTURE(written.all);
    const auto contains = [&](const char* text) {
      return written.all.find(text) != std::string::npos;
    };
    CHECK(contains("tokenising: 3.3 MiB of 3.8 MiB  7.0k rows  700.0k tokens"));
    CHECK_FALSE(contains("tokenising (eval): "));  // it took no time
    CHECK(contains("488.3 KiB/s") == true);
    CHECK(contains("\r\x1b[K[=====") == terminal);
    CHECK(written.all.ends_with("\n"));
    const auto line_ends = std::ranges::count(written.all, '\n');
    CHECK(line_ends == (terminal ? 1 : 2));
  }
}

}  // namespace
}  // namespace troupe::train
