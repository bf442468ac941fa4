#include "train/checkpoint/checkpoint_saver.h"

#include <doctest/doctest.h>

#include "tests/support/faulty_file_system.h"
#include "tests/support/test_data.h"
#include "tests/train/checkpoint/ranks.h"
#include "train/checkpoint/checkpoint_finder.h"

namespace troupe::train {
namespace {

using troupe::tests::FaultyFileSystem;
using namespace train::tests;  // NOLINT

std::vector<std::string> names_in(FileSystem& files, const std::string& directory) {
  std::vector<std::string> names;
  const auto entries = files.list(directory).value();
  for (const auto& entry : entries) names.push_back(entry.name);
  return names;
}

std::vector<FileSystem*> on_one_disk(FileSystem& files, int world_size) {
  return std::vector<FileSystem*>(static_cast<std::size_t>(world_size), &files);
}

TEST_CASE("saved by four ranks, read by one, two and three: the same numbers, in both layouts") {
  for (const auto layout : {CheckpointLayout::kHf, CheckpointLayout::kSharded}) {
    for (const int world : {1, 2, 4}) {
      CAPTURE(world);
      FaultyFileSystem files;
      const TestState state(7);
      std::optional<Result<WrittenCheckpoint>> written;
      const auto outcomes =
          save_with(on_one_disk(files, world), state, test_options(layout), &written);
      for (const auto& outcome : outcomes) {
        REQUIRE_MESSAGE(outcome.start.ok(), outcome.start.to_string());
        REQUIRE_MESSAGE(outcome.outcome.ok(), outcome.outcome.to_string());
      }
      REQUIRE_MESSAGE(written->ok(), written->status().to_string());
      CHECK(written->value().path == "out/checkpoint-7");
      CHECK(names_in(files, "out") == std::vector<std::string>{"checkpoint-7"});
      for (const int readers : {1, 2, 3}) CHECK(check_newest(files, 1, readers) == 7);
    }
  }
}

}  // namespace
}  // namespace troupe::train
