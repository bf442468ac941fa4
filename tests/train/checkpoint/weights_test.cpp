#include "train/checkpoint/weights.h"

#include <doctest/doctest.h>

#include "tests/support/faulty_file_system.h"
#include "tests/support/test_data.h"
#include "tests/train/checkpoint/whole_files.h"
#include "train/checkpoint/tensor_reader.h"

namespace troupe::train {
namespace {

using tests::save_weights;
using troupe::tests::FaultyFileSystem;

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

float first_value(const TensorReader& weights, std::string_view name) {
  float value = 0;
  REQUIRE(weights.read(name, 0, std::span(&value, 1)).ok());
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
  CHECK(TensorReader::open_model(files, "m").value().weights().size() == 5);

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
  CHECK(TensorReader::open_model(files, "none").status().code() == Code::kNotFound);
  CHECK(TensorReader::open_model(files, "m").status().code() == Code::kNotFound);
  const Model model(4);
  CHECK(save_weights(files, "m", model.tensors(), 2 * 64).ok());
  const auto good = files.snapshot("m");
  const std::string second = "m/model-00002-of-00002.safetensors";

  const auto says = [&](std::initializer_list<const char*> words) {
    const Status status = TensorReader::open_model(files, "m").status();
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

TEST_CASE("what does not fit the model is listed") {
  FaultyFileSystem files;
  CHECK(files.create_directories("m").ok());
  const Model model(2);
  CHECK(save_weights(files, "m", model.tensors()).ok());
  const auto reader = TensorReader::open_model(files, "m").value();
  const auto& weights = reader.weights();
  CHECK(check_weights(weights, {{"t0", {4, 4}}, {"t1", {4, 4}}}).ok());
  const Status status = check_weights(weights, {{"t0", {16}}, {"norm", {4}}});
  CHECK(status.message().find("missing: norm") != std::string::npos);
  CHECK(status.message().find("t0 is (4, 4), the configuration says (16)") != std::string::npos);
  CHECK(status.message().find("not part of the model: t1") != std::string::npos);
  CHECK(check_weights(weights, {{"t0", {4, 4}}}, [](auto name) { return name == "t1"; }).ok());
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
          const auto weights = TensorReader::open_model(files, "m");
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

TEST_CASE("a real model directory loads, with its companions") {
  const auto directory = troupe::tests::test_data("stories260K/hf");
  if (!directory) return;
  PosixFileSystem files;
  const auto reader = TensorReader::open_model(files, *directory).value();
  CHECK(reader.weights().size() == 47);
  CHECK(reader.find("lm_head.weight") == nullptr);
  CHECK(reader.find("model.embed_tokens.weight") != nullptr);
  CHECK(read_companions(files, *directory).value().size() == 3);

  // Written again it is the same file.
  troupe::tests::TemporaryDirectory out;
  std::vector<std::vector<std::byte>> data;
  std::vector<StoredTensor> tensors;
  for (const auto& tensor : reader.weights()) {
    data.emplace_back(static_cast<std::size_t>(tensor.elements) * dtype_size(tensor.dtype));
    REQUIRE(reader.read_bytes(tensor.name, 0, data.back()).ok());
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, data.back()});
  }
  CHECK(save_weights(files, out.path(), tensors).ok());
  CHECK(files.read(out.file("model.safetensors"), 1 << 24).value() ==
        files.read(*directory + "/model.safetensors", 1 << 24).value());
}

}  // namespace
}  // namespace troupe::train
