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

// A rank dies in the midst of the run and is started again; what another began of a step is done
// once more.
void train_with_a_death(const std::string& output_dir, const RunChange& change) {
  auto ranks = make_ranks(output_dir, change);
  ranks->observers[0].abort_after = 5;
  for (const Status& status : run_generation(*ranks, 1)) CHECK(!status.ok());
  ranks->observers[0].abort_after = -1;
  start_rank(*ranks, 1, output_dir, change);
  for (const Status& status : run_generation(*ranks, 2))
    REQUIRE_MESSAGE(status.ok(), status.to_string());
  CHECK(ranks->observers[1].load.how == LoadedFrom::kMemory);
}

TEST_CASE("dropout: the tests' GPU has the CPU's masks, and who died has them again") {
  troupe::tests::TemporaryDirectory dir;
  train(dir.file("cpu"), dropped("zero3", 2));
  train_with_a_death(dir.file("cpu-death"), dropped("zero3", 2));
  troupe::tests::fake_cuda_reset({.devices = 2});
  train(dir.file("gpu"), dropped("zero3", 2, 2));
  train_with_a_death(dir.file("gpu-death"), dropped("zero3", 2, 2));
  CHECK(troupe::tests::fake_cuda_left().empty());
  troupe::tests::fake_cuda_reset();
  for (const char* name : {"cpu-death", "gpu", "gpu-death"}) {
    CAPTURE(std::string(name));
    CHECK((weights_of(dir.file(name)) == weights_of(dir.file("cpu"))));
    CHECK(step_lines(dir.file(name)) == step_lines(dir.file("cpu")));
  }
}

TEST_CASE("dropout: in bf16 a GPU's own attention trains, and cuDNN's evaluates without any") {
  troupe::tests::TemporaryDirectory dir;
  const auto change = [](double attention) {
    RunChange made = dropped("zero2", 2, 2);
    made.change = [inner = made.change, attention](RunBundle& bundle) {
      inner(bundle);
      bundle.model.attention_dropout = attention;
      bundle.config.model.compute = Precision::kBfloat16;
      bundle.config.training.max_steps = 2;
      bundle.config.evaluation.strategy = IntervalStrategy::kSteps;
      bundle.config.evaluation.on_start = true;
      bundle.eval = bundle.dataset;
    };
    return made;
  };
  double first_loss[2] = {};
  for (const bool drops : {false, true}) {
    troupe::tests::fake_cuda_reset({.devices = 2, .cudnn_version = 91900});
    auto ranks = make_ranks(dir.file(drops ? "drops" : "keeps"), change(drops ? 0.3 : 0.0));
    for (const Status& status : run_generation(*ranks, 1))
      REQUIRE_MESSAGE(status.ok(), status.to_string());
    REQUIRE(!ranks->observers[0].eval_losses.empty());
    first_loss[drops] = ranks->observers[0].eval_losses.front();
    using troupe::tests::fake_cuda_calls;
    CHECK((fake_cuda_calls("attention_dropout_forward") > 0) == drops);
    CHECK((fake_cuda_calls("attention_plan_backward") > 0) == !drops);
    CHECK(fake_cuda_calls("attention_plan_forward") > 0);
    CHECK(fake_cuda_calls("attention_forward") == 0);
    ranks.reset();
    CHECK(troupe::tests::fake_cuda_left().empty());
    troupe::tests::fake_cuda_reset();
  }
  CHECK(first_loss[0] == first_loss[1]);
}

}  // namespace
}  // namespace troupe::train::tests
