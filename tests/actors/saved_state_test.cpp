#include "actors/saved_state.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime/wire/types.h"
#include "tests/support/memory_of.h"

namespace troupe::detail {
namespace {

SavedState state(std::uint32_t version, std::size_t size, int fill) {
  return {version, 77, wire::Bytes(size, static_cast<std::byte>(fill))};
}

TEST_CASE("the newest complete save is read, also by the next process") {
  auto segment = SavedStateSegment::create(100);
  REQUIRE(segment.ok());
  CHECK_FALSE(segment->read());
  for (int i = 1; i <= 5; ++i) segment->write(state(3, 100, i));
  const UniqueFd copy(::dup(segment->fd()));
  auto opened = SavedStateSegment::open(UniqueFd(::dup(copy.get())));
  REQUIRE(opened.ok());
  const auto read = opened->read();
  REQUIRE(read);
  CHECK(read->version == 3);
  CHECK(read->type_hash == 77);
  CHECK(read->bytes == wire::Bytes(100, std::byte{5}));
  CHECK_FALSE(segment->fits(1 << 20));
}

TEST_CASE("a save that was torn leaves the one before") {
  auto segment = SavedStateSegment::create(5000);
  REQUIRE(segment.ok());
  segment->write(state(1, 5000, 1));
  segment->write(state(1, 5000, 2));
  // Two areas, of which the first save began the second one and the next one the first.
  tests::MemoryOf memory(segment->fd());
  const auto next_reads = [&] {
    return SavedStateSegment::open(UniqueFd(::dup(segment->fd())))->read()->bytes[0];
  };
  // Damage each region of the newest save in turn: the one before is found every time.
  for (const std::size_t offset : {16ul, 24ul, 28ul, 36ul, 44ul, 52ul, 60ul, 68ul, 5067ul}) {
    memory.flip(offset);
    CHECK(next_reads() == std::byte{1});
    memory.flip(offset);
  }
  CHECK(next_reads() == std::byte{2});
  // After a torn save the next process writes over it, not over the good one.
  memory.flip(100);
  auto next = SavedStateSegment::open(UniqueFd(::dup(segment->fd())));
  REQUIRE(next.ok());
  next->write(state(1, 5000, 3));
  CHECK(next_reads() == std::byte{3});
  memory.flip(100);
  CHECK(next_reads() == std::byte{1});
}

TEST_CASE("the state of another version is refused by its version") {
  auto segment = SavedStateSegment::create(10);
  REQUIRE(segment.ok());
  tests::MemoryOf(segment->fd())[7] = std::byte{'2'};
  const Status refused = SavedStateSegment::open(UniqueFd(::dup(segment->fd()))).status();
  CHECK(refused.code() == Code::kDataLoss);
  CHECK(refused.message().find("another version") != std::string::npos);
}

TEST_CASE("what is no segment is refused") {
  CHECK(SavedStateSegment::open(UniqueFd(::open("/dev/null", O_RDWR))).status().code() ==
        Code::kDataLoss);
  UniqueFd unsealed(::memfd_create("test", MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(unsealed.get(), 1 << 20) == 0);
  CHECK(SavedStateSegment::open(UniqueFd(::dup(unsealed.get()))).status().code() ==
        Code::kProtocol);
  REQUIRE(::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  CHECK(SavedStateSegment::open(std::move(unsealed)).status().code() == Code::kDataLoss);
}

}  // namespace
}  // namespace troupe::detail
