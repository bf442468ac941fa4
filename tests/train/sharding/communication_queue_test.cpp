#include "train/sharding/communication_queue.h"

#include <doctest/doctest.h>

#include <vector>

#include "troupe/detail/mutex.h"

namespace troupe::train {
namespace {

// Closed until somebody opens it, or for so long.
class Gate {
 public:
  void open() {
    MutexLock lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  bool pass(Duration longest) {
    MutexLock lock(mutex_);
    return changed_.wait_until(mutex_, Deadline::after(longest),
                               [&]() TROUPE_NO_ANALYSIS { return open_; });
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ TROUPE_GUARDED_BY(mutex_) = false;
};

TEST_CASE("work runs in order, and nothing after a failure") {
  for (auto& queue : {make_inline_queue(), make_threaded_queue(std::chrono::seconds(60))}) {
    std::vector<int> ran;
    const auto piece = [&](int number, Status result) {
      return queue->submit([&ran, number, result] {
        ran.push_back(number);
        return result;
      });
    };
    piece(1, Status());
    CHECK(queue->wait(piece(2, Status())).ok());
    piece(3, error(Code::kUnavailable, "a peer is gone"));
    piece(4, Status());
    CHECK(queue->drain().code() == Code::kUnavailable);
    CHECK(queue->wait(piece(5, Status())).message() == "a peer is gone");
    CHECK(queue->drain().code() == Code::kUnavailable);
    CHECK(ran == std::vector<int>{1, 2, 3});
  }
}

TEST_CASE("a piece that does not end is given up on") {
  Gate gate;
  const auto queue = make_threaded_queue(std::chrono::milliseconds(10));
  const auto ticket = queue->submit([&] {
    gate.pass(std::chrono::seconds(60));
    return Status();
  });
  const Status late = queue->wait(ticket);
  gate.open();
  CHECK(late.code() == Code::kDeadlineExceeded);
  CHECK(late.message().find("collective 1") != std::string::npos);
}

TEST_CASE("the limit is that of each piece, not of all that are queued") {
  // Half a limit each, more than the limit together.
  const auto queue = make_threaded_queue(std::chrono::milliseconds(400));
  Gate closed;
  for (int i = 0; i < 3; ++i) {
    queue->submit([&] {
      closed.pass(std::chrono::milliseconds(200));
      return Status();
    });
  }
  CHECK(queue->drain().ok());
}

}  // namespace
}  // namespace troupe::train
