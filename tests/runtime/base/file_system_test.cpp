#include "runtime/base/file_system.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "runtime/base/random.h"
#include "tests/support/test_data.h"

namespace troupe {
namespace {

TEST_CASE("files are written, read, mapped, listed and removed") {
  tests::TemporaryDirectory dir;
  PosixFileSystem files;
  REQUIRE(files.create_directories(dir.file("a/b")).ok());
  REQUIRE(write_file_atomically(files, dir.file("a/x"), "hello").ok());
  CHECK(*files.read(dir.file("a/x"), 100) == "hello");
  CHECK(files.read(dir.file("a/x"), 3).status().code() == Code::kInvalidArgument);
  CHECK((*files.map(dir.file("a/x")))->bytes().size() == 5);
  const auto entries = *files.list(dir.file("a"));
  REQUIRE(entries.size() == 2);
  CHECK(entries[0].is_directory);
  CHECK(entries[1].name == "x");
  {
    auto file = *files.open_append(dir.file("a/x"), 0644);
    REQUIRE(file->append(" there").ok());
    REQUIRE(file->close().ok());
  }
  CHECK(*files.read(dir.file("a/x"), 100) == "hello there");
  REQUIRE(files.remove_tree(dir.file("a")).ok());
  CHECK(!files.exists(dir.file("a")));
}

TEST_CASE("a file written in places by two writers, aligned and not, holds what both wrote") {
  tests::TemporaryDirectory dir(tests::TemporaryDirectory::Place::kOnDisk);
  PosixFileSystem files;
  constexpr std::size_t kBlock = PositionalFile::kBlockBytes;
  constexpr std::size_t kSize = 50 * kBlock + 123;
  SeededRandom random(5);
  std::vector<std::byte> content(kSize);
  for (auto& byte : content) byte = static_cast<std::byte>(random.below(256));
  const std::unique_ptr<std::byte, decltype(&std::free)> buffer(
      static_cast<std::byte*>(std::aligned_alloc(kBlock, 52 * kBlock)), &std::free);
  for (const bool aligned : {true, false}) {
    const std::string path = dir.file(aligned ? "aligned" : "unaligned");
    auto first = files.open_positional(path, kSize).value();
    CHECK(files.size(path).value() == kSize);
    std::size_t begin = 0;
    for (int turn = 0; begin < kSize; ++turn) {
      auto other = files.open_positional(path, kSize).value();
      const auto size = std::min<std::size_t>(1 + random.below(3 * kBlock), kSize - begin);
      std::byte* const place = buffer.get() + begin % kBlock + (aligned ? 0 : 1);
      std::copy_n(content.data() + begin, size, place);
      auto& file = turn % 2 == 0 ? *first : *other;
      REQUIRE(file.write_at(begin, {place, size}).ok());
      CHECK(other->sync().ok());
      CHECK(other->close().ok());
      begin += size;
    }
    CHECK(first->close().ok());
    const auto written = files.open_readable(path).value();
    REQUIRE(written->size() == kSize);
    std::vector<std::byte> read(kSize - 7);
    CHECK(written->read_at(7, read).ok());
    CHECK(std::equal(read.begin(), read.end(), content.begin() + 7));
    CHECK(written->read_at(8, read).code() == Code::kDataLoss);
  }
  CHECK(files.open_positional(dir.file("none/x"), 1).status().code() == Code::kNotFound);
  CHECK(files.open_readable(dir.path()).status().code() == Code::kInvalidArgument);
}

TEST_CASE("errors carry the path and the kind") {
  PosixFileSystem files;
  const auto missing = files.read("/nonexistent/file", 10);
  CHECK(missing.status().code() == Code::kNotFound);
  CHECK(missing.status().message().find("/nonexistent/file") != std::string::npos);
  CHECK(files.map("/tmp").status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace troupe
