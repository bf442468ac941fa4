#include "actors/saved_state.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

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
  // Damage each byte region of the newest slot in turn: the one before is found every time.
  const std::size_t slot = (5000 + 2500 + 64 + 4095) / 4096 * 4096;
  auto* memory = static_cast<std::byte*>(
      ::mmap(nullptr, 4096 + 2 * slot, PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd(), 0));
  REQUIRE(memory != MAP_FAILED);
  for (const std::size_t offset : {0ul, 8ul, 16ul, 24ul, 32ul, 64ul, 5063ul}) {
    std::byte& byte = memory[4096 + slot + offset];
    const std::byte before = byte;
    byte ^= std::byte{1};
    REQUIRE(segment->read());
    CHECK(segment->read()->bytes[0] == std::byte{1});
    byte = before;
  }
  CHECK(segment->read()->bytes[0] == std::byte{2});
  // After a torn save the next one goes over the torn slot, not over the good one.
  memory[4096 + slot + 64] ^= std::byte{1};
  segment->write(state(1, 5000, 3));
  CHECK(segment->read()->bytes[0] == std::byte{3});
  memory[4096 + slot + 64] ^= std::byte{1};
  CHECK(segment->read()->bytes[0] == std::byte{1});
  ::munmap(memory, 4096 + 2 * slot);
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
