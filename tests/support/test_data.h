#pragma once
// What tests share: where the optional test data lie, temporary directories.

#include <optional>
#include <string>

namespace troupe::tests {

// The path of `name` under $TROUPE_TEST_DATA, else under ../shared/data beside the source tree.
// Where it is absent, prints "SKIPPED: …" so that the gap is seen, and returns nothing.
//
//   const auto model = test_data("stories260K/hf");
//   if (!model) return;
std::optional<std::string> test_data(const std::string& name);

// The root of the source tree (for tests/golden and examples).
std::string source_dir();
// Where the built programs lie (troupe, test programs).
std::string bin_dir();

// Makes TMPDIR, for this process and those that it starts, a folder of memory, where there is one
// that has room and lets programs be started from it. Nobody needs what tests write after a power
// cut, and each wait for a disk (fsync) is 10 ms on a busy machine: a training of eight steps waits
// a hundred times. A TMPDIR that is set stays as it is.
void put_temporary_files_in_memory();

// A directory of its own, removed with everything in it at the end of the scope.
class TemporaryDirectory {
 public:
  // kOnDisk: for what memory does not do, such as O_DIRECT.
  enum class Place { kAnywhere, kOnDisk };
  explicit TemporaryDirectory(Place place = Place::kAnywhere);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace troupe::tests
