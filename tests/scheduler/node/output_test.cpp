// What actors write: the limit on what is passed on, the lines in memory that survive a daemon, and
// those who follow the output from elsewhere.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "runtime/base/hash.h"
#include "scheduler/node/log_pipes.h"
#include "tests/scheduler/support.h"
#include "tests/support/memory_of.h"
#include "tests/support/test_data.h"

using namespace troupe;
using namespace troupe::scheduler;
using namespace std::chrono_literals;
using troupe::tests::on_loop;

TEST_CASE("a second's lines pass, the rest of the second is counted, and then lines pass again") {
  OutputLimiter limiter({.lines_per_s = 3, .bytes_per_s = 0});
  const TimePoint t0{};
  for (int i = 0; i < 3; ++i) CHECK(limiter.admit(10, t0));
  CHECK_FALSE(limiter.end_of_window());
  CHECK_FALSE(limiter.admit(10, t0 + 10ms));
  CHECK_FALSE(limiter.admit(20, t0 + 999ms));
  CHECK(limiter.end_of_window() == t0 + 1s);
  const auto left_out = limiter.take_left_out();
  CHECK(left_out.lines == 2);
  CHECK(left_out.bytes == 30);
  CHECK_FALSE(limiter.end_of_window());
  CHECK(limiter.admit(10, t0 + 1s));
}

TEST_CASE("after a line that does not fit none passes in its second, however short") {
  OutputLimiter limiter({.lines_per_s = 0, .bytes_per_s = 100});
  const TimePoint t0{};
  CHECK(limiter.admit(1000, t0));  // the first passes, however long it is
  CHECK_FALSE(limiter.admit(1, t0));
  CHECK(limiter.admit(90, t0 + 1s));
  CHECK_FALSE(limiter.admit(20, t0 + 1s));
  CHECK_FALSE(limiter.admit(1, t0 + 1s));
}

TEST_CASE("without limits everything passes") {
  OutputLimiter limiter({.lines_per_s = 0, .bytes_per_s = 0});
  for (int i = 0; i < 100'000; ++i) REQUIRE(limiter.admit(1000, TimePoint{}));
}

TEST_CASE("a ring keeps the last whole lines, whatever their lengths") {
  auto ring = OutputRing::create().value();
  CHECK(ring.text().empty());
  std::vector<std::string> lines;
  for (int i = 0; i < 5000; ++i) {
    lines.push_back("line " + std::to_string(i) +
                    std::string(static_cast<std::size_t>(i % 97), 'x'));
    ring.append(lines.back());
    if (i % 250 != 0) continue;
    const std::string text = ring.text();
    std::string tail;
    for (auto line = lines.rbegin(); line != lines.rend() && tail.size() < text.size(); ++line) {
      tail = *line + "\n" + tail;
    }
    REQUIRE(text == tail);
  }
  CHECK(ring.line_count() == 5000);
  CHECK(ring.text().size() > limits::kLogTailBytes / 2);
  CHECK(ring.text(lines.back().size() + 5) == lines.back() + "\n");
  CHECK(ring.text(3).empty());
}

TEST_CASE("a line that is too long is cut, an empty one is a line") {
  auto ring = OutputRing::create().value();
  ring.append(std::string(3 * limits::kLogLineBytesMax, 'y'));
  ring.append("");
  CHECK(ring.text() == std::string(limits::kLogLineBytesMax, 'y') + "\n\n");
}

TEST_CASE("another holder of the memory finds the lines, their number, and where a process began") {
  auto ring = OutputRing::create().value();
  ring.append("first");
  ring.begin_process();
  ring.append("second");
  auto again = OutputRing::adopt(UniqueFd(::dup(ring.fd()))).value();
  CHECK(again.text() == "first\nsecond\n");
  CHECK(again.text_of_process(1000) == "second\n");
  CHECK(again.line_count() == 2);
  again.append("third");
  CHECK(ring.text_of_process(1000) == "second\nthird\n");
}

TEST_CASE("what was half written when its writer was killed spoils no kept line") {
  auto ring = OutputRing::create().value();
  for (int i = 0; i < 20'000; ++i) ring.append("line " + std::to_string(i));
  ring.append("last");
  const std::string before = ring.text();
  troupe::tests::MemoryOf memory(ring.fd());
  // Behind the last record as much as a longest line, without the header that makes it one.
  const std::string_view last = "\1last";
  const auto all = memory.bytes();
  const auto wanted = bytes_of(last);
  const auto found = std::search(all.begin(), all.end(), wanted.begin(), wanted.end());
  REQUIRE(found != all.end());
  auto at = static_cast<std::size_t>(found - all.begin()) + last.size() + kRecordHeaderBytes;
  for (std::size_t i = 0; i < limits::kLogLineBytesMax && at + i < all.size() / 2; ++i) {
    all[at + i] = std::byte{'?'};
  }
  auto again = OutputRing::adopt(UniqueFd(::dup(ring.fd()))).value();
  CHECK(again.text() == before);
  CHECK(again.line_count() == 20'001);
}

TEST_CASE("a ring that another version filled is refused by its version") {
  auto ring = OutputRing::create().value();
  troupe::tests::MemoryOf(ring.fd())[7] = std::byte{'1'};
  const Status refused = OutputRing::adopt(UniqueFd(::dup(ring.fd()))).status();
  CHECK(refused.code() == Code::kDataLoss);
  CHECK(refused.message().find("another version") != std::string::npos);
}

TEST_CASE("memory that is no ring is refused") {
  UniqueFd other(::memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(other.get(), 4096 + limits::kLogTailBytes) == 0);
  REQUIRE(::fcntl(other.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  CHECK(OutputRing::adopt(std::move(other)).status().code() == Code::kDataLoss);
  CHECK_FALSE(OutputRing::adopt(UniqueFd(::memfd_create("small", MFD_CLOEXEC))).ok());
}

TEST_CASE("labels: the name, else class and rank, else class and id") {
  wire::ActorSpec spec;
  spec.actor_id = ActorId{0x1234567890abcdef, 1};
  spec.type = "Trainer";
  CHECK(output_label(spec) == "Trainer " + spec.actor_id.brief());
  spec.rank = 3;
  CHECK(output_label(spec) == "Trainer rank 3");
  spec.name = "chief";
  CHECK(output_label(spec) == "chief");
}

TEST_CASE("a listener hears lines with numbers, then how much was left out, before the next line") {
  net::LoopThread thread("log");
  troupe::tests::Inbox<wire::OutputLine> heard;
  wire::ActorSpec spec;
  spec.name = "talker";
  const auto log = std::make_shared<ActorLog>(
      thread.loop(), spec, OutputLimits{.lines_per_s = 10, .bytes_per_s = 0},
      [&](const wire::OutputLine& line) { heard.put(line); }, OutputRing::create().value());
  const auto append = [&](const std::string& text) { log->append({.text = text}); };
  on_loop(thread.loop(), [&] {
    log->begin_process(1);
    for (int i = 1; i <= 25; ++i) append("line " + std::to_string(i));
    return 0;
  });
  for (std::uint64_t i = 1; i <= 10; ++i) {
    const auto line = heard.take();
    CHECK(line.number == i);
    CHECK(line.text == "line " + std::to_string(i));
    CHECK(line.label == "talker");
  }
  const auto notice = heard.take();  // by the timer: the actor says nothing more
  CHECK(notice.notice);
  CHECK(notice.number == 25);
  CHECK(notice.text.find("15 lines") != std::string::npos);
  CHECK(notice.text.find("troupe logs talker") != std::string::npos);
  on_loop(thread.loop(), [&] {
    CHECK(log->text().find("line 17\n") != std::string::npos);  // kept all the same
    log->begin_process(2);
    append("again");
    log->flush();
    return 0;
  });
  const auto line = heard.take();
  CHECK(line.text == "again");
  CHECK(line.number == 27);
  CHECK(on_loop(thread.loop(), [&] { return log->text_of_process(1000); }) == "again\n");
  const auto kept = on_loop(thread.loop(), [&] { return log->lines(2); });
  REQUIRE(kept.size() == 2);
  CHECK(kept[0].text == "--- generation 2 ---");
  CHECK(kept[0].number == 26);
  CHECK(kept[1].number == 27);
}

TEST_CASE("parts of lines are heard, kept are lines, and a stream's own file has every byte") {
  using wire::LineEnd;
  net::LoopThread thread("log");
  const troupe::tests::TemporaryDirectory directory;
  PosixFileSystem files;
  std::vector<wire::OutputLine> heard;
  wire::ActorSpec spec;
  spec.name = "bar";
  const auto log = std::make_shared<ActorLog>(
      thread.loop(), spec, OutputLimits{.lines_per_s = 0, .bytes_per_s = 0},
      [&](const wire::OutputLine& line) { heard.push_back(line); }, OutputRing::create().value());
  std::string shown;
  on_loop(thread.loop(), [&] {
    REQUIRE(log->add_file(files, directory.file("err"), OutputStream::kError).ok());
    REQUIRE(log->add_file(files, directory.file("both")).ok());
    const auto say = [&](std::string_view text, LineEnd end, std::size_t before = 0) {
      log->append({text, end, before}, OutputStream::kError);
    };
    say("begun", LineEnd::kNewline);
    say("10%", LineEnd::kReturn);
    say("yes or", LineEnd::kOpen);
    log->append({.text = "other"});
    say("yes or no? no", LineEnd::kNewline, 6);
    say("no end", LineEnd::kNone);
    for (const auto& line : heard) shown += line.new_text();
    CHECK(log->text() == "begun\nother\nyes or no? no\nno end\n");
    log->close_files();
    return 0;
  });
  CHECK(shown == "begun\n10%\ryes orother\n no? no\nno end");
  CHECK(files.read(directory.file("err"), 1000).value() == "begun\n10%\ryes or no? no\nno end");
  CHECK(files.read(directory.file("both"), 1000).value() ==
        "begun\nother\nyes or no? no\nno end\n");
  std::vector<std::uint64_t> numbers;
  for (const auto& line : heard) numbers.push_back(line.number);
  CHECK(numbers == std::vector<std::uint64_t>{1, 2, 2, 2, 3, 4});
}

TEST_CASE("a file that takes no more is named to those who listen") {
  net::LoopThread thread("log");
  PosixFileSystem files;
  std::vector<wire::OutputLine> heard;
  const auto log = std::make_shared<ActorLog>(
      thread.loop(), wire::ActorSpec(), OutputLimits(),
      [&](const wire::OutputLine& line) { heard.push_back(line); }, OutputRing::create().value());
  on_loop(thread.loop(), [&] {
    REQUIRE(log->add_file(files, "/dev/full", OutputStream::kOut).ok());
    log->append({.text = "one"});
    log->append({.text = "two"});
    return 0;
  });
  REQUIRE(heard.size() == 3);
  CHECK(heard[0].notice);
  CHECK(heard[0].text.find("is not in /dev/full from here on") != std::string::npos);
  CHECK(heard[0].text.find("No space left") != std::string::npos);
  CHECK(heard[2].text == "two");
}
