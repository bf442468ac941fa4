#include "troupe/byte_stream.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include <array>
#include <thread>
#include <vector>

namespace troupe {
namespace {

using namespace std::chrono_literals;

std::pair<ByteStream, ByteStream> joined_streams() {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

TEST_CASE("a plain stream is its socket") {
  auto [here, there] = joined_streams();
  CHECK_FALSE(here.encrypted());
  std::array<std::byte, 8> space;
  CHECK(there.read(space).count == 0);
  CHECK(there.read(space).state == StreamIo::State::kOpen);
  std::array first{std::byte{1}, std::byte{2}};
  std::array second{std::byte{3}};
  const std::array pieces{iovec{first.data(), 2}, iovec{nullptr, 0}, iovec{second.data(), 1}};
  CHECK(here.write(pieces).count == 3);
  CHECK_FALSE(here.unsent());
  CHECK(there.read(space).count == 3);
  CHECK(space[2] == std::byte{3});
  here.end_writing();
  CHECK(there.read(space).state == StreamIo::State::kEnded);
  const UniqueFd socket = there.take_socket();
  CHECK(socket.valid());
  CHECK_FALSE(there.valid());
}

TEST_CASE("more than a socket holds is sent and received, while somebody reads") {
  auto [here, there] = joined_streams();
  std::vector<std::byte> sent(5u << 20);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 31 >> 4);
  std::vector<std::byte> got(sent.size());
  std::thread reader(
      [&, &stream = there] { CHECK(receive_all(stream, got, Deadline::after(20s)).ok()); });
  CHECK(send_all(here, sent, Deadline::after(20s)).ok());
  reader.join();
  CHECK(got == sent);
}

TEST_CASE("waits end with the deadline, or with the peer") {
  auto [here, there] = joined_streams();
  std::vector<std::byte> much(5u << 20);
  CHECK(receive_all(here, much, Deadline::after(1ms)).code() == Code::kDeadlineExceeded);
  CHECK(send_all(here, much, Deadline::after(1ms)).code() == Code::kDeadlineExceeded);
  there.reset();
  const Status sent = send_all(here, much, Deadline::after(20s));
  CHECK(sent.code() == Code::kUnavailable);
  CHECK(sent.message().find("of 5242880 bytes") != std::string::npos);
  CHECK(receive_all(here, much, Deadline::after(20s)).code() == Code::kUnavailable);
}

}  // namespace
}  // namespace troupe
