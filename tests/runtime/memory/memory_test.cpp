#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/huge_pages.h"
#include "runtime/memory/byte_ring.h"
#include "runtime/memory/futex.h"
#include "runtime/memory/segment.h"
#include "runtime/memory/segment_layout.h"
#include "runtime/memory/unix_socket.h"

namespace troupe::memory {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline soon() { return Deadline::after(seconds(5)); }

TEST_CASE("a segment is zeroed, sealed, and shared through its descriptor") {
  Segment a = Segment::create("troupe-test", 10'000, Populate::kNow).value();
  CHECK(a.size() == 10'000);
  CHECK(a.data()[9'999] == std::byte{0});
  CHECK(::ftruncate(a.fd(), 5) != 0);
  Segment b = Segment::adopt(a.duplicate_fd().value(), 10'000, Access::kReadOnly).value();
  a.data()[17] = std::byte{42};
  CHECK(b.data()[17] == std::byte{42});
  Segment moved = std::move(a);
  CHECK_FALSE(a.valid());
  CHECK(moved.data()[17] == std::byte{42});
}

// Pages of a mapping that this process has in its page tables.
std::size_t resident_pages(Segment& segment) {
  std::vector<unsigned char> pages((segment.size() + page_bytes() - 1) / page_bytes());
  REQUIRE(::mincore(segment.data(), segment.size(), pages.data()) == 0);
  std::size_t count = 0;
  for (const unsigned char page : pages) count += page & 1;
  return count;
}

TEST_CASE("a large segment begins with a huge page, is zeroed, there as a whole, and no larger") {
  // Two huge pages and some small ones, the last one not whole.
  const std::size_t size = 2 * kHugePageBytes + 3 * page_bytes() + 100;
  Segment a = Segment::create("troupe-test", size, Populate::kNow).value();
  CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % kHugePageBytes == 0);
  CHECK(resident_pages(a) == 2 * kHugePageBytes / page_bytes() + 4);
  CHECK(std::ranges::all_of(a.bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
  struct stat info {};
  REQUIRE(::fstat(a.fd(), &info) == 0);
  CHECK(info.st_size == static_cast<off_t>(size));
  CHECK(static_cast<std::size_t>(info.st_blocks) * 512 == 2 * kHugePageBytes + 4 * page_bytes());
  a.data()[size - 1] = std::byte{7};
  Segment b =
      Segment::adopt(a.duplicate_fd().value(), size, Access::kReadWrite, Populate::kNow).value();
  CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % kHugePageBytes == 0);
  CHECK(b.data()[size - 1] == std::byte{7});
  Segment c = Segment::create("troupe-test", size).value();
  CHECK(reinterpret_cast<std::uintptr_t>(c.data()) % kHugePageBytes == 0);
  ::fstat(c.fd(), &info);
  CHECK(info.st_blocks == 0);
}

TEST_CASE("segments that are not what was announced are refused") {
  Segment a = Segment::create("troupe-test", 8192).value();
  CHECK(Segment::adopt(a.duplicate_fd().value(), 4096, Access::kReadWrite).status().code() ==
        Code::kProtocol);
  UniqueFd loose(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(loose.get(), 4096) == 0);
  CHECK(Segment::adopt(std::move(loose), 4096, Access::kReadWrite).status().code() ==
        Code::kProtocol);
  CHECK(Segment::adopt(UniqueFd(), 4096, Access::kReadWrite).status().code() ==
        Code::kInvalidArgument);
  CHECK(Segment::create("empty", 0).status().code() == Code::kInvalidArgument);
  const Status huge = Segment::create("huge", std::size_t{1} << 50, Populate::kNow).status();
  CHECK(huge.code() == Code::kOutOfMemory);
}

TEST_CASE("a layout is recognised by a later process and a different one is not") {
  SegmentLayout layout("state", 3);
  layout.add("params", 1000).add("moments", 2000, 4096).add("record", 8);
  Segment segment = Segment::create("troupe-test", layout.size_bytes()).value();
  CHECK(layout.verify(segment).code() == Code::kDataLoss);
  layout.write_header(segment);
  CHECK(layout.verify(segment).ok());
  CHECK(layout.region(segment, "moments").size() == 2000);
  CHECK((layout.region(segment, "moments").data() - segment.data()) % 4096 == 0);
  SegmentLayout renamed("state", 3);
  renamed.add("params", 1000).add("moment", 2000, 4096).add("record", 8);
  CHECK(renamed.verify(segment).code() == Code::kProtocol);
  SegmentLayout newer("state", 4);
  newer.add("params", 1000).add("moments", 2000, 4096).add("record", 8);
  CHECK(newer.verify(segment).message().find("version 3") != std::string::npos);
}

TEST_CASE("descriptors travel over a socket, and waits end") {
  auto [a, b] = socket_pair().value();
  Segment segment = Segment::create("troupe-test", 4096).value();
  std::memcpy(segment.data(), "hello", 6);
  const std::array<int, 1> fds{segment.fd()};
  std::array<std::byte, 4> word{};
  REQUIRE(send_with_fds(a.get(), word, fds, soon()).ok());
  auto received = receive_with_fds(b.get(), word, 1, soon()).value();
  CHECK((::fcntl(received[0].get(), F_GETFD) & FD_CLOEXEC) != 0);
  Segment other = Segment::adopt(std::move(received[0]), 4096, Access::kReadOnly).value();
  CHECK(std::strcmp(reinterpret_cast<const char*>(other.data()), "hello") == 0);

  REQUIRE(send_with_fds(a.get(), word, fds, soon()).ok());
  CHECK(receive_all(b.get(), word, soon()).code() == Code::kProtocol);
  CHECK(receive_all(b.get(), word, Deadline::after(milliseconds(5))).code() ==
        Code::kDeadlineExceeded);
  a.reset();
  CHECK(receive_all(b.get(), word, soon()).code() == Code::kUnavailable);
  CHECK(send_all(b.get(), word, soon()).code() == Code::kUnavailable);
}

TEST_CASE("a futex wakes another process's sleeper") {
  Segment segment = Segment::create("troupe-test", 4096).value();
  auto& word = *reinterpret_cast<std::atomic<std::uint32_t>*>(segment.data());
  CHECK(futex_wait(word, 0, milliseconds(2)) == FutexWait::kTimedOut);
  const pid_t child = ::fork();
  if (child == 0) {
    word.store(1);
    futex_wake_all(word);
    ::_exit(0);
  }
  const Deadline deadline = soon();
  while (word.load() == 0 && !deadline.passed()) futex_wait(word, 0, seconds(1));
  CHECK(word.load() == 1);
  ::waitpid(child, nullptr, 0);
}

TEST_CASE("a ring carries a stream of odd pieces across its wrap") {
  const std::size_t capacity = 2 * page_bytes();
  Segment segment = Segment::create("troupe-test", page_bytes() + capacity).value();
  auto* control = reinterpret_cast<RingControl*>(segment.data());
  RingWriter writer(control, MirroredMapping::map(segment, page_bytes(), capacity).value());
  RingReader reader(control, MirroredMapping::map(segment, page_bytes(), capacity).value());
  constexpr std::size_t kTotal = 1 << 20;
  const Deadline deadline = soon();
  std::thread producer([&] {
    std::vector<std::byte> piece(1777);
    std::size_t sent = 0;
    while (sent < kTotal && !deadline.passed()) {
      const std::size_t count = std::min(piece.size(), kTotal - sent);
      for (std::size_t i = 0; i < count; ++i) piece[i] = std::byte((sent + i) * 31 >> 3);
      sent += writer.write({piece.data(), count});
      if (!writer.publish()) std::this_thread::yield();
    }
  });
  std::size_t got = 0, wrong = 0;
  while (got < kTotal && !deadline.passed()) {
    const auto bytes = reader.readable(1);
    for (std::size_t i = 0; i < bytes.size(); ++i)
      wrong += bytes[i] != std::byte((got + i) * 31 >> 3);
    got += bytes.size();
    reader.consume(bytes.size());
    if (!reader.release()) std::this_thread::yield();
  }
  producer.join();
  CHECK(got == kTotal);
  CHECK(wrong == 0);
  control->written.store(1ull << 40);
  reader.readable(1);
  CHECK(reader.damaged());
}

}  // namespace
}  // namespace troupe::memory
