// What the driver shows of a run, and how it follows one whose controller is replaced.

#include "train/trainer/progress_lines.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>

#include "train/report/format.h"

namespace troupe::train {
namespace {

class Written final : public ProgressOutput {
 public:
  bool is_terminal() const override { return terminal; }
  int width() const override { return 60; }
  void write(std::string_view text) override { all += text; }
  bool terminal = false;
  std::string all;
};

// The controllers of a run, one after another: what each writes before it is gone.
class Controllers {
 public:
  // A connection that holds `text`, and whose other end stays or is closed.
  UniqueFd next(const std::string& text, bool stays = false) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    UniqueFd controller(ends[0]);
    REQUIRE(::write(controller.get(), text.data(), text.size()) ==
            static_cast<ssize_t>(text.size()));
    if (stays) kept_.push_back(std::move(controller));
    return UniqueFd(ends[1]);
  }
  // Waits in line for connect().
  void then(const std::string& text) { later_.emplace_back(ByteStream(next(text))); }
  void then_fail(Status status) { later_.push_back(std::move(status)); }

  ProgressLinesOptions options() {
    return {.connect = [this](Deadline) -> Result<ByteStream> {
              if (later_.empty()) return error(Code::kUnavailable, "not up");
              auto first = std::move(later_.front());
              later_.pop_front();
              return first;
            },
            .tell = [this](Interrupt wish) { told.push_back(wish); },
            .hand_over =
                [this] {
                  ++handed_over;
                  return hand_over_status;
                }};
  }
  int handed_over = 0;
  Status hand_over_status;
  std::vector<Interrupt> told;

 private:
  std::deque<Result<ByteStream>> later_;
  std::vector<UniqueFd> kept_;
};

std::string step(int number) {
  return fmt::format(
             R"({{"kind": "step", "step": {}, "total_steps": 9, "loss": NaN, "lr": 0.1, "logged": true}})",
             number) +
         "\n";
}
std::string event(const RunEvent& event, const std::string& text) {
  return fmt::format(R"({{"kind": "event", "event": "{}", "text": "{}", "line": {}}})", event.event,
                     text, event_line(event, 1'000'000)) +
         "\n";
}
std::string end(int code, const std::string& message = "") {
  return fmt::format(R"({{"kind": "end", "code": {}, "message": "{}", "failures": 1, )"
                     R"("last_step": 9, "last_checkpoint": "out/checkpoint-9"}})",
                     code, message) +
         "\n";
}

struct Followed {
  Written output;
  Controllers controllers;
  ManualClock clock;
  std::vector<RunEvent> events;
  Result<RunEnd> follow(UniqueFd socket, ProgressLinesOptions options) {
    ProgressLines lines(std::move(socket), clock, output, std::move(options));
    auto end = lines.follow();
    events = lines.events();
    return end;
  }
  Result<RunEnd> follow(UniqueFd socket) {
    return follow(std::move(socket), controllers.options());
  }
};

TEST_CASE("a recovery is one line, above the progress bar of a terminal") {
  Followed run;
  const std::string text =
      step(1) + step(2) +
      event({.event = "death", .rank = 1, .node = "a1", .step = 2, .cause = "signal 9 (SIGKILL)"},
            "rank 1 died: killed") +
      event({.event = "respawn", .rank = 1, .step = 2, .respawn_ms = 80}, "a new process") +
      event({.event = "resume", .step = 2}, "training goes on") +
      event({.event = "recovered",
             .step = 3,
             .recovery_ms = 150,
             .recomputed_steps = 1,
             .lost_steps = 0},
            "step 3 stands") +
      step(3) + end(0);
  auto ended = run.follow(run.controllers.next(text));
  REQUIRE(ended.ok());
  CHECK(ended->status.ok());
  CHECK(ended->failures == 1);
  CHECK(ended->last_checkpoint == "out/checkpoint-9");
  CHECK(run.events.size() == 4);
  const std::string recovered =
      "rank 1 (SIGKILL) recovered in 150 ms: respawn 80; 1 step recomputed, 0 lost\n";
  CHECK(run.output.all.find("rank 1 died: killed\n" + recovered + "step 3/9") != std::string::npos);
  for (const char* hidden : {"a new process", "training goes on", "stands"}) {
    CHECK(run.output.all.find(hidden) == std::string::npos);
  }

  Followed terminal;
  terminal.output.terminal = true;
  REQUIRE(terminal.follow(terminal.controllers.next(text)).ok());
  CHECK(terminal.output.all.find("\r\x1b[K" + recovered + "\r") != std::string::npos);
}

TEST_CASE("a controller that is replaced: half a line is dropped, what comes twice is shown once") {
  Followed run;
  const RunEvent death{.event = "death", .rank = 0, .step = 1, .cause = "SIGKILL"};
  run.controllers.then_fail(error(Code::kUnavailable, "being restarted"));
  run.controllers.then(R"({"kind": "snapshot", "step": 2, "total_steps": 9})"
                       "\n" +
                       event(death, "rank 0 died") + step(3));
  run.controllers.then(end(0));
  auto ended = run.follow(run.controllers.next(step(1) + event(death, "rank 0 died") +
                                               R"({"kind": "checkpoint", "path": "out/ch)"));
  REQUIRE(ended.ok());
  CHECK(ended->status.ok());
  CHECK(run.events.size() == 1);
  const std::string& text = run.output.all;
  CHECK(text.find("rank 0 died") == text.rfind("rank 0 died"));
  CHECK(text.find("saved") == std::string::npos);
  CHECK(text.find("step 3/9") != std::string::npos);
}

TEST_CASE("a controller without its predecessor's data gets them again") {
  const std::string wants =
      R"({"kind": "snapshot", "step": 2, "total_steps": 9, "wants_bundle": true})"
      "\n";
  Followed run;
  run.controllers.then(wants + end(0));
  CHECK(run.follow(run.controllers.next(step(1))).ok());
  CHECK(run.controllers.handed_over == 1);
  Followed failing;
  failing.controllers.hand_over_status = error(Code::kUnavailable, "no road");
  failing.controllers.then(wants);
  const auto failed = failing.follow(failing.controllers.next(step(1)));
  CHECK(failed.status().message() == "the run's new controller did not get its data: no road");
}

TEST_CASE("a controller that is gone for good, or does not come back in time, ends the run") {
  Followed run;
  run.controllers.then_fail(error(Code::kActorDied, "the actor is dead: killed"));
  const auto gone = run.follow(run.controllers.next(step(1)));
  CHECK(gone.status().code() == Code::kActorDied);
  CHECK(gone.status().message().find("the run's controller is gone") != std::string::npos);
  CHECK(gone.status().message().find("killed") != std::string::npos);

  Followed late;
  auto options = late.controllers.options();
  options.connect = [&](Deadline) -> Result<ByteStream> {
    late.clock.advance(std::chrono::seconds(2));
    return error(Code::kUnavailable, "not up");
  };
  const auto missing = late.follow(late.controllers.next(""), std::move(options));
  CHECK(missing.status().code() == Code::kActorDied);
  CHECK(missing.status().message().find("not up") != std::string::npos);
}

TEST_CASE("a connection that nobody closes is left when the controller has another process") {
  Followed run;
  auto options = run.controllers.options();
  std::uint64_t process = 0;
  int asked = 0;
  options.process = [&] {
    // Known from the third time on, replaced at the fifth.
    if (++asked == 3) process = 7;
    if (asked == 5) process = 8;
    return process;
  };
  run.controllers.then(end(0));
  CHECK(run.follow(run.controllers.next(step(1), true), options).ok());
  CHECK(asked > 5);
}

TEST_CASE("a wish is passed on, and told again to the controller's successor") {
  Followed run;
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const UniqueFd read_end(ends[0]), write_end(ends[1]);
  auto options = run.controllers.options();
  options.interrupt_fd = read_end.get();
  options.take_interrupt = [&] {
    char c = 0;
    CHECK(::read(read_end.get(), &c, 1) == 1);
    return c == 's' ? Interrupt::kSaveThenEnd : Interrupt::kEnd;
  };
  // The wish comes first; then the controller dies, and its successor ends the run.
  REQUIRE(::write(write_end.get(), "s", 1) == 1);
  run.controllers.then(end(static_cast<int>(Code::kCancelled), "stopped at step 9 after saving"));
  auto ended = run.follow(run.controllers.next(step(1)), options);
  REQUIRE(ended.ok());
  CHECK(ended->status.code() == Code::kCancelled);
  CHECK(run.controllers.told == std::vector{Interrupt::kSaveThenEnd, Interrupt::kSaveThenEnd});
  CHECK(run.output.all.find("told to end: saving a checkpoint") != std::string::npos);

  // Told twice: the run ends at once, whether or not the controller answers.
  Followed stuck;
  auto stubborn = options;
  stubborn.tell = [&](Interrupt wish) {
    stuck.controllers.told.push_back(wish);
    if (wish == Interrupt::kEnd) stuck.clock.advance(std::chrono::seconds(11));
  };
  REQUIRE(::write(write_end.get(), "ss", 2) == 2);
  auto cut = stuck.follow(stuck.controllers.next(step(1), true), stubborn);
  REQUIRE(cut.ok());
  CHECK(cut->status.code() == Code::kCancelled);
  CHECK(stuck.controllers.told == std::vector{Interrupt::kSaveThenEnd, Interrupt::kEnd});
}

}  // namespace
}  // namespace troupe::train
