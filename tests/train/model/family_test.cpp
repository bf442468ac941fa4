// What must hold for a model of every family, in sizes that make several tiles and threads.

#include <set>

#include "tests/support/test_data.h"
#include "tests/train/model/model_fixture.h"
#include "train/model/flops.h"
#include "train/model/generator.h"
#include "train/model/model_family.h"

namespace troupe::train::tests {
namespace {

constexpr std::int64_t kVocabulary = 300;

// A configuration of the type, with more of what the family can have.
ModelConfig config_of(std::string_view type) {
  json::Object value;
  if (type == "gpt2") {
    value = json::parse(R"({"n_embd": 80, "n_layer": 3, "n_head": 5, "n_inner": 200,
        "n_positions": 160, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0})",
                        "test")
                ->get_object();
  } else {
    value = json::parse(R"({"hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2})",
                        "test")
                ->get_object();
    if (type == "llama") value["attention_bias"] = value["mlp_bias"] = true;
    if (type == "mistral" || type == "phi3") value["sliding_window"] = 33;
    if (type == "qwen2") value["tie_word_embeddings"] = true;
    if (type == "gemma" || type == "gemma3_text" || type == "qwen3") value["head_dim"] = 20;
    if (type == "gemma3_text") value["sliding_window"] = 33, value["sliding_window_pattern"] = 2;
    if (type == "qwen3") value["use_sliding_window"] = true;
    if (type == "qwen3") value["sliding_window"] = 40, value["max_window_layers"] = 2;
  }
  value["model_type"] = type;
  value["vocab_size"] = kVocabulary;
  value["initializer_range"] = 0.08;
  return ModelConfig::from_json(value, "config.json").value();
}

constexpr const char* kTypes[] = {"gemma",   "gemma3_text", "gpt2",  "llama",
                                  "mistral", "phi3",        "qwen2", "qwen3"};

// Initial weights with biases and norms that do something.
void randomize(ModelFixture& f) {
  f.initialize(3);
  SeededRandom random(5);
  for (const ParameterInfo& info : f.model->layout().parameters())
    if (info.shape.size() == 1)
      for (float& x : f.slice(f.parameters, info.name))
        x += static_cast<float>(0.4 * random.unit() - 0.2);
}

std::pair<double, std::vector<float>> gradients_of(const ModelConfig& config,
                                                   const MicroBatch& batch, int threads,
                                                   Recompute recompute) {
  ModelFixture f(config, threads);
  randomize(f);
  const ActivationOptions options{batch.rows, batch.length, true, recompute};
  // Exactly what bytes_needed says, between guards, with values that would show.
  const std::size_t bytes = Activations::bytes_needed(config, options);
  std::vector<float> memory(bytes / sizeof(float) + 48, NAN);
  void* begin = memory.data() + 1;
  std::size_t space = memory.size() * sizeof(float);
  REQUIRE(std::align(64, bytes, begin, space));
  auto* first = static_cast<float*>(begin);
  Activations activations(config, options, *f.operators, {static_cast<std::byte*>(begin), bytes});
  const LossSum sum =
      f.model->forward_backward(batch, f.units, CrossEntropyLoss(), 0.01f, activations).value();
  CHECK(std::isnan(first[-1]));
  CHECK(std::isnan(first[bytes / sizeof(float)]));
  return {sum.loss_sum, f.gradients};
}

TEST_CASE("every family: threads and what is recomputed do not change a bit") {
  Batch batch(3, 120, kVocabulary);
  for (const char* type : kTypes) {
    CAPTURE(std::string(type));
    const ModelConfig config = config_of(type);
    for (const bool segments : {false, true}) {
      batch.micro.position_ids = batch.micro.segment_ids = {};
      if (segments)
        batch.micro.position_ids = batch.positions, batch.micro.segment_ids = batch.segments;
      const auto one = gradients_of(config, batch.micro, 1, Recompute::kNothing);
      CHECK(std::isfinite(one.first));
      CHECK(one == gradients_of(config, batch.micro, 2, Recompute::kNothing));
      CHECK(one == gradients_of(config, batch.micro, 1, Recompute::kCheapOperators));
      CHECK(one == gradients_of(config, batch.micro, 3, Recompute::kLayers));
    }
  }
}

// Gradients that hold nothing yet: what is there before a pass would show.
class FreshUnits final : public UnitAccess {
 public:
  explicit FreshUnits(UnitAccess& inner) : inner_(inner) {}
  Result<UnitParameters> acquire(int unit, Phase phase) override {
    return inner_.acquire(unit, phase);
  }
  void release(int unit, Phase phase) override { inner_.release(unit, phase); }
  Result<UnitGradient> gradient(int unit) override {
    UnitGradient gradient = TROUPE_TRY(inner_.gradient(unit));
    if (begun_.insert(unit).second) std::fill(gradient.values.begin(), gradient.values.end(), NAN);
    gradient.fresh = true;
    return gradient;
  }
  Status gradient_done(int unit) override { return inner_.gradient_done(unit); }

 private:
  UnitAccess& inner_;
  std::set<int> begun_;
};

// Whole gradients, of padding too: added to zeros, and written over what was there.
void check_fresh(ModelFixture& f, UnitAccess& units, const MicroBatch& batch,
                 Activations& activations) {
  const auto pass = [&](UnitAccess& access) {
    const LossSum sum =
        f.model->forward_backward(batch, access, CrossEntropyLoss(), 0.01f, activations).value();
    return std::pair(sum.loss_sum, f.gradients);
  };
  std::fill(f.gradients.begin(), f.gradients.end(), 0.0f);
  const auto added = pass(units);
  FreshUnits fresh(units);
  CHECK(pass(fresh) == added);
}

TEST_CASE("every family: a fresh gradient is written as a whole, whatever was there") {
  // More targets than the head takes at once, where the head is the same for all: of one family.
  Batch many(12, 150, kVocabulary), few(2, 40, kVocabulary);
  for (const char* type : kTypes) {
    CAPTURE(std::string(type));
    Batch& batch = type == kTypes[0] ? many : few;
    std::vector<std::int32_t> none(batch.labels.size(), kIgnoreLabel);
    for (const bool tied : {false, true}) {
      ModelConfig config = config_of(type);
      config.tie_word_embeddings = tied;
      ModelFixture f(config, 2);
      randomize(f);
      std::vector<std::uint16_t> rounded(f.parameters.size());
      bf16_from_float(f.parameters.data(), rounded.data(),
                      static_cast<std::int64_t>(rounded.size()));
      ResidentUnits narrow(f.model->layout(), std::span<const std::uint16_t>(rounded), f.gradients);
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        Activations activations(config,
                                {.rows_max = 12,
                                 .length_max = 150,
                                 .recompute = Recompute::kNothing,
                                 .compute = compute},
                                *f.operators);
        UnitAccess& units = compute == DType::kF32 ? static_cast<UnitAccess&>(f.units) : narrow;
        REQUIRE((count_targets(batch.micro) > activations.head_rows) == (&batch == &many));
        check_fresh(f, units, batch.micro, activations);
        MicroBatch masked = batch.micro;
        masked.labels = none;
        check_fresh(f, units, masked, activations);
      }
    }
  }
}

TEST_CASE("every family: decoding with a cache equals the full forward pass") {
  const Batch batch(1, 90, kVocabulary);
  for (const char* type : kTypes) {
    CAPTURE(std::string(type));
    const ModelConfig config = config_of(type);
    ModelFixture f(config, 2);
    randomize(f);
    Activations activations(config, {.rows_max = 1, .length_max = 90, .training = false},
                            *f.operators);
    std::vector<float> full(90 * kVocabulary), step(kVocabulary);
    REQUIRE(f.model->logits(batch.micro, f.units, activations, full).ok());
    KvCache cache(config, 90);
    const std::span<const std::int32_t> ids = batch.ids;
    for (std::size_t at = 0; at < 90;) {  // a long prefill, a short one, then single tokens
      const std::size_t count = at == 0 ? 70 : at == 70 ? 5 : 1;
      REQUIRE(f.model->decode(ids.subspan(at, count), cache, f.units, activations, step).ok());
      at += count;
      CHECK(relative_error(step, std::span(full).subspan((at - 1) * kVocabulary, kVocabulary)) <
            1e-5);
    }
  }
}

TEST_CASE("every family: packed segments equal samples on their own") {
  const Batch batch(1, 100, kVocabulary);
  for (const char* type : kTypes) {
    CAPTURE(std::string(type));
    const ModelConfig config = config_of(type);
    ModelFixture f(config);
    randomize(f);
    Activations activations(config, {.rows_max = 1, .length_max = 100, .training = false},
                            *f.operators);
    std::vector<float> packed(100 * kVocabulary), alone(50 * kVocabulary);
    MicroBatch micro = batch.micro;
    micro.position_ids = batch.positions, micro.segment_ids = batch.segments;
    REQUIRE(f.model->logits(micro, f.units, activations, packed).ok());
    const MicroBatch second{1, 50, micro.ids.subspan(50), {}, {}, {}};
    REQUIRE(f.model->logits(second, f.units, activations, alone).ok());
    CHECK(relative_error(std::span(packed).subspan(50 * kVocabulary), alone) < 1e-5);
  }
}

TEST_CASE("every family: bf16 units give nearly the fp32 gradients") {
  const Batch batch(2, 60, kVocabulary);
  for (const char* type : kTypes) {
    CAPTURE(std::string(type));
    const ModelConfig config = config_of(type);
    ModelFixture f(config, 2);
    randomize(f);
    std::vector<std::uint16_t> rounded(f.parameters.size());
    for (std::size_t i = 0; i < rounded.size(); ++i) {
      rounded[i] = float_to_bf16(f.parameters[i]);
      f.parameters[i] = bf16_to_float(rounded[i]);
    }
    Activations activations(config, {.rows_max = 2, .length_max = 60}, *f.operators);
    const CrossEntropyLoss loss;
    const LossSum exact =
        f.model->forward_backward(batch.micro, f.units, loss, 0.01f, activations).value();
    std::vector<float> gradients(f.gradients.size());
    ResidentUnits units(f.model->layout(), std::span<const std::uint16_t>(rounded), gradients);
    const LossSum near =
        f.model->forward_backward(batch.micro, units, loss, 0.01f, activations).value();
    CHECK(near.loss_sum == doctest::Approx(exact.loss_sum).epsilon(0.01));
    for (const ParameterInfo& info : f.model->layout().parameters()) {
      CAPTURE(info.name);
      if (info.name.ends_with("k_proj.bias") || info.name.ends_with("c_attn.bias")) continue;
      CHECK(relative_error(f.slice(gradients, info.name), f.slice(f.gradients, info.name)) < 0.1);
    }
  }
}

TEST_CASE("layouts have the names and shapes that transformers writes") {
  for (const char* name : {"llama", "llama_llama3", "llama_linear_bias", "mistral", "qwen2",
                           "qwen3", "gemma", "gemma3_text", "gpt2", "gpt2_scaled"}) {
    CAPTURE(std::string(name));
    const std::string folder = troupe::tests::source_dir() + "/tests/golden/model/" + name;
    PosixFileSystem files;
    const ModelConfig config =
        ModelConfig::parse(files.read(folder + "/config.json", 1 << 20).value(), name).value();
    const std::string bytes = files.read(folder + "/model.safetensors", 1 << 20).value();
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data(), 8);
    const json::Value header =
        json::parse(std::string_view(bytes).substr(8, size), "header").value();
    const ParameterLayout layout(config);
    std::size_t stored = 0;
    for (const auto& entry : header.as_object()) {
      if (entry.key() == "__metadata__") continue;
      ++stored;
      CAPTURE(std::string(entry.key()));
      const ParameterInfo* info = layout.find(entry.key());
      REQUIRE(info);
      json::Array shape;
      for (const std::int64_t dim : info->shape) shape.push_back(dim);
      CHECK(entry.value().at("shape").as_array() == shape);
    }
    CHECK(stored == layout.parameters().size());
  }
}

TEST_CASE("names in files of weights") {
  const ModelConfig gpt2 = config_of("gpt2"), llama = config_of("llama");
  CHECK(other_names(gpt2, "transformer.h.1.ln_1.bias") ==
        std::vector<std::string>{"h.1.ln_1.bias"});
  CHECK(other_names(llama, "model.norm.weight") == std::vector<std::string>{"norm.weight"});
  CHECK(other_names(llama, "lm_head.weight").empty());
  // Of a language model that another model holds: as published, and as transformers 5 writes it.
  const ModelConfig gemma3 = config_of("gemma3_text");
  CHECK(other_names(gemma3, "model.norm.weight") ==
        std::vector<std::string>{"norm.weight", "language_model.model.norm.weight",
                                 "model.language_model.norm.weight"});
  CHECK(other_names(gemma3, "lm_head.weight") ==
        std::vector<std::string>{"language_model.lm_head.weight"});
  CHECK(own_name(gemma3, "language_model.model.norm.weight") == "model.norm.weight");
  CHECK(own_name(gemma3, "model.language_model.norm.weight") == "model.norm.weight");
  CHECK(own_name(gemma3, "language_model.lm_head.weight") == "lm_head.weight");
  CHECK(own_name(gemma3, "model.norm.weight") == "model.norm.weight");
  CHECK(own_name(llama, "language_model.lm_head.weight") == "language_model.lm_head.weight");
  CHECK(ignored_in_weights(gemma3, "vision_tower.vision_model.embeddings.patch_embedding.bias"));
  CHECK(ignored_in_weights(gemma3, "model.multi_modal_projector.mm_input_projection_weight"));
  CHECK(ignored_in_weights(gemma3, "language_model.lm_head.weight"));
  CHECK(!ignored_in_weights(gemma3, "language_model.model.norm.weight"));
  CHECK(!ignored_in_weights(llama, "vision_tower.weight"));
  CHECK(ignored_in_weights(gpt2, "h.0.attn.bias"));
  CHECK(ignored_in_weights(gpt2, "transformer.h.0.attn.masked_bias"));
  CHECK(ignored_in_weights(gpt2, "lm_head.weight"));
  CHECK(!ignored_in_weights(gpt2, "h.0.attn.c_attn.bias"));
  CHECK(!ignored_in_weights(llama, "lm_head.weight"));
  CHECK(ignored_in_weights(llama, "model.layers.0.self_attn.rotary_emb.inv_freq"));
}

TEST_CASE("sequences that are generated together are those that are generated alone") {
  for (const char* family : kTypes) {
    CAPTURE(std::string(family));
    const ModelConfig config = config_of(family);
    ModelFixture f(config);
    f.initialize(1);
    GenerateOptions options{.tokens_max = 24};
    options.sampling = {.repetition_penalty = 1.2, .temperature = 0.9, .top_k = 20, .top_p = 0.9};
    std::vector<GenerateRequest> requests;
    for (const std::size_t length : {3, 40, 1, 17})
      requests.push_back(
          {.prompt = Batch(1, static_cast<std::int64_t>(length), kVocabulary).ids, .seed = length});
    const auto alone = [&](const GenerateRequest& request) {
      Generator generator(*f.model, *f.operators, f.units, 80);
      SeededRandom random(request.seed);
      return generator.generate(request.prompt, options, random).value();
    };
    // One of them ends early.
    options.stop_ids = {alone(requests[1])[5]};
    const auto together = generate_all(*f.model, *f.operators, f.units, requests, options).value();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      CAPTURE(i);
      CHECK(together[i] == alone(requests[i]));
    }
    CHECK(together[1].size() <= 5);
    // A conversation that grows, and one that is gone back on: what was read is not read again.
    Generator talking(*f.model, *f.operators, f.units, 160);
    std::vector<std::int32_t> talk = requests[1].prompt;
    for (const std::size_t turn : {0, 1, 2}) {
      CAPTURE(turn);
      GenerateOptions kept{.tokens_max = 8, .keeps_prefix = true};
      kept.sampling.temperature = 0;
      SeededRandom random(1), again(1);
      const auto answer = talking.generate(talk, kept, random).value();
      kept.keeps_prefix = false;
      Generator anew(*f.model, *f.operators, f.units, 160);
      CHECK(answer == anew.generate(talk, kept, again).value());
      talk.insert(talk.end(), answer.begin(), answer.end());
      talk.insert(talk.end(), requests[3].prompt.begin(), requests[3].prompt.end());
      if (turn == 1) talk.resize(requests[1].prompt.size() + 3);
    }
    requests[2].prompt.clear();
    CHECK(generate_all(*f.model, *f.operators, f.units, requests, options).status().code() ==
          Code::kInvalidArgument);
  }
}

TEST_CASE("a repetition penalty moves the logits of tokens that were there, each once") {
  std::vector<float> logits = {2.0f, -2.0f, 1.0f};
  penalize_repetition(logits, std::vector<std::int32_t>{0, 1, 0, 1}, 2.0);
  CHECK(logits == std::vector<float>{1.0f, -4.0f, 1.0f});
}

TEST_CASE("GPT-2: rows end with the position table, and training starts as HF starts it") {
  const ModelConfig config = config_of("gpt2");
  ModelFixture f(config);
  f.initialize(1);
  const Batch batch(1, 161, kVocabulary);
  Activations activations(config, {.rows_max = 1, .length_max = 161}, *f.operators);
  CHECK(f.model->forward_backward(batch.micro, f.units, CrossEntropyLoss(), 1.0f, activations)
            .status()
            .to_string() ==
        "a row of 161 tokens is longer than the model's position table of 160; use a shorter "
        "cutoff_len");
  Generator generator(*f.model, *f.operators, f.units, 200);
  SeededRandom random(1);
  CHECK(generator.generate(batch.ids, {}, random).status().code() == Code::kInvalidArgument);
  // The last token comes when the table is full: it needs no row of it any more.
  CHECK(generator.generate(std::span(batch.ids).first(150), {.tokens_max = 40}, random)->size() ==
        11);

  const auto deviation = [&](const std::string& name) {
    double squares = 0;
    for (const float x : f.slice(f.parameters, name)) squares += static_cast<double>(x) * x;
    return std::sqrt(squares / static_cast<double>(f.slice(f.parameters, name).size()));
  };
  CHECK(deviation("transformer.wpe.weight") == doctest::Approx(0.08).epsilon(0.05));
  CHECK(deviation("transformer.h.1.mlp.c_fc.weight") == doctest::Approx(0.08).epsilon(0.05));
  CHECK(deviation("transformer.h.1.mlp.c_proj.weight") ==
        doctest::Approx(0.08 / std::sqrt(6.0)).epsilon(0.05));
  CHECK(deviation("transformer.h.0.attn.c_proj.weight") ==
        doctest::Approx(0.08 / std::sqrt(6.0)).epsilon(0.05));
  CHECK(deviation("transformer.h.0.attn.c_attn.bias") == 0.0);
  CHECK(deviation("transformer.ln_f.weight") == 1.0);
  for (const ParameterInfo& info : f.model->layout().parameters())
    CHECK(info.group.decays == (info.shape.size() == 2));
}

TEST_CASE("Gemma: norms begin at 1 + 0, and embeddings are scaled in the type of products") {
  const ModelConfig config = config_of("gemma");
  ModelFixture f(config);
  f.initialize(1);
  for (const ParameterInfo& info : f.model->layout().parameters()) {
    const bool norm = info.name.ends_with("norm.weight");
    CHECK(info.group.decays == !norm);
    if (norm) CHECK(std::ranges::all_of(f.slice(f.parameters, info.name), std::logical_not()));
  }
  const Batch batch(1, 20, kVocabulary);
  const std::span<const float> table = f.slice(f.parameters, "model.embed_tokens.weight");
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    Activations activations(config, {.rows_max = 1, .length_max = 20, .compute = compute},
                            *f.operators);
    std::vector<std::uint16_t> rounded(f.parameters.size());
    bf16_from_float(f.parameters.data(), rounded.data(),
                    static_cast<std::int64_t>(f.parameters.size()));
    std::vector<float> gradients(f.gradients.size());
    ResidentUnits bf16(f.model->layout(), std::span<const std::uint16_t>(rounded), gradients);
    UnitAccess& units = compute == DType::kF32 ? static_cast<UnitAccess&>(f.units) : bf16;
    REQUIRE(
        f.model->forward_backward(batch.micro, units, CrossEntropyLoss(), 1.0f, activations).ok());
    // √96 is 9.798, and the nearest bf16 number 9.8125.
    const float factor = compute == DType::kF32 ? std::sqrt(96.0f) : 9.8125f;
    const auto first = static_cast<std::size_t>(batch.ids[3]) * 96;
    for (std::size_t i = 0; i < 96; ++i) {
      const float value = table[first + i];
      const float stored = compute == DType::kF32 ? value : bf16_to_float(float_to_bf16(value));
      CHECK((activations.stream(0) + 3 * 96).fp32()[i] == stored * factor);
    }
  }
}

TEST_CASE("FLOPs: products with weights, and the keys that tokens see") {
  ModelConfig config = config_of("llama");
  const double weights = 3.0 * 96 * (96 + 2 * 32 + 96 + 3 * 200) + 96.0 * kVocabulary;
  const double keys = 10 * 11 / 2;
  CHECK(model_flops(config, ModelLayout(config), 2, 10) ==
        3 * 2 * (2 * weights * 10 + 3 * 4 * 96 * keys));
  config = config_of("mistral");
  const double seen = 33 * 34 / 2 + 7 * 33;
  CHECK(model_flops(config, ModelLayout(config), 1, 40) ==
        3 * (2 * weights * 40 + 3 * 4 * 96 * seen));
  config = config_of("gpt2");
  const double gpt2_weights = 3.0 * 80 * (240 + 80 + 400) + 80.0 * kVocabulary;
  CHECK(model_flops(config, ModelLayout(config), 1, 10) ==
        3 * (2 * gpt2_weights * 10 + 3 * 4 * 80 * keys));
}

}  // namespace
}  // namespace troupe::train::tests
