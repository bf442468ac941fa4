#include "troupe/future.h"

#include <doctest/doctest.h>

#include <atomic>
#include <deque>
#include <string>
#include <thread>

#include "actors/mailbox.h"

namespace troupe {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a value set before or after get arrives") {
  Promise<int> promise;
  auto future = promise.future();
  CHECK_FALSE(future.ready());
  CHECK(future.get(1ms).status().code() == Code::kDeadlineExceeded);
  std::thread setter([&] { promise.set(7); });
  CHECK(future.get(10s).value() == 7);
  setter.join();
  CHECK(future.get(1s).status().code() == Code::kFailedPrecondition);
}

TEST_CASE("a broken promise is an error, not a hang") {
  std::optional<Promise<void>> promise(std::in_place);
  auto future = promise->future();
  promise.reset();
  CHECK(future.get(10s).code() == Code::kInternal);
}

// (A race that sanitizers see: whoever sets it is still telling the waiters.)
TEST_CASE("a promise may be destroyed by whom it wakes") {
  for (int i = 0; i < 100; ++i) {
    std::thread setter;
    {
      Promise<int> promise;
      auto future = promise.future();
      setter = std::thread([&promise, i] { promise.set(i); });
      CHECK(future.get(20s).value() == i);
    }
    setter.join();
  }
}

TEST_CASE("then chains, carries failures and turns exceptions into errors") {
  Promise<int> promise;
  auto text = promise.future()
                  .then([](Result<int> n) -> Result<int> { return n.value() + 1; })
                  .then([](Result<int> n) { return std::to_string(n.value()); });
  promise.set(41);
  CHECK(text.get(1s).value() == "42");

  auto failed = make_ready_future<int>(error(Code::kNotFound, "nobody")).then([](Result<int> n) {
    return n.value();
  });
  CHECK(failed.get(1s).status().code() == Code::kNotFound);
  auto thrown =
      make_ready_future<void>(Status()).then([](Status) -> int { throw std::runtime_error("no"); });
  CHECK(thrown.get(1s).status().code() == Code::kInternal);
}

Future<int> sum_of(Future<int> a, Future<int> b) {
  const int x = (co_await std::move(a)).value();
  const int y = (co_await std::move(b)).value();
  co_return x + y;
}

TEST_CASE("coroutines await futures and are futures") {
  Promise<int> a, b;
  auto sum = sum_of(a.future(), b.future());
  CHECK_FALSE(sum.ready());
  b.set(2);
  a.set(1);
  CHECK(sum.get(1s).value() == 3);
  auto failed =
      sum_of(make_ready_future<int>(1), make_ready_future<int>(Status(Code::kAborted, "x")));
  CHECK(failed.get(1s).status().code() == Code::kAborted);
}

TEST_CASE("when_all gathers in order and fails with the first failure") {
  std::vector<Promise<int>> promises(3);
  std::vector<Future<int>> futures;
  for (auto& promise : promises) futures.push_back(promise.future());
  auto all = when_all(std::move(futures));
  promises[2].set(3);
  promises[0].set(1);
  CHECK_FALSE(all.ready());
  promises[1].set(2);
  CHECK(all.get(1s).value() == std::vector<int>{1, 2, 3});

  Promise<int> number;
  Promise<void> nothing;
  auto both = when_all(number.future(), nothing.future());
  number.set(5);
  nothing.set(error(Code::kUnavailable, "gone"));
  CHECK(both.get(1s).status().code() == Code::kUnavailable);
  CHECK(when_all(std::vector<Future<int>>{}).get(1s).value().empty());
}

TEST_CASE("cancel ends the future once and asks the other side") {
  int asked = 0;
  Promise<int> promise;
  promise.set_cancel([&] { ++asked; });
  auto future = promise.future();
  auto derived = std::move(future).then([](Result<int> n) { return n; });
  derived.cancel();
  derived.cancel();
  CHECK(asked == 1);
  CHECK_FALSE(promise.set(1));
  CHECK(derived.get(1s).status().code() == Code::kCancelled);
}

TEST_CASE("continuations run on the executor, which must not wait for itself") {
  auto mailbox = std::make_shared<detail::Mailbox>();
  detail::FutureOptions options;
  options.executor = mailbox;
  Promise<int> promise(std::make_shared<detail::FutureState<int>>(options));
  std::atomic<bool> on_executor = false;
  auto derived = promise.future().then([&](Result<int> n) {
    on_executor = mailbox->in_thread();
    return *n;
  });
  Status refused;
  mailbox->post([&] { refused = derived.get(10s).status(); });
  promise.set(1);
  std::thread actor([&] {
    for (int i = 0; i < 2; ++i) std::get<detail::Mailbox::Work> (*mailbox->next())();
  });
  actor.join();
  CHECK(refused.code() == Code::kFailedPrecondition);
  CHECK(on_executor);
  CHECK(derived.get(1s).value() == 1);
}

TEST_CASE("no wake-up is lost between threads") {
  for (int round = 0; round < 2000; ++round) {
    Promise<int> promise;
    auto future = promise.future();
    std::thread setter([&] { promise.set(round); });
    if (round % 2 == 0) {
      CHECK(future.get(20s).value() == round);
      setter.join();
    } else {
      std::atomic<int> seen = -1;
      auto done = std::move(future).then([&](Result<int> n) { seen = *n; });
      setter.join();
      CHECK(done.get(20s).ok());
      CHECK(seen == round);
    }
  }
}

}  // namespace
}  // namespace troupe
