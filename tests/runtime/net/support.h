#pragma once
// Waiting for a loop's work in tests: events with a deadline, never a sleep.

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "runtime/base/hash.h"
#include "runtime/net/event_loop.h"
#include "tests/support/on_loop.h"
#include "troupe/unique_fd.h"

namespace troupe::tests {

inline constexpr std::chrono::seconds kPatience{10};

// A value that one thread sets once and another waits for.
template <typename T>
class Promise {
 public:
  void set(T value) { promise_.set_value(std::move(value)); }
  T get() {
    REQUIRE(future_.wait_for(kPatience) == std::future_status::ready);
    return future_.get();
  }
  bool is_set() { return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }

 private:
  std::promise<T> promise_;
  std::future<T> future_ = promise_.get_future();
};

inline std::pair<UniqueFd, UniqueFd> socket_pair() {
  int fds[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

inline std::vector<std::byte> bytes(std::string_view text) {
  const auto span = bytes_of(text);
  return {span.begin(), span.end()};
}
inline std::string as_text(std::span<const std::byte> data) {
  return {reinterpret_cast<const char*>(data.data()), data.size()};
}

}  // namespace troupe::tests
