#include "train/adapters/adapter_files.h"

#include <doctest/doctest.h>

#include <cstring>
#include <limits>

#include "tests/support/test_data.h"
#include "tests/support/text.h"
#include "tests/train/adapters/adapter_models.h"
#include "train/adapters/adapter_targets.h"

namespace troupe::train {
namespace {

using tests::file_text;
using tests::small_model;
using troupe::tests::contains;
using troupe::tests::TemporaryDirectory;

// An adapter of small_model(), its tensors filled with ascending numbers, as files.
struct WrittenAdapter {
  TemporaryDirectory directory;
  PosixFileSystem files;
  AdapterConfig config;
  std::vector<std::vector<float>> values;
  std::vector<StoredTensor> tensors;

  explicit WrittenAdapter(const ModelConfig& model, LoraRequest request = {}) {
    config = make_adapter_config(model, request).value();
    for (const ExpectedTensor& tensor :
         adapter_tensors(model, lora_trainables(model, config).value())) {
      std::size_t count = 1;
      for (const std::int64_t width : tensor.shape) count *= static_cast<std::size_t>(width);
      auto& numbers = values.emplace_back(count);
      for (std::size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i);
      tensors.push_back(
          {tensor.name, DType::kF32, tensor.shape, std::as_bytes(std::span(numbers))});
    }
  }

  void write() { REQUIRE(write_adapter(files, directory.path(), config, tensors).ok()); }
  Result<OpenedAdapter> open(const ModelConfig& model, const std::string& folder = "") {
    return open_adapter(files, directory.path(), folder, model);
  }
  StoredTensor& tensor(std::string_view name) {
    for (StoredTensor& tensor : tensors)
      if (tensor.name == name) return tensor;
    FAIL("no such tensor");
    return tensors[0];
  }
};

LoraRequest small_request() {
  LoraRequest request;
  request.targets = {"q_proj", "down_proj"};
  request.rank = 3;
  request.use_dora = true;
  request.additional_targets = {"embed_tokens"};
  return request;
}

TEST_CASE("a written adapter opens with equal tensors, types kept") {
  const ModelConfig model = small_model("llama", false, 1);
  WrittenAdapter written(model, small_request());
  written.write();
  const auto opened = written.open(model);
  REQUIRE_MESSAGE(opened.ok(), opened.status().to_string());
  CHECK(opened->notes.empty());
  CHECK(opened->replaced.empty());
  REQUIRE(opened->tensors.size() == 7);
  for (std::size_t i = 0; i < 7; ++i) {
    CHECK(opened->tensors[i].name == written.tensors[i].name);
    CHECK(opened->tensors[i].shape == written.tensors[i].shape);
    CHECK(std::memcmp(opened->tensors[i].data.data(), written.tensors[i].data.data(),
                      written.tensors[i].data.size()) == 0);
  }
  CHECK(opened->tensors[0].name == "model.layers.0.self_attn.q_proj.lora_A.weight");
  CHECK(opened->tensors[2].name == "model.layers.0.self_attn.q_proj.lora_magnitude_vector");
  CHECK(opened->tensors[6].name == "model.embed_tokens.weight");
  CHECK(opened->trainables.lora[0].dora);
  CHECK(opened->file.metadata() == Metadata{{"format", "pt"}});
}

TEST_CASE("an adapter of another base or rank is refused before anything is read") {
  const ModelConfig model = small_model("llama", false, 1);
  WrittenAdapter written(model, small_request());
  SUBCASE("rank") {
    written.config.rank = 4;
    written.write();
    const Status status = written.open(model).status();
    CHECK(status.code() == Code::kInvalidArgument);
    CHECK(
        contains(status.message(),
                 "size mismatch for base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight:"
                 " copying a param with shape torch.Size([3, 8]) from checkpoint, the shape in "
                 "current model is torch.Size([4, 8])."));
  }
  SUBCASE("another width") {
    written.write();
    ModelConfig wider = model;
    wider.hidden_size = 16;
    CHECK(contains(written.open(wider).status().message(), "size mismatch for"));
  }
  SUBCASE("another family") {
    written.write();
    CHECK(contains(written.open(small_model("gpt2")).status().message(),
                   "not found in the base model"));
  }
  SUBCASE("more layers") {
    written.write();
    const Status status = written.open(small_model("llama", false, 3)).status();
    CHECK(status.code() == Code::kNotFound);
    CHECK(contains(status.message(),
                   "Found missing adapter keys while loading the checkpoint: "
                   "[base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight, "));
    CHECK(contains(status.message(), "and 8 more"));
  }
  SUBCASE("a module that is trained whole is not there") {
    written.tensors.pop_back();
    written.write();
    CHECK(contains(written.open(model).status().message(),
                   "[base_model.model.model.embed_tokens.weight]"));
  }
}

TEST_CASE("tensors beside the adapter: embeddings replace the base's, others are noted") {
  const ModelConfig model = small_model("llama", false, 1);
  LoraRequest request;
  request.targets = {"q_proj"};
  WrittenAdapter written(model, request);
  const std::vector<float> more(80, 1.0f);
  written.tensors.push_back(
      {"lm_head.weight", DType::kF32, {10, 8}, std::as_bytes(std::span(more))});
  written.tensors.push_back({"nosuch.weight", DType::kF32, {80}, std::as_bytes(std::span(more))});
  written.write();
  const auto opened = written.open(model);
  REQUIRE_MESSAGE(opened.ok(), opened.status().to_string());
  REQUIRE(opened->replaced.size() == 1);
  CHECK(opened->replaced[0].name == "lm_head.weight");
  REQUIRE(opened->notes.size() == 1);
  CHECK(contains(opened->notes[0], "nosuch.weight"));
  // More tokens than the base has.
  ModelConfig fewer = model;
  fewer.vocab_size = 9;
  CHECK(contains(written.open(fewer).status().message(), "size mismatch for"));
}

TEST_CASE("an adapter of a model that holds this one opens by the names that it has there") {
  const ModelConfig model = small_model("gemma3_text", true, 1);
  for (const std::string_view wrapper : {"model.language_model.", "language_model.model."}) {
    CAPTURE(wrapper);
    LoraRequest request;
    request.targets = {"q_proj"};
    WrittenAdapter written(model, request);
    const std::vector<float> more(80, 1.0f);
    written.tensors.push_back(
        {"model.embed_tokens.weight", DType::kF32, {10, 8}, std::as_bytes(std::span(more))});
    for (StoredTensor& tensor : written.tensors) {
      REQUIRE(tensor.name.starts_with("model."));
      tensor.name.replace(0, 6, wrapper);
    }
    written.write();
    const auto opened = written.open(model);
    REQUIRE_MESSAGE(opened.ok(), opened.status().to_string());
    CHECK(opened->notes.empty());
    REQUIRE(opened->tensors.size() == 2);
    CHECK(opened->tensors[0].name == "model.layers.0.self_attn.q_proj.lora_A.weight");
    REQUIRE(opened->replaced.size() == 1);
    CHECK(opened->replaced[0].name == "model.embed_tokens.weight");
  }
}

TEST_CASE("values that are not finite are refused with their tensor") {
  const ModelConfig model = small_model("llama", false, 1);
  LoraRequest request;
  request.targets = {"q_proj"};
  WrittenAdapter written(model, request);
  std::vector<float> values(static_cast<std::size_t>(written.tensors[0].element_count()), 1.0f);
  values.back() = std::numeric_limits<float>::quiet_NaN();
  written.tensors[0].data = std::as_bytes(std::span(values));
  written.write();
  const auto opened = written.open(model);
  CHECK(opened.status().code() == Code::kDataLoss);
  CHECK(contains(opened.status().message(), written.tensors[0].name));
}

TEST_CASE("the directory: formats, the config's absence, adapter_folder") {
  const ModelConfig model = small_model();
  WrittenAdapter written(model);
  const std::string path = written.directory.path();
  CHECK(written.open(model).status().message() ==
        "Can't find 'adapter_config.json' at '" + path + "'");
  written.write();
  CHECK(written.open(model).ok());
  REQUIRE(write_synced_file(written.files, path + "/adapter_model.bin", "x").ok());
  CHECK(contains(written.open(model).status().message(), "in two formats"));
  REQUIRE(written.files.remove(path + "/adapter_model.safetensors").ok());
  const Status pickled = written.open(model).status();
  CHECK(pickled.code() == Code::kUnsupported);
  CHECK(contains(pickled.message(), "adapter_model.bin: pickled weights are not read"));
  REQUIRE(written.files.remove(path + "/adapter_model.bin").ok());
  CHECK(written.open(model).status().code() == Code::kNotFound);

  const std::string inner = path + "/of_step_7";
  REQUIRE(written.files.create_directories(inner).ok());
  REQUIRE(write_adapter(written.files, inner, written.config, written.tensors).ok());
  CHECK(written.open(model, "of_step_7").value().directory == inner);
}

// PEFT's own adapters, opened against their base and written again.
TEST_CASE("PEFT's own adapters are written again byte by byte") {
  const auto golden = troupe::tests::test_data("lf_golden");
  const auto base = troupe::tests::test_data("stories260K/hf");
  if (!golden || !base) return;
  PosixFileSystem files;
  const ModelConfig model = tests::model_of(files, *base);
  int compared = 0;
  for (const char* name : {"inits/r4",
                           "inits/r4_a5",
                           "inits/r4_dora",
                           "inits/r4_qk_seed77",
                           "inits/r4_qv",
                           "inits/r4_qv_save",
                           "inits/r4_seed99",
                           "inits/r8",
                           "inits/r8_rslora",
                           "lora_all/final",
                           "lora_alpha/final",
                           "lora_embed_head/final",
                           "lora_fresh/final",
                           "lora_norm/final",
                           "lora_qv/final",
                           "lora_two_adapters/final",
                           "lora_create_new/final",
                           "rslora/final",
                           "dora/final",
                           "loraplus/final"}) {
    CAPTURE(name);
    const std::string folder = *golden + "/" + name;
    // Some cases keep the configuration only.
    if (!files.exists(folder + "/adapter_model.safetensors")) continue;
    ++compared;
    const auto opened = open_adapter(files, folder, "", model);
    REQUIRE_MESSAGE(opened.ok(), opened.status().to_string());
    CHECK(opened->notes.empty());
    CHECK(opened->replaced.empty());
    const TemporaryDirectory out;
    REQUIRE(write_adapter(files, out.path(), opened->config, opened->tensors).ok());
    for (const char* file : {"adapter_model.safetensors", "adapter_config.json"})
      CHECK_MESSAGE(file_text(files, out.file(file)) == file_text(files, folder + "/" + file),
                    file);
  }
  CHECK(compared >= 9);
}

// The published file holds one module of those that its configuration names, and embeddings of the
// added tokens alone; PEFT would go on with fresh values for the rest.
TEST_CASE("a published adapter that is not whole is refused, naming what is missing") {
  const auto folder = troupe::tests::test_data("peft_lora_adapter");
  if (!folder) return;
  PosixFileSystem files;
  ModelConfig model = small_model("llama", false, 1);
  model.hidden_size = 64;
  model.num_attention_heads = model.num_key_value_heads = 16;
  const Status status = open_adapter(files, *folder, "", model).status();
  CHECK(status.code() == Code::kNotFound);
  CHECK(contains(status.message(),
                 "[base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight, "
                 "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight]"));
}

}  // namespace
}  // namespace troupe::train
