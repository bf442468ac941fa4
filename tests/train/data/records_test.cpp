// Rows of data files: read a part of the file at a time, whatever lies on the parts' edges.
#include "train/data/records.h"

#include <doctest/doctest.h>
#include <malloc.h>

#include <sys/stat.h>

#include <filesystem>

#include "tests/train/data/support.h"

namespace troupe::train {
namespace {

constexpr std::size_t kPart = std::size_t{1} << 20;  // that is read at a time

struct ReadBack {
  std::vector<std::string> rows;  // as JSON
  std::string last_where;
  Status status;
};

ReadBack read_back(DataFolder& folder, const std::string& name, std::int64_t rows_max,
                   std::size_t piece_bytes) {
  ReadBack out;
  const auto data = find_data_files(folder.files, folder.directory.file(name));
  REQUIRE_MESSAGE(data.ok(), data.status().to_string());
  out.status = read_records(
      folder.files, *data, rows_max,
      [&](const Record& row, const std::string& where) -> Status {
        out.rows.push_back(json::write(row));
        out.last_where = where;
        return {};
      },
      piece_bytes);
  return out;
}

// The rows do not depend on how much of the file is read at a time.
ReadBack read_back(DataFolder& folder, const std::string& name, const std::string& content,
                   std::int64_t rows_max = -1) {
  folder.write(name, content);
  const ReadBack out = read_back(folder, name, rows_max, kPart);
  for (std::size_t piece = 6; piece < 14; ++piece) {
    const ReadBack again = read_back(folder, name, rows_max, piece);
    CAPTURE(piece);
    CAPTURE(content);
    CHECK(again.rows == out.rows);
    CHECK(again.last_where == out.last_where);
    CHECK(again.status.to_string() == out.status.to_string());
  }
  return out;
}

bool says(const ReadBack& read, const std::string& part) {
  const bool found = read.status.message().find(part) != std::string::npos;
  if (!found) MESSAGE(read.status.to_string());
  return found;
}

TEST_CASE("rows are the same in every format, whatever lies on the edges of what is read") {
  DataFolder folder;
  std::vector<std::string> texts = {"short", std::string(300, 'x'), ""};
  for (std::size_t i = 0; i < 20; ++i)  // letters of two bytes, three and four
    texts.push_back(std::string(i % 7, 'a') + "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  std::string array = "\xef\xbb\xbf [", lines, plain, csv = "a,\"text\"\r\n";
  for (const auto& text : texts) {
    array += (array.size() > 5 ? " ,\n" : "") + fmt::format(R"({{"text": "{}"}})", text);
    lines += fmt::format("{{\"text\": \"{}\"}}\r\n", text);
    plain += text + "\r\n";
    csv += fmt::format("{0},\"\"\"{0}\r\n\"\r\n", text);
  }
  const auto of_array = read_back(folder, "a.json", array + "\n]\n");
  const auto of_lines = read_back(folder, "a.jsonl", lines);
  const auto of_text = read_back(folder, "a.txt", plain);
  const auto of_csv = read_back(folder, "a.csv", csv);
  for (const auto* read : {&of_array, &of_lines, &of_text, &of_csv}) {
    REQUIRE_MESSAGE(read->status.ok(), read->status.to_string());
    REQUIRE(read->rows.size() == texts.size());
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string row = json::write(json::Object{{"text", texts[i]}});
    CHECK(of_array.rows[i] == row);
    CHECK(of_lines.rows[i] == row);
    CHECK(of_text.rows[i] == row);
    CHECK(of_csv.rows[i] ==
          json::write(json::Object{{"a", texts[i]}, {"text", "\"" + texts[i] + "\r\n"}}));
  }
  CHECK(of_array.last_where == fmt::format("{} item {} (line {})", folder.directory.file("a.json"),
                                           texts.size() - 1, texts.size()));
  CHECK(of_lines.last_where.ends_with(fmt::format("a.jsonl line {}", texts.size())));
  CHECK(of_csv.last_where.ends_with(fmt::format("a.csv line {}", 2 * texts.size())));
}

TEST_CASE("an array is in memory an element at a time") {
  DataFolder folder;
  std::string array = "[";
  const std::string row = fmt::format(R"({{"text": "{}"}})", std::string(10000, 'x'));
  for (int i = 0; i < 3000; ++i) array += (i > 0 ? "," : "") + row;
  folder.write("a.json", array + "]");
  const auto data = find_data_files(folder.files, folder.directory.file("a.json")).value();
  const auto held = [] {
    const auto now = ::mallinfo2();
    return now.uordblks + now.hblkhd;
  };
  std::size_t most = 0;
  const std::size_t before = held();
  REQUIRE(read_records(folder.files, data, -1, [&](const Record&, const std::string&) -> Status {
            most = std::max(most, held());
            return {};
          }).ok());
  CHECK(most < before + 4 * kPart);
}

TEST_CASE("arrays that are none: which element, and where") {
  DataFolder folder;
  const std::string good = "[\n {\"a\": 1},\n {\"a\": 2}";
  for (const auto& [content, part] : std::vector<std::pair<std::string, std::string>>{
           {good, "a.json:3:10: not valid JSON: the text ends behind item 1"},
           {good + " {", "a.json:3:11: not valid JSON: no comma behind item 1"},
           {good + ",]", "a.json:3:11: not valid JSON: "},
           {good + ",", "the text ends in the middle (item 2)"},
           {good + ",\n {\"a\": \"x", "the text ends in the middle (item 2)"},
           {good + ",\n {\"a\": 1e999}]", "a number too large for a double (item 2)"},
           {good + ",\n {\"a\": \"\xff\"}]", "a.json:4:9: the byte 0xff is not part of UTF-8"},
           {good + ",\n {\"a\" 3}]", "a.json:4:7: not valid JSON: "},
           {good + ",\n 7]", "a.json item 2 (line 4): must be an object, is 7"},
           {good + "]\n,", "a.json:4:1: not valid JSON: text after the end of the array"}}) {
    CAPTURE(content);
    const auto read = read_back(folder, "a.json", content);
    CHECK(read.status.code() == Code::kInvalidArgument);
    CHECK(says(read, part));
    CHECK(read.rows.size() == 2);
  }
  // Nothing behind the wanted rows is read.
  CHECK(read_back(folder, "a.json", good + " no JSON", 2).status.ok());
  CHECK(read_back(folder, "a.json", "[ ]").status.ok());
  // Of a key that stands twice the last value counts, as in Python.
  CHECK(read_back(folder, "a.json", "[{\"a\": 1, \"a\": 2}]").rows ==
        std::vector<std::string>{"{\"a\":2}"});
}

TEST_CASE("objects over several lines") {
  DataFolder folder;
  CHECK(read_back(folder, "a.json", "\n{\n\"a\":\n1}\n\n").rows.size() == 1);
  CHECK(says(read_back(folder, "a.json", "{\n\"a\": 1}\n{\"a\": 2}"), "of several lines"));
  CHECK(says(read_back(folder, "a.jsonl", "{\"a\": 1} {\"a\": 2}\n"),
             "a.jsonl:1:9: text after the end of the value"));
  CHECK(says(read_back(folder, "a.jsonl", "\n{\"a\": 1\n{\"a\": 2}\n"), "a.jsonl:2:8:"));
  CHECK(says(read_back(folder, "a.jsonl", "{\"a\": 1}\n\n{\"a\": 2\n"), "a.jsonl:3:8:"));
  CHECK(read_back(folder, "a.jsonl", " \n\r\n").rows.empty());
}

TEST_CASE("texts that are not UTF-8") {
  DataFolder folder;
  CHECK(says(read_back(folder, "a.txt",
                       "good\nb\xe4"
                       "d\n"),
             "a.txt line 2: the byte 0xe4"));
  CHECK(says(read_back(folder, "a.csv", "a\n\"x\ny\"\n\xff\n"), "a.csv line 4: the byte 0xff"));
  for (const char* name : {"a.txt", "a.csv", "a.json"}) {
    CHECK(says(read_back(folder, name,
                         std::string("\xff\xfe"
                                     "a\0",
                                     4)),
               "UTF-16"));
  }
}

TEST_CASE("a file that becomes shorter while it is read") {
  DataFolder folder;
  const std::string path = folder.directory.file("a.jsonl");
  folder.write("a.jsonl", std::string(kPart, ' ') + "\n{\"a\": 1}\n" + std::string(2 * kPart, ' '));
  const auto read = read_records(folder.files, find_data_files(folder.files, path).value(), -1,
                                 [&](const Record&, const std::string&) -> Status {
                                   std::filesystem::resize_file(path, kPart + 100);
                                   return {};
                                 });
  CHECK(read.code() == Code::kDataLoss);
  CHECK(read.message().find("has become shorter while it was read") != std::string::npos);
}

TEST_CASE("patterns, and what lies beside the files of a folder") {
  DataFolder folder;
  const auto find = [&](const std::string& name) {
    return find_data_files(folder.files, folder.directory.file(name));
  };
  folder.write("p1.jsonl", "{}").write("p2.jsonl", "{}").write("q.txt", "x");
  REQUIRE(find("p*.jsonl").ok());
  CHECK(find("p*.jsonl")->paths.size() == 2);
  CHECK(find("[pq]*").status().message().find("File types should be identical") !=
        std::string::npos);
  CHECK(find("r*").status().message().find("r* not found") != std::string::npos);
  REQUIRE(folder.files.create_directories(folder.directory.file("d/.cache")).ok());
  folder.write("d/README.md", "# A data set").write("d/.gitattributes", "").write("d/a.csv", "a");
  REQUIRE(find("d").ok());
  CHECK(find("d")->paths.size() == 1);
  REQUIRE(::mkfifo(folder.directory.file("pipe.json").c_str(), 0600) == 0);
  CHECK(read_records(folder.files, find("pipe.json").value(), -1,
                     [](const Record&, const auto&) { return Status(); })
            .message()
            .find("not a regular file") != std::string::npos);
}

}  // namespace
}  // namespace troupe::train
