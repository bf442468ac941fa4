// Files that pyarrow wrote (tools/golden/make_arrow_files.py), whole and damaged.

#include "train/arrow/arrow_rows.h"

#include <doctest/doctest.h>

#include <cstdio>

#include "runtime/base/file_system.h"
#include "tests/support/test_data.h"
#include "tests/support/text.h"
#include "train/arrow/arrow_library.h"
#include "train/data/records.h"

namespace troupe::train {
namespace {

using tests::contains;

bool is_here() {
  const auto table = arrow_table();
  if (table.ok()) return true;
  CHECK(contains(table.status().message(), "tools/setup --arrow"));
  std::printf("SKIPPED: %s\n", table.status().message().c_str());
  return false;
}

std::string golden_path(const std::string& name) {
  return tests::source_dir() + "/tests/golden/arrow/" + name;
}

std::string golden(const std::string& name) {
  PosixFileSystem files;
  return files.read(golden_path(name), std::uint64_t{1} << 20).value();
}

ArrowKind kind_of(const std::string& name) {
  return name.ends_with(".parquet") ? ArrowKind::kParquet : ArrowKind::kIpc;
}

Status read(std::string_view bytes, ArrowKind kind, std::vector<json::Value>& rows) {
  return read_arrow_rows(std::as_bytes(std::span(bytes)), kind, "rows.x",
                         [&](const json::Object& row, std::int64_t number) -> Result<bool> {
                           CHECK(number == std::ssize(rows));
                           rows.emplace_back(row);
                           return true;
                         });
}

TEST_CASE("rows are those that were written") {
  if (!is_here()) return;
  std::vector<json::Value> expected;
  const std::string lines = golden("rows.jsonl");
  for (std::size_t at = 0; at < lines.size(); at = lines.find('\n', at) + 1)
    expected.push_back(
        json::parse(std::string_view(lines).substr(at, lines.find('\n', at) - at), "rows").value());
  REQUIRE(expected.size() == 13);
  for (const char* name : {"rows.parquet", "stream.arrow", "file.arrow"}) {
    CAPTURE(name);
    std::vector<json::Value> rows;
    REQUIRE(read(golden(name), kind_of(name), rows).ok());
    CHECK(rows.size() == expected.size());
    for (std::size_t i = 0; i < rows.size(); ++i)
      CHECK(json::write(rows[i]) == json::write(expected[i]));
  }
  std::vector<json::Value> rows;
  REQUIRE(read(golden("views.arrow"), ArrowKind::kIpc, rows).ok());
  CHECK(json::write(json::Array(rows.begin(), rows.end())) ==
        R"([{"view":"short"},{"view":null},{"view":"longer than twelve bytes"},{"view":""}])");
}

TEST_CASE("reading ends where nobody wants more") {
  if (!is_here()) return;
  const std::string bytes = golden("rows.parquet");
  int seen = 0;
  const auto visit = [&](const json::Object&, std::int64_t) -> Result<bool> { return ++seen < 7; };
  CHECK(read_arrow_rows(std::as_bytes(std::span(bytes)), ArrowKind::kParquet, "x", visit).ok());
  CHECK(seen == 7);
  const auto fail = [](const json::Object&, std::int64_t) -> Result<bool> {
    return error(Code::kInvalidArgument, "no");
  };
  CHECK(read_arrow_rows(std::as_bytes(std::span(bytes)), ArrowKind::kParquet, "x", fail).code() ==
        Code::kInvalidArgument);
}

TEST_CASE("damaged files are named, and nothing of them is read beyond its end") {
  if (!is_here()) return;
  for (const char* name : {"rows.parquet", "stream.arrow", "file.arrow", "small_plain.parquet",
                           "small_packed.parquet", "small_stream.arrow", "small_file.arrow"}) {
    CAPTURE(name);
    const std::string whole = golden(name);
    const auto is_named = [&](const std::string& bytes) {
      std::vector<json::Value> rows;
      const Status status = read(bytes, kind_of(name), rows);
      // Some bytes count for nothing, or are texts of their own.
      if (status.ok()) return;
      CHECK(status.code() == Code::kDataLoss);
      CHECK(contains(status.message(), "rows.x: it cannot be read as"));
    };
    for (std::size_t size = 0; size < whole.size(); size += 97) is_named(whole.substr(0, size));
    for (std::size_t at = 3; at < whole.size(); at += 41) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ 0xff);
      is_named(bytes);
    }
  }
  std::vector<json::Value> rows;
  CHECK(read("PAR1 is no file PAR1", ArrowKind::kParquet, rows).code() == Code::kDataLoss);
  CHECK(read("", ArrowKind::kIpc, rows).code() == Code::kDataLoss);
  CHECK(rows.empty());
}

TEST_CASE("a folder that datasets.save_to_disk wrote is its shards in order") {
  tests::TemporaryDirectory folder;
  PosixFileSystem files;
  const auto write = [&](const std::string& name, const std::string& text) {
    REQUIRE(files.create_directories(folder.file("saved/train")).ok());
    REQUIRE(write_file_atomically(files, folder.file(name), text).ok());
  };
  write("saved/dataset_dict.json", R"({"splits": ["train", "validation"]})");
  write("saved/train/dataset_info.json", "{}");
  write("saved/train/state.json", R"({"_data_files": [{"filename": "data-1.arrow"},
                                                      {"filename": "data-0.arrow"}]})");
  write("saved/train/data-0.arrow", golden("stream.arrow"));
  write("saved/train/data-1.arrow", golden("stream.arrow"));
  const auto data = find_data_files(files, folder.file("saved"));
  REQUIRE(data.ok());
  CHECK(data->type == FileType::kArrow);
  CHECK(data->paths == std::vector<std::string>{folder.file("saved/train/data-1.arrow"),
                                                folder.file("saved/train/data-0.arrow")});
  if (is_here()) {
    std::vector<std::string> where;
    REQUIRE(read_records(files, *data, 15, [&](const Record&, const std::string& at) -> Status {
              where.push_back(at);
              return {};
            }).ok());
    CHECK(where.size() == 15);
    CHECK(where.back() == folder.file("saved/train/data-0.arrow") + " row 1");
  }
  write("saved/train/state.json", R"({"_data_files": [{"filename": "../x.arrow"}]})");
  CHECK(find_data_files(files, folder.file("saved")).status().code() == Code::kDataLoss);
}

}  // namespace
}  // namespace troupe::train
