// merge and verify, as a user runs them.

#include "runtime/base/file_lock.h"
#include "runtime/collective/cpu_communicator.h"
#include "tests/support/text.h"
#include "tests/tools/troupe_program.h"
#include "train/checkpoint/checkpoint_saver.h"
#include "train/checkpoint/tensor_reader.h"

namespace troupe::tests {
namespace {

using namespace train;  // NOLINT

const std::vector<float> kValues(600, 1.5f);

// out/checkpoint-STEP by one rank, sharded.
void save(const std::string& output_dir, std::int64_t step) {
  auto links = collective::make_local_links({0}).value();
  const auto communicator = collective::make_cpu_communicator({}, std::move(links[0])).value();
  PosixFileSystem files;
  const SystemClock clock;
  SaverOptions options;
  options.output_dir = output_dir;
  options.layout = CheckpointLayout::kSharded;
  CheckpointSaver saver(files, *communicator, clock, options, Logger::discard());
  SaveContents contents;
  contents.step = step;
  contents.has_optimizer = false;
  contents.weights = {
      {"a.weight", DType::kF32, {20, 30}, 0, 600, std::as_bytes(std::span(kValues))}};
  contents.files = {{"config.json", "{}\n"}, {"tokenizer.json", "{\"t\": 1}\n"}};
  REQUIRE(saver.start(std::move(contents)).ok());
  REQUIRE(saver.seal().value().outcome.ok());
  REQUIRE(saver.wait(Deadline::after(kPatience)).ok());
  REQUIRE(saver.poll().value().ok());
}

void flip_last_byte(const std::string& path) {
  PosixFileSystem files;
  auto bytes = files.read(path, 1 << 20).value();
  bytes.back() ^= 1;
  REQUIRE(write_file_atomically(files, path, bytes).ok());
}

TEST_CASE("verify says what is good and what is damaged, merge takes the newest good one") {
  const TroupeHome home;
  PosixFileSystem files;
  const std::string out = home.file("out");
  save(out, 1);
  save(out, 2);
  const auto good = home.run({"verify", out});
  CHECK(good.exit_code == 0);
  CHECK(good.out.find("checkpoint-1: good, sharded by 1 rank, weights only, step 1") !=
        std::string::npos);
  CHECK(json::find(home.run_json({"verify", out}), "checkpoints")->get_array().size() == 2);

  flip_last_byte(out + "/checkpoint-2/shard-00001-model-00001-of-00001.safetensors");
  const auto damaged = home.run({"verify", out});
  CHECK(damaged.exit_code == 7);
  CHECK(damaged.out.find("checkpoint-1: good") != std::string::npos);
  CHECK(damaged.out.find("checkpoint-2: damaged\n") != std::string::npos);
  CHECK(damaged.out.find("shard-00001-model-00001-of-00001.safetensors is damaged: its hash is "
                         "not the one it was written with; in a.weight") != std::string::npos);
  const auto one = home.run({"verify", out + "/checkpoint-2", "--json"});
  CHECK(one.exit_code == 7);
  const auto list = json::parse(one.out, "out").value();
  const auto& damage =
      json::find(json::find(list, "checkpoints")->get_array()[0], "damage")->get_array();
  REQUIRE(damage.size() == 1);
  CHECK(json::write(*json::find(damage[0], "tensors")) == R"(["a.weight"])");
  CHECK(home.run({"verify", home.file("none")}).exit_code == 3);

  const auto merged = home.run({"merge", out, home.file("model")});
  CHECK_MESSAGE(merged.exit_code == 0, merged.err);
  CHECK(merged.err.find("checkpoint-2 is not used") != std::string::npos);
  CHECK(files.read(home.file("model/tokenizer.json"), 100).value() == "{\"t\": 1}\n");
  const auto reader = TensorReader::open_model(files, home.file("model")).value();
  std::vector<float> values(600);
  REQUIRE(reader.read("a.weight", 0, values).ok());
  CHECK(values == kValues);
  CHECK(home.run({"merge", out + "/checkpoint-2", home.file("other")}).exit_code == 7);
  CHECK(home.run({"merge", out, home.file("model")}).exit_code == 2);
  CHECK(home.run({"merge", out}).exit_code == 2);
}

TEST_CASE("no model is written into the output directory of a training that may go on") {
  const TroupeHome home;
  const std::string from = home.file("from"), run = home.file("run");
  save(from, 1);
  save(run, 20);
  const std::string lock = run + "/" + kOutputLockFile;
  {
    const auto holder = FileLock::take(lock, "run-7, process 1").value();
    const auto living = home.run({"merge", from, run});
    CHECK(living.exit_code == 2);
    CHECK_MESSAGE(contains(living.err, run + " is the output directory of a training that goes on "
                                             "(run-7, process 1); name another directory"),
                  living.err);
  }
  // The files that a killed training leaves behind.
  PosixFileSystem files;
  REQUIRE(write_file_atomically(files, lock, "run-7, process 1").ok());
  const auto killed = home.run({"merge", from, run});
  CHECK(killed.exit_code == 2);
  CHECK_MESSAGE(
      contains(killed.err, run + " is the output directory of a training that was stopped "
                                 "or killed before its end (checkpoint-20 is its newest "
                                 "checkpoint)"),
      killed.err);
  CHECK(contains(killed.err, "remove this one"));
}

}  // namespace
}  // namespace troupe::tests
