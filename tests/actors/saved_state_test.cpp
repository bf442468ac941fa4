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
SavedState answering(int fill, std::size_t answered, bool since) {
  return {1, 77, wire::Bytes(10, static_cast<std::byte>(fill)),
          wire::Bytes(answered, static_cast<std::byte>(fill)), since};
}
// What the next process finds.
Result<std::optional<SavedState>> read_next(const SavedStateSegment& segment) {
  return SavedStateSegment::open(UniqueFd(::dup(segment.fd()))).value().read();
}

TEST_CASE("the newest complete save is read, also by the next process") {
  auto segment = SavedStateSegment::create(state(3, 100, 0));
  REQUIRE(segment.ok());
  CHECK_FALSE(segment->read().value());
  for (int i = 1; i <= 5; ++i) segment->write(state(3, 100, i));
  const UniqueFd copy(::dup(segment->fd()));
  auto opened = SavedStateSegment::open(UniqueFd(::dup(copy.get())));
  REQUIRE(opened.ok());
  const auto read = opened->read().value();
  REQUIRE(read);
  CHECK(read->version == 3);
  CHECK(read->type_hash == 77);
  CHECK(read->bytes == wire::Bytes(100, std::byte{5}));
  CHECK_FALSE(segment->fits(state(3, 1 << 20, 1)));
}

TEST_CASE("a save that was torn leaves the one before") {
  auto segment = SavedStateSegment::create(state(1, 5000, 0));
  REQUIRE(segment.ok());
  segment->write(state(1, 5000, 1));
  segment->write(state(1, 5000, 2));
  // Two areas, of which the first save began the second one and the next one the first.
  tests::MemoryOf memory(segment->fd());
  const auto next_reads = [&] { return read_next(*segment).value()->bytes[0]; };
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

TEST_CASE("saves that are added say together what was answered, and the last one's state counts") {
  auto segment = SavedStateSegment::create(answering(1, 100, false)).value();
  segment.write(answering(1, 100, false));
  wire::Bytes answered(100, std::byte{1});
  int fill = 1;
  while (segment.has_room(answering(fill + 1, 20, true))) {
    ++fill;
    segment.append(answering(fill, 20, true));
    answered.insert(answered.end(), 20, static_cast<std::byte>(fill));
    const auto read = read_next(segment).value();
    REQUIRE(read->bytes == wire::Bytes(10, static_cast<std::byte>(fill)));
    REQUIRE(read->answered == answered);
    REQUIRE_FALSE(read->answered_since);
  }
  CHECK(fill > 20);
  // The next save says all of it, and more fit behind it.
  const SavedState all{1, 77, wire::Bytes(10), answered};
  REQUIRE(segment.fits(all));
  segment.write(all);
  CHECK(read_next(segment).value()->answered == answered);
  CHECK(segment.has_room(answering(1, answered.size(), true)));
  CHECK_FALSE(segment.fits({1, 77, wire::Bytes(10), wire::Bytes(3000)}));
}

TEST_CASE("killed in mid-save: the save before counts, whether the next was added or began anew") {
  auto segment = SavedStateSegment::create(answering(1, 100, false)).value();
  segment.write(answering(1, 100, false));
  segment.append(answering(2, 20, true));
  tests::MemoryOf memory(segment.fd());
  const auto area_bytes = (memory.bytes().size() - 16) / 2;
  const std::size_t first = 16 + area_bytes + 8;  // the first save began the second area
  const std::size_t second = first + memory::RecordMemory::bytes_of(24 + 10 + 100);
  const auto last = [&] { return static_cast<int>(read_next(segment).value()->bytes[0]); };
  REQUIRE(last() == 2);
  for (const std::size_t at : {0, 4, 12, 20, 28, 36, 44, 54, 73}) {
    CAPTURE(at);
    memory.flip(second + at);
    CHECK(last() == 1);
    CHECK(read_next(segment).value()->answered == wire::Bytes(100, std::byte{1}));
    memory.flip(second + at);
  }
  segment.write(answering(3, 120, false));
  REQUIRE(last() == 3);
  for (const std::size_t at : {0, 4, 12, 20, 60}) {
    memory.flip(24 + at);
    CHECK(last() == 2);
    memory.flip(24 + at);
  }
  // What was killed in mid-save is written over, and what is whole stays until then.
  memory.flip(24);
  auto next = SavedStateSegment::open(UniqueFd(::dup(segment.fd()))).value();
  next.write(answering(4, 120, false));
  CHECK(last() == 4);
}

TEST_CASE("damage between saves is told: nobody goes on with an older state in silence") {
  auto segment = SavedStateSegment::create(answering(1, 100, false)).value();
  segment.write(answering(1, 100, false));
  segment.append(answering(2, 20, true));
  segment.append(answering(3, 20, true));
  tests::MemoryOf memory(segment.fd());
  const std::size_t first = 16 + (memory.bytes().size() - 16) / 2 + 8;
  memory.flip(first + memory::RecordMemory::bytes_of(24 + 10 + 100));
  CHECK(read_next(segment).status().code() == Code::kDataLoss);
}

TEST_CASE("the state of another version is refused by its version") {
  auto segment = SavedStateSegment::create(state(1, 10, 0));
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
