#include "runtime/base/record.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/hash.h"

namespace troupe {
namespace {

constexpr RecordKind kKind{
    .magic = "TRPTEST1", .name = "file of the test", .of_another_version = "make another one"};

using Texts = std::vector<std::string>;

std::string with_records(const Texts& payloads, std::uint64_t base = 0) {
  std::string bytes(kKind.magic);
  for (const std::string& payload : payloads) {
    const std::size_t at = bytes.size();
    bytes.resize(at + kRecordHeaderBytes + payload.size());
    const auto half = bytes_of(payload).first(payload.size() / 2);
    const auto rest = bytes_of(payload).subspan(half.size());
    write_record(reinterpret_cast<std::byte*>(bytes.data()) + at, base + at, {half, rest});
  }
  return bytes;
}

std::pair<Texts, RecordReader::End> read(const std::string& bytes, std::uint64_t base = 0) {
  RecordReader reader(bytes_of(bytes), kRecordMagicBytes, base);
  Texts payloads;
  while (const auto payload = reader.next()) {
    payloads.emplace_back(reinterpret_cast<const char*>(payload->data()), payload->size());
  }
  return {payloads, reader.end()};
}

const Texts kSome{"a", "some more", std::string(1000, 'x'), "end"};

TEST_CASE("records are read as they were written, whatever pieces they were written of") {
  CHECK(read(with_records(kSome)) == std::pair(kSome, RecordReader::End::kWhole));
  CHECK(read(with_records({})) == std::pair(Texts(), RecordReader::End::kWhole));
}

TEST_CASE("the bytes of a record are those that earlier versions wrote") {
  // As a journal "TRPJRNL2" of November 2026 has them.
  const std::string bytes = with_records({"payload"});
  CHECK(to_hex(bytes_of(bytes).subspan(kRecordMagicBytes)) ==
        "070000007b8d2d5bf061fe323acbdfeaa92ba1187061796c6f6164");
}

TEST_CASE("any beginning of records has the whole ones in it, and a torn end or none") {
  const std::string bytes = with_records(kSome);
  for (std::size_t size = kRecordMagicBytes; size < bytes.size(); ++size) {
    CAPTURE(size);
    const auto [payloads, end] = read(bytes.substr(0, size));
    REQUIRE(payloads.size() < kSome.size());
    CHECK(std::equal(payloads.begin(), payloads.end(), kSome.begin()));
    const bool whole = with_records(payloads).size() == size;
    CHECK(end == (whole ? RecordReader::End::kWhole : RecordReader::End::kTorn));
    CHECK(read(bytes.substr(0, size) + std::string(5000, '\0')) ==
          std::pair(payloads, RecordReader::End::kUnsound));
  }
}

TEST_CASE(
    "a bit that flips ends the reading there: damage where a record follows, never a torn end") {
  const std::string bytes = with_records(kSome);
  const std::size_t last = with_records({kSome[0], kSome[1], kSome[2]}).size();
  for (std::size_t at = kRecordMagicBytes; at < bytes.size(); ++at) {
    CAPTURE(at);
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
    const auto [payloads, end] = read(damaged);
    REQUIRE(payloads.size() < kSome.size());
    CHECK(std::equal(payloads.begin(), payloads.end(), kSome.begin()));
    CHECK(end == (at < last ? RecordReader::End::kDamaged : RecordReader::End::kUnsound));
  }
}

TEST_CASE("a record counts at its place and with its base only") {
  const std::string inner = with_records({"inner"}).substr(kRecordMagicBytes);
  std::string bytes = with_records({"first"});
  bytes += "torn" + inner;
  CHECK(read(bytes) == std::pair(Texts{"first"}, RecordReader::End::kUnsound));
  CHECK(read(with_records(kSome, 7), 7).first == kSome);
  CHECK(read(with_records(kSome, 7), 8) == std::pair(Texts(), RecordReader::End::kUnsound));
}

TEST_CASE("what is of another kind or version is told apart") {
  const auto check = [](std::string_view bytes) { return check_magic(kKind, bytes, "/f"); };
  CHECK(check("TRPTEST1...").ok());
  CHECK(check("TRPTEST2...").message() ==
        "/f was written by another version of troupe; make another one");
  for (const char* other : {"", "TRPTEST", "TRPTOST1", "stage: pt\n"}) {
    CHECK(check(other).code() == Code::kDataLoss);
    CHECK(check(other).message() == "/f is no file of the test");
  }
}

}  // namespace
}  // namespace troupe
