#include "train/checkpoint/checkpoint_saver.h"

#include <doctest/doctest.h>

#include "tests/support/faulty_file_system.h"
#include "tests/support/test_data.h"
#include "tests/train/checkpoint/ranks.h"
#include "tests/train/checkpoint/whole_files.h"
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

// Saves and expects success.
WrittenCheckpoint save_ok(const std::vector<FileSystem*>& files, std::int64_t step,
                          const SaverOptions& options = test_options()) {
  std::optional<Result<WrittenCheckpoint>> written;
  for (const auto& one : save_with(files, TestState(step), options, &written)) {
    REQUIRE_MESSAGE(one.start.ok(), one.start.to_string());
    REQUIRE_MESSAGE(one.outcome.ok(), one.outcome.to_string());
  }
  return written.value().value();
}

TEST_CASE("what the layouts look like") {
  FaultyFileSystem files;
  save_ok(on_one_disk(files, 2), 1);
  CHECK(names_in(files, "out/checkpoint-1") ==
        std::vector<std::string>{"config.json", "cursor.json", "model.safetensors",
                                 "optimizer-00001-of-00002.safetensors",
                                 "optimizer-00002-of-00002.safetensors", "rng_state.json",
                                 "scheduler.json", "trainer_state.json", "troupe_checkpoint.json"});
  // The weights are what one process would have written.
  std::vector<StoredTensor> tensors;
  const TestState state(1);
  for (const auto& [name, tensor] : state.weights()) {
    tensors.push_back({name, tensor.dtype, tensor.shape, tensor.data});
  }
  REQUIRE(files.create_directories("alone").ok());
  REQUIRE(save_weights(files, "alone", tensors).ok());
  CHECK(files.snapshot("alone").at("model.safetensors") ==
        files.snapshot("out/checkpoint-1").at("model.safetensors"));

  save_ok(on_one_disk(files, 2), 2, test_options(CheckpointLayout::kSharded));
  CHECK(names_in(files, "out/checkpoint-2")[2] == "optimizer-00001-of-00002.safetensors");
  CHECK(names_in(files, "out/checkpoint-2")[6] == "shard-00001-model-00001-of-00002.safetensors");
  const auto shard =
      SafetensorsFile::open(files, "out/checkpoint-2/shard-00002-model-00002-of-00002.safetensors")
          .value();
  CHECK(shard.metadata().at("format") == "pt");
  CHECK(shard.metadata().at("DCP_VERSION") == "1.0");
  const auto sharding = json::parse(shard.metadata().at("DCP_SHARDING_INFO"), "info").value();
  // 143 elements: a third and two thirds.
  CHECK(shard.find("model.embed.weight")->shape == std::vector<std::int64_t>{96});
  CHECK(json::write(*json::find(sharding, "model.embed.weight")) == R"({"saved_offsets":[47]})");
  // A tensor that a rank has all of keeps its shape.
  CHECK(shard.find("model.scale")->shape.empty());
  CHECK(json::write(*json::find(sharding, "model.scale")) == R"({"saved_offsets":[]})");
}

TEST_CASE("weights in several files with their index, and weights only") {
  FaultyFileSystem files;
  auto options = test_options();
  options.shard_bytes_max = 700;
  save_ok(on_one_disk(files, 3), 1, options);
  CHECK(files.exists("out/checkpoint-1/model.safetensors.index.json"));
  CHECK(files.exists("out/checkpoint-1/model-00001-of-00002.safetensors"));
  CHECK(check_newest(files, 1, 2) == 1);

  run_ranks(2, [&](collective::Communicator& communicator) {
    const SystemClock clock;
    CheckpointSaver saver(files, communicator, clock, test_options(), Logger::discard());
    const TestState state(2);
    auto contents = state.contents(communicator.rank(), 2);
    contents.optimizer.clear();
    contents.has_optimizer = false;
    REQUIRE(saver.start(std::move(contents)).ok());
    CHECK(saver.started());
    REQUIRE(saver.seal().value().outcome.ok());
    CHECK(!saver.started());
    REQUIRE(saver.wait(Deadline::after(std::chrono::seconds(30))).ok());
  });
  const auto good = validate_checkpoint(files, "out/checkpoint-2").value();
  CHECK(!good.has_optimizer);
  CHECK(files.exists("out/checkpoint-2/cursor.json"));
  CHECK(check_newest(files) == 2);
}

TEST_CASE("a save at every step: memory changes once it is sealed, the oldest go") {
  for (const auto layout : {CheckpointLayout::kHf, CheckpointLayout::kSharded}) {
    FaultyFileSystem files;
    std::vector<std::string> written;
    run_ranks(3, [&](collective::Communicator& communicator) {
      const SystemClock clock;
      auto options = test_options(layout);
      options.save_total_limit = 2;
      CheckpointSaver saver(files, communicator, clock, options, Logger::discard());
      TestState state(0);
      for (std::int64_t step = 1; step <= 5; ++step) {
        state = TestState(step);  // the memory before is gone
        auto contents = state.contents(communicator.rank(), 3);
        contents.protected_steps = {1};
        REQUIRE(saver.start(std::move(contents)).ok());
        REQUIRE(saver.seal().value().outcome.ok());
        if (auto done = saver.poll()) written.push_back(done->value().path);
      }
      REQUIRE(saver.wait(Deadline::after(std::chrono::seconds(30))).ok());
      while (auto done = saver.poll()) written.push_back(done->value().path);
    });
    CHECK(written.size() == 5);
    CHECK(written.back() == "out/checkpoint-5");
    CHECK(names_in(files, "out") == std::vector<std::string>{"checkpoint-1", "checkpoint-5"});
    CHECK(check_newest(files, 1, 3) == 5);
  }
}

TEST_CASE("what is given twice, by nobody, or differently is refused on all ranks, and named") {
  FaultyFileSystem files;
  const auto refused = [&](const std::function<void(int rank, SaveContents&)>& spoil,
                           const std::string& what) {
    run_ranks(3, [&](collective::Communicator& communicator) {
      const SystemClock clock;
      CheckpointSaver saver(files, communicator, clock, test_options(), Logger::discard());
      const TestState state(1);
      auto contents = state.contents(communicator.rank(), 3);
      spoil(communicator.rank(), contents);
      const Status status = saver.start(std::move(contents));
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK_MESSAGE(status.message().find(what) != std::string::npos, status.message());
      CHECK(!saver.started());
      // The communicator is as good as before.
      REQUIRE(saver.start(state.contents(communicator.rank(), 3)).ok());
      CHECK(saver.seal().value().outcome.ok());
    });
  };
  refused(
      [](int rank, SaveContents& contents) {
        if (rank == 1) contents.weights.erase(contents.weights.begin());
      },
      "elements 23 to 71 of 'model.embed.weight' are given by no rank");
  refused(
      [](int rank, SaveContents& contents) {
        if (rank != 1) return;
        contents.optimizer[0].begin -= 2;
        contents.optimizer[0].end -= 2;
      },
      "elements 21 to 23 of 'exp_avg.model.embed.weight' are given by rank 0 and by rank 1");
  refused(
      [](int rank, SaveContents& contents) {
        if (rank == 2) contents.weights[0].shape = {143};
      },
      "'model.embed.weight' is F32 (143) on rank 2 and F32 (11, 13) elsewhere");
  refused(
      [](int rank, SaveContents& contents) {
        if (rank == 2) contents.weights[0].end += 1;
      },
      "rank 2: 'model.embed.weight' has 143 elements, its piece is said to be 71 to 144");
  refused(
      [](int rank, SaveContents& contents) {
        if (rank == 1) contents.weights[0].data = contents.weights[0].data.first(4);
      },
      "rank 1: the piece 23 to 71 of 'model.embed.weight' has 4 bytes instead of 192");
  refused([](int, SaveContents& contents) { contents.optimizer[0].name = "exp_avg.x"; },
          "'exp_avg.x' is given as part of the optimizer state");
  refused([](int rank, SaveContents& contents) { contents.step += rank / 2; },
          "rank 2 saves step 2, rank 0 step 1");
  refused([](int, SaveContents& contents) { contents.weights.clear(); },
          "no rank gives any weights");
}

TEST_CASE("every file operation of one rank of several fails once: all ranks learn it") {
  auto options = test_options();
  options.save_total_limit = 1;
  for (const auto layout : {CheckpointLayout::kHf, CheckpointLayout::kSharded}) {
    options.layout = layout;
    for (const std::size_t failing : {0, 1}) {
      for (std::uint64_t n = 0;; ++n) {
        CAPTURE(failing);
        CAPTURE(n);
        FaultyFileSystem disk;
        FaultyFileSystem other(disk);
        std::vector<FileSystem*> files = {&disk, &other};
        save_ok(files, 1, options);
        auto& faulty = failing == 0 ? disk : other;
        faulty.fail_operation(n);
        std::optional<Result<WrittenCheckpoint>> written;
        const auto outcomes = save_with(files, TestState(2), options, &written);
        const bool failed = faulty.fault_happened();
        faulty.revive(FaultyFileSystem::Survives::kEverything);
        REQUIRE(outcomes[0].start.ok());
        REQUIRE(outcomes[1].start.ok());
        CHECK(outcomes[0].outcome == outcomes[1].outcome);
        const bool committed = written && written->ok();
        if (!outcomes[0].outcome.ok()) {
          const auto& text = outcomes[0].outcome.message();
          CHECK_MESSAGE(text.starts_with(fmt::format("rank {}: ", failing)), text);
          CHECK_MESSAGE(text.find("injected failure") != std::string::npos, text);
        }
        if (!failed) {
          CHECK(committed);
          CHECK(n > (failing == 0 ? 40u : 8u));
          break;
        }
        std::vector<RefusedCheckpoint> refused;
        const auto newest = check_newest(disk, 1, 1, &refused);
        CHECK(refused.empty());
        CHECK((newest == 1 || newest == 2));
        if (committed) CHECK(newest == 2);
        save_ok(files, 3, options);
        CHECK(names_in(disk, "out") == std::vector<std::string>{"checkpoint-3"});
        CHECK(check_newest(disk) == 3);
      }
    }
  }
}

TEST_CASE("a crash or power cut at every file operation leaves the old or the new checkpoint") {
  auto options = test_options();
  options.save_total_limit = 1;
  using Survives = FaultyFileSystem::Survives;
  for (const auto survives :
       {Survives::kEverything, Survives::kSyncedOnly, Survives::kNamesNotBytes}) {
    for (const std::size_t dying : {0, 1}) {
      for (std::uint64_t n = 0;; ++n) {
        CAPTURE(dying);
        CAPTURE(n);
        FaultyFileSystem disk;
        FaultyFileSystem other(disk);
        std::vector<FileSystem*> files = {&disk, &other};
        REQUIRE(disk.create_directories("out").ok());
        REQUIRE(disk.sync_directory("").ok());
        save_ok(files, 1, options);
        auto& faulty = dying == 0 ? disk : other;
        faulty.crash_at_operation(n);
        std::optional<Result<WrittenCheckpoint>> written;
        save_with(files, TestState(2), options, &written);
        const bool crashed = faulty.fault_happened();
        other.revive(Survives::kEverything);
        disk.revive(survives);
        std::vector<RefusedCheckpoint> refused;
        const auto newest = check_newest(disk, 1, 1, &refused);
        CHECK(refused.empty());
        CHECK((newest == 1 || newest == 2));
        if (written && written->ok()) CHECK(newest == 2);
        save_ok(files, 3, options);
        CHECK(names_in(disk, "out") == std::vector<std::string>{"checkpoint-3"});
        if (!crashed) break;
      }
    }
  }
}

TEST_CASE("a full disk drops the save; the previous checkpoint stays and nothing temporary does") {
  FaultyFileSystem files;
  const auto disks = on_one_disk(files, 2);
  save_ok(disks, 1);
  const auto before = files.snapshot("");
  std::uint64_t used = 0;
  for (const auto& [name, content] : before) used += content.size();
  for (std::uint64_t extra = 0; extra < used; extra += 997) {
    files.set_space_bytes(used + extra);
    std::optional<Result<WrittenCheckpoint>> written;
    const auto outcomes = save_with(disks, TestState(2), test_options(), &written);
    const auto status = outcomes[0].outcome.ok() ? written->status() : outcomes[0].outcome;
    CHECK(status.code() == Code::kResourceExhausted);
    CHECK(outcomes[1].outcome == outcomes[0].outcome);
    CHECK(files.snapshot("") == before);
  }
  files.set_space_bytes(2 * used + 100);
  save_ok(disks, 2);
}

TEST_CASE("a save that is not sealed is abandoned, and the next one is not hindered") {
  FaultyFileSystem files;
  for (int i = 0; i < 20; ++i) {
    run_ranks(2, [&](collective::Communicator& communicator) {
      const SystemClock clock;
      const TestState state(1, 40);
      CheckpointSaver saver(files, communicator, clock, test_options(), Logger::discard());
      REQUIRE(saver.start(state.contents(communicator.rank(), 2)).ok());
    });
    CHECK(check_newest(files) == -1);
  }
  save_ok(on_one_disk(files, 2), 2);
  CHECK(names_in(files, "out") == std::vector<std::string>{"checkpoint-2"});
}

TEST_CASE("when the communicator ends, the save ends with it") {
  FaultyFileSystem files;
  run_ranks(2, [&](collective::Communicator& communicator) {
    const SystemClock clock;
    CheckpointSaver saver(files, communicator, clock, test_options(), Logger::discard());
    const TestState state(1);
    REQUIRE(saver.start(state.contents(communicator.rank(), 2)).ok());
    communicator.abort(error(Code::kAborted, "a rank died"));
    const auto report = saver.seal();
    CHECK(report.status().code() == Code::kAborted);
    CHECK(!saver.started());
    CHECK(saver.start(state.contents(communicator.rank(), 2)).code() == Code::kAborted);
  });
  CHECK(check_newest(files) == -1);
}

TEST_CASE("ranks that do not see rank 0's directory send their pieces there") {
  for (const auto layout : {CheckpointLayout::kHf, CheckpointLayout::kSharded}) {
    FaultyFileSystem shared, first, second, third;
    save_ok(on_one_disk(shared, 4), 7, test_options(layout));
    FaultyFileSystem neighbour(first);
    save_ok({&first, &second, &neighbour, &third}, 7, test_options(layout));
    CHECK(first.snapshot("out") == shared.snapshot("out"));
    CHECK(second.snapshot("").empty());
    CHECK(third.snapshot("").empty());
    CHECK(check_newest(first, 1, 3) == 7);
    // A failure while writing for others is rank 0's, and known to all.
    for (std::uint64_t n = 0;; n += 5) {
      first.fail_operation(n);
      const auto outcomes =
          save_with({&first, &second}, TestState(8), test_options(layout), nullptr);
      CHECK(outcomes[0].outcome == outcomes[1].outcome);
      const bool failed = first.fault_happened();
      first.revive(FaultyFileSystem::Survives::kEverything);
      if (!failed) break;
    }
    CHECK(check_newest(first) == 8);
  }
}

TEST_CASE("the final model replaces the old one in the output directory, whatever fails") {
  const auto save_model = [](const std::vector<FileSystem*>& files, std::int64_t step,
                             std::uint64_t shard_bytes_max) {
    std::vector<Status> statuses(files.size());
    run_ranks(static_cast<int>(files.size()), [&](collective::Communicator& communicator) {
      const SystemClock clock;
      const auto rank = static_cast<std::size_t>(communicator.rank());
      auto options = test_options(CheckpointLayout::kSharded);
      options.shard_bytes_max = shard_bytes_max;
      CheckpointSaver saver(*files[rank], communicator, clock, options, Logger::discard());
      const TestState state(step);
      statuses[rank] =
          saver.save_model(state.contents(communicator.rank(), communicator.world_size()));
    });
    return statuses;
  };
  for (const std::uint64_t shard_bytes_max : {700u, 1u << 20}) {
    for (std::uint64_t n = 0;; ++n) {
      CAPTURE(n);
      FaultyFileSystem disk;
      FaultyFileSystem other(disk);
      for (const auto& status : save_model({&disk, &other}, 1, 700)) REQUIRE(status.ok());
      TestState(1).check(TensorReader::open_model(disk, "out").value(), 2);
      CHECK(disk.exists("out/config.json"));
      // A file that the training of an adapter left in this folder before.
      REQUIRE(write_file_atomically(disk, "out/adapter_config.json", "{}").ok());
      disk.fail_operation(n);
      const auto statuses = save_model({&disk, &other}, 2, shard_bytes_max);
      CHECK(statuses[0] == statuses[1]);
      const bool failed = disk.fault_happened();
      disk.revive(FaultyFileSystem::Survives::kEverything);
      if (!failed) {
        REQUIRE_MESSAGE(statuses[0].ok(), statuses[0].to_string());
        TestState(2).check(TensorReader::open_model(disk, "out").value(), 3);
        for (const auto& name : names_in(disk, "out")) CHECK(!name.starts_with("tmp-"));
        CHECK(disk.exists("out/config.json"));
        CHECK_FALSE(disk.exists("out/adapter_config.json"));
        CHECK(n > 20);
        break;
      }
      const auto reader = TensorReader::open_model(disk, "out");
      if (reader.ok()) {
        float first = 0;
        REQUIRE(reader->read("model.scale", 0, std::span(&first, 1)).ok());
        TestState(first < 2000 ? 1 : 2).check(*reader);
      }
      for (const auto& status : save_model({&disk, &other}, 3, shard_bytes_max)) {
        REQUIRE(status.ok());
      }
      TestState(3).check(TensorReader::open_model(disk, "out").value());
    }
  }
}

TEST_CASE("on a real disk") {
  troupe::tests::TemporaryDirectory directory(troupe::tests::TemporaryDirectory::Place::kOnDisk);
  PosixFileSystem files;
  for (const auto layout : {CheckpointLayout::kHf, CheckpointLayout::kSharded}) {
    auto options = test_options(layout);
    options.output_dir = directory.file(layout == CheckpointLayout::kHf ? "hf" : "sharded");
    const TestState state(3, 3000);  // two megabytes: past the cache and through it
    std::optional<Result<WrittenCheckpoint>> written;
    const auto outcomes = save_with(on_one_disk(files, 3), state, options, &written);
    REQUIRE_MESSAGE(outcomes[2].outcome.ok(), outcomes[2].outcome.to_string());
    const auto good = validate_checkpoint(files, written.value().value().path, 2);
    REQUIRE_MESSAGE(good.ok(), good.status().to_string());
    state.check(TensorReader::open(files, *good).value(), 2);
  }
}

}  // namespace
}  // namespace troupe::train
