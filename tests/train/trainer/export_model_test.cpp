#include "train/trainer/export_model.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "tests/support/golden_exports.h"
#include "tests/support/test_data.h"
#include "tests/support/text.h"
#include "train/adapters/adapter_targets.h"
#include "train/checkpoint/tensor_reader.h"
#include "train/checkpoint/weights.h"
#include "train/model/initialize.h"
#include "train/tensor/convert.h"
#include "train/trainer/adapted_model.h"
#include "train/trainer/loaded_model.h"

namespace troupe::train {
namespace {

using troupe::tests::contains;
using troupe::tests::TemporaryDirectory;

constexpr std::string_view kLlama = R"({"model_type": "llama", "vocab_size": 50, "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "torch_dtype": "float32",
    "tie_word_embeddings": true})";
constexpr std::string_view kGemma = R"({"model_type": "gemma", "vocab_size": 50, "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 6,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "torch_dtype": "float32"})";
constexpr std::string_view kGemma3 = R"({"model_type": "gemma3", "torch_dtype": "float32",
    "text_config": {"model_type": "gemma3_text", "vocab_size": 50, "hidden_size": 16,
    "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 6,
    "num_key_value_heads": 1, "sliding_window": 3, "sliding_window_pattern": 2},
    "vision_config": {}})";
constexpr std::string_view kGpt2 = R"({"model_type": "gpt2", "vocab_size": 50, "n_embd": 16,
    "n_layer": 2, "n_head": 4, "n_positions": 20, "torch_dtype": "float32"})";

// A folder with a small model of random weights, and adapters of it.
struct Workshop {
  // prefix: stands before all names.
  explicit Workshop(std::string_view text, DType type = DType::kF32, const std::string& prefix = "")
      : config(ModelConfig::parse(text, "config.json").value()) {
    REQUIRE(files.create_directories(base()).ok());
    REQUIRE(write_file_atomically(files, base() + "/config.json", std::string(text)).ok());
    const ParameterLayout layout(config);
    std::vector<StoredTensor> tensors;
    std::vector<std::vector<std::byte>> stored;
    for (const ParameterInfo& info : layout.parameters()) {
      std::vector<float> values(static_cast<std::size_t>(info.elements));
      initialize_parameter(info, 0.3, 1, 0, values);
      auto& bytes = stored.emplace_back(values.size() * dtype_size(type));
      REQUIRE(convert_from_float(values, type, bytes).ok());
      tensors.push_back({prefix + info.name, type, info.shape, {}});
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].data = stored[i];
    if (!prefix.empty()) {
      tensors.push_back(tensors.front());
      tensors.back().name = "vision_tower.vision_model.embeddings.patch_embedding.weight";
    }
    REQUIRE(write_safetensors(files, base() + "/model.safetensors", tensors, {}).ok());
  }

  std::string base() const { return directory.file("base"); }
  std::string out() const { return directory.file("out"); }

  // Its tensors are random; `first` becomes the very first value.
  std::string add_adapter(const std::string& name, const LoraRequest& request, float first = 0.1f) {
    const std::string folder = directory.file(name);
    REQUIRE(files.create_directories(folder).ok());
    const AdapterConfig adapter = make_adapter_config(config, request).value();
    std::vector<StoredTensor> tensors;
    std::vector<std::vector<float>> values;
    for (const ExpectedTensor& expected :
         adapter_tensors(config, lora_trainables(config, adapter).value())) {
      ParameterInfo info{.name = expected.name, .shape = expected.shape, .elements = 1};
      for (const std::int64_t width : expected.shape) info.elements *= width;
      info.initial = {InitialValue::Kind::kUniform, 0.3};
      initialize_parameter(info, 0.3, 7, 0,
                           values.emplace_back(static_cast<std::size_t>(info.elements)));
      tensors.push_back({expected.name, DType::kF32, expected.shape, {}});
    }
    values[0][0] = first;
    for (std::size_t i = 0; i < tensors.size(); ++i)
      tensors[i].data = std::as_bytes(std::span(values[i]));
    REQUIRE(write_adapter(files, folder, adapter, tensors).ok());
    return folder;
  }

  ExportRequest request(const std::vector<std::string>& adapters) const {
    return {.base = base(), .adapters = adapters, .adapter_folder = {}, .out = out()};
  }
  std::vector<float> tensor(const std::string& folder, const std::string& name) {
    const auto reader = TensorReader::open_model(files, folder).value();
    const TensorInfo* info = reader.find(name);
    REQUIRE_MESSAGE(info, name);
    std::vector<float> values(static_cast<std::size_t>(info->elements));
    REQUIRE(reader.read(name, 0, values).ok());
    return values;
  }
  json::Value written_config() {
    return json::parse(files.read(out() + "/config.json", 1 << 20).value(), "config").value();
  }

  TemporaryDirectory directory;
  PosixFileSystem files;
  ModelConfig config;
};

LoraRequest lora(std::vector<std::string> targets, std::int64_t rank = 4) {
  LoraRequest request;
  request.targets = std::move(targets);
  request.rank = rank;
  return request;
}

TEST_CASE("the language model of a model that sees pictures is exported as one of its own") {
  Workshop w(kGemma3, DType::kF32, "language_model.");
  const std::string adapter = w.add_adapter("adapter", lora({"all"}));
  const auto exported = export_model(w.files, w.request({adapter}));
  REQUIRE_MESSAGE(exported.ok(), exported.status().to_string());
  REQUIRE(exported->logit_difference);
  CHECK(*exported->logit_difference < 1e-4);
  CHECK(w.written_config().at("model_type") == "gemma3_text");
  const std::string norm = "model.layers.1.pre_feedforward_layernorm.weight";
  CHECK(w.tensor(w.out(), norm) == w.tensor(w.base(), "language_model." + norm));
  const auto written = TensorReader::open_model(w.files, w.out()).value();
  for (const TensorInfo& tensor : written.weights()) CHECK(tensor.name.starts_with("model."));
}

TEST_CASE("an export adds scale·B·A, and computes what base and adapter do") {
  for (const std::string_view text : {kLlama, kGemma, kGpt2}) {
    const bool transposed = text == kGpt2;
    CAPTURE(transposed);
    Workshop w(text);
    const std::string target = transposed ? "c_fc" : "up_proj";
    const std::string first = w.add_adapter(
        "first", lora(transposed ? std::vector<std::string>{"c_attn", "c_proj", "c_fc"}
                                 : std::vector<std::string>{"all"}));
    const std::string second = w.add_adapter("second", lora({target}, 2), -0.2f);
    const auto exported = export_model(w.files, w.request({first, second}));
    REQUIRE_MESSAGE(exported.ok(), exported.status().to_string());
    CHECK(exported->dtype == DType::kF32);
    REQUIRE(exported->logit_difference);
    CHECK(*exported->logit_difference < 1e-4);

    const std::string module =
        transposed ? "transformer.h.0.mlp.c_fc" : "model.layers.0.mlp.up_proj";
    auto expected = w.tensor(w.base(), module + ".weight");
    for (const std::string& folder : {first, second}) {
      const auto adapter = open_adapter(w.files, folder, "", w.config).value();
      const auto find = [&](const std::string& name) {
        for (const StoredTensor& tensor : adapter.tensors)
          if (tensor.name == module + name) return tensor;
        FAIL("no " << name);
        return StoredTensor{};
      };
      const StoredTensor a = find(".lora_A.weight"), b = find(".lora_B.weight");
      const auto value = [](const StoredTensor& t, std::int64_t index) {
        float number = 0;
        std::memcpy(&number, t.data.data() + 4 * index, 4);
        return static_cast<double>(number);
      };
      const std::int64_t rank = a.shape[0], in = a.shape[1], out = b.shape[0];
      for (std::int64_t o = 0; o < out; ++o)
        for (std::int64_t i = 0; i < in; ++i) {
          double sum = 0;
          for (std::int64_t k = 0; k < rank; ++k)
            sum += value(b, o * rank + k) * value(a, k * in + i);
          // lora_alpha is 2·rank where nothing is said.
          expected[static_cast<std::size_t>(transposed ? i * out + o : o * in + i)] +=
              static_cast<float>(2 * sum);
        }
    }
    const auto merged = w.tensor(w.out(), module + ".weight");
    for (std::size_t i = 0; i < merged.size(); ++i)
      REQUIRE(merged[i] == doctest::Approx(expected[i]).epsilon(1e-5));
    const std::string untouched = transposed ? "transformer.ln_f.weight" : "model.norm.weight";
    CHECK(w.tensor(w.out(), untouched) == w.tensor(w.base(), untouched));
  }
}

TEST_CASE("a head trained apart from its embedding is written, and loaded again") {
  Workshop w(kLlama);
  LoraRequest with_head = lora({"q_proj"});
  with_head.additional_targets = {"lm_head"};
  const std::string head = w.add_adapter("head", with_head);
  const auto exported = export_model(w.files, w.request({head}));
  REQUIRE_MESSAGE(exported.ok(), exported.status().to_string());
  CHECK(exported->unties_head);
  CHECK(*exported->logit_difference < 1e-4);
  CHECK(w.written_config().at("tie_word_embeddings") == json::Value(false));
  CHECK(w.tensor(w.out(), "model.embed_tokens.weight") ==
        w.tensor(w.base(), "model.embed_tokens.weight"));
  CHECK(w.tensor(w.out(), "lm_head.weight") != w.tensor(w.base(), "model.embed_tokens.weight"));

  // The other way round the head keeps the base's matrix.
  Workshop e(kLlama);
  LoraRequest with_embedding = lora({"q_proj"});
  with_embedding.additional_targets = {"embed_tokens"};
  const std::string embedding = e.add_adapter("embedding", with_embedding);
  REQUIRE(export_model(e.files, e.request({embedding})).ok());
  CHECK(e.tensor(e.out(), "lm_head.weight") == e.tensor(e.base(), "model.embed_tokens.weight"));
  CHECK(e.tensor(e.out(), "model.embed_tokens.weight") != e.tensor(e.out(), "lm_head.weight"));
}

TEST_CASE("types: the base's is rounded to after each adapter, infer_dtype at the end") {
  Workshop w(kLlama, DType::kBF16);
  const std::string adapter = w.add_adapter("adapter", lora({"q_proj"}));
  auto request = w.request({adapter});
  request.dtype = DType::kF32;
  const auto exported = export_model(w.files, request);
  REQUIRE_MESSAGE(exported.ok(), exported.status().to_string());
  // Rounding shows, and is no fault.
  CHECK(*exported->logit_difference > 1e-3);
  for (const float value : w.tensor(w.out(), "model.layers.0.self_attn.q_proj.weight"))
    REQUIRE(bf16_to_float(float_to_bf16(value)) == value);
  CHECK(w.written_config().at("torch_dtype") == json::Value("float32"));

  Workshop plain(kLlama);
  auto automatic = plain.request({});
  automatic.has_gpu = true;
  automatic.shard_bytes_max = 2000;
  const auto shards = export_model(plain.files, automatic);
  REQUIRE_MESSAGE(shards.ok(), shards.status().to_string());
  CHECK(shards->dtype == DType::kBF16);
  CHECK_FALSE(shards->logit_difference);
  CHECK(plain.files.exists(plain.out() + "/model.safetensors.index.json"));
  CHECK_FALSE(plain.files.exists(plain.out() + "/model.safetensors"));
  CHECK(plain.written_config().at("torch_dtype") == json::Value("bfloat16"));
  auto expected = plain.tensor(plain.base(), "model.norm.weight");
  for (float& value : expected) value = bf16_to_float(float_to_bf16(value));
  CHECK(plain.tensor(plain.out(), "model.norm.weight") == expected);
}

TEST_CASE("what differs from base and adapter is not left as a model") {
  Workshop w(kLlama);
  LoraRequest far = lora({"q_proj"});
  far.alpha = 1'000'000;
  // Finite, but the product of A and B is not.
  const auto exported = export_model(w.files, w.request({w.add_adapter("adapter", far, 3e38f)}));
  REQUIRE_FALSE(exported.ok());
  CHECK(exported.status().code() == Code::kDataLoss);
  CHECK(contains(exported.status().message(), "by nan in a logit of the probe text"));
  CHECK_FALSE(w.files.exists(w.out() + "/model.safetensors"));
}

TEST_CASE("how far merged logits may be off: a share of the largest, never of less than 1") {
  CHECK(logit_difference_max(true, 0.2) == 1e-3);
  CHECK(logit_difference_max(true, 40) == doctest::Approx(0.04));
  CHECK(logit_difference_max(false, 0.2) == 0.5);
  CHECK(logit_difference_max(false, 40) == doctest::Approx(20));
}

TEST_CASE("an adapter that diverged is not left as a model") {
  Workshop w(kLlama);
  const std::string adapter =
      w.add_adapter("adapter", lora({"q_proj"}), std::numeric_limits<float>::quiet_NaN());
  const auto exported = export_model(w.files, w.request({adapter}));
  REQUIRE_FALSE(exported.ok());
  CHECK(exported.status().code() == Code::kDataLoss);
  CHECK(contains(exported.status().message(), "has values that are not finite"));
  CHECK_FALSE(w.files.exists(w.out() + "/model.safetensors"));
}

TEST_CASE("an export that cannot be is refused before anything is written") {
  Workshop w(kLlama);
  const std::string adapter = w.add_adapter("adapter", lora({"q_proj"}));
  const auto refused = [&](const ExportRequest& request, Code code, const std::string& what) {
    const auto exported = export_model(w.files, request);
    REQUIRE_FALSE(exported.ok());
    CHECK(exported.status().code() == code);
    CAPTURE(exported.status().message());
    CHECK(contains(exported.status().message(), what));
    CHECK_FALSE(w.files.exists(w.out()));
  };
  auto over = w.request({adapter});
  over.out = w.base() + "/.";
  refused(over, Code::kInvalidArgument, "written over");
  over.out = adapter + "/../adapter";
  refused(over, Code::kInvalidArgument, "written over");
  over.adapters = {};
  refused(over, Code::kAlreadyExists, "name another directory");
  refused(w.request({w.base()}), Code::kNotFound, "Can't find 'adapter_config.json' at");
  auto inner = w.request({adapter});
  inner.adapter_folder = "inner";
  refused(inner, Code::kNotFound, "/adapter/inner'");
  auto quantized = w.request({});
  quantized.base = troupe::tests::source_dir() + "/tests/golden/quantized/base-int8";
  refused(quantized, Code::kUnsupported, "A quantized model is not exported.");

  Workshop other(kGpt2);
  refused(w.request({other.add_adapter("adapter", lora({"c_fc"}))}), Code::kInvalidArgument,
          "adapter_config.json");
  const std::string config = adapter + "/adapter_config.json";
  std::string text = w.files.read(config, 1 << 20).value();
  const std::string mark = "\"init_lora_weights\": true";
  text.replace(text.find(mark), mark.size(), "\"init_lora_weights\": \"pissa_quickly\"");
  REQUIRE(write_file_atomically(w.files, config, text).ok());
  refused(w.request({adapter}), Code::kUnsupported,
          "\"pissa\" and \"pissa_niter_N\", N to 1000, are");
}

TEST_CASE("exports are LLaMA-Factory's, but for a head that was trained apart") {
  const auto golden = troupe::tests::test_data("lf_golden");
  const auto base = troupe::tests::test_data("stories260K/hf");
  if (!golden || !base) return;
  PosixFileSystem files;
  for (const auto& [name, adapters] : tests::golden_exports()) {
    CAPTURE(name);
    const TemporaryDirectory directory;
    ExportRequest request{.base = *base,
                          .adapters = {},
                          .adapter_folder = {},
                          .out = directory.file("out"),
                          .template_name = "default"};
    for (const std::string& adapter : adapters)
      request.adapters.push_back(*golden + "/inits/" + adapter);
    const bool bf16 = name.ends_with("bf16");
    if (bf16) request.dtype = DType::kBF16;
    const auto exported = export_model(files, request);
    REQUIRE_MESSAGE(exported.ok(), exported.status().to_string());
    CHECK(exported->logit_difference.has_value() == exported->no_probe.empty());
    if (exported->logit_difference && !bf16) CHECK(*exported->logit_difference < 1e-4);

    const auto parse = [&](const std::string& path) {
      return json::parse(files.read(path, 1 << 20).value(), path).value();
    };
    const json::Value stats = parse(*golden + "/" + name + "/merged_stats.json");
    const auto reader = TensorReader::open_model(files, request.out).value();
    CHECK(reader.weights().size() == stats.as_object().size());
    for (const auto& member : stats.as_object()) {
      const std::string tensor(member.key());
      CAPTURE(tensor);
      const TensorInfo* info = reader.find(tensor);
      REQUIRE(info);
      CHECK(info->dtype == (bf16 ? DType::kBF16 : DType::kF32));
      std::vector<float> values(static_cast<std::size_t>(info->elements));
      REQUIRE(reader.read(tensor, 0, values).ok());
      double squares = 0;
      for (const float value : values) squares += static_cast<double>(value) * value;
      const double tolerance = bf16 ? 0x1p-8 : 1e-5;
      CHECK(
          std::sqrt(squares) ==
          doctest::Approx(json::find_number(member.value(), "l2").value()).epsilon(tolerance / 10));
      const auto& first = json::find(member.value(), "first")->as_array();
      for (std::size_t i = 0; i < first.size(); ++i)
        CHECK(values[i] == doctest::Approx(first[i].to_number<double>()).epsilon(tolerance));
    }
    const json::Value config = parse(request.out + "/config.json");
    const json::Value theirs = parse(*golden + "/" + name + "/merged_config.json");
    CHECK(config.at("torch_dtype") == theirs.at("dtype"));
    CHECK(config.at("tie_word_embeddings") == json::Value(name != "export_embed_head"));
    for (const char* file : {"chat_template.jinja", "tokenizer.json", "tokenizer_config.json"})
      CHECK(files.exists(request.out + "/" + file));

    // Text made with the adapters is the text that the exported model makes.
    if (bf16) continue;
    const auto continuation = [&](const std::string& folder, const std::vector<std::string>& with) {
      auto model = LoadedModel::open(files, folder, 1, with);
      REQUIRE_MESSAGE(model.ok(), model.status().to_string());
      std::string text;
      REQUIRE((*model)
                  ->generate("Once upon a time", {}, 24, 1,
                             [&](const std::string& piece) { text += piece; })
                  .ok());
      return text;
    };
    const std::string text = continuation(*base, request.adapters);
    CHECK(text == continuation(request.out, {}));
    CHECK(text != continuation(*base, {}));
  }
}

}  // namespace
}  // namespace troupe::train
