// Whole runs of a Gemma, whose third generation has all that the first has: one file whatever the
// strategy, the world size and the adapters.

#include "tests/train/trainer/run_fixture.h"
#include "train/adapters/adapter_targets.h"

namespace troupe::train::tests {
namespace {

ModelConfig gemma() {
  return ModelConfig::parse(R"({"model_type": "gemma3_text", "hidden_size": 32,
      "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 1, "head_dim": 10, "vocab_size": 64, "max_position_embeddings": 64,
      "sliding_window": 5, "sliding_window_pattern": 2})",
                            "config.json")
      .value();
}

// LoRA of all linear modules, as `lora_target: all` chooses them.
Trainables all_linear(const ModelConfig& model) {
  Trainables trainables{.everything = false, .tensors = {}, .lora = {}};
  for (const LinearModule& module : linear_modules(model))
    trainables.lora.push_back({module.name, 4, 2.0, 0.1, false});
  return trainables;
}

RunChange run_of(const std::string& strategy, int world, bool bf16, bool adapters,
                 const std::string& resume = "") {
  return {.world = world,
          .batch = 1,
          .accumulation = 4 / world,
          .resume = resume,
          .change = [=](RunBundle& bundle) {
            bundle.model = gemma();
            bundle.companions["config.json"] = json::write(bundle.model.to_json());
            if (adapters) bundle.trainables = all_linear(bundle.model);
            if (bf16) bundle.config.model.compute = Precision::kBfloat16;
            bundle.config.sharding.strategy = strategy;
            bundle.config.sharding.deterministic = Deterministic::kAcrossWorldSizes;
            bundle.config.training.max_steps = 8;
            bundle.config.training.save_steps = 5;
          }};
}

TEST_CASE("Gemma, whole and with adapters: one file for all strategies and world sizes") {
  for (const bool adapters : {false, true}) {
    for (const bool bf16 : {false, true}) {
      CAPTURE(adapters);
      CAPTURE(bf16);
      troupe::tests::TemporaryDirectory dir;
      const auto weights = [&](const std::string& name) {
        const std::string bytes =
            file(dir.file(name) + (adapters ? "/adapter_model.safetensors" : "/model.safetensors"));
        REQUIRE(bytes.size() > 1000);
        return bytes;
      };
      train(dir.file("one"), run_of("ddp", 1, bf16, adapters));
      CHECK(steps(dir.file("one")).back().loss < steps(dir.file("one")).front().loss);
      for (const auto& [strategy, world] : std::vector<std::pair<std::string, int>>{
               {"ddp", 2}, {"zero1", 4}, {"zero2", 2}, {"zero3", 2}, {"fsdp", 4}}) {
        CAPTURE(strategy);
        const std::string name = strategy + std::to_string(world);
        train(dir.file(name), run_of(strategy, world, bf16, adapters));
        CHECK((weights(name) == weights("one")));
      }
      train(dir.file("resumed"),
            run_of("zero3", 2, bf16, adapters, dir.file("one") + "/checkpoint-5"));
      CHECK((weights("resumed") == weights("one")));
      if (adapters) continue;
      const auto saved = ModelConfig::parse(file(dir.file("one") + "/config.json"), "config.json");
      CHECK(json::write(saved->to_json()) == json::write(gemma().to_json()));
    }
  }
}

TEST_CASE("a GPU refuses Gemma by the operator that it lacks, before anything is computed") {
  troupe::tests::TemporaryDirectory dir;
  troupe::tests::fake_cuda_reset({.devices = 1});
  RunChange change = run_of("ddp", 1, true, false);
  change.devices = 1;
  RunBundle bundle = bundle_for(dir.file("gpu"), change.batch, change.accumulation);
  change.change(bundle);
  SystemClock clock;
  PosixFileSystem files;
  ProgressMemory memory;
  ProgressRecorder recorder(memory.record());
  const auto run = TrainingRun::create(
      files, clock, Logger::discard(), std::move(bundle),
      {.run = "test", .world_size = 1, .compute = compute_of(change, 0)}, recorder);
  CHECK(
      run.status().to_string() ==
      "model_type=gemma3_text needs the operator scale, which this device does not have: train on "
      "CPUs");
  CHECK(run.status().code() == Code::kUnsupported);
  troupe::tests::fake_cuda_reset();
}

}  // namespace
}  // namespace troupe::train::tests
