#include "actors/light_log.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <map>
#include <random>

#include "tests/support/memory_of.h"

namespace troupe::detail {
namespace {

wire::Bytes bytes(std::size_t size, int fill) {
  return wire::Bytes(size, static_cast<std::byte>(fill));
}

// What the node keeps.
struct Keeper {
  UniqueFd kept;
  int times = 0;
  LightLog::Keep keep() {
    return [this](int fd) -> Status {
      kept = UniqueFd(::dup(fd));
      ++times;
      return {};
    };
  }
  LightLog reopened() {
    LightLog log(keep());
    REQUIRE(log.open(UniqueFd(::dup(kept.get()))).ok());
    return log;
  }
};

TEST_CASE("the next process finds what was written last of each light actor") {
  Keeper keeper;
  LightLog log(keeper.keep());
  CHECK_FALSE(log.find(7).end);
  REQUIRE(log.created(7, bytes(3, 1)).ok());
  REQUIRE(log.saved(7, {2, 99, bytes(10, 2)}).ok());
  REQUIRE(log.saved(7, {2, 99, bytes(20, 3)}).ok());
  REQUIRE(log.created(8, {}).ok());
  REQUIRE(log.saved(8, {2, 99, bytes(5, 4)}).ok());
  REQUIRE(log.ended(8, Status(Code::kActorDied, "enough").with("who", "me")).ok());
  const LightLog next = keeper.reopened();
  const auto seven = next.find(7);
  CHECK_FALSE(seven.end);
  REQUIRE(seven.arguments);
  CHECK(seven.arguments->size() == 3);
  REQUIRE(seven.state);
  CHECK(seven.state->bytes == bytes(20, 3));
  CHECK(seven.state->version == 2);
  CHECK(seven.state->type_hash == 99);
  const auto eight = next.find(8);
  REQUIRE(eight.end);
  CHECK(eight.end->message() == "enough");
  CHECK(eight.end->context("who") == "me");
  CHECK_FALSE(eight.arguments);
  CHECK_FALSE(eight.state);
  CHECK_FALSE(next.find(9).state);
}

TEST_CASE("a log that is full goes on in a new one; one that goes on stays readable") {
  Keeper keeper;
  auto log = std::make_unique<LightLog>(keeper.keep());
  std::mt19937 random(1);
  std::map<std::uint32_t, wire::Bytes> expected;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint32_t number = random() % 50;
    expected[number] = bytes(random() % 300, i);
    REQUIRE(log->saved(number, {1, 1, expected[number]}).ok());
    if (i % 4999 == 0) log = std::make_unique<LightLog>(keeper.reopened());
  }
  CHECK(keeper.times > 10);
  CHECK(keeper.times < 2000);  // not one a record
  const LightLog next = keeper.reopened();
  for (const auto& [number, state] : expected) CHECK(next.find(number).state->bytes == state);
}

TEST_CASE("a record that was torn, or whose bytes changed, ends the log") {
  for (const std::size_t where : {0ul, 4ul, 12ul, 20ul, 40ul, 44ul, 143ul}) {
    Keeper keeper;
    LightLog log(keeper.keep());
    for (int i = 1; i <= 3; ++i) REQUIRE(log.saved(5, {1, 1, bytes(100, i)}).ok());
    // Records of 20 + 24 + 100 bytes after a front of 24.
    tests::MemoryOf(keeper.kept.get()).flip(24 + 2 * 144 + where);
    LightLog next = keeper.reopened();
    CHECK(next.find(5).state->bytes == bytes(100, 2));
    // What is written next takes its place.
    REQUIRE(next.saved(5, {1, 1, bytes(10, 9)}).ok());
    CHECK(keeper.reopened().find(5).state->bytes == bytes(10, 9));
  }
}

TEST_CASE("a log that is damaged before its end, or of another version, is refused") {
  for (const bool version : {false, true}) {
    Keeper keeper;
    LightLog log(keeper.keep());
    for (int i = 1; i <= 3; ++i) REQUIRE(log.saved(5, {1, 1, bytes(100, i)}).ok());
    tests::MemoryOf(keeper.kept.get()).flip(version ? 7 : 24 + 144 + 50);
    LightLog next(keeper.keep());
    const Status refused = next.open(UniqueFd(::dup(keeper.kept.get())));
    CHECK(refused.code() == Code::kDataLoss);
    CHECK(refused.message().find(version ? "another version" : "damaged") != std::string::npos);
  }
}

TEST_CASE("what is no log is refused, and a failing keeper leaves the log as it was") {
  LightLog none([](int) { return Status(); });
  CHECK(none.open(UniqueFd(::open("/dev/null", O_RDWR))).code() == Code::kDataLoss);
  auto zeros = memory::Segment::create("test", 4096);
  CHECK(none.open(UniqueFd(::dup(zeros->fd()))).code() == Code::kDataLoss);

  bool failing = false;
  LightLog log([&](int) { return failing ? Status(Code::kUnavailable, "no node") : Status(); });
  REQUIRE(log.saved(1, {1, 1, bytes(10, 1)}).ok());
  failing = true;
  CHECK(log.saved(1, {1, 1, bytes(100'000, 2)}).code() == Code::kUnavailable);
  CHECK(log.find(1).state->bytes == bytes(10, 1));
}

}  // namespace
}  // namespace troupe::detail
