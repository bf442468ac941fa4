// Whole runs that train adapters, or a part of a model: one file whatever the strategy, the world
// size and the deaths in between.

#include "tests/train/trainer/run_fixture.h"
#include "train/checkpoint/weights.h"
#include "train/trainer/state_io.h"

namespace troupe::train::tests {
namespace {

constexpr const char* kAdapters = "adapter_model.safetensors";

Trainables adapters_of(const ModelConfig& model, double dropout) {
  Trainables trainables{.everything = false, .tensors = {}, .lora = {}};
  const ParameterLayout layout(model);
  for (const ParameterInfo& info : layout.parameters())
    if (info.name.find("_proj.weight") != std::string::npos)
      trainables.lora.push_back({.module = info.name.substr(0, info.name.size() - 7),
                                 .rank = 4,
                                 .scale = 2.0,
                                 .dropout = dropout,
                                 // Some with magnitudes, beside one without and alone.
                                 .dora = info.name.find("k_proj") != std::string::npos ||
                                         info.name.find("down_proj") != std::string::npos});
  return trainables;
}

// Parts of the second layer and the final norm.
Trainables part_of(const ModelConfig&) {
  return {.everything = false,
          .tensors = {"model.layers.1.self_attn.q_proj.weight",
                      "model.layers.1.mlp.down_proj.weight", "model.norm.weight"},
          .lora = {}};
}

struct Run {
  std::string strategy = "ddp";
  int world = 1;
  bool adapters = true;
  std::string resume = "";
  std::int64_t replicate = 0, shard = 0;
  bool bf16 = false;
  bool pure_bf16 = false;  // adapters stay in fp32 all the same
  ActivationCheckpointing recompute = ActivationCheckpointing::kNone;
};

RunChange changed(const Run& run) {
  return {.world = run.world,
          .batch = 1,
          .accumulation = 12 / run.world,
          .resume = run.resume,
          .change = [=](RunBundle& bundle) {
            bundle.trainables =
                run.adapters ? adapters_of(bundle.model, 0.1) : part_of(bundle.model);
            auto& config = bundle.config;
            config.sharding.strategy = run.strategy;
            config.sharding.mesh_replicate = run.replicate;
            config.sharding.mesh_shard = run.shard;
            config.sharding.deterministic = Deterministic::kAcrossWorldSizes;
            config.model.activation_checkpointing = run.recompute;
            if (run.bf16) config.model.compute = Precision::kBfloat16;
            if (run.pure_bf16) config.model.state = Precision::kBfloat16;
            config.finetuning.type = run.adapters ? FinetuningType::kLora : FinetuningType::kFreeze;
            config.training.max_steps = 6;
            config.training.save_steps = 4;
          }};
}

std::string trained(const std::string& output_dir, bool adapters) {
  const std::string bytes = file(output_dir + "/" + (adapters ? kAdapters : "model.safetensors"));
  REQUIRE(bytes.size() > 1000);
  return bytes;
}

TEST_CASE("adapters and parts of a model: one file for all strategies, world sizes, precisions") {
  for (const bool adapters : {true, false}) {
    for (const bool bf16 : {false, true}) {
      troupe::tests::TemporaryDirectory dir;
      train(dir.file("one"), changed({.adapters = adapters, .bf16 = bf16}));
      const std::string expected = trained(dir.file("one"), adapters);
      for (const Run& run :
           {Run{"ddp", 2}, Run{"zero1", 3}, Run{"zero2", 4}, Run{"zero3", 2}, Run{"zero3", 3},
            Run{"fsdp", 4}, Run{"hybrid_shard", 4, true, "", 2, 2},
            Run{.strategy = "zero3", .world = 2, .recompute = ActivationCheckpointing::kFull}}) {
        CAPTURE(adapters);
        CAPTURE(bf16);
        CAPTURE(run.strategy);
        CAPTURE(run.world);
        Run same = run;
        same.adapters = adapters;
        same.bf16 = bf16;
        const std::string name = run.strategy + std::to_string(run.world) +
                                 std::to_string(static_cast<int>(run.recompute));
        train(dir.file(name), changed(same));
        CHECK((trained(dir.file(name), adapters) == expected));
        CHECK(steps(dir.file(name)).back().loss == steps(dir.file("one")).back().loss);
      }
    }
  }
}

// Wide enough for shards that cut matrices.
ModelConfig wide_model() {
  return ModelConfig::parse(R"({"model_type": "llama", "hidden_size": 256,
      "intermediate_size": 320, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64})",
                            "config.json")
      .value();
}

TEST_CASE("a base in 4 or 8 bits: one file for all strategies, and after deaths") {
  troupe::tests::TemporaryDirectory dir;
  const auto wide = [](RunBundle& bundle) {
    bundle.model = wide_model();
    bundle.companions["config.json"] = json::write(bundle.model.to_json());
    bundle.config.training.max_steps = 3;
    bundle.config.training.save_steps = 2;
  };
  train(dir.file("base"), {.world = 1, .batch = 1, .accumulation = 1, .change = wide});
  struct Base {
    Quantization quantization;
    bool bf16;
  };
  for (const auto& [quantization, bf16] : {Base{{WeightCode::kNf4, true}, false},
                                           {{WeightCode::kNf4, true}, true},
                                           {{WeightCode::kInt8}, true}}) {
    const auto quantized = [&, quantization = quantization, bf16 = bf16](const Run& run) {
      RunChange change = changed(run);
      change.accumulation = 4 / run.world;
      change.change = [&, quantization, bf16, run, before = change.change](RunBundle& bundle) {
        bundle.model = wide_model();
        before(bundle);
        wide(bundle);
        auto& config = bundle.config;
        config.model.train_from_scratch = false;
        config.model.model_name_or_path = dir.file("base");
        if (bf16) config.model.compute = Precision::kBfloat16;
        bundle.trainables.base = {.quantization = quantization,
                                  .beside = bf16 ? DType::kBF16 : DType::kF32};
      };
      return change;
    };
    const std::string name = fmt::format("{}-{}-", weight_code_name(quantization.code), bf16);
    train(dir.file(name + "one"), quantized({}));
    const std::string expected = trained(dir.file(name + "one"), true);
    for (const Run& run :
         {Run{"ddp", 2}, Run{"zero3", 2}, Run{"fsdp", 4},
          Run{.strategy = "zero3", .world = 2, .recompute = ActivationCheckpointing::kFull}}) {
      CAPTURE(run.strategy);
      CAPTURE(run.world);
      const std::string folder = dir.file(name + run.strategy + std::to_string(run.world) +
                                          std::to_string(static_cast<int>(run.recompute)));
      train(folder, quantized(run));
      CHECK((trained(folder, true) == expected));
    }
    const std::string struck = dir.file(name + "struck");
    train_struck(struck, quantized({.strategy = "zero3", .world = 2}), 1);
    CHECK((trained(struck, true) == expected));
    // Adapters that were trained beside the unquantised base are others.
    RunChange whole = quantized({});
    whole.change = [before = whole.change](RunBundle& bundle) {
      before(bundle);
      bundle.trainables.base = {};
    };
    train(dir.file(name + "whole"), whole);
    CHECK((trained(dir.file(name + "whole"), true) != expected));
  }
}

TEST_CASE("a model that bitsandbytes keeps quantised: as the same quantised at load") {
  const std::string golden = troupe::tests::source_dir() + "/tests/golden/quantized/";
  for (const std::string kind : {"int8", "fp4", "nf4"}) {
    CAPTURE(kind);
    const auto config_of = [](const std::string& folder) {
      return ModelConfig::parse(file(folder + "/config.json"), folder).value();
    };
    const ModelConfig stored = config_of(golden + "base-" + kind);
    REQUIRE(stored.quantization);
    const auto over = [&](const std::string& folder, const char* strategy, int world) {
      RunChange change = changed({.strategy = strategy, .world = world});
      change.accumulation = 4 / world;
      change.change = [&, folder, before = change.change](RunBundle& bundle) {
        bundle.model = config_of(folder);
        before(bundle);
        bundle.companions["config.json"] = json::write(bundle.model.to_json());
        bundle.config.training.max_steps = 3;
        bundle.config.model.train_from_scratch = false;
        bundle.config.model.model_name_or_path = folder;
        bundle.trainables.base = {.quantization = stored.quantization,
                                  .beside = DType::kF32,
                                  .skipped = stored.quantization_skipped};
      };
      return change;
    };
    troupe::tests::TemporaryDirectory dir;
    train(dir.file("at-load"), over(golden + "base", "ddp", 1));
    train(dir.file("stored"), over(golden + "base-" + kind, "ddp", 1));
    train(dir.file("zero3"), over(golden + "base-" + kind, "zero3", 2));
    const std::string expected = trained(dir.file("stored"), true);
    CHECK((trained(dir.file("zero3"), true) == expected));
    CHECK((trained(dir.file("at-load"), true) == expected));
  }
}

TEST_CASE("pure_bf16: a base in bf16, adapters in fp32, which nothing rounds at random") {
  std::string first;
  for (const auto& [strategy, world] : {std::pair("ddp", 1), std::pair("zero3", 2)}) {
    troupe::tests::TemporaryDirectory dir;
    train(dir.file("run"), changed({.strategy = strategy, .world = world, .pure_bf16 = true}));
    const std::string bytes = trained(dir.file("run"), true);
    if (first.empty()) first = bytes;
    CHECK((bytes == first));
  }
}

TEST_CASE("a checkpoint of adapters holds them alone, and goes on at another world size") {
  for (const bool adapters : {true, false}) {
    troupe::tests::TemporaryDirectory dir;
    train(dir.file("one"), changed({.strategy = "zero3", .world = 2, .adapters = adapters}));
    const std::string checkpoint = dir.file("one") + "/checkpoint-4";
    PosixFileSystem files;
    CHECK(files.exists(checkpoint + "/" + kAdapters) == adapters);
    CHECK(files.exists(checkpoint + "/model.safetensors") == !adapters);
    // Another rank, or another kind of run, is noticed before anything starts.
    const ModelConfig model = tiny_model();
    Trainables same = adapters ? adapters_of(model, 0.1) : part_of(model);
    CHECK(check_checkpoint_fits(files, checkpoint, model, ModelLayout(model, same)).ok());
    Trainables other = adapters_of(model, 0.1);
    for (LoraModule& lora : other.lora) lora.rank = 2;
    const Status refused =
        check_checkpoint_fits(files, checkpoint, model, ModelLayout(model, other));
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK(refused.message().find("is not of this run") != std::string::npos);
    for (const Run& run : {Run{"ddp", 1}, Run{"fsdp", 3}}) {
      CAPTURE(run.strategy);
      Run resumed = run;
      resumed.adapters = adapters;
      resumed.resume = checkpoint;
      train(dir.file(run.strategy), changed(resumed));
      CHECK((trained(dir.file(run.strategy), adapters) == trained(dir.file("one"), adapters)));
    }
  }
}

TEST_CASE("a lost generation of adapters goes on from memory, bit for bit") {
  troupe::tests::TemporaryDirectory dir;
  for (const char* strategy : {"ddp", "zero3"}) {
    const RunChange change = changed({.strategy = strategy, .world = 2});
    train(dir.file(strategy), change);
    const std::string struck = dir.file(strategy) + "-struck";
    train_struck(struck, change, 1);
    CHECK((trained(struck, true) == trained(dir.file(strategy), true)));
  }
}

}  // namespace
}  // namespace troupe::train::tests
