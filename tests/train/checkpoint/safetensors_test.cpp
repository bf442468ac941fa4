#include "train/checkpoint/safetensors.h"

#include <doctest/doctest.h>

#include <cstring>

#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/test_data.h"

namespace troupe::train {
namespace {

using troupe::tests::FaultyFileSystem;

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + rest;
}

std::string container(const std::string& header, std::size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, '\0'));
}

Status parse_status(const std::string& bytes) {
  return SafetensorsFile::parse(bytes_of(bytes), "x.safetensors").status();
}

std::string entry(const std::string& name, const std::string& shape, const std::string& offsets,
                  const std::string& dtype = "F32") {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{}]}})", name, dtype,
                     shape, offsets);
}

std::span<const std::byte> bytes(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

TEST_CASE("the corpus is judged as by the reference implementation") {
  const auto corpus = troupe::tests::test_data("safetensors_corpus");
  if (!corpus) return;
  PosixFileSystem files;
  const auto text = files.read(*corpus + "/expected.json", 1 << 20).value();
  const auto expected = json::parse(text, "expected.json").value();
  for (const auto& member : json::find(expected, "cases")->as_object()) {
    const std::string name(member.key());
    CAPTURE(name);
    const auto file = SafetensorsFile::open(files, *corpus + "/" + name + ".safetensors");
    CHECK(file.ok() == *json::find_bool(member.value(), "accept"));
    if (!file.ok()) {
      CHECK(file.status().message().find(name) != std::string::npos);
      continue;
    }
    const auto& tensors = json::find(member.value(), "tensors")->as_object();
    CHECK(file->tensors().size() == tensors.size());
    for (const auto& tensor : tensors) {
      const auto* found = file->find(std::string_view(tensor.key()));
      REQUIRE(found);
      CHECK(dtype_name(found->dtype) == std::string_view(tensor.value().as_array()[0].as_string()));
      json::Array shape(found->shape.begin(), found->shape.end());
      CHECK(json::write(shape) == json::write(tensor.value().as_array()[1]));
    }
    const auto* metadata = json::find(member.value(), "metadata");
    CHECK(file->metadata().size() == (metadata->is_object() ? metadata->as_object().size() : 0));
  }
}

TEST_CASE("crafted faults are refused, each with the tensor's name where there is one") {
  struct Case {
    std::string what, file, says;
  };
  const std::string a = entry("a", "2", "0,8");
  const std::vector<Case> cases = {
      {"empty", "", "too few"},
      {"seven bytes", "1234567", "too few"},
      {"header length over the limit", with_length(100'000'001, "{}"), "limit"},
      {"header length 2^63", with_length(1ull << 63, "{}"), "limit"},
      {"header length 2^64-1", with_length(~0ull, "{}"), "limit"},
      {"header cut", with_length(100, "{}"), "cut off in its header"},
      {"header of zero bytes", with_length(0, ""), "JSON"},
      {"array", container("[]", 0), "no JSON object"},
      {"string", container("\"a\"", 0), "no JSON object"},
      {"text after the object", container("{}{}", 0), "JSON"},
      {"nul padding", container(std::string("{}\0\0", 4), 0), "JSON"},
      {"invalid UTF-8", container("{\"\xff\":1}", 0), "JSON"},
      {"entry is a number", container(R"({"a":1})", 0), "'a'"},
      {"no dtype", container(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4), "dtype"},
      {"unknown dtype", container("{" + entry("a", "1", "0,4", "F33") + "}", 4), "F33"},
      {"dtype is a number", container(R"({"a":{"dtype":1,"shape":[],"data_offsets":[0,4]}})", 4),
       "dtype"},
      {"no shape", container(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4), "shape"},
      {"shape of fractions", container("{" + entry("a", "1.5", "0,4") + "}", 4), "integer"},
      {"shape of strings", container("{" + entry("a", "\"1\"", "0,4") + "}", 4), "integer"},
      {"shape null", container(R"({"a":{"dtype":"F32","shape":null,"data_offsets":[0,4]}})", 4),
       "shape"},
      {"negative shape", container("{" + entry("a", "-1", "0,4") + "}", 4), "integer"},
      {"shape 2^64", container("{" + entry("a", "18446744073709551616", "0,4") + "}", 4),
       "integer"},
      {"one offset", container("{" + entry("a", "1", "0") + "}", 4), "data_offsets"},
      {"three offsets", container("{" + entry("a", "1", "0,4,8") + "}", 4), "data_offsets"},
      {"negative offset", container("{" + entry("a", "1", "-4,0") + "}", 4), "data_offsets"},
      {"fractional offset", container("{" + entry("a", "1", "0,4.0") + "}", 4), "data_offsets"},
      {"reversed offsets", container("{" + entry("a", "1", "4,0") + "}", 4), "reversed"},
      {"overlap", container("{" + a + "," + entry("b", "2", "4,12") + "}", 12), "overlap"},
      {"same bytes twice", container("{" + a + "," + entry("b", "2", "0,8") + "}", 8), "overlap"},
      {"hole at the start", container("{" + entry("a", "1", "4,8") + "}", 8), "hole"},
      {"hole between", container("{" + a + "," + entry("b", "1", "12,16") + "}", 16), "hole"},
      {"bytes after the last", container("{" + a + "}", 9), "follow the last tensor"},
      {"data cut", container("{" + a + "," + entry("second", "2", "8,16") + "}", 15), "'second'"},
      {"no data at all", container("{" + a + "}", 0), "'a'"},
      {"too short for its shape", container("{" + entry("a", "3", "0,8") + "}", 8), "12 bytes"},
      {"product overflows", container("{" + entry("a", "4294967296,4294967296", "0,0") + "}", 0),
       "overflows"},
      {"bytes overflow", container("{" + entry("a", "4611686018427387904", "0,0") + "}", 0),
       "overflows"},
      {"overflow hidden by a zero",
       container("{" + entry("a", "4294967296,4294967296,0", "0,0") + "}", 0), "overflows"},
      {"offsets near 2^64",
       container("{" + entry("a", "1", "18446744073709551612,18446744073709551615") + "}", 4),
       "hole"},
      {"huge end",
       container("{" + entry("a", "2305843009213693951", "0,9223372036854775804") + "}", 4),
       "cut off in tensor 'a'"},
      {"metadata of numbers", container(R"({"__metadata__":{"n":1}})", 0), "'n'"},
      {"metadata is a string", container(R"({"__metadata__":"pt"})", 0), "__metadata__"},
      {"a field twice",
       container(R"({"a":{"dtype":"F32","shape":[1],"dtype" :"F32","data_offsets":[0,4]}})", 4),
       "\"dtype\" stands twice"},
      {"nested 200 deep",
       container(R"({"a":)" + std::string(200, '[') + std::string(200, ']') + "}", 0),
       "nested deeper"},
      {"10,000 brackets", container(std::string(10'000, '['), 0), "nested deeper"},
  };
  for (const auto& test : cases) {
    CAPTURE(test.what);
    const Status status = parse_status(test.file);
    CHECK(!status.ok());
    CHECK(status.message().find("x.safetensors") != std::string::npos);
    CHECK_MESSAGE(status.message().find(test.says) != std::string::npos, status.message());
  }
  CHECK(parse_status(container("{" + a + "," + entry("z", "0", "8,8") + "}", 8)).ok());
  CHECK(parse_status(container(R"({"__metadata__":null})", 0)).ok());
  CHECK(parse_status(container(R"({"__metadata__":{"shape":"\"","shape":"b"},"dtype":{"dtype":)"
                               R"("F32","shape":[],"data_offsets":[0,4]}})",
                               4))
            .ok());
}

TEST_CASE("a written file reads back, is aligned, and equal tensors give equal bytes") {
  FaultyFileSystem files;
  const std::vector<float> a = {1, 2, 3, 4, 5, 6}, b = {7};
  const std::vector<std::uint16_t> half = {1, 2, 3};
  const StoredTensor ta{"a", DType::kF32, {2, 3}, bytes(a)},
      tb{"b \"q\"", DType::kF32, {}, bytes(b)},
      th{"A", DType::kBF16, {3}, std::as_bytes(std::span(half))}, te{"e", DType::kF32, {0, 5}, {}};
  const auto digest = write_safetensors(files, "1", {ta, tb, th, te}, {{"format", "pt"}}).value();
  CHECK(write_safetensors(files, "2", {te, th, tb, ta}, {{"format", "pt"}}).value().xxh3 ==
        digest.xxh3);
  const auto text = files.read("1", 1 << 20).value();
  CHECK(files.read("2", 1 << 20).value() == text);
  CHECK(digest.size_bytes == text.size());
  CHECK(digest.xxh3 == xxh3_64(bytes_of(text)));
  CHECK(text.substr(8, 32) == R"({"__metadata__":{"format":"pt"},)");
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), 8);
  CHECK(header_bytes % 8 == 0);
  const auto file = SafetensorsFile::open(files, "1").value();
  CHECK(file.metadata() == Metadata{{"format", "pt"}});
  REQUIRE(file.tensors().size() == 4);
  CHECK(file.tensors()[0].name == "A");
  CHECK(file.find("b \"q\"")->shape.empty());
  CHECK(file.find("e")->data.empty());
  CHECK(file.find("c") == nullptr);
  CHECK(std::memcmp(file.find("a")->data.data(), a.data(), 24) == 0);
  CHECK(reinterpret_cast<std::uintptr_t>(file.find("A")->data.data()) % 2 == 0);
  CHECK(write_safetensors(files, "3", {ta, ta}, {}).status().code() == Code::kInvalidArgument);
  CHECK(SafetensorsFile::open(files, "4").status().code() == Code::kNotFound);
}

TEST_CASE("a file of the reference implementation is rewritten byte for byte") {
  const auto model = troupe::tests::test_data("stories260K/hf/model.safetensors");
  if (!model) return;
  PosixFileSystem posix;
  FaultyFileSystem files;
  const auto file = SafetensorsFile::open(posix, *model).value();
  CHECK(write_safetensors(files, "copy", file.tensors(), file.metadata()).ok());
  CHECK(files.read("copy", 1 << 24).value() == posix.read(*model, 1 << 24).value());
}

TEST_CASE("bit flips and cuts of a small file never crash and never read outside") {
  FaultyFileSystem files;
  const std::vector<float> a(64, 1.5f);
  CHECK(write_safetensors(
            files, "x",
            {{"a", DType::kF32, {8, 8}, bytes(a)}, {"b", DType::kF32, {4, 4}, bytes(a).first(64)}},
            {})
            .ok());
  const auto good = files.read("x", 1 << 20).value();
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK(!parse_status(good.substr(0, size)).ok());
  }
  SeededRandom random(7);
  for (int i = 0; i < 5000; ++i) {
    std::string bad = good;
    bad[random.below(bad.size())] ^= static_cast<char>(1u << random.below(8));
    const auto file = SafetensorsFile::parse(bytes_of(bad), "x");
    if (!file.ok()) continue;
    for (const auto& tensor : file->tensors()) {
      CHECK(tensor.data.data() >= bytes_of(bad).data());
      CHECK(tensor.data.data() + tensor.data.size() <= bytes_of(bad).data() + bad.size());
    }
  }
}

}  // namespace
}  // namespace troupe::train
