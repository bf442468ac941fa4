#include "runtime/memory/record_memory.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "runtime/base/hash.h"
#include "tests/support/memory_of.h"

namespace troupe::memory {
namespace {

constexpr RecordKind kKind{
    .magic = "TRPTEST1", .name = "memory of the test", .of_another_version = "make another one"};
constexpr std::size_t kFront = 24;  // magic, salt, the first area's number

using Texts = std::vector<std::string>;

Texts texts(const Result<std::vector<RecordMemory::Payload>>& records) {
  REQUIRE_MESSAGE(records.ok(), records.status().to_string());
  Texts result;
  for (const auto record : *records) {
    result.emplace_back(reinterpret_cast<const char*>(record.data()), record.size());
  }
  return result;
}

bool append(RecordMemory& memory, const std::string& text) {
  return memory.append({bytes_of(text)}).has_value();
}
void begin(RecordMemory& memory, const std::string& text) { memory.begin_area({bytes_of(text)}); }

RecordMemory next_process(const RecordMemory& memory, std::size_t areas) {
  return RecordMemory::open(kKind, areas, UniqueFd(::dup(memory.fd()))).value();
}

TEST_CASE("a log in memory is read and continued by the next process, and ends where it is full") {
  auto memory = RecordMemory::create(kKind, "test", 1, 4000).value();
  CHECK(texts(memory.newest()).empty());
  CHECK_FALSE(memory.first());
  Texts written;
  while (append(memory, "record " + std::to_string(written.size()))) {
    written.push_back("record " + std::to_string(written.size()));
    if (written.size() % 10 == 0) memory = next_process(memory, 1);
    REQUIRE(texts(memory.newest()) == written);
  }
  CHECK(written.size() > 100);
  CHECK(memory.fits(3900));
  CHECK_FALSE(memory.fits(5000));
}

TEST_CASE(
    "with two areas the newest records and some before them stay, whatever was there before") {
  auto memory = RecordMemory::create(kKind, "test", 2, 500).value();
  Texts newest;
  Texts older;
  // Of equal lengths: what is left of an area's earlier use lies where records may be.
  for (int i = 100; i < 900; ++i) {
    const std::string text = "record " + std::to_string(i);
    if (append(memory, text)) {
      newest.push_back(text);
    } else {
      begin(memory, text);
      older = std::exchange(newest, {text});
    }
    if (i % 7 == 0) memory = next_process(memory, 2);
    REQUIRE(texts(memory.newest()) == newest);
    REQUIRE(texts(memory.older()) == older);
  }
  CHECK(older.size() > 10);
}

TEST_CASE(
    "a process that is killed before its record is there leaves those before, and is written "
    "over") {
  auto memory = RecordMemory::create(kKind, "test", 2, 500).value();
  REQUIRE(append(memory, "one"));
  begin(memory, "two");
  begin(memory, "three");  // in the first area
  tests::MemoryOf bytes(memory.fd());
  bytes.flip(kFront);
  auto next = next_process(memory, 2);
  CHECK(texts(next.newest()) == Texts{"two"});
  CHECK(texts(next.older()).empty());
  begin(next, "four");
  CHECK(texts(next_process(memory, 2).newest()) == Texts{"four"});
}

TEST_CASE("damage between records is told; torn is what no record follows") {
  auto memory = RecordMemory::create(kKind, "test", 1, 500).value();
  REQUIRE(append(memory, "one"));
  REQUIRE(append(memory, "two"));
  tests::MemoryOf bytes(memory.fd());
  bytes.flip(kFront + RecordMemory::bytes_of(3));
  CHECK(texts(next_process(memory, 1).newest()) == Texts{"one"});
  bytes.flip(kFront + RecordMemory::bytes_of(3));
  bytes.flip(kFront);
  const Status damaged = next_process(memory, 1).newest().status();
  CHECK(damaged.code() == Code::kDataLoss);
  CHECK(damaged.message() == "the memory of the test is damaged at byte 24");
}

TEST_CASE("what is no such memory is refused") {
  const auto refused = [](UniqueFd fd) { return RecordMemory::open(kKind, 2, std::move(fd)); };
  CHECK(refused(UniqueFd(::open("/dev/null", O_RDWR))).status().code() == Code::kDataLoss);
  CHECK(refused(UniqueFd()).status().code() == Code::kDataLoss);
  const auto zeros = Segment::create("test", 4096);
  CHECK(refused(UniqueFd(::dup(zeros->fd()))).status().code() == Code::kDataLoss);
  const auto memory = RecordMemory::create(kKind, "test", 2, 500).value();
  tests::MemoryOf(memory.fd())[7] = std::byte{'2'};
  CHECK(refused(UniqueFd(::dup(memory.fd()))).status().message().find("another version") !=
        std::string::npos);
}

}  // namespace
}  // namespace troupe::memory
