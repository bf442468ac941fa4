#include "train/report/progress.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/faulty_file_system.h"
#include "train/report/loss_plot.h"

// fontconfig, under cairo, keeps its configuration until the process ends.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libfontconfig\n"; }

namespace troupe::train {
namespace {

class FakeTerminal final : public ProgressOutput {
 public:
  bool is_terminal() const override { return terminal; }
  int width() const override { return columns; }
  void write(std::string_view text) override { writes.emplace_back(text); }

  bool terminal = true;
  int columns = 100;
  std::vector<std::string> writes;
};

constexpr auto kSecond = std::chrono::seconds(1);

TEST_CASE("a terminal sees one line that is redrawn, not too often") {
  ManualClock clock;
  FakeTerminal terminal;
  ProgressReporter progress(clock, terminal, 100);
  clock.advance(kSecond);
  progress.update({1, 2.5, 3e-4, 1000});
  REQUIRE(terminal.writes.size() == 1);
  CHECK(terminal.writes[0] ==
        "\r[>                        ]  1/100  loss 2.5000  0:01:39 left  lr 3.000e-04  1.0k "
        "tokens/s  0:00:01\x1b[K");
  CHECK(terminal.writes[0].size() == 1 + 99 + 3);
  progress.update({2, 2.5, 3e-4, 1000});  // at the same moment
  progress.log();                         // nothing on a terminal
  CHECK(terminal.writes.size() == 1);
  clock.advance(kSecond);
  progress.update({50, 2.5, 3e-4, 1000});
  CHECK(terminal.writes.size() == 2);
  CHECK(terminal.writes[1].find("============>") != std::string::npos);

  progress.message("rank 1 died");
  REQUIRE(terminal.writes.size() == 4);
  CHECK(terminal.writes[2] == "\r\x1b[Krank 1 died\n");
  CHECK(terminal.writes[3] == terminal.writes[1]);

  progress.update({100, 2.5, 3e-4, 1000});  // the last step, whenever it comes
  CHECK(terminal.writes.back().find("100/100") != std::string::npos);
  CHECK(terminal.writes.back().find('>') == std::string::npos);
  progress.finish();
  CHECK(terminal.writes.back() == "\n");
  const auto count = terminal.writes.size();
  progress.update({101, {}, {}, 0});
  progress.finish();
  CHECK(terminal.writes.size() == count);
  progress.message("bye");
  CHECK(terminal.writes.back() == "bye\n");
}

TEST_CASE("every width gets a line that fits") {
  ManualClock clock;
  FakeTerminal terminal;
  ProgressReporter progress(clock, terminal, 1000);
  for (int columns = 1; columns < 200; ++columns) {
    terminal.columns = columns;
    clock.advance(kSecond);
    progress.update({columns, 2.5, 3e-4, 1000});
    CHECK(static_cast<int>(terminal.writes.back().size()) - 4 < columns);
  }
  CHECK(terminal.writes[30].find("31/1000  loss 2.5000") != std::string::npos);
}

TEST_CASE("the bar stays where there is much to say beside it") {
  ManualClock clock;
  FakeTerminal terminal;
  ProgressReporter progress(clock, terminal, 1000);
  for (const int columns : {60, 80, 100, 120, 160}) {
    CAPTURE(columns);
    terminal.columns = columns;
    clock.advance(kSecond);
    progress.update({.step = columns,
                     .loss = 2.5,
                     .learning_rate = 3e-4,
                     .tokens = 1000,
                     .rates = {.gflops = 61, .gemm_share = 0.54}});
    CHECK(terminal.writes.back().starts_with("\r["));
    CHECK(terminal.writes.back().find(" left") != std::string::npos);
    CHECK(static_cast<int>(terminal.writes.back().size()) - 4 < columns);
  }
}

TEST_CASE("a line has the loss that is logged, not that of its last step") {
  ManualClock clock;
  FakeTerminal file;
  file.terminal = false;
  ProgressReporter progress(clock, file, 10);
  progress.update({1, 5.0, {}, 0});
  progress.log(5.5);
  progress.update({2, 4.0, {}, 0});
  progress.log();
  REQUIRE(file.writes.size() == 2);
  CHECK(file.writes[0].find("loss 5.5000") != std::string::npos);
  CHECK(file.writes[1].find("loss 4.0000") != std::string::npos);
}

TEST_CASE("elsewhere: plain lines, one for each log event") {
  ManualClock clock;
  FakeTerminal file;
  file.terminal = false;
  ProgressReporter progress(clock, file, 10, 2);
  clock.advance(2 * kSecond);
  progress.update({3, 2.5, 3e-4, 5000});
  CHECK(file.writes.empty());
  progress.log();
  REQUIRE(file.writes.size() == 1);
  CHECK(file.writes[0] ==
        "step 3/10  loss 2.5000  lr 3.000e-04  2.5k tokens/s  0:00:14 left  0:00:02 elapsed\n");
  progress.message("hello");
  CHECK(file.writes[1] == "hello\n");
  progress.finish();
  CHECK(file.writes.size() == 2);
}

TEST_CASE("a line says where the time went, over all steps since the last line") {
  ManualClock clock;
  FakeTerminal file;
  file.terminal = false;
  ProgressReporter progress(clock, file, 10);
  const auto update = [&](std::int64_t step, const StepSeconds& seconds, double gflops) {
    clock.advance(kSecond);
    progress.update({.step = step,
                     .tokens = 412,
                     .seconds = seconds,
                     .rates = {.tokens_per_s = 412, .gflops = gflops, .gemm_share = gflops / 100}});
  };
  update(1, {.forward = 0.5, .backward = 0.5}, 80);
  update(2, {.backward = 2.5, .communication = 0.5}, 40);
  progress.log();
  REQUIRE(file.writes.size() == 1);
  CHECK(file.writes[0] ==
        "step 2/10  412 tokens/s  50 GFLOP/s (50 % of GEMM)  fwd 12 % bwd 75 % comm 12 %  0:00:08 "
        "left  0:00:02 elapsed\n");
  update(3, {.optimizer = 1}, 2.5);
  progress.log();
  CHECK(file.writes[1].find("  2.5 GFLOP/s (2 % of GEMM)  opt 100 %  ") != std::string::npos);

  FakeTerminal terminal;
  terminal.columns = 120;
  ProgressReporter shown(clock, terminal, 10);
  clock.advance(kSecond);
  shown.update({.step = 1,
                .tokens = 412,
                .seconds = {.forward = 1},
                .rates = {.tokens_per_s = 412, .gflops = 61, .gemm_share = 0.54}});
  CHECK(terminal.writes[0].find("412 tokens/s  61 GFLOP/s (54 %)  0:00:01") != std::string::npos);
  clock.advance(kSecond);
  shown.update({.step = 2, .rates = {.gflops = 61}});  // no rate was measured
  CHECK(terminal.writes[1].find("61 GFLOP/s  ") != std::string::npos);
}

TEST_CASE("the first step's rate is that of its own time where nobody looked before") {
  ManualClock clock;
  FakeTerminal terminal;
  clock.advance(10 * kSecond);
  ProgressReporter progress(clock, terminal, 10);
  clock.advance(std::chrono::nanoseconds(200));
  progress.update({.step = 1, .tokens = 400, .seconds = {.forward = 1, .backward = 3}});
  CHECK(progress.tokens_per_s() == doctest::Approx(100));
  clock.advance(kSecond);
  progress.update({.step = 2, .tokens = 400, .seconds = {.forward = 1}});
  CHECK(progress.tokens_per_s() == doctest::Approx(160));
}

TEST_CASE("rates follow the last steps and start anew after a recovery") {
  ManualClock clock;
  FakeTerminal terminal;
  ProgressReporter progress(clock, terminal, 1000);
  CHECK(progress.remaining_s() == 0);
  for (int step = 1; step <= 100; ++step) {
    clock.advance(kSecond);
    progress.update({step, {}, {}, 10});
  }
  for (int step = 101; step <= 200; ++step) {
    clock.advance(2 * kSecond);
    progress.update({step, {}, {}, 10});
  }
  CHECK(progress.remaining_s() == doctest::Approx(1600));
  CHECK(progress.tokens_per_s() == doctest::Approx(5));
  CHECK(progress.elapsed_s() == doctest::Approx(300));
  clock.advance(60 * kSecond);
  progress.update({150, {}, {}, 10});
  CHECK(progress.remaining_s() == 0);
  clock.advance(kSecond);
  progress.update({151, {}, {}, 10});
  CHECK(progress.remaining_s() == doctest::Approx(849));
}

TEST_CASE("messages of other threads come whole") {
  SystemClock clock;
  FakeTerminal terminal;
  ProgressReporter progress(clock, terminal, 1000);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) progress.message("warning");
    });
  }
  for (int step = 1; step <= 1000; ++step) progress.update({step, 1.0, 1e-3, 10});
  for (auto& thread : threads) thread.join();
  progress.finish();
  int messages = 0;
  for (const auto& text : terminal.writes) messages += text.ends_with("warning\n");
  CHECK(messages == 600);
}

TEST_CASE("the smoothed curve is LLaMA-Factory's") {
  const auto smoothed = smooth({1, 0, 0});
  const double weight = 1.8 * (1 / (1 + std::exp(-0.15)) - 0.5);
  CHECK(smoothed[0] == doctest::Approx(1));
  CHECK(smoothed[1] == doctest::Approx(weight));
  CHECK(smoothed[2] == doctest::Approx(weight * weight));
  CHECK(smooth({}).empty());
  const auto gap = smooth({1, std::nan(""), 1});
  CHECK(gap[1] == 1);
  CHECK(gap[2] == 1);
}

TEST_CASE("plots are drawn for what there is, whatever the values") {
  tests::FaultyFileSystem files;
  REQUIRE(files.create_directories("out").ok());
  json::Array history;
  for (int step = 1; step <= 60; ++step) {
    const double noise = 0.15 * std::sin(step * 12.9898);
    history.push_back(
        json::Object{{"loss", 2 + 8 * std::exp(-step / 12.0) + noise}, {"step", 10 * step}});
  }
  history.push_back(json::Object{{"train_loss", 2.0}, {"step", 600}});
  const auto names = plot_loss(files, "out", history, {"loss", "eval_loss"}).value();
  CHECK(names == std::vector<std::string>{"training_loss.png"});
  const auto png = files.read("out/training_loss.png", 1 << 20).value();
  CHECK(png.substr(1, 3) == "PNG");
  CHECK(png.size() > 5000);
  if (const char* out = std::getenv("TROUPE_KEEP_PLOT")) {
    PosixFileSystem real;
    CHECK(write_file_atomically(real, out, png).ok());
  }
  const double nan = std::nan("");
  const std::vector<std::vector<double>> hard = {
      {},          {1}, {0, 0}, {nan, nan}, {nan, 2, nan, 3, 4}, {1e300, -1e300}, {1, 1 + 1e-15},
      {5e-8, 6e-8}};
  for (const auto& values : hard) {
    Curve curve{std::string(300, 'x'), "loss", {}, values};
    for (std::size_t i = 0; i < values.size(); ++i) curve.steps.push_back(static_cast<double>(i));
    CHECK(draw_curve(curve).ok());
  }
}

}  // namespace
}  // namespace troupe::train
