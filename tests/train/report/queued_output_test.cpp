// Output that nobody waits for: in order, and what there was no room for is counted.

#include "train/report/queued_output.h"

#include <doctest/doctest.h>

#include <chrono>
#include <string>

namespace troupe::train {
namespace {

// A terminal that is stopped until it is released.
class Stopped final : public ProgressOutput {
 public:
  bool is_terminal() const override { return true; }
  int width() const override { return 77; }
  void write(std::string_view text) override {
    MutexLock lock(mutex_);
    asked_ = true;
    changed_.notify_all();
    const auto ready = [this]() TROUPE_NO_ANALYSIS { return released_; };
    CHECK(changed_.wait_until(mutex_, Deadline::after(std::chrono::seconds(30)), ready));
    text_ += text;
  }
  void wait_for_writer() {
    MutexLock lock(mutex_);
    const auto ready = [this]() TROUPE_NO_ANALYSIS { return asked_; };
    REQUIRE(changed_.wait_until(mutex_, Deadline::after(std::chrono::seconds(30)), ready));
  }
  void release() {
    MutexLock lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }
  std::string text() {
    MutexLock lock(mutex_);
    return text_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool asked_ = false, released_ = false;
  std::string text_;
};

TEST_CASE("who writes to a terminal that is stopped goes on; all is there in the end, in order") {
  Stopped terminal;
  QueuedOutput output(terminal);
  CHECK(output.is_terminal());
  CHECK(output.width() == 77);
  std::string all;
  for (int i = 0; i < 1000; ++i) {
    const std::string line = "step " + std::to_string(i) + "\n";
    output.write(line);
    all += line;
    if (i == 0) terminal.wait_for_writer();
  }
  CHECK(terminal.text() == "");
  terminal.release();
  output.finish();
  CHECK(terminal.text() == all);
}

TEST_CASE("what there is no room for is left out, and told where it would have stood") {
  Stopped terminal;
  QueuedOutput output(terminal, 8);
  output.write("first\n");
  terminal.wait_for_writer();  // it has that, and 8 more bytes are kept
  output.write("second\n");
  output.write("third\nfourth\n");
  output.write("5\n");
  terminal.release();
  output.finish();
  CHECK(terminal.text() ==
        "first\nsecond\nnotice: 3 lines are left out here, which nobody read in time\n");
}

}  // namespace
}  // namespace troupe::train
