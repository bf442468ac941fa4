#include "train/trainer/shared_paths.h"

#include <doctest/doctest.h>

#include "tests/support/test_data.h"
#include "tests/support/text.h"
#include "train/checkpoint/checkpoint_finder.h"

namespace troupe::train {
namespace {

using troupe::tests::contains;

struct Node {
  Node() {
    config.model.model_name_or_path = directory.file("model");
    config.training.output_dir = directory.file("out");
    write("model/config.json", "{}");
    write(std::string("out/") + kOutputLockFile, "run-1, process 7 on a, since now");
  }
  void write(const std::string& name, const std::string& text) {
    const auto path = directory.file(name);
    REQUIRE(files.create_directories(path.substr(0, path.rfind('/'))).ok());
    REQUIRE(write_file_atomically(files, path, text).ok());
  }
  std::string lack(bool goes_on = false) {
    return check_shared_paths(files, config, goes_on, "b (1234)").message();
  }
  // As rank 0's machine.
  std::string lack_for_output(OutputPaths paths) {
    paths.output_dir = config.training.output_dir;
    return check_output_paths(files, paths, "b (1234)").message();
  }
  troupe::tests::TemporaryDirectory directory;
  PosixFileSystem files;
  TrainConfig config;
};

TEST_CASE("a node that has the folders lacks nothing") {
  Node node;
  CHECK(node.lack().empty());
  CHECK(node.lack_for_output({.locked_by = "run-1"}).empty());
  // Nothing is known of the output directory where there are no locks.
  REQUIRE(node.files.remove_tree(node.directory.file("out")).ok());
  CHECK(node.lack_for_output({}).empty());
}

TEST_CASE(
    "the checkpoint to go on from may have been removed by the run, which has written others") {
  Node node;
  const std::string out = node.config.training.output_dir;
  const OutputPaths paths{.resume_path = out + "/checkpoint-3", .locked_by = "run-1"};
  CHECK(contains(node.lack_for_output(paths), "(the checkpoint to go on from)"));
  node.write("out/checkpoint-9/manifest.json", "{}");
  CHECK(node.lack_for_output(paths).empty());
  CHECK(contains(
      node.lack_for_output({.resume_path = out + "-before/checkpoint-3", .locked_by = "run-1"}),
      "(the checkpoint to go on from)"));
}

TEST_CASE("a node without a stream's file, or with another one, is named before it takes part") {
  Node node;
  node.write("d.txt", "rows");
  const std::string path = node.directory.file("d.txt");
  std::vector<StreamFile> stream{{.path = path, .stamp = file_stamp(path).value()}};
  CHECK(check_stream_files(stream, "b (1234)").ok());
  stream[0].stamp.size_bytes += 1;
  const Status other = check_stream_files(stream, "b (1234)");
  CHECK(other.code() == Code::kFailedPrecondition);
  CHECK(contains(other.message(), path + " of node b (1234) is not the file"));
  stream.push_back({.path = node.directory.file("away.txt"), .stamp = {}});
  stream.erase(stream.begin());
  const Status lacks = check_stream_files(stream, "b (1234)");
  CHECK(lacks.code() == Code::kNotFound);
  CHECK(contains(lacks.message(), "node b (1234) lacks " + stream[0].path + " (dataset)"));
}

TEST_CASE("what a node lacks is named, with the node and the key") {
  Node node;
  REQUIRE(node.files.remove_tree(node.directory.file("model")).ok());
  CHECK(contains(node.lack(), "node b (1234) lacks " + node.directory.file("model")));
  CHECK(contains(node.lack(), "(model_name_or_path)"));
  CHECK(contains(node.lack(), "mount it there, or copy it"));
  // A checkpoint takes its place, and rank 0 reads it for all.
  CHECK(node.lack(true).empty());
  node.config.model.train_from_scratch = true;
  CHECK(node.lack().empty());
}

TEST_CASE("rank 0's machine needs the driver's output_dir, another one of that name will not do") {
  Node node;
  CHECK(contains(node.lack_for_output({.locked_by = "run-2"}),
                 "node b (1234), where rank 0 is, lacks " + node.config.training.output_dir +
                     " (output_dir)"));
  REQUIRE(node.files.remove_tree(node.directory.file("out")).ok());
  CHECK(contains(node.lack_for_output({.locked_by = "run-1"}), "(output_dir)"));
  CHECK(contains(node.lack_for_output({.resume_path = "/nowhere/checkpoint-3"}),
                 "lacks /nowhere/checkpoint-3 (the checkpoint to go on from)"));
}

}  // namespace
}  // namespace troupe::train
