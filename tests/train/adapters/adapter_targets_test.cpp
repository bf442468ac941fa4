#include "train/adapters/adapter_targets.h"

#include <doctest/doctest.h>

#include <cmath>

#include "runtime/base/suggest.h"
#include "tests/support/text.h"
#include "tests/train/adapters/adapter_models.h"

namespace troupe::train {
namespace {

using tests::small_model;
using troupe::tests::contains;

Trainables trained(const ModelConfig& model, const LoraRequest& request) {
  const auto config = make_adapter_config(model, request);
  REQUIRE_MESSAGE(config.ok(), config.status().to_string());
  return lora_trainables(model, *config).value();
}

Trainables with_targets(const ModelConfig& model, std::vector<std::string> targets) {
  LoraRequest request;
  request.targets = std::move(targets);
  return trained(model, request);
}

Trainables with_additional(const ModelConfig& model, std::vector<std::string> modules) {
  LoraRequest request;
  request.targets = {"q_proj"};
  request.additional_targets = std::move(modules);
  return trained(model, request);
}

std::string names_of(const Trainables& trainables) {
  std::vector<std::string> names;
  for (const LoraModule& module : trainables.lora) names.push_back(module.module);
  return join_words(names, " ");
}

std::string refusal(const ModelConfig& model, std::vector<std::string> targets) {
  LoraRequest request;
  request.targets = std::move(targets);
  const auto config = make_adapter_config(model, request);
  REQUIRE_FALSE(config.ok());
  return config.status().message();
}

TEST_CASE("all: every linear module but the head, in the model's order") {
  const ModelConfig model = small_model();
  CHECK(make_adapter_config(model, {}).value().target_modules.names ==
        std::vector<std::string>{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                                 "down_proj"});
  const Trainables all = trained(model, {});
  REQUIRE(all.lora.size() == 14);
  CHECK(all.lora[0].module == "model.layers.0.self_attn.q_proj");
  CHECK(all.lora[13].module == "model.layers.1.mlp.down_proj");
  CHECK_FALSE(all.everything);
  CHECK(all.tensors.empty());
  const auto modules = linear_modules(model);
  CHECK(modules[1].out == 4);
  CHECK(modules[1].in == 8);
  CHECK(modules[6].in == 12);
}

TEST_CASE("GPT-2 has no linear modules, and takes names") {
  const ModelConfig model = small_model("gpt2");
  const std::string text = refusal(model, {"all"});
  CHECK(
      text.starts_with("No `target_modules` passed but also no `target_parameters` found. Please "
                       "check the values for these arguments."));
  CHECK(contains(text, "lora_target: c_attn,c_proj,c_fc"));
  CHECK(with_targets(model, {"c_attn", "c_proj", "c_fc"}).lora.size() == 8);
  CHECK(names_of(with_targets(model, {"attn.c_proj"})) ==
        "transformer.h.0.attn.c_proj transformer.h.1.attn.c_proj");
  const auto modules = linear_modules(model);
  CHECK(modules[0].transposed);
  CHECK(modules[0].in == 8);
  CHECK(modules[0].out == 24);
  LoraRequest request;
  request.targets = {"c_fc"};
  CHECK(make_adapter_config(model, request).value().fan_in_fan_out);
}

TEST_CASE("a name matches whole components from the end; one expression the whole name") {
  const ModelConfig model = small_model();
  CHECK(names_of(with_targets(model, {"layers.1.self_attn.q_proj"})) ==
        "model.layers.1.self_attn.q_proj");
  CHECK(names_of(with_targets(model, {".*\\.1\\.self_attn\\.(q|v)_proj"})) ==
        "model.layers.1.self_attn.q_proj model.layers.1.self_attn.v_proj");
  LoraRequest request;
  request.targets = {"model\\.layers\\.0.*q_proj"};
  CHECK(make_adapter_config(model, request).value().target_modules.expression ==
        request.targets[0]);
  CHECK(contains(refusal(model, {"_proj"}),
                 "Target modules {'_proj'} not found in the base model. Please check the target "
                 "modules and try again. There are q_proj, k_proj,"));
  // An expression matches from the beginning to the end.
  CHECK(contains(refusal(model, {"[q]_proj"}), "not found in the base model"));
  CHECK(contains(refusal(model, {"q_proj", "q_prjo"}), "{'q_prjo'}"));
  CHECK(contains(refusal(model, {"(q_proj"}), "target_modules"));
  for (const char* end : {"embed_tokens", "lm_head"})
    CHECK(contains(refusal(model, {"q_proj", end}), "name it in additional_target"));
}

TEST_CASE("a loaded adapter may name modules that the model lacks, and exclude some") {
  AdapterConfig adapter;
  adapter.target_modules.names = {"q_proj", "c_attn"};
  adapter.exclude_modules.names = {"layers.0.self_attn.q_proj"};
  CHECK(names_of(lora_trainables(small_model(), adapter).value()) ==
        "model.layers.1.self_attn.q_proj");
  adapter.target_modules = {};
  CHECK_FALSE(lora_trainables(small_model(), adapter).ok());
}

TEST_CASE("rank, alpha and scale, for single modules too") {
  const ModelConfig model = small_model();
  LoraRequest request;
  request.rank = 4;
  CHECK(trained(model, request).lora[0].scale == 2.0);
  request.alpha = 0;
  CHECK(make_adapter_config(model, request).value().lora_alpha == 8);
  request.alpha = 6;
  request.dropout = 0.25;
  request.use_dora = true;
  const LoraModule module = trained(model, request).lora[0];
  CHECK(module.scale == 1.5);
  CHECK(module.dropout == 0.25);
  CHECK(module.dora);
  request.use_rslora = true;
  CHECK(trained(model, request).lora[0].scale == 3.0);

  AdapterConfig adapter;
  adapter.target_modules.names = {"q_proj", "up_proj"};
  adapter.rank_pattern = {{"layers.1.mlp.up_proj", 2}, {"^model.layers.0", 16}, {"up_proj", 3}};
  adapter.alpha_pattern = {{".*q_proj", 32}};
  const auto lora = lora_trainables(model, adapter).value().lora;
  REQUIRE(lora.size() == 4);  // q, up, q, up
  CHECK(lora[0].rank == 16);
  CHECK(lora[0].scale == 2.0);
  CHECK(lora[1].rank == 16);
  CHECK(lora[1].scale == 0.5);
  CHECK(lora[2].rank == 8);
  CHECK(lora[2].scale == 4.0);
  CHECK(lora[3].rank == 2);
}

TEST_CASE("additional_target: every module whose name ends so, without a dot") {
  const ModelConfig model = small_model("llama", false, 1);
  CHECK(with_additional(model, {"norm"}).tensors ==
        std::vector<std::string>{"model.layers.0.input_layernorm.weight",
                                 "model.layers.0.post_attention_layernorm.weight",
                                 "model.norm.weight"});
  const Trainables ends = with_additional(model, {"embed_tokens", "lm_head"});
  CHECK(ends.tensors == std::vector<std::string>{"model.embed_tokens.weight", "lm_head.weight"});
  CHECK_FALSE(ends.unties_head);
  CHECK(with_additional(model, {"mlp"}).tensors.size() == 3);
  LoraRequest request;
  request.additional_targets = {"mlp"};
  CHECK(make_adapter_config(model, request).status().code() == Code::kUnsupported);
  request.additional_targets = {"lm_haed"};
  CHECK(contains(make_adapter_config(model, request).status().message(), "did you mean 'lm_head'"));
}

TEST_CASE("a tied head that is trained, or whose embedding is, becomes a matrix of its own") {
  const ModelConfig model = small_model("llama", true);
  const Trainables both = with_additional(model, {"embed_tokens", "lm_head"});
  CHECK(both.unties_head);
  CHECK(both.tensors == std::vector<std::string>{"model.embed_tokens.weight", "lm_head.weight"});
  const Trainables head = with_additional(model, {"lm_head"});
  CHECK(head.unties_head);
  CHECK(head.tensors == std::vector<std::string>{"lm_head.weight"});
  const Trainables embedding = with_additional(model, {"embed_tokens"});
  CHECK(embedding.unties_head);
  CHECK(embedding.tensors == std::vector<std::string>{"model.embed_tokens.weight"});
  CHECK_FALSE(with_additional(model, {"model.norm"}).unties_head);
}

TEST_CASE("use_llama_pro: adapters in every n-th layer") {
  const ModelConfig model = small_model("llama", false, 4);
  LoraRequest request;
  request.targets = {"q_proj"};
  request.llama_pro_layers = 2;
  CHECK(names_of(trained(model, request)) ==
        "model.layers.1.self_attn.q_proj model.layers.3.self_attn.q_proj");
  request.llama_pro_layers = 3;
  CHECK(make_adapter_config(model, request).status().message() ==
        "`num_layers` 4 should be divisible by `num_layer_trainable` 3.");
}

std::string layers_of(const Trainables& trainables) {
  std::string layers;
  for (const std::string& name : trainables.tensors)
    if (name.ends_with("input_layernorm.weight")) layers += name[13];
  return layers;
}

TEST_CASE("freeze: the last layers, the first, and every n-th") {
  const ModelConfig model = small_model("llama", false, 4);
  const auto layers = [&](std::int64_t count, bool pro = false) {
    return layers_of(freeze_trainables(model, {.layers = count, .use_llama_pro = pro}).value());
  };
  CHECK(layers(2) == "23");
  CHECK(layers(-1) == "0");
  CHECK(layers(9) == "0123");
  CHECK(layers(-9) == "0123");
  CHECK(layers(2, true) == "13");
  CHECK(layers(4, true) == "0123");
  CHECK_FALSE(freeze_trainables(model, {.layers = 3, .use_llama_pro = true}).ok());
  CHECK_FALSE(freeze_trainables(model, {.layers = -2, .use_llama_pro = true}).ok());
  CHECK_FALSE(freeze_trainables(model, {.layers = 0}).ok());
  // The last of 12 layers is no other's: ".1." is not a part of ".11.".
  const Trainables last = freeze_trainables(small_model("llama", false, 12), {.layers = 1}).value();
  CHECK(last.tensors.size() == 9);
}

TEST_CASE("tensors by regular expressions, which may end before a name does") {
  const ModelConfig model = small_model("llama", false, 4);
  std::vector<std::string> notes;
  const auto names = [&](const std::vector<std::string>& expressions) {
    notes.clear();
    return matching_trainables(model, expressions, notes).value().tensors;
  };
  using Names = std::vector<std::string>;
  CHECK(names({"model\\.layers\\.[12]\\.input_layernorm", "^lm_head\\.weight$"}) ==
        Names{"model.layers.1.input_layernorm.weight", "model.layers.2.input_layernorm.weight",
              "lm_head.weight"});
  CHECK(notes.empty());
  // Not somewhere in a name.
  CHECK(names({"norm", "model\\.norm"}) == Names{"model.norm.weight"});
  REQUIRE(notes.size() == 1);
  CHECK(notes.front() == "no tensor's name begins as 'norm' says");
  const Status none = matching_trainables(model, {"nosuch"}, notes).status();
  CHECK(none.message() ==
        "no tensor's name begins as nosuch says; the model's are model.embed_tokens.weight … "
        "lm_head.weight");
  CHECK(matching_trainables(model, {"("}, notes).status().code() == Code::kInvalidArgument);
}

TEST_CASE("freeze: modules of layers, and modules outside of them") {
  const ModelConfig model = small_model();
  const Trainables mlp =
      freeze_trainables(model, {.layers = 1, .modules = {"mlp"}, .extra_modules = {"norm"}})
          .value();
  CHECK(
      mlp.tensors ==
      std::vector<std::string>{
          // "norm" is a part of every norm's name, as in LLaMA-Factory.
          "model.layers.0.input_layernorm.weight", "model.layers.0.post_attention_layernorm.weight",
          "model.layers.1.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight",
          "model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight",
          "model.layers.1.mlp.down_proj.weight", "model.norm.weight"});
  const auto key_of = [&](const FreezeRequest& request) {
    const Status refused = freeze_trainables(model, request).status();
    return std::string(refused.context("key").value_or(""));
  };
  CHECK(key_of({.modules = {"nosuch"}}) == "freeze_trainable_modules");
  CHECK(key_of({.extra_modules = {"nosuch"}}) == "freeze_extra_modules");
  CHECK(key_of({.layers = -2, .use_llama_pro = true}) == "use_llama_pro");
  CHECK(freeze_trainables(model, {.modules = {"nosuch"}}).status().message() ==
        "Module nosuch is not found, please choose from input_layernorm, "
        "self_attn, post_attention_layernorm, mlp");
  CHECK(freeze_trainables(model, {.extra_modules = {"lm_head"}}).ok());
  // Tied: there is no such parameter.
  CHECK(contains(freeze_trainables(small_model("llama", true), {.extra_modules = {"lm_head"}})
                     .status()
                     .message(),
                 "Module lm_head is not found, please choose from embed_tokens, norm"));
}

}  // namespace
}  // namespace troupe::train
