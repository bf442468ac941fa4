// Training a part of a model, or adapters beside it, against training all of it.

#include <map>

#include "runtime/base/sort_by.h"
#include "tests/train/model/model_fixture.h"
#include "train/model/adapter_tensors.h"

namespace troupe::train::tests {
namespace {

ModelConfig llama(bool tied) {
  return ModelConfig::parse(std::string(R"({"model_type": "llama", "vocab_size": 300,
      "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
      "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.08,
      "tie_word_embeddings": )") +
                                (tied ? "true}" : "false}"),
                            "config.json")
      .value();
}

ModelConfig gpt2() {
  return ModelConfig::parse(R"({"model_type": "gpt2", "vocab_size": 300, "n_embd": 64, "n_layer": 2,
      "n_head": 4, "n_positions": 128, "initializer_range": 0.08, "attn_pdrop": 0,
      "resid_pdrop": 0, "embd_pdrop": 0})",
                            "config.json")
      .value();
}

// A model of which a part is trained, with its own values in two flat buffers.
struct PartlyTrained {
  PartlyTrained(const ModelConfig& config, const Trainables& trainables, int threads = 1)
      : arena(threads),
        operators(make_cpu_operators(arena)),
        model(make_model(config, *operators, trainables)),
        layout(model->model_layout()),
        trained(static_cast<std::size_t>(layout.trained().total_elements())),
        frozen(static_cast<std::size_t>(layout.frozen().total_elements())),
        gradients(trained.size()),
        units(layout, ResidentSpace(layout.trained(), std::span<const float>(trained)),
              ResidentSpace(layout.frozen(), std::span<const float>(frozen)), gradients) {}

  std::span<float> at(std::string_view name) {
    const bool is_frozen = layout.ref(name).frozen;
    const ParameterLayout& part = is_frozen ? layout.frozen() : layout.trained();
    const ParameterInfo& info = *part.find(name);
    return std::span(is_frozen ? frozen : trained)
        .subspan(static_cast<std::size_t>(part.flat_offset(info)),
                 static_cast<std::size_t>(info.elements));
  }
  std::span<const float> gradient(std::string_view name) {
    const ParameterInfo& info = *layout.trained().find(name);
    return std::span(gradients).subspan(
        static_cast<std::size_t>(layout.trained().flat_offset(info)),
        static_cast<std::size_t>(info.elements));
  }
  // The values that `other` has; adapters by their rule, B too, so that it is not zero.
  void take(ModelFixture& other) {
    for (const ParameterLayout* part : {&layout.trained(), &layout.frozen()}) {
      for (const ParameterInfo& info : part->parameters()) {
        if (is_adapter_tensor(info.name)) {
          ParameterInfo random = info;
          random.initial = {InitialValue::Kind::kUniform, 0.1};
          initialize_parameter(random, 0.02, 5, 0, at(info.name));
        } else {
          const std::span<float> from = other.slice(other.parameters, info.name);
          std::ranges::copy(from, at(info.name).begin());
        }
      }
    }
  }
  ActivationOptions options(const MicroBatch& batch, Recompute recompute) const {
    return {.rows_max = batch.rows,
            .length_max = batch.length,
            .training = true,
            .recompute = recompute,
            .adapters = adapter_sizes(model->config(), layout.trainables()),
            .untrained_layers = layout.trains(0) ? 0 : layout.first_trained_layer()};
  }
  double run(const MicroBatch& batch, Recompute recompute) {
    std::ranges::fill(gradients, 0.0f);
    Activations activations(model->config(), options(batch, recompute), *operators);
    return model->forward_backward(batch, units, CrossEntropyLoss(), 0.01f, activations)
        .value()
        .loss_sum;
  }

  Arena arena;
  std::unique_ptr<Operators> operators;
  std::unique_ptr<Model> model;
  const ModelLayout& layout;
  std::vector<float> trained, frozen, gradients;
  ResidentUnits units;
};

Trainables lora_of(const ModelConfig& config, const std::vector<std::string>& suffixes,
                   double dropout = 0.0, bool dora = false) {
  Trainables trainables{.everything = false, .tensors = {}, .lora = {}};
  std::int64_t rank = 4;
  const ParameterLayout layout(config);
  for (const ParameterInfo& info : layout.parameters()) {
    const std::string module =
        info.name.substr(0, info.name.size() - std::string(".weight").size());
    for (const std::string& suffix : suffixes)
      if (info.name.ends_with(suffix + ".weight")) {
        trainables.lora.push_back({.module = module,
                                   .rank = rank,
                                   .scale = 0.25 * static_cast<double>(rank),
                                   .dropout = dropout,
                                   .dora = dora});
        rank = rank == 4 ? 8 : 4;  // ranks and scales of neighbours differ
      }
  }
  REQUIRE(!trainables.lora.empty());
  return trainables;
}

const std::vector<std::string> kLlamaLayers = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                               "gate_proj", "up_proj", "down_proj"};
const std::vector<std::string> kGpt2Layers = {"c_attn", "c_proj", "c_fc"};

// W += scale·B·A in a model's own form; with magnitudes, each output's row then gets its length.
// The rows' norms before that.
std::vector<double> merge_into(std::span<float> w, PartlyTrained& part, const LoraModule& lora,
                               bool transposed) {
  const auto a = part.at(lora_a_name(lora.module)), b = part.at(lora_b_name(lora.module));
  const std::size_t rank = static_cast<std::size_t>(lora.rank), in = a.size() / rank,
                    out = b.size() / rank;
  for (std::size_t o = 0; o < out; ++o)
    for (std::size_t i = 0; i < in; ++i) {
      double sum = 0;
      for (std::size_t r = 0; r < rank; ++r) sum += b[o * rank + r] * a[r * in + i];
      w[transposed ? i * out + o : o * in + i] += static_cast<float>(lora.scale * sum);
    }
  std::vector<double> norms(out);
  for (std::size_t o = 0; o < out; ++o) {
    double squares = 0;
    for (std::size_t i = 0; i < in; ++i) {
      const double value = w[transposed ? i * out + o : o * in + i];
      squares += value * value;
    }
    norms[o] = std::sqrt(squares);
    if (!lora.dora) continue;
    const double factor = part.at(lora_magnitude_name(lora.module))[o] / norms[o];
    for (std::size_t i = 0; i < in; ++i) {
      float& value = w[transposed ? i * out + o : o * in + i];
      value = static_cast<float>(factor * value);
    }
  }
  return norms;
}
std::vector<double> merge(ModelFixture& whole, PartlyTrained& part, const LoraModule& lora,
                          bool transposed) {
  return merge_into(whole.slice(whole.parameters, lora.module + ".weight"), part, lora, transposed);
}
// The norms alone.
std::vector<double> norms_of(PartlyTrained& part, const LoraModule& lora, bool transposed) {
  const std::span<float> weight = part.at(lora.module + ".weight");
  std::vector<float> copy(weight.begin(), weight.end());
  return merge_into(copy, part, lora, transposed);
}

TEST_CASE("adapters give the loss of the merged model, and gradients that follow from its own") {
  for (const auto& [transposed, dora] : {std::pair(false, false), std::pair(true, false),
                                         std::pair(false, true), std::pair(true, true)}) {
    CAPTURE(transposed);
    CAPTURE(dora);
    const ModelConfig config = transposed ? gpt2() : llama(true);
    const Trainables trainables =
        lora_of(config, transposed ? kGpt2Layers : kLlamaLayers, 0.0, dora);
    // More tokens than magnitudes are computed for at once.
    const Batch batch(dora ? 5 : 2, 60, 300);
    ModelFixture whole(config);
    whole.initialize(3);
    PartlyTrained part(config, trainables);
    part.take(whole);
    std::map<std::string, std::vector<double>> norms;
    for (const LoraModule& lora : trainables.lora)
      norms[lora.module] = merge(whole, part, lora, transposed);
    Activations activations(config, {batch.micro.rows, 60, true, Recompute::kNothing},
                            *whole.operators);
    const double merged_loss =
        whole.model
            ->forward_backward(batch.micro, whole.units, CrossEntropyLoss(), 0.01f, activations)
            .value()
            .loss_sum;
    CHECK(part.run(batch.micro, Recompute::kNothing) == doctest::Approx(merged_loss).epsilon(1e-6));
    for (const LoraModule& lora : trainables.lora) {
      CAPTURE(lora.module);
      const std::span<float> dw = whole.slice(whole.gradients, lora.module + ".weight");
      const auto a = part.at(lora_a_name(lora.module)), b = part.at(lora_b_name(lora.module));
      const std::size_t rank = static_cast<std::size_t>(lora.rank), in = a.size() / rank,
                        out = b.size() / rank;
      std::vector<float> da(a.size()), db(b.size()), dm(dora ? out : 0);
      const std::span<float> w = whole.slice(whole.parameters, lora.module + ".weight");
      for (std::size_t o = 0; o < out; ++o) {
        // The merged row is m/n times what it is made of; n does not count for the gradient.
        const double m = dora ? part.at(lora_magnitude_name(lora.module))[o] : 1.0;
        const double factor = dora ? m / norms[lora.module][o] : 1.0;
        for (std::size_t i = 0; i < in; ++i) {
          const std::size_t at = transposed ? i * out + o : o * in + i;
          if (dora) dm[o] += static_cast<float>(dw[at] * w[at] / m);
          const double d = lora.scale * factor * dw[at];
          for (std::size_t r = 0; r < rank; ++r) {
            da[r * in + i] += static_cast<float>(d * b[o * rank + r]);
            db[o * rank + r] += static_cast<float>(d * a[r * in + i]);
          }
        }
      }
      if (dora) CHECK(relative_error(part.gradient(lora_magnitude_name(lora.module)), dm) < 2e-5);
      CHECK(relative_error(part.gradient(lora_a_name(lora.module)), da) < 2e-5);
      CHECK(relative_error(part.gradient(lora_b_name(lora.module)), db) < 2e-5);
    }
  }
}

TEST_CASE(
    "with adapters threads and what is recomputed do not change a bit, with dropout neither") {
  const ModelConfig config = llama(false);
  Batch batch(2, 60, 300);
  const std::vector<std::int32_t> samples(120, 3);
  batch.micro.dropout = {.seed = 9, .epoch = 1, .samples = samples, .places = batch.positions};
  std::vector<std::vector<float>> by_dropout;
  for (const auto& [dropout, dora] :
       {std::pair(0.0, false), std::pair(0.3, false), std::pair(0.0, true), std::pair(0.3, true)}) {
    const Trainables trainables = lora_of(config, {"q_proj", "v_proj", "down_proj"}, dropout, dora);
    ModelFixture whole(config);
    whole.initialize(3);
    std::vector<float> first;
    for (const int threads : {1, 2}) {
      for (const Recompute recompute :
           {Recompute::kNothing, Recompute::kCheapOperators, Recompute::kLayers}) {
        PartlyTrained part(config, trainables, threads);
        part.take(whole);
        part.run(batch.micro, recompute);
        if (first.empty()) first = part.gradients;
        CAPTURE(dropout);
        CAPTURE(dora);
        CAPTURE(threads);
        CAPTURE(static_cast<int>(recompute));
        CHECK(part.gradients == first);
      }
    }
    by_dropout.push_back(first);
  }
  CHECK(by_dropout[0] != by_dropout[1]);
  CHECK(by_dropout[2] != by_dropout[3]);
}

TEST_CASE("adapters with dropout have the gradient that small changes show") {
  for (const bool dora : {false, true}) {
    CAPTURE(dora);
    const ModelConfig config = llama(true);
    Batch batch(1, 40, 300);
    const std::vector<std::int32_t> samples(40, 3);
    batch.micro.dropout = {.seed = 9, .epoch = 1, .samples = samples, .places = batch.positions};
    const Trainables trainables = lora_of(config, kLlamaLayers, 0.25, dora);
    ModelFixture whole(config);
    whole.initialize(3);
    PartlyTrained part(config, trainables);
    part.take(whole);
    part.run(batch.micro, Recompute::kNothing);
    const std::vector<float> gradients = part.gradients;
    for (const LoraModule& lora : trainables.lora) {
      std::vector<std::string> names = {lora_a_name(lora.module), lora_b_name(lora.module)};
      if (dora) names.push_back(lora_magnitude_name(lora.module));
      const std::vector<double> norms = norms_of(part, lora, false);
      for (const std::string& name : names) {
        CAPTURE(name);
        // Magnitudes follow the rows' norms, which are constants for the gradients of A and B.
        const bool follow = dora && name != names.back();
        std::vector<float> magnitudes;
        if (follow) {
          const auto m = part.at(names.back());
          magnitudes.assign(m.begin(), m.end());
        }
        // Along the gradient, where a small change shows most.
        const ParameterInfo& info = *part.layout.trained().find(name);
        const auto begin = static_cast<std::size_t>(part.layout.trained().flat_offset(info));
        const std::span<float> values = part.at(name);
        double square = 0;
        for (std::size_t i = 0; i < values.size(); ++i)
          square += static_cast<double>(gradients[begin + i]) * gradients[begin + i];
        REQUIRE(square > 0);
        const double step = 0.02 / std::sqrt(square);
        const std::vector<float> kept(values.begin(), values.end());
        const auto loss_at = [&](double by) {
          for (std::size_t i = 0; i < values.size(); ++i)
            values[i] = kept[i] + static_cast<float>(by * gradients[begin + i]);
          if (follow) {
            const std::vector<double> changed = norms_of(part, lora, false);
            for (std::size_t o = 0; o < magnitudes.size(); ++o)
              part.at(names.back())[o] = static_cast<float>(magnitudes[o] * changed[o] / norms[o]);
          }
          return part.run(batch.micro, Recompute::kNothing);
        };
        const double slope = 0.01 * (loss_at(step) - loss_at(-step)) / (2 * step);
        std::ranges::copy(kept, values.begin());
        if (follow) std::ranges::copy(magnitudes, part.at(names.back()).begin());
        CHECK(slope == doctest::Approx(square).epsilon(0.02));
      }
    }
  }
}

TEST_CASE("a part of the model has the gradients that it has when everything is trained") {
  struct Case {
    bool tied;
    std::vector<std::string> tensors;
  };
  const std::vector<Case> cases = {
      {true, {"model.layers.2.self_attn.q_proj.weight", "model.layers.2.mlp.down_proj.weight"}},
      {true, {"model.layers.1.input_layernorm.weight"}},
      {true, {"model.embed_tokens.weight"}},
      {false, {"model.norm.weight", "lm_head.weight"}},
      {false, {"model.layers.0.mlp.up_proj.weight", "lm_head.weight"}},
  };
  const Batch batch(2, 60, 300);
  for (const Case& c : cases) {
    CAPTURE(c.tensors.front());
    const ModelConfig config = llama(c.tied);
    ModelFixture whole(config);
    whole.initialize(3);
    Activations activations(config, {2, 60, true, Recompute::kNothing}, *whole.operators);
    const double loss =
        whole.model
            ->forward_backward(batch.micro, whole.units, CrossEntropyLoss(), 0.01f, activations)
            .value()
            .loss_sum;
    for (const Recompute recompute :
         {Recompute::kNothing, Recompute::kCheapOperators, Recompute::kLayers}) {
      PartlyTrained part(config, {.everything = false, .tensors = c.tensors, .lora = {}});
      part.take(whole);
      CHECK(part.run(batch.micro, recompute) == loss);
      for (const std::string& name : c.tensors)
        CHECK(std::ranges::equal(part.gradient(name), whole.slice(whole.gradients, name)));
    }
  }
}

TEST_CASE("activations of layers that no backward pass reaches are not kept") {
  const ModelConfig config = llama(true);
  const auto bytes = [&](std::int64_t untrained) {
    return Activations::bytes_needed(config, {.rows_max = 2,
                                              .length_max = 60,
                                              .training = true,
                                              .recompute = Recompute::kNothing,
                                              .untrained_layers = untrained});
  };
  CHECK(bytes(1) < bytes(0) + 1000);
  CHECK(bytes(2) < bytes(0));
  CHECK(bytes(3) < bytes(2));
}

TEST_CASE("groups: all decays for DeepSpeed, LoRA+'s rate for vectors, an unused head never") {
  const auto group_of = [](const Trainables& trainables, const std::string& name) {
    return ModelLayout(llama(false), trainables).trained().find(name)->group;
  };
  const std::string norm = "model.norm.weight", head = "lm_head.weight";
  CHECK_FALSE(group_of({}, norm).decays);
  Trainables all;
  all.groups.decays = [](std::string_view) { return true; };
  CHECK(group_of(all, norm).decays);
  CHECK(group_of(all, head).decays);
  all.value_head = true;
  CHECK_FALSE(group_of(all, head).decays);
  Trainables fast;
  fast.groups.vector_rate_factor = 16;
  CHECK(group_of(fast, norm).learning_rate_factor == 16);
  CHECK(group_of(fast, head).learning_rate_factor == 1);
}

}  // namespace
}  // namespace troupe::train::tests
