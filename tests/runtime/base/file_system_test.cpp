#include "runtime/base/file_system.h"

#include <doctest/doctest.h>

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

TEST_CASE("errors carry the path and the kind") {
  PosixFileSystem files;
  const auto missing = files.read("/nonexistent/file", 10);
  CHECK(missing.status().code() == Code::kNotFound);
  CHECK(missing.status().message().find("/nonexistent/file") != std::string::npos);
  CHECK(files.map("/tmp").status().code() == Code::kInvalidArgument);
}

}  // namespace
}  // namespace troupe
