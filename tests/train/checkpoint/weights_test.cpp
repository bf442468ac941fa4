#include "train/checkpoint/weights.h"

#include <doctest/doctest.h>

#include <cstring>

#include "tests/support/faulty_file_system.h"
#include "tests/support/test_data.h"

namespace troupe::train {
namespace {

using tests::FaultyFileSystem;

// Tensors "t0", "t1", … of 16 floats each, all of one value.
class Model {
 public:
  explicit Model(int count, float value = 1)
      : values_(static_cast<std::size_t>(16 * count), value) {
    for (int i = 0; i < count; ++i) {
      tensors_.push_back(
          {fmt::format("t{}", i),
           DType::kF32,
           {4, 4},
           std::as_bytes(std::span(values_)).subspan(static_cast<std::size_t>(64 * i), 64)});
    }
  }
  const std::vector<StoredTensor>& tensors() const { return tensors_; }

 private:
  std::vector<float> values_;
  std::vector<StoredTensor> tensors_;
};

float first_value(const Weights& weights, std::string_view name) {
  float value = 0;
  std::memcpy(&value, weights.find(name)->data.data(), sizeof value);
  return value;
}

TEST_CASE("one file up to the limit, shards with an index above it") {
  FaultyFileSystem files;
  CHECK(files.create_directories("m").ok());
  const Model model(5);
  const auto single = save_weights(files, "m", model.tensors(), 5 * 64).value();
  REQUIRE(single.size() == 1);
  CHECK(single[0].name == "model.safetensors");
  const auto bytes_of_single = files.snapshot("m").at("model.safetensors");

  const auto shards = save_weights(files, "m", model.tensors(), 2 * 64).value();
  CHECK(shards.size() == 4);
  const auto snapshot = files.snapshot("m");
  CHECK(snapshot.size() == 4);
  CHECK(snapshot.contains("model-00003-of-00003.safetensors"));
  CHECK(snapshot.at("model.safetensors.index.json") == R"({
  "metadata": {
    "total_parameters": 80,
    "total_size": 320
  },
  "weight_map": {
    "t0": "model-00001-of-00003.safetensors",
    "t1": "model-00001-of-00003.safetensors",
    "t2": "model-00002-of-00003.safetensors",
    "t3": "model-00002-of-00003.safetensors",
    "t4": "model-00003-of-00003.safetensors"
  }
}
)");
  for (const auto& shard : shards) {
    CHECK(shard.size_bytes == snapshot.at(shard.name).size());
    CHECK(shard.xxh3 == xxh3_64(bytes_of(snapshot.at(shard.name))));
  }
  CHECK(Weights::load(files, "m").value().tensors().size() == 5);

  CHECK(save_weights(files, "m", model.tensors(), 64).ok());
  CHECK(files.snapshot("m").size() == 6);
  CHECK(write_synced_file(files, "m/model-00007-of-00009.safetensors.tmp", "torn").ok());
  CHECK(save_weights(files, "m", model.tensors()).ok());
  CHECK(files.snapshot("m") ==
        std::map<std::string, std::string>{{"model.safetensors", bytes_of_single}});
}

TEST_CASE("errors name the file and the tensor") {
  FaultyFileSystem files;
  CHECK(files.create_directories("m").ok());
  CHECK(Weights::load(files, "none").status().code() == Code::kNotFound);
  CHECK(Weights::load(files, "m").status().code() == Code::kNotFound);
  const Model model(4);
  CHECK(save_weights(files, "m", model.tensors(), 2 * 64).ok());
  const auto good = files.snapshot("m");
  const std::string second = "m/model-00002-of-00002.safetensors";

  const auto says = [&](std::initializer_list<const char*> words) {
    const Status status = Weights::load(files, "m").status();
    CHECK(!status.ok());
    for (const char* word : words) {
      CHECK_MESSAGE(status.message().find(word) != std::string::npos, status.message());
    }
  };
  const std::string& whole = good.at("model-00002-of-00002.safetensors");
  files.set_content(second, whole.substr(0, whole.size() - 10));
  says({"model-00002-of-00002.safetensors", "cut off in tensor 't3'"});
  files.set_content(second, good.at("model-00001-of-00002.safetensors"));
  says({"model-00002-of-00002.safetensors", "'t2' is missing"});
  CHECK(files.remove(second).ok());
  says({"model-00002-of-00002.safetensors is missing", "t2, t3"});
  files.set_content("m/model.safetensors.index.json", R"({"weight_map":{"a":"../../etc/passwd"}})");
  says({"'../../etc/passwd'", "no file name"});
  files.set_content("m/model.safetensors.index.json", R"({"weight_map":{}})");
  says({"empty"});
  files.set_content("m/model.safetensors.index.json",
                    R"({"weight_map":{"t0":"model-00001-of-00002.safetensors"}})");
  says({"'t1' is not placed there"});
  files.set_content("m/model.safetensors.index.json", "{");
  says({"index.json:1"});
}

TEST_CASE("what does not fit the model is listed; a tied head is another name") {
  FaultyFileSystem files;
  CHECK(files.create_directories("m").ok());
  const Model model(2);
  CHECK(save_weights(files, "m", model.tensors()).ok());
  auto weights = Weights::load(files, "m").value();
  CHECK(check_weights(weights, {{"t0", {4, 4}}, {"t1", {4, 4}}}).ok());
  const Status status = check_weights(weights, {{"t0", {16}}, {"norm", {4}}});
  CHECK(status.message().find("missing: norm") != std::string::npos);
  CHECK(status.message().find("t0 is (4, 4), the configuration says (16)") != std::string::npos);
  CHECK(status.message().find("not part of the model: t1") != std::string::npos);
  CHECK(check_weights(weights, {{"t0", {4, 4}}}, [](auto name) { return name == "t1"; }).ok());
  CHECK(weights.add_alias("head", "t0"));
  CHECK(!weights.add_alias("head", "t1"));
  CHECK(!weights.add_alias("other", "none"));
  CHECK(weights.find("head")->data.data() == weights.find("t0")->data.data());
  CHECK(weights.find("head")->name == "head");
}

TEST_CASE("an interrupted save leaves the old weights, the new ones, or none that load") {
  for (const std::uint64_t old_limit : {64u, 1000u}) {
    for (const std::uint64_t new_limit : {64u, 1000u}) {
      for (const auto survives :
           {FaultyFileSystem::Survives::kEverything, FaultyFileSystem::Survives::kSyncedOnly,
            FaultyFileSystem::Survives::kNamesNotBytes}) {
        for (std::uint64_t n = 0;; ++n) {
          FaultyFileSystem files;
          CHECK(files.create_directories("m").ok());
          CHECK(files.sync_directory("").ok());
          const Model before(3, 1), after(3, 2);
          CHECK(save_weights(files, "m", before.tensors(), old_limit).ok());
          files.crash_at_operation(n);
          const bool saved = save_weights(files, "m", after.tensors(), new_limit).ok();
          const bool crashed = files.fault_happened();
          files.revive(survives);
          const auto weights = Weights::load(files, "m");
          if (weights.ok()) {
            CHECK(first_value(*weights, "t0") == first_value(*weights, "t2"));
            if (saved) CHECK(first_value(*weights, "t0") == 2);
          } else {
            CHECK(!saved);
            CHECK(old_limit == 64);  // shards over shards
          }
          if (!crashed) break;
        }
      }
    }
  }
}

TEST_CASE("a full disk leaves the old weights and nothing temporary") {
  FaultyFileSystem files;
  const Model before(3, 1), after(3, 2);
  const std::map<std::string, std::string> companions = {{"config.json", "{}"}};
  CHECK(save_model(files, "out", before.tensors(), companions).ok());
  const auto good = files.snapshot("out");
  CHECK(good.size() == 2);
  files.set_space_bytes(500);
  CHECK(save_model(files, "out", after.tensors(), companions).code() == Code::kResourceExhausted);
  CHECK(files.snapshot("out") == good);
}

TEST_CASE("a real model directory loads, with its companions") {
  const auto directory = tests::test_data("stories260K/hf");
  if (!directory) return;
  PosixFileSystem files;
  auto weights = Weights::load(files, *directory).value();
  CHECK(weights.tensors().size() == 47);
  CHECK(weights.find("lm_head.weight") == nullptr);
  CHECK(weights.add_alias("lm_head.weight", "model.embed_tokens.weight"));
  const auto companions = read_companions(files, *directory).value();
  CHECK(companions.size() == 3);

  tests::TemporaryDirectory out;
  std::vector<StoredTensor> tensors;
  for (const auto* tensor : weights.tensors()) {
    if (tensor->name != "lm_head.weight") tensors.push_back(*tensor);
  }
  CHECK(save_model(files, out.file("model"), tensors, companions).ok());
  CHECK(files.read(out.file("model/model.safetensors"), 1 << 24).value() ==
        files.read(*directory + "/model.safetensors", 1 << 24).value());
  CHECK(read_companions(files, out.file("model")).value() == companions);
}

}  // namespace
}  // namespace troupe::train
