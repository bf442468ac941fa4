#include "train/trainer/driver_link.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <string>

namespace troupe::train {
namespace {

struct Pair {
  UniqueFd mine, drivers;
  Pair() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    mine = UniqueFd(fds[0]);
    drivers = UniqueFd(fds[1]);
  }
  // All that is there now.
  std::string read() const {
    std::string text;
    char chunk[4096];
    for (ssize_t n; (n = ::recv(drivers.get(), chunk, sizeof chunk, MSG_DONTWAIT)) > 0;) {
      text.append(chunk, static_cast<std::size_t>(n));
    }
    return text;
  }
};

json::Object line(int n) { return {{"n", n}}; }

TEST_CASE("lines wait for a connection, which begins with where the run is") {
  DriverLink link;
  link.send(line(1));
  Pair first;
  link.connect(std::move(first.mine), {{"kind", "snapshot"}});
  CHECK(first.read() == "{\"kind\": \"snapshot\"}\n{\"n\": 1}\n");
  link.send(line(2));
  CHECK(first.read() == "{\"n\": 2}\n");
  // The driver goes; what it did not get any more is the next connection's.
  first.drivers.reset();
  link.send(line(3));
  Pair second;
  link.connect(std::move(second.mine), {});
  link.send(line(4));
  CHECK(second.read() == "{\"n\": 3}\n{\"n\": 4}\n");
}

TEST_CASE("a driver that does not read holds nobody up and gets whole lines later") {
  DriverLink link;
  Pair pair;
  link.connect(std::move(pair.mine), {});
  std::string expected;
  for (int n = 0; n < 60'000; ++n) {
    link.send(line(n));  // more than the socket holds: returns at once
    expected += "{\"n\": " + std::to_string(n) + "}\n";
  }
  std::string read;
  for (std::string more; !(more = pair.read()).empty(); link.flush()) read += more;
  CHECK(read == expected);
}

TEST_CASE("what nobody reads is dropped by whole lines, the oldest first") {
  DriverLink link;
  const std::string text(1000, 'x');
  for (int n = 0; n < 20'000; ++n) link.send({{"n", n}, {"text", text}});
  Pair pair;
  link.connect(std::move(pair.mine), {{"kind", "snapshot"}});
  std::string read;
  for (std::string more; !(more = pair.read()).empty(); link.flush()) read += more;
  CHECK(read.rfind("{\"kind\": \"snapshot\"}\n{\"n\": ", 0) == 0);
  CHECK(read.size() < std::size_t{9} << 20);
  CHECK(read.find("{\"n\": 19999, ") != std::string::npos);
  CHECK(read.back() == '\n');
}

}  // namespace
}  // namespace troupe::train
