#include <doctest/doctest.h>

#include "runtime/base/random.h"
#include "tests/support/faulty_file_system.h"
#include "tests/support/test_data.h"
#include "tests/train/checkpoint/whole_files.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/tensor_reader.h"

namespace troupe::train {
namespace {

using troupe::tests::FaultyFileSystem;
using Survives = FaultyFileSystem::Survives;

// A state whose every number is the step.
class State {
 public:
  explicit State(std::int64_t step, std::size_t floats = 8)
      : values_(floats, static_cast<float>(step)) {
    const auto bytes = std::as_bytes(std::span(values_));
    const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(floats)};
    whole_.step = step;
    whole_.weights = {{"w", DType::kF32, shape, bytes}};
    whole_.optimizer = {{"exp_avg.w", DType::kF32, shape, bytes},
                        {"exp_avg_sq.w", DType::kF32, shape, bytes}};
  }
  const tests::WholeState& whole() const { return whole_; }

 private:
  std::vector<float> values_;
  tests::WholeState whole_;
};

Result<WrittenCheckpoint> save(FileSystem& files, std::int64_t step,
                               std::optional<int> save_total_limit = {},
                               const std::set<std::int64_t>& protected_steps = {}) {
  return tests::save_whole(files, State(step).whole(), "out", save_total_limit, protected_steps);
}

// The step of the newest good checkpoint, which must be that step's in every number; -1 for none.
std::int64_t newest_step(FileSystem& files, std::vector<RefusedCheckpoint>* refused = nullptr) {
  const auto good = newest_good_checkpoint(files, "out", refused).value();
  if (!good) return -1;
  const auto reader = TensorReader::open(files, *good).value();
  float value = -1;
  REQUIRE(reader.read("w", 0, std::span(&value, 1)).ok());
  CHECK(value == static_cast<float>(good->step));
  CHECK(reader.find("step") == nullptr);
  if (good->has_optimizer) {
    REQUIRE(reader.read("exp_avg_sq.w", 3, std::span(&value, 1)).ok());
    CHECK(value == static_cast<float>(good->step));
    const auto state = read_checkpoint_state(files, *good).value();
    CHECK(json::find_integer(state.cursor, "sample") == good->step);
  }
  return good->step;
}

std::vector<std::string> directories(FileSystem& files) {
  std::vector<std::string> names;
  const auto entries = files.list("out").value();
  for (const auto& entry : entries) names.push_back(entry.name);
  return names;
}

TEST_CASE("a checkpoint holds what was given, with its manifest") {
  FaultyFileSystem files;
  const auto written = save(files, 7).value();
  CHECK(written.path == "out/checkpoint-7");
  std::vector<std::string> names;
  const auto entries = files.list("out/checkpoint-7").value();
  for (const auto& entry : entries) names.push_back(entry.name);
  CHECK(names == std::vector<std::string>{"config.json", "cursor.json", "model.safetensors",
                                          "optimizer.safetensors", "rng_state.json",
                                          "scheduler.json", "trainer_state.json",
                                          "troupe_checkpoint.json"});
  CHECK(newest_step(files) == 7);
  const auto good = validate_checkpoint(files, "out/checkpoint-7").value();
  CHECK(good.manifest.world_size == 2);
  CHECK(good.manifest.run == "run");
  CHECK(good.has_optimizer);
  CHECK(!good.foreign);
  CHECK(read_checkpoint_state(files, good).value().trainer_state == "{\"global_step\": 1}\n");

  State weights_only(8);
  auto whole = weights_only.whole();
  whole.optimizer.clear();
  CHECK(tests::save_whole(files, whole).ok());
  const auto light = validate_checkpoint(files, "out/checkpoint-8/").value();
  CHECK(!light.has_optimizer);
  CHECK(light.manifest.files.size() == 3);
}

TEST_CASE("old checkpoints go, but not protected ones, and those of a discarded future go first") {
  FaultyFileSystem files;
  for (const std::int64_t step : {10, 20, 30}) CHECK(save(files, step).ok());
  CHECK(save(files, 15, 2).value().removed ==
        std::vector<std::string>{"checkpoint-20", "checkpoint-30"});
  CHECK(directories(files) == std::vector<std::string>{"checkpoint-10", "checkpoint-15"});
  CHECK(save(files, 16, 2, {10}).ok());
  CHECK(directories(files) == std::vector<std::string>{"checkpoint-10", "checkpoint-16"});
  // A folder that has such a name and nothing of a checkpoint is not ours.
  REQUIRE(files.create_directories("out/checkpoint-7").ok());
  REQUIRE(write_file_atomically(files, "out/checkpoint-7/thesis.txt", "x").ok());
  CHECK(set_checkpoints_aside(files, "out").ok());
  CHECK(directories(files) == std::vector<std::string>{"checkpoint-7", "earlier-run"});
  CHECK(files.exists("out/earlier-run/checkpoint-16/troupe_checkpoint.json"));
  // A start that was interrupted, a run that ends before it saves, and a save that fails cost
  // nothing; one that stands takes their place.
  REQUIRE(files.rename("out/earlier-run/checkpoint-10", "out/checkpoint-10").ok());
  CHECK(set_checkpoints_aside(files, "out").ok());
  CHECK(files.exists("out/earlier-run/checkpoint-10"));
  CHECK(files.exists("out/earlier-run/checkpoint-16"));
  REQUIRE(files.remove_tree("out/checkpoint-7").ok());
  { const auto begun = CheckpointTransaction::begin(files, "out", 1).value(); }
  CHECK(files.exists("out/earlier-run/checkpoint-16"));
  CHECK(find_resume_point(files, {.output_dir = "out"}, nullptr)
            .status()
            .message()
            .find("out/earlier-run") != std::string::npos);
  CHECK(save(files, 1).ok());
  CHECK(directories(files) == std::vector<std::string>{"checkpoint-1"});
  CHECK(set_checkpoints_aside(files, "nowhere").ok());
}

TEST_CASE("every file operation fails once: the newest good checkpoint is the old or the new one") {
  for (const std::int64_t step : {2, 1}) {  // a new step; the same one again
    for (std::uint64_t n = 0;; ++n) {
      CAPTURE(n);
      FaultyFileSystem files;
      REQUIRE(save(files, 1).ok());
      files.fail_operation(n);
      const auto written = save(files, step, 1);
      if (!files.fault_happened()) {
        CHECK(written.ok());
        CHECK(n > 35);
        break;
      }
      std::vector<RefusedCheckpoint> refused;
      const auto newest = newest_step(files, &refused);
      CHECK(refused.empty());
      CHECK((newest == 1 || newest == step));
      if (written.ok()) CHECK(newest == step);
      CHECK(save(files, 3, 1).ok());
      CHECK(newest_step(files) == 3);
      CHECK(directories(files) == std::vector<std::string>{"checkpoint-3"});
    }
  }
}

TEST_CASE("a crash or power cut at every file operation leaves the old or the new one") {
  for (const auto survives :
       {Survives::kEverything, Survives::kSyncedOnly, Survives::kNamesNotBytes}) {
    for (const std::int64_t step : {2, 1}) {
      for (std::uint64_t n = 0;; ++n) {
        CAPTURE(n);
        FaultyFileSystem files;
        REQUIRE(files.create_directories("out").ok());
        REQUIRE(files.sync_directory("").ok());
        REQUIRE(save(files, 1).ok());
        files.crash_at_operation(n);
        const auto written = save(files, step, 1);
        const bool crashed = files.fault_happened();
        files.revive(survives);
        std::vector<RefusedCheckpoint> refused;
        const auto newest = newest_step(files, &refused);
        CHECK(refused.empty());
        CHECK((newest == 1 || newest == step));
        if (written.ok()) CHECK(newest == step);
        CHECK(save(files, 3, 1).ok());
        CHECK(directories(files) == std::vector<std::string>{"checkpoint-3"});
        if (!crashed) break;
      }
    }
  }
}

TEST_CASE("a full disk is an error; the previous checkpoint stays and nothing temporary does") {
  FaultyFileSystem files;
  REQUIRE(tests::save_whole(files, State(1, 5000).whole()).ok());
  const auto before = files.snapshot("");
  std::uint64_t used = 0;
  for (const auto& [name, content] : before) used += content.size();
  for (std::uint64_t extra = 0; extra < used; extra += 997) {
    files.set_space_bytes(used + extra);
    const auto written = tests::save_whole(files, State(2, 5000).whole());
    CHECK(written.status().code() == Code::kResourceExhausted);
    CHECK(files.snapshot("") == before);
  }
  files.set_space_bytes(2 * used + 100);
  CHECK(tests::save_whole(files, State(2, 5000).whole()).ok());
}

TEST_CASE("cut at every 4 KiB and 1,000 flipped bits: all noticed, the one before is used") {
  FaultyFileSystem files;
  REQUIRE(save(files, 1).ok());
  REQUIRE(tests::save_whole(files, State(2, 20'000).whole()).ok());
  const auto good = files.snapshot("out/checkpoint-2");
  const auto refuses = [&](const std::string& name) {
    std::vector<RefusedCheckpoint> refused;
    CHECK(newest_step(files, &refused) == 1);
    REQUIRE(refused.size() == 1);
    CHECK(refused[0].reason.message().find(name) != std::string::npos);
  };
  std::vector<std::string> names;
  for (const auto& [name, content] : good) {
    names.push_back(name);
    for (std::size_t size = 0; size < content.size(); size += 4096) {
      files.set_content("out/checkpoint-2/" + name, content.substr(0, size));
      refuses(name);
    }
    files.set_content("out/checkpoint-2/" + name, content + " ");
    refuses(name);
    files.set_content("out/checkpoint-2/" + name, content);
  }
  SeededRandom random(1);
  for (int i = 0; i < 1000; ++i) {
    const auto& name = names[random.below(names.size())];
    std::string bad = good.at(name);
    bad[random.below(bad.size())] ^= static_cast<char>(1u << random.below(8));
    files.set_content("out/checkpoint-2/" + name, bad);
    refuses(name);
    files.set_content("out/checkpoint-2/" + name, good.at(name));
  }
  CHECK(newest_step(files) == 2);
}

TEST_CASE("every single bit of the marker counts") {
  Manifest manifest;
  manifest.step = 12;
  manifest.files = {{{"a", 1, 2}, {}, {}},
                    {{"b", 3, 4}, {}, {}},
                    {{"c", 9, 0}, {{0, 5, 6}, {5, 4, 7}}, {{"w", 12}}}};
  manifest.tensors["w"] = {"w", DType::kBF16, {3, 8}, 24};
  const std::string text = manifest_text(manifest);
  const auto read = parse_manifest(text, "m").value();
  CHECK(read.files[1].xxh3 == 4);
  CHECK(read.files[2].parts[1].xxh3 == 7);
  CHECK(read.files[2].pieces.at("w") == 12);
  CHECK(read.tensors.at("w").elements == 24);
  for (std::size_t i = 0; i < 8 * text.size(); ++i) {
    std::string bad = text;
    bad[i / 8] ^= static_cast<char>(1u << (i % 8));
    CHECK(!parse_manifest(bad, "m").ok());
  }
  CHECK(!parse_manifest(text + "\n", "m").ok());
  CHECK(parse_manifest(R"({"format_version": 3})", "m").status().code() == Code::kUnsupported);
}

TEST_CASE("missing files, missing and foreign markers are named") {
  FaultyFileSystem files;
  REQUIRE(save(files, 1).ok());
  REQUIRE(save(files, 2).ok());
  const auto marker = files.read("out/checkpoint-1/troupe_checkpoint.json", 1 << 20).value();
  const auto own = files.read("out/checkpoint-2/troupe_checkpoint.json", 1 << 20).value();
  const auto reason = [&] {
    std::vector<RefusedCheckpoint> refused;
    const auto good = newest_good_checkpoint(files, "out", &refused).value();
    REQUIRE(good);
    CHECK(good->step == 1);
    return refused_message(refused, good);
  };
  files.set_content("out/checkpoint-2/troupe_checkpoint.json", marker);
  const std::string foreign = reason();
  CHECK_MESSAGE(foreign.find("checkpoint-2 is not used") != std::string::npos, foreign);
  files.set_content("out/checkpoint-2/troupe_checkpoint.json", own);
  REQUIRE(files.remove("out/checkpoint-2/cursor.json").ok());
  CHECK(reason() ==
        "checkpoint-2 is not used: out/checkpoint-2/cursor.json is missing; going on from "
        "checkpoint-1");
  REQUIRE(files.remove("out/checkpoint-2/troupe_checkpoint.json").ok());
  CHECK(reason().find("its marker was removed") != std::string::npos);
}

TEST_CASE("another program's directory is accepted when it is complete") {
  FaultyFileSystem files;
  REQUIRE(files.create_directories("out/checkpoint-5").ok());
  const State state(5);
  REQUIRE(tests::save_weights(files, "out/checkpoint-5", state.whole().weights).ok());
  CHECK(newest_step(files) == -1);  // no config.json
  REQUIRE(write_file_atomically(files, "out/checkpoint-5/config.json", "{}").ok());
  CHECK(newest_step(files) == 5);
  const auto good = validate_checkpoint(files, "out/checkpoint-5").value();
  CHECK(good.foreign);
  CHECK(!good.has_optimizer);
  auto text = files.read("out/checkpoint-5/model.safetensors", 1 << 20).value();
  files.set_content("out/checkpoint-5/model.safetensors", text.substr(0, text.size() - 1));
  CHECK(newest_step(files) == -1);
}

TEST_CASE("names") {
  CHECK(checkpoint_step("checkpoint-12") == 12);
  for (const char* name :
       {"checkpoint-", "checkpoint-1a", "checkpoint--1", "xcheckpoint-1", "checkpoint-1.tmp",
        "tmp-checkpoint-1", "checkpoint-99999999999999999999", "checkpoint-9000000000000000000"}) {
    CHECK(!checkpoint_step(name));
  }
}

TEST_CASE("auto-resume by the reference's rule") {
  FaultyFileSystem files;
  ResumeRequest request;
  request.output_dir = "out";
  const auto resume = [&] { return find_resume_point(files, request, nullptr); };
  CHECK(!resume().value());  // no directory
  REQUIRE(files.create_directories("out").ok());
  CHECK(!resume().value());  // empty
  REQUIRE(files.create_directories("out/tmp-checkpoint-3").ok());
  CHECK(!resume().value());  // a dead writer's remains
  REQUIRE(write_file_atomically(files, "out/train.log", "").ok());
  CHECK(!resume().value());  // its own output
  REQUIRE(write_file_atomically(files, "out/x", "").ok());
  CHECK(resume().status().code() == Code::kFailedPrecondition);
  CHECK(resume().status().message() ==
        "Output directory already exists and is not empty. Please set `overwrite_output_dir`.");
  request.overwrite_output_dir = true;
  CHECK(!resume().value());
  request.overwrite_output_dir = false;
  request.resume_from_checkpoint = "true";
  CHECK(resume().status().message() == "No valid checkpoint found in output directory (out)");
  REQUIRE(save(files, 9).ok());
  REQUIRE(save(files, 10).ok());
  CHECK(resume().value()->step == 10);
  request.resume_from_checkpoint = "";
  CHECK(resume().value()->step == 10);
  request.resume_from_checkpoint = "false";
  CHECK(!resume().value());
  request.resume_from_checkpoint = "out/checkpoint-9";
  CHECK(resume().value()->step == 9);
  request.resume_from_checkpoint = "out/checkpoint-11";
  CHECK(resume().status().code() == Code::kNotFound);
  request.resume_from_checkpoint = "";
  files.set_content("out/checkpoint-10/config.json", "[]");
  CHECK(resume().value()->step == 9);
  files.set_content("out/checkpoint-9/config.json", "[]");
  CHECK(resume().status().code() == Code::kDataLoss);
  CHECK(resume().status().message().find("overwrite_output_dir") != std::string::npos);
}

TEST_CASE("a run that starts anew does not load what an earlier one left") {
  FaultyFileSystem files;
  REQUIRE(save(files, 5).ok());
  CHECK(!newest_good_checkpoint(files, "out", nullptr, {.run = "other", .step_max = {}}).value());
  CHECK(newest_good_checkpoint(files, "out", nullptr, {.run = "run", .step_max = {}}).value());
  CHECK(!newest_good_checkpoint(files, "out", nullptr, {.run = "", .step_max = 4}).value());
}

TEST_CASE("a checkpoint on a real disk") {
  troupe::tests::TemporaryDirectory directory(troupe::tests::TemporaryDirectory::Place::kOnDisk);
  PosixFileSystem files;
  for (const std::int64_t step : {1, 2, 2}) {
    CHECK(tests::save_whole(files, State(step).whole(), directory.file("out"), 1).ok());
  }
  const auto found = find_checkpoints(files, directory.file("out")).value();
  REQUIRE(found.size() == 1);
  const auto good = newest_good_checkpoint(files, directory.file("out"), nullptr).value();
  CHECK(good->step == 2);
  CHECK(TensorReader::open(files, *good).value().has_optimizer());
}

}  // namespace
}  // namespace troupe::train
