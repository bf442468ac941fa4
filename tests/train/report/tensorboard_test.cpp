#include "train/report/tensorboard.h"

#include <doctest/doctest.h>

#include <cstring>
#include <map>

#include "tests/support/faulty_file_system.h"

namespace troupe::train {
namespace {

using tests::FaultyFileSystem;

constexpr const char* kPath = "runs/events";

// (step, tag) → value, of all records; how often one is there twice.
struct Scalars {
  std::map<std::pair<std::int64_t, std::string>, float> values;
  int twice = 0;
  std::size_t records = 0;
};

std::uint64_t varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) return value;
  }
}

// What a reader of Event messages finds.
Scalars read_back(const std::string& file) {
  Scalars found;
  std::size_t begin = 0;
  for (const std::size_t end : whole_records(file)) {
    std::string_view event = std::string_view(file).substr(begin + 12, end - begin - 16);
    begin = end;
    ++found.records;
    std::int64_t step = 0;
    std::string_view summary;
    while (!event.empty()) {
      const auto key = varint(event);
      if (key == (1 << 3 | 1)) {
        event.remove_prefix(8);
      } else if (key == (2 << 3 | 0)) {
        step = static_cast<std::int64_t>(varint(event));
      } else {
        const auto size = varint(event);
        if (key == (5 << 3 | 2)) summary = event.substr(0, size);
        event.remove_prefix(size);
      }
    }
    while (!summary.empty()) {
      REQUIRE(varint(summary) == (1 << 3 | 2));
      auto size = varint(summary);
      std::string_view value = summary.substr(0, size);
      summary.remove_prefix(size);
      REQUIRE(varint(value) == (1 << 3 | 2));
      size = varint(value);
      const std::string tag(value.substr(0, size));
      value.remove_prefix(size);
      REQUIRE(varint(value) == (2 << 3 | 5));
      float number = 0;
      REQUIRE(value.size() == sizeof number);
      std::memcpy(&number, value.data(), sizeof number);
      if (!found.values.emplace(std::pair(step, tag), number).second) ++found.twice;
    }
  }
  CHECK(begin == file.size());
  return found;
}

json::Object entry(std::int64_t step, double loss) {
  return {{"epoch", 0.5}, {"loss", loss}, {"step", step}};
}

struct Fixture {
  TensorBoardFile open(const json::Array& history) {
    return TensorBoardFile::open(files, clock, kPath, history).value();
  }
  std::string text() { return files.read(kPath, 1 << 20).value(); }
  FaultyFileSystem files;
  ManualClock clock;
};

TEST_CASE("a record is as TensorFlow writes it") {
  // The check value of CRC-32C is 0xe3069283; masked as crc32c::Mask does.
  const std::string record = event_record("123456789");
  REQUIRE(record.size() == 8 + 4 + 9 + 4);
  CHECK(record.substr(0, 8) == std::string("\x09\0\0\0\0\0\0\0", 8));
  std::uint32_t masked = 0;
  std::memcpy(&masked, record.data() + 21, 4);
  const std::uint32_t crc = 0xe3069283u;
  CHECK(masked == ((crc >> 15 | crc << 17) + 0xa282ead8u));
  CHECK(whole_records(record + record) == std::vector<std::size_t>{25, 50});
  std::string broken = record + record;
  broken[30] = static_cast<char>(broken[30] ^ 1);
  CHECK(whole_records(broken) == std::vector<std::size_t>{25});
  CHECK(whole_records(record + "\x09").size() == 1);
}

TEST_CASE("entries of the history are scalars under transformers' tags") {
  Fixture f;
  auto file = f.open({});
  REQUIRE(file.add(entry(10, 2.5)).ok());
  REQUIRE(file.add({{"eval_loss", 1.25}, {"epoch", 1.0}, {"step", 10}}).ok());
  const Scalars found = read_back(f.text());
  CHECK(found.records == 3);  // and the version
  CHECK(f.text().find("brain.Event:2") != std::string::npos);
  CHECK(found.values.at({10, "train/loss"}) == 2.5f);
  CHECK(found.values.at({10, "train/epoch"}) == 1.0f - 0.5f);
  CHECK(found.values.at({10, "eval/loss"}) == 1.25f);
  CHECK(found.twice == 0);
}

TEST_CASE("whoever goes on with a run leaves no step twice and none out") {
  Fixture f;
  json::Array history;
  {
    auto file = f.open(history);
    for (int step = 10; step <= 50; step += 10) {
      history.push_back(entry(step, step));
      REQUIRE(file.add(history.back().get_object()).ok());
    }
  }
  const std::string whole = f.text();
  // A new process at the same place changes nothing.
  (void)f.open(history);
  CHECK(f.text() == whole);
  // One whose last record was torn, and whose last two steps are not in the history it goes on
  // from.
  REQUIRE(write_file_atomically(f.files, kPath, whole.substr(0, whole.size() - 3)).ok());
  json::Array earlier(history.begin(), history.begin() + 3);
  {
    auto file = f.open(earlier);
    REQUIRE(file.add(entry(40, 7)).ok());
  }
  Scalars found = read_back(f.text());
  CHECK(found.twice == 0);
  CHECK(found.records == 5);
  CHECK(found.values.at({30, "train/loss"}) == 30.f);
  CHECK(found.values.at({40, "train/loss"}) == 7.f);
  // A folder without the file, as on another machine: the history is written.
  REQUIRE(f.files.remove(kPath).ok());
  (void)f.open(history);
  found = read_back(f.text());
  CHECK(found.records == 6);
  CHECK(found.values.at({50, "train/loss"}) == 50.f);
  // A run that begins anew there.
  (void)f.open({});
  CHECK(read_back(f.text()).values.empty());
}

}  // namespace
}  // namespace troupe::train
