// config.json of every family: defaults, both spellings, and what is refused.

#include <doctest/doctest.h>

#include <cmath>

#include "runtime/base/file_system.h"
#include "tests/support/test_data.h"
#include "train/model/model_config.h"
#include "train/model/rope.h"

namespace troupe::train {
namespace {

json::Value published_config(std::string_view type) {
  if (type == "gpt2")
    return json::Value{
        {"model_type", type}, {"vocab_size", 100}, {"n_embd", 32}, {"n_layer", 2}, {"n_head", 4}};
  return json::Value{{"model_type", type},     {"vocab_size", 100},
                     {"hidden_size", 32},      {"intermediate_size", 40},
                     {"num_hidden_layers", 2}, {"num_attention_heads", 8}};
}

Result<ModelConfig> with(std::string_view type, std::string_view key, json::Value value) {
  json::Value config = published_config(type);
  config.as_object()[key] = std::move(value);
  return ModelConfig::from_json(config, "config.json");
}

Code code_with(std::string_view type, std::string_view key, json::Value value) {
  return with(type, key, std::move(value)).status().code();
}

Status gemma_with(std::string_view key, json::Value value) {
  json::Value config = published_config("gemma");
  config.as_object()["num_key_value_heads"] = 4;
  config.as_object()[key] = std::move(value);
  return ModelConfig::from_json(config, "config.json").status();
}

TEST_CASE("defaults are those of the classes") {
  const auto read = [](std::string_view type) {
    return ModelConfig::from_json(published_config(type), "config.json").value();
  };
  const ModelConfig llama = read("llama");
  CHECK(llama.num_key_value_heads == 8);
  CHECK(llama.head_dim == 4);
  CHECK(llama.max_position_embeddings == 2048);
  CHECK(llama.bos_token_id == 1);
  CHECK(llama.eos_token_ids == std::vector<std::int64_t>{2});
  CHECK(!llama.qkv_bias);
  CHECK(!llama.window(0));
  CHECK(!llama.length_limit());

  const ModelConfig mistral = read("mistral");
  CHECK(mistral.window(1) == 4096);
  CHECK(mistral.max_position_embeddings == 131072);
  CHECK(with("mistral", "num_key_value_heads", nullptr)->num_key_value_heads == 8);
  CHECK(!with("mistral", "sliding_window", nullptr)->window(0));

  json::Value value = published_config("qwen2");
  value.as_object()["num_key_value_heads"] = 4;
  const ModelConfig qwen2 = ModelConfig::from_json(value, "config.json").value();
  CHECK(qwen2.qkv_bias);
  CHECK(!qwen2.attention_output_bias);
  CHECK(qwen2.eos_token_ids.empty());
  CHECK(!qwen2.window(1));
  value.as_object()["model_type"] = "qwen3";
  const ModelConfig qwen3 = ModelConfig::from_json(value, "config.json").value();
  CHECK(qwen3.head_dim == 128);
  CHECK(qwen3.qk_norm);
  CHECK(!qwen3.qkv_bias);

  value.as_object()["model_type"] = "gemma";
  const ModelConfig gemma = ModelConfig::from_json(value, "config.json").value();
  CHECK(gemma.head_dim == 256);
  CHECK(gemma.max_position_embeddings == 8192);
  CHECK(gemma.tie_word_embeddings);
  CHECK(gemma.bos_token_id == 2);
  CHECK(gemma.eos_token_ids == std::vector<std::int64_t>{1});

  value.as_object()["model_type"] = "phi3";
  const ModelConfig phi3 = ModelConfig::from_json(value, "config.json").value();
  CHECK(phi3.max_position_embeddings == 4096);
  CHECK(!phi3.window(0));
  CHECK(phi3.eos_token_ids.empty());  // 32000 is no token of so small a vocabulary
  value.as_object()["rope_scaling"] =
      json::Object{{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  CHECK(ModelConfig::from_json(value, "config.json").status().message().find("longrope") !=
        std::string::npos);

  const ModelConfig gpt2 = read("gpt2");
  CHECK(gpt2.intermediate_size == 128);
  CHECK(gpt2.length_limit() == 1024);
  CHECK(gpt2.tie_word_embeddings);
  CHECK(gpt2.eos_token_ids.empty());  // 50256 is no token of so small a vocabulary
  CHECK(gpt2.norm_statistics(7) == 14);
  CHECK(gpt2.attention_scale(1) == doctest::Approx(std::sqrt(1.0 / 8)));
  REQUIRE(gpt2.notes.size() == 1);
  CHECK(gpt2.notes[0] ==
        "attn_pdrop=0.1, embd_pdrop=0.1, resid_pdrop=0.1: dropout while training; for none write "
        "\"attn_pdrop\": 0, \"embd_pdrop\": 0, \"resid_pdrop\": 0 into config.json");
  CHECK(gpt2.attention_dropout == 0.1);
  CHECK(gpt2.embedding_dropout == 0.1);
  CHECK(gpt2.residual_dropout == 0.1);
  CHECK(with("gpt2", "embd_pdrop", 0.25)->embedding_dropout == 0.25);
  CHECK(!llama.has_dropout());
  const ModelConfig dropped = with("llama", "attention_dropout", 0.1).value();
  CHECK(dropped.attention_dropout == 0.1);
  CHECK(dropped.residual_dropout == 0);
  REQUIRE(dropped.notes.size() == 1);
  CHECK(dropped.notes[0] ==
        "attention_dropout=0.1: dropout while training; for none write \"attention_dropout\": 0 "
        "into config.json");
  CHECK(with("gpt2", "scale_attn_by_inverse_layer_idx", true)->attention_scale(1) ==
        doctest::Approx(std::sqrt(1.0 / 8) / 2));
  CHECK(with("gpt2", "scale_attn_weights", false)->attention_scale(1) == 1.0);
}

TEST_CASE("what is written is read as the same model") {
  for (const char* name :
       {"llama", "llama_llama3", "llama_linear_bias", "llama_yarn", "mistral", "qwen2",
        "qwen2_window", "qwen3", "gemma", "phi3", "gpt2", "gpt2_scaled"}) {
    CAPTURE(std::string(name));
    PosixFileSystem files;
    const std::string path =
        troupe::tests::source_dir() + "/tests/golden/model/" + name + "/config.json";
    const ModelConfig config = ModelConfig::parse(files.read(path, 1 << 20).value(), path).value();
    CHECK(config.notes.empty());
    CHECK(config.dtype == DType::kF32);
    const json::Object out = config.to_json();
    const ModelConfig again = ModelConfig::from_json(out, "again").value();
    CHECK(again.to_json() == out);
    CHECK(again.num_key_value_heads == config.num_key_value_heads);
    CHECK(again.head_dim == config.head_dim);
    CHECK(again.windowed_layers == config.windowed_layers);
    CHECK(again.intermediate_size == config.intermediate_size);
    for (const auto& entry : out) CHECK(config.source.contains(entry.key()));
  }
}

TEST_CASE("windows of Qwen: by max_window_layers or by layer_types") {
  json::Value value = published_config("qwen2");
  json::Object& object = value.as_object();
  object["num_key_value_heads"] = 4;
  object["use_sliding_window"] = true;
  object["max_window_layers"] = 1;
  object["sliding_window"] = 7;
  const auto read = [&] { return ModelConfig::from_json(value, "config.json"); };
  CHECK(!read()->window(0));
  CHECK(read()->window(1) == 7);
  object["max_window_layers"] = 0;
  CHECK(read()->window(0) == 7);
  object["layer_types"] = json::Array{"sliding_attention", "full_attention"};
  CHECK(read()->window(0) == 7);
  CHECK(!read()->window(1));
  object["layer_types"] = json::Array{"chunked_attention", "full_attention"};
  CHECK(read().status().code() == Code::kUnsupported);
  object["layer_types"] = json::Array{"full_attention"};
  CHECK(read().status().code() == Code::kInvalidArgument);
  object["layer_types"] = json::Array{"sliding_attention", "full_attention"};
  object["use_sliding_window"] = false;
  CHECK(read().status().code() == Code::kInvalidArgument);
}

TEST_CASE("what cannot be computed is refused by name") {
  CHECK(with("llama", "model_type", "gpt_neox").status().to_string() ==
        "config.json: model_type=gpt_neox is not supported; supported: gemma, gemma3, "
        "gemma3_text, gpt2, llama, mistral, phi3, qwen2, qwen3");
  CHECK(with("llama", "hidden_act", "gelu").status().to_string() ==
        "config.json: hidden_act=gelu is not supported; llama models use silu");
  // Published files say "gelu" and mean the tanh form, which hidden_activation alone can say.
  CHECK(code_with("gemma", "num_key_value_heads", 4) == Code::kOk);
  CHECK(gemma_with("hidden_act", "gelu").ok());
  CHECK(gemma_with("hidden_activation", nullptr).ok());
  CHECK(gemma_with("hidden_activation", "gelu").to_string() ==
        "config.json: hidden_activation=gelu is not supported; gemma models use "
        "gelu_pytorch_tanh");
  CHECK(gemma_with("hidden_act", "silu").code() == Code::kUnsupported);
  CHECK(gemma_with("use_bidirectional_attention", true).code() == Code::kUnsupported);
  CHECK(code_with("mistral", "attention_bias", true) == Code::kUnsupported);
  CHECK(code_with("qwen3", "mlp_bias", true) == Code::kUnsupported);
  CHECK(code_with("llama", "sliding_window", 100) == Code::kUnsupported);
  CHECK(code_with("llama", "partial_rotary_factor", 0.5) == Code::kUnsupported);
  CHECK(code_with("llama", "quantization_config", json::Object{}) == Code::kUnsupported);
  CHECK(code_with("gpt2", "quantization_config", json::Object{}) == Code::kUnsupported);
  CHECK(with("llama", "quantization_config", json::Object{{"quant_method", "awq"}})
            .status()
            .to_string()
            .starts_with("config.json: quantization_config: quant_method=awq is not supported: "));
  const auto in_bytes =
      with("llama", "quantization_config",
           json::Object{{"load_in_8bit", true}, {"llm_int8_skip_modules", json::Array{"lm_head"}}});
  CHECK(in_bytes.value().quantization == Quantization{WeightCode::kInt8});
  CHECK(in_bytes.value().quantization_skipped == std::vector<std::string>{"lm_head"});
  const auto four_bits = [](json::Object more) {
    more["quant_method"] = "bitsandbytes";
    more["load_in_4bit"] = true;
    return with("llama", "quantization_config", std::move(more));
  };
  CHECK(four_bits({}).value().quantization == Quantization{WeightCode::kFp4});
  CHECK(four_bits({{"bnb_4bit_quant_type", "nf4"}, {"bnb_4bit_use_double_quant", true}})
            .value()
            .quantization == Quantization{WeightCode::kNf4, true});
  CHECK(four_bits({{"bnb_4bit_quant_type", "int8"}}).status().code() == Code::kUnsupported);
  CHECK(four_bits({{"load_in_8bit", true}}).status().code() == Code::kUnsupported);
  CHECK(four_bits({{"llm_int8_skip_modules", 1}}).status().code() == Code::kInvalidArgument);
  CHECK(code_with("gpt2", "activation_function", "relu") == Code::kUnsupported);
  CHECK(code_with("gpt2", "add_cross_attention", true) == Code::kUnsupported);
  CHECK(code_with("gpt2", "n_head", 5) == Code::kInvalidArgument);
  CHECK(code_with("gpt2", "n_embd", "32") == Code::kInvalidArgument);
  CHECK(code_with("gpt2", "attn_pdrop", "high") == Code::kInvalidArgument);
  CHECK(with("gpt2", "embd_pdrop", 1.0).status().to_string() ==
        "config.json: embd_pdrop 1 must be at least 0 and less than 1");
  CHECK(code_with("qwen2", "attention_dropout", -0.1) == Code::kInvalidArgument);
  CHECK(code_with("llama", "num_key_value_heads", 3) == Code::kInvalidArgument);
  CHECK(code_with("llama", "hidden_size", -1) == Code::kInvalidArgument);
  CHECK(code_with("llama", "hidden_size", "32") == Code::kInvalidArgument);
  CHECK(code_with("llama", "hidden_size", 36) == Code::kInvalidArgument);
  CHECK(code_with("llama", "eos_token_id", "two") == Code::kInvalidArgument);
  CHECK(code_with("llama", "vocab_size", nullptr) == Code::kInvalidArgument);
  CHECK(!ModelConfig::parse("{", "config.json").ok());
  CHECK(!ModelConfig::parse("[]", "config.json").ok());
  CHECK(!ModelConfig::parse(R"({"model_type": "llama"})", "config.json").ok());
  CHECK(!ModelConfig::parse(R"({"hidden_size": 4})", "config.json").ok());
}

// What the published configuration of 12 billion parameters says.
constexpr std::string_view kGemma3 = R"({"architectures": ["Gemma3ForConditionalGeneration"],
    "eos_token_id": [1, 106], "model_type": "gemma3", "torch_dtype": "bfloat16",
    "text_config": {"hidden_size": 3840, "intermediate_size": 15360, "model_type": "gemma3_text",
                    "num_attention_heads": 16, "num_hidden_layers": 48, "num_key_value_heads": 8,
                    "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024},
    "vision_config": {"hidden_size": 1152}})";

TEST_CASE("gemma3: the language model of one that sees pictures") {
  const ModelConfig config = ModelConfig::parse(kGemma3, "config.json").value();
  CHECK(config.model_type == "gemma3_text");
  CHECK(config.vocab_size == 262208);
  CHECK(config.head_dim == 256);
  CHECK(config.dtype == DType::kBF16);
  CHECK(config.eos_token_ids == std::vector<std::int64_t>{1, 106});
  CHECK(config.rope.theta == 1e6);
  CHECK(config.rope.scaling.factor == 8.0);
  REQUIRE(config.window_rope);
  CHECK(config.window_rope->theta == 10000.0);
  CHECK(config.window_rope->scaling.kind == RopeScaling::Kind::kNone);
  CHECK(config.attention_scale(0) == doctest::Approx(1.0 / 16));
  CHECK(config.window(4) == 1024);
  CHECK(!config.window(5));
  CHECK(config.window(6) == 1024);
  REQUIRE(config.notes.size() == 1);
  CHECK(config.notes[0] ==
        "model_type=gemma3: its language model is trained and written, as gemma3_text (class "
        "Gemma3ForCausalLM); what is there for pictures is left out");
  // The configuration that is written has no part for pictures.
  const json::Object out = config.to_json();
  CHECK(json::parse(config.saved_text(std::string(kGemma3)), "saved").value() == json::Value(out));
  CHECK(out.at("architectures") == json::Value(json::Array{"Gemma3ForCausalLM"}));
  const ModelConfig again = ModelConfig::from_json(out, "again").value();
  CHECK(again.notes.empty());
  CHECK(again.saved_text("as it is") == "as it is");
  CHECK(again.to_json() == out);
  CHECK(again.window(5) == config.window(5));
  CHECK(again.eos_token_ids == config.eos_token_ids);

  json::Value value = json::parse(kGemma3, "config.json").value();
  const auto error_with = [&](std::string_view key, json::Value what) {
    json::Value changed = value;
    changed.at("text_config").as_object()[key] = std::move(what);
    return ModelConfig::from_json(changed, "config.json").status().to_string();
  };
  CHECK(error_with("final_logit_softcapping", 30.0) ==
        "config.json: text_config: final_logit_softcapping is not supported; use a model without "
        "it");
  CHECK(error_with("sliding_window_pattern", 0) ==
        "config.json: text_config: sliding_window_pattern must be an integer from 1 to 16777216");
  CHECK(error_with("sliding_window", nullptr) ==
        "config.json: text_config: sliding_window must be an integer");
  CHECK(error_with("query_pre_attn_scalar", 0) ==
        "config.json: text_config: query_pre_attn_scalar must be positive");
  CHECK(error_with("rope_parameters", json::Object{{"rope_type", "linear"}, {"factor", 2.0}}) ==
        "config.json: text_config: rope_parameters must have an object for full_attention and one "
        "for sliding_attention");
  CHECK(error_with("rope_parameters", json::Object{{"fulll_attention", json::Object{}}}) ==
        "config.json: text_config: rope_parameters must have an object for full_attention and one "
        "for sliding_attention");
  CHECK(error_with("layer_types", json::Array{"full_attention"}) ==
        "config.json: text_config: layer_types must be a list with a string for each of 48 layers");
  CHECK(
      error_with("model_type", "gemma2") ==
      "config.json: text_config: model_type=gemma2 is not supported in a model of type gemma3; it "
      "is gemma3_text");
  value.as_object()["quantization_config"] = json::Object{{"bits", 4}};
  CHECK(ModelConfig::from_json(value, "config.json").status().code() == Code::kUnsupported);
  value.as_object()["text_config"] = nullptr;
  CHECK(ModelConfig::from_json(value, "config.json").status().message() ==
        "config.json: a model of type gemma3 has an object text_config, and this is none");
}

TEST_CASE("rotary scaling: bad values") {
  const auto code = [](json::Value value) { return code_with("llama", "rope_scaling", value); };
  CHECK(with("llama", "rope_scaling", json::Value{{"type", "dynamic"}, {"factor", 2}})
            .status()
            .to_string() ==
        "config.json: rope_scaling: type dynamic is not supported; use default, linear, llama3 or "
        "yarn");
  CHECK(code(nullptr) == Code::kOk);
  CHECK(code(json::Object{}) == Code::kOk);
  CHECK(code(3) == Code::kInvalidArgument);
  CHECK(code(json::Value{{"type", "linear"}}) == Code::kInvalidArgument);
  CHECK(code(json::Value{{"type", "linear"}, {"factor", 0.5}}) == Code::kInvalidArgument);
  CHECK(code(json::Value{{"type", "llama3"}, {"factor", 2}, {"low_freq_factor", 4}}) ==
        Code::kInvalidArgument);
  CHECK(code(json::Value{{"type", "yarn"}, {"factor", 2}, {"beta_fast", 0.5}}) ==
        Code::kInvalidArgument);
  CHECK(code(json::Value{{"type", "yarn"}, {"factor", 2}, {"attention_factor", 0}}) ==
        Code::kInvalidArgument);
  CHECK(code(json::Value{{"type", "yarn"}, {"factor", 2}, {"truncate", 1}}) ==
        Code::kInvalidArgument);
  CHECK(code_with("llama", "rope_theta", 0) == Code::kInvalidArgument);
}

TEST_CASE("rotary frequencies and yarn's factor equal transformers'") {
  const std::string path = troupe::tests::source_dir() + "/tests/golden/model/rope.json";
  PosixFileSystem files;
  const json::Value golden = json::parse(files.read(path, 1 << 20).value(), path).value();
  for (const json::Value& one : golden.as_array()) {
    for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
      json::Value value = one.at("config");
      const json::Value parameters = value.at("rope_parameters");
      CAPTURE(json::write(parameters));
      if (key == "rope_scaling") {  // transformers 4: the base stands beside the object
        value.as_object().erase("rope_parameters");
        value.as_object()["rope_theta"] = parameters.at("rope_theta");
        value.as_object()[key] = parameters;
        value.as_object()[key].as_object().erase("rope_theta");
      }
      const ModelConfig config = ModelConfig::from_json(value, "config.json").value();
      const std::vector<float> frequencies = rope_frequencies(config.rope, config.head_dim);
      const auto& expected = one.at("frequencies").as_array();
      REQUIRE(frequencies.size() == expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i)
        CHECK(frequencies[i] == doctest::Approx(expected[i].to_number<double>()).epsilon(1e-6));
      const auto scale = one.at("scale").to_number<double>();
      CHECK(config.rope.scaling.attention_factor == doctest::Approx(scale).epsilon(1e-12));
      std::vector<float> cosine(64), sine(64);
      fill_rope_tables(config.rope, config.head_dim, 2, cosine, sine);
      CHECK(cosine[0] == static_cast<float>(scale));
      CHECK(sine[32] == doctest::Approx(scale * std::sin(frequencies[0])));
    }
  }
}

}  // namespace
}  // namespace troupe::train
