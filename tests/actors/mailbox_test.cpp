#include "actors/mailbox.h"

#include <doctest/doctest.h>

#include <thread>

namespace troupe::detail {
namespace {

using namespace std::chrono_literals;

QueuedCall call(std::uint64_t sequence) {
  return {.caller = {1, 1},
          .sequence = sequence,
          .method = 0,
          .deadline = Deadline::after(10s),
          .arguments = {}};
}

TEST_CASE("calls come out in order, and too many are overloaded") {
  Mailbox mailbox(2);
  CHECK(mailbox.push(call(1)).ok());
  CHECK(mailbox.push(call(2)).ok());
  CHECK(mailbox.push(call(3)).code() == Code::kOverloaded);
  CHECK(std::get<QueuedCall>(*mailbox.next()).sequence == 1);
  CHECK(mailbox.push(call(4)).ok());
  CHECK(std::get<QueuedCall>(*mailbox.next()).sequence == 2);
  CHECK(std::get<QueuedCall>(*mailbox.next()).sequence == 4);
  CHECK_FALSE(mailbox.poll());
}

TEST_CASE("a queued call can be taken out; one that is gone cannot") {
  Mailbox mailbox;
  (void)mailbox.push(call(1));
  (void)mailbox.push(call(2));
  CHECK(mailbox.remove({1, 1}, 1));
  CHECK_FALSE(mailbox.remove({1, 1}, 1));
  CHECK_FALSE(mailbox.remove({2, 2}, 2));
  CHECK(mailbox.calls() == 1);
  CHECK(std::get<QueuedCall>(*mailbox.next()).sequence == 2);
}

TEST_CASE("stop ends a waiting reader and keeps what was not run") {
  Mailbox mailbox;
  std::thread reader([&] { CHECK_FALSE(mailbox.next()); });
  mailbox.stop();
  reader.join();
  CHECK(mailbox.push(call(1)).code() == Code::kUnavailable);

  Mailbox full;
  (void)full.push(call(1));
  full.post([] {});
  full.stop();
  CHECK_FALSE(full.next());
  CHECK(full.take_calls().size() == 1);
}

}  // namespace
}  // namespace troupe::detail
