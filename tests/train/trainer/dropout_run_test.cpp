// Whole runs of a model with dropout: one mask for a sample in an epoch, whoever computes it and
// whenever.

#include "tests/train/trainer/run_fixture.h"

namespace troupe::train::tests {
namespace {

ModelConfig dropped_model() {
  return ModelConfig::parse(R"({"model_type": "gpt2", "vocab_size": 64, "n_embd": 32, "n_layer": 2,
      "n_head": 4, "n_positions": 32, "embd_pdrop": 0.1, "resid_pdrop": 0.2, "attn_pdrop": 0.3})",
                            "config.json")
      .value();
}

RunChange dropped(const std::string& strategy, int world, int devices = 0,
                  const std::string& resume = "", std::int64_t seed = 42) {
  return {.world = world,
          .batch = 1,
          .accumulation = 4 / world,
          .resume = resume,
          .change =
              [=](RunBundle& bundle) {
                bundle.model = dropped_model();
                bundle.companions["config.json"] = json::write(bundle.model.to_json());
                bundle.config.sharding.strategy = strategy;
                bundle.config.sharding.deterministic = Deterministic::kAcrossWorldSizes;
                bundle.config.training.seed = seed;
                bundle.config.training.data_seed = 5;
                // More than an epoch of 10 steps.
                bundle.config.training.max_steps = 12;
                bundle.config.training.save_steps = 7;
              },
          .devices = devices};
}

std::string weights_of(const std::string& output_dir) {
  const std::string bytes = file(output_dir + "/model.safetensors");
  REQUIRE(bytes.size() > 1000);
  return bytes;
}

TEST_CASE("dropout: strategies and world sizes agree to the last bit, and the seed counts") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("one"), dropped("ddp", 1));
  const std::string expected = weights_of(dir.file("one"));
  for (const auto& [strategy, world] :
       std::vector<std::pair<std::string, int>>{{"ddp", 2}, {"zero2", 4}, {"zero3", 2}}) {
    CAPTURE(strategy);
    const std::string name = strategy + std::to_string(world);
    train(dir.file(name), dropped(strategy, world));
    CHECK((weights_of(dir.file(name)) == expected));
  }
  // From a checkpoint, where a seed has no more to do with weights.
  train(dir.file("resumed"), dropped("zero3", 2, 0, dir.file("one") + "/checkpoint-7"));
  CHECK((weights_of(dir.file("resumed")) == expected));
  train(dir.file("reseeded"), dropped("ddp", 1, 0, dir.file("one") + "/checkpoint-7", 43));
  CHECK((weights_of(dir.file("reseeded")) != expected));
}

TEST_CASE("dropout: the tests' GPU has the CPU's masks") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("cpu"), dropped("zero3", 2));
  troupe::tests::fake_cuda_reset({.devices = 2});
  train(dir.file("gpu"), dropped("zero3", 2, 2));
  CHECK(troupe::tests::fake_cuda_left().empty());
  troupe::tests::fake_cuda_reset();
  CHECK((weights_of(dir.file("gpu")) == weights_of(dir.file("cpu"))));
  CHECK(step_lines(dir.file("gpu")) == step_lines(dir.file("cpu")));
}

}  // namespace
}  // namespace troupe::train::tests
