// Reading checkpoints of every kind, and noticing what is wrong with them.

#include "train/checkpoint/tensor_reader.h"

#include <doctest/doctest.h>

#include "runtime/base/random.h"
#include "tests/support/faulty_file_system.h"
#include "tests/train/checkpoint/ranks.h"
#include "tests/train/checkpoint/whole_files.h"
#include "train/checkpoint/inspect.h"
#include "train/checkpoint/merge.h"

namespace troupe::train {
namespace {

using troupe::tests::FaultyFileSystem;
using namespace train::tests;  // NOLINT

void save(FaultyFileSystem& files, std::int64_t step, CheckpointLayout layout, int world = 4) {
  const std::vector<FileSystem*> disks(static_cast<std::size_t>(world), &files);
  std::optional<Result<WrittenCheckpoint>> written;
  save_with(disks, TestState(step), test_options(layout), &written);
  REQUIRE(written);
  REQUIRE(written->ok());
}

// Changes the marker of a checkpoint as its writer would have written it.
void rewrite_manifest(FaultyFileSystem& files, const std::string& directory,
                      const std::function<void(Manifest&)>& change) {
  auto manifest = read_manifest(files, directory).value();
  change(manifest);
  files.set_content(join_path(directory, kManifestFile), manifest_text(manifest));
}

FileDigest digest_of(FaultyFileSystem& files, const std::string& directory,
                     const std::string& name) {
  const auto content = files.read(join_path(directory, name), 1 << 30).value();
  return {name, content.size(), xxh3_64(bytes_of(content))};
}

TEST_CASE("cut short, flipped, missing, foreign: noticed, named, the one before is used") {
  for (const auto layout : {CheckpointLayout::kHf, CheckpointLayout::kSharded}) {
    FaultyFileSystem files;
    save(files, 1, layout);
    save(files, 2, layout);
    const std::string directory = "out/checkpoint-2/";
    const auto good = files.snapshot("out/checkpoint-2");
    const auto refused_for = [&](const std::string& name) {
      std::vector<RefusedCheckpoint> refused;
      CHECK(check_newest(files, 1, 2, &refused) == 1);
      REQUIRE(refused.size() == 1);
      CHECK_MESSAGE(refused[0].reason.message().find(name) != std::string::npos,
                    refused[0].reason.message());
    };
    SeededRandom random(3);
    for (const auto& [name, content] : good) {
      CAPTURE(name);
      for (int i = 0; i < 3; ++i) {
        files.set_content(directory + name, content.substr(0, random.below(content.size())));
        refused_for(name);
        std::string bad = content;
        bad[random.below(bad.size())] ^= static_cast<char>(1u << random.below(8));
        files.set_content(directory + name, bad);
        refused_for(name);
        CHECK(inspect_checkpoint(files, "out/checkpoint-2", 3).damage.size() == 1);
      }
      files.set_content(directory + name, content);
    }
    CHECK(inspect_checkpoint(files, "out/checkpoint-2").damage.empty());
    files.set_content(directory + kManifestFile,
                      files.snapshot("out/checkpoint-1").at(kManifestFile));
    refused_for("checkpoint-2");
    REQUIRE(files.remove(directory + kManifestFile).ok());
    refused_for("its marker was removed");
    files.set_content(directory + "config.json", "[]");
    for (const auto& [name, content] : good) {
      if (name.starts_with("shard-")) {
        REQUIRE(files.create(directory + kManifestFile).ok());
        files.set_content(directory + kManifestFile, good.at(kManifestFile));
        REQUIRE(files.remove(directory + name).ok());
        files.set_content(directory + "config.json", good.at("config.json"));
        refused_for(name);
        break;
      }
    }
  }
}

TEST_CASE("a shard of another checkpoint, a missing piece, overlapping pieces") {
  FaultyFileSystem files;
  save(files, 1, CheckpointLayout::kSharded);
  const auto good = files.snapshot("out/checkpoint-1");
  const std::string directory = "out/checkpoint-1";
  const std::string third = "shard-00003-model-00003-of-00004.safetensors";
  const auto status = [&] { return validate_checkpoint(files, directory).status(); };
  const auto restore = [&] {
    for (const auto& [name, content] : good) files.set_content(directory + "/" + name, content);
  };
  const auto told = [&](const std::string& what) {
    const Status why = status();
    CHECK(why.code() == Code::kDataLoss);
    CHECK_MESSAGE(why.message().find(what) != std::string::npos, why.message());
  };
  // The manifest does not know the third shard.
  rewrite_manifest(files, directory, [&](Manifest& manifest) {
    std::erase_if(manifest.files, [&](const auto& file) { return file.name == third; });
  });
  // 143 elements by 1 + 2 + 3 + 4 tenths: 14, 42, 85.
  told("elements 42 to 85 of 'model.embed.weight' are in no file");
  restore();
  rewrite_manifest(files, directory, [&](Manifest& manifest) {
    for (auto& file : manifest.files) {
      if (file.name == third) file.pieces.at("model.embed.weight") -= 3;
    }
  });
  told("elements 39 to 42 of 'model.embed.weight' are both in shard-00002");
  restore();
  rewrite_manifest(files, directory, [&](Manifest& manifest) {
    for (auto& file : manifest.files) {
      if (file.name == third) file.pieces.at("model.embed.weight") = 140;
    }
  });
  told("the piece of 'model.embed.weight' does not fit");
  restore();
  rewrite_manifest(files, directory, [&](Manifest& manifest) {
    manifest.tensors.at("model.embed.weight").dtype = DType::kBF16;
  });
  told("does not fit");
  restore();
  rewrite_manifest(files, directory, [&](Manifest& manifest) {
    std::erase_if(manifest.files,
                  [&](const auto& file) { return file.name.starts_with("shard-"); });
  });
  told("of 'model.embed.weight' are in no file");
  restore();
  rewrite_manifest(files, directory, [](Manifest& manifest) { manifest.format = "other"; });
  CHECK(status().code() == Code::kUnsupported);
  restore();
  CHECK(status().ok());
}

TEST_CASE("all damage is found, with its place and the tensors it hits") {
  FaultyFileSystem files;
  save(files, 1, CheckpointLayout::kHf, 2);
  const std::string path = "out/checkpoint-1/model.safetensors";
  const auto manifest = read_manifest(files, "out/checkpoint-1").value();
  const auto it = std::find_if(manifest.files.begin(), manifest.files.end(),
                               [](const auto& file) { return file.name == "model.safetensors"; });
  REQUIRE(it != manifest.files.end());
  REQUIRE(it->parts.size() > 4);
  auto content = files.read(path, 1 << 20).value();
  const auto& second = it->parts[1];
  const auto& last = it->parts.back();
  content[second.offset] ^= 1;
  content[last.offset + last.size_bytes - 1] ^= 1;
  files.set_content(path, content);
  REQUIRE(files.remove("out/checkpoint-1/cursor.json").ok());
  const auto inspection = inspect_checkpoint(files, "out/checkpoint-1", 2);
  CHECK(inspection.step == 1);
  CHECK(inspection.world_size == 2);
  REQUIRE(inspection.damage.size() == 3);
  CHECK(inspection.damage[0].file == "cursor.json");
  CHECK(inspection.damage[0].reason.message() == "out/checkpoint-1/cursor.json is missing");
  CHECK(inspection.damage[1].offset == second.offset);
  CHECK(inspection.damage[1].size_bytes == second.size_bytes);
  CHECK(!inspection.damage[1].tensors.empty());
  CHECK(inspection.damage[2].tensors == std::vector<std::string>{"model.half.weight"});
  CHECK(inspection.damage[2].reason.message() ==
        fmt::format("{} is damaged in bytes {} to {}: its hash is not the one it was written with",
                    path, last.offset, last.offset + last.size_bytes));
  CHECK(inspect_checkpoint(files, "out").damage.size() == 1);
}

TEST_CASE("what is asked for wrongly is an error") {
  FaultyFileSystem files;
  save(files, 1, CheckpointLayout::kSharded, 2);
  const auto reader =
      TensorReader::open(files, validate_checkpoint(files, "out/checkpoint-1").value()).value();
  std::vector<float> out(10);
  std::vector<std::byte> bytes(8);
  CHECK(reader.read("nothing", 0, out).code() == Code::kNotFound);
  CHECK(reader.read_bf16("nothing", 0, {}).code() == Code::kNotFound);
  CHECK(reader.read_bytes("nothing", 0, bytes).code() == Code::kNotFound);
  CHECK(reader.find("nothing") == nullptr);
  CHECK(reader.read("model.norm.weight", 4, out).code() == Code::kInvalidArgument);
  CHECK(reader.read("model.norm.weight", -1, out).code() == Code::kInvalidArgument);
  CHECK(reader.read("model.norm.weight", 14, {}).code() == Code::kInvalidArgument);
  CHECK(reader.read("model.norm.weight", 13, {}).ok());
  CHECK(reader.read("model.norm.weight", 3, out).ok());
  CHECK(reader.read_bytes("model.half.weight", 44, std::span(bytes).first(2)).ok());
}

TEST_CASE("checkpoints of version 1 load: whole moments in one file, no parts") {
  FaultyFileSystem files;
  const TestState state(4);
  WholeState whole;
  whole.step = 4;
  for (const auto& [name, tensor] : state.weights()) {
    whole.weights.push_back({name, tensor.dtype, tensor.shape, tensor.data});
  }
  for (const auto& [name, tensor] : state.optimizer()) {
    whole.optimizer.push_back({name, tensor.dtype, tensor.shape, tensor.data});
  }
  REQUIRE(save_whole(files, whole).ok());
  CHECK(files.read("out/checkpoint-4/troupe_checkpoint.json", 1 << 20)
            .value()
            .find("\"format_version\": 1") != std::string::npos);
  CHECK(check_newest(files, 1, 3) == 4);
}

TEST_CASE("a checkpoint becomes a model with configuration and tokenizer") {
  for (const auto layout : {CheckpointLayout::kHf, CheckpointLayout::kSharded}) {
    for (const std::uint64_t shard_bytes_max : {std::uint64_t{700}, kShardBytesMax}) {
      FaultyFileSystem files;
      save(files, 6, layout);
      // A tokenizer that came with the model.
      const std::string directory = "out/checkpoint-6";
      REQUIRE(write_file_atomically(files, directory + "/tokenizer.json", "{\"t\": 1}").ok());
      rewrite_manifest(files, directory, [&](Manifest& manifest) {
        manifest.files.push_back({digest_of(files, directory, "tokenizer.json"), {}, {}});
      });
      const auto good = validate_checkpoint(files, directory).value();
      const auto merged = merge_checkpoint(files, good, "merged", shard_bytes_max).value();
      CHECK(merged.tensor_count == 5);
      const auto written = files.snapshot("merged");
      CHECK(written.size() == merged.files.size());
      CHECK(written.at("tokenizer.json") == "{\"t\": 1}");
      CHECK(written.contains("config.json"));
      CHECK(written.contains("model.safetensors.index.json") == (shard_bytes_max == 700));
      TestState(6).check(TensorReader::open_model(files, "merged").value(), 2);
      CHECK(merge_checkpoint(files, good, "merged").status().code() == Code::kAlreadyExists);
      CHECK(merge_checkpoint(files, good, directory).status().code() == Code::kAlreadyExists);
      for (std::uint64_t n = 0;; ++n) {
        files.fail_operation(n);
        const auto again = merge_checkpoint(files, good, "again", shard_bytes_max);
        const bool failed = files.fault_happened();
        files.revive(FaultyFileSystem::Survives::kEverything);
        if (!failed) {
          CHECK(again.ok());
          break;
        }
        if (!again.ok() && files.exists("again")) {
          const auto left = files.snapshot("again");
          const bool unfinished = std::any_of(left.begin(), left.end(), [](const auto& file) {
            return file.first.ends_with(".safetensors.tmp");
          });
          CHECK(!unfinished);
        }
        REQUIRE(files.remove_tree("again").ok());
      }
    }
  }
  FaultyFileSystem files;
  save(files, 6, CheckpointLayout::kHf);
  REQUIRE(files.remove("out/checkpoint-6/config.json").ok());
  rewrite_manifest(files, "out/checkpoint-6", [](Manifest& manifest) {
    std::erase_if(manifest.files, [](const auto& file) { return file.name == "config.json"; });
  });
  const auto good = validate_checkpoint(files, "out/checkpoint-6").value();
  CHECK(merge_checkpoint(files, good, "merged").status().code() == Code::kNotFound);
}

}  // namespace
}  // namespace troupe::train
