#include "train/config/deepspeed.h"

#include <doctest/doctest.h>

#include "tests/train/config/memory_files.h"
#include "train/config/deepspeed_keys.h"

namespace troupe::train {
namespace {

DeepSpeedContext context() {
  DeepSpeedContext out;
  out.training.per_device_train_batch_size = 2;
  out.training.gradient_accumulation_steps = 8;
  out.training.learning_rate = 1e-4;
  out.world_size = 4;
  out.hidden_size = 64;
  return out;
}

Result<ResolvedDeepSpeed> resolved(std::string_view text) {
  json::ParseOptions options;
  options.relaxed = true;
  const auto value = json::parse(text, "ds.json", options);
  REQUIRE_MESSAGE(value.ok(), value.status().to_string());
  return resolve_deepspeed(value->as_object(), context());
}

std::string refused_json(std::string_view text) {
  const auto result = resolved(text);
  REQUIRE_FALSE(result.ok());
  return result.status().message();
}

TEST_CASE("the three batch sizes complete each other") {
  auto batch = resolve_deepspeed_batch(64, 2, std::nullopt, 4);
  REQUIRE(batch.ok());
  CHECK(batch->accumulation_steps == 8);
  batch = resolve_deepspeed_batch(64, std::nullopt, 8, 4);
  CHECK(batch->micro_batch_size == 2);
  batch = resolve_deepspeed_batch(std::nullopt, 2, 8, 4);
  CHECK(batch->train_batch_size == 64);
  batch = resolve_deepspeed_batch(64, std::nullopt, std::nullopt, 4);
  CHECK(batch->micro_batch_size == 16);
  CHECK(batch->accumulation_steps == 1);
  batch = resolve_deepspeed_batch(std::nullopt, 2, std::nullopt, 4);
  CHECK(batch->train_batch_size == 8);

  CHECK(resolve_deepspeed_batch(std::nullopt, std::nullopt, 8, 4).status().message() ==
        "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided");
  CHECK(resolve_deepspeed_batch(63, 2, 8, 4).status().message() ==
        "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
        "gradient_acc_step * world_size 63 != 2 * 8 * 4");
}

TEST_CASE("auto takes the values of the training configuration") {
  const auto result = resolved(R"({
    "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", // a comment
    "fp16": {"enabled": "auto", "loss_scale": 0}, "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                              "weight_decay": "auto"}},
    "zero_optimization": {"stage": 0, "reduce_bucket_size": "auto",
      "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",},
    "_comment": "passed over"})");
  REQUIRE_MESSAGE(result.ok(), result.status().to_string());
  CHECK(result->batch.train_batch_size == 64);
  const json::Value values = result->values;
  CHECK(json::find_integer(values, "train_batch_size") == 64);
  CHECK(json::find_integer(values, "train_micro_batch_size_per_gpu") == 2);
  CHECK(json::find_integer(values, "gradient_accumulation_steps") == 8);
  CHECK(json::find_number(values, "gradient_clipping") == 1.0);
  CHECK(json::write(*json::find(values, "fp16")) == R"({"enabled":false,"loss_scale":0})");
  const auto& zero = *json::find(values, "zero_optimization");
  CHECK(json::find_integer(zero, "reduce_bucket_size") == 4096);
  CHECK(json::find_integer(zero, "stage3_prefetch_bucket_size") == 3686);
  CHECK(json::find_integer(zero, "stage3_param_persistence_threshold") == 640);
  const auto& params = *json::find(*json::find(values, "optimizer"), "params");
  CHECK(json::find_number(params, "lr") == 1e-4);
  CHECK(json::write(*json::find(params, "betas")) == "[9E-1,9.99E-1]");
}

TEST_CASE("disagreements are listed in transformers' words, numbers compared as numbers") {
  CHECK(resolved(R"({"train_micro_batch_size_per_gpu": "2", "gradient_accumulation_steps": 8.0})")
            .ok());
  CHECK(refused_json(R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": "8",
                    "gradient_clipping": 0.5, "optimizer": {"type": "Adam",
                    "params": {"lr": 3e-5}}})") ==
        "Please correct the following DeepSpeed config values that mismatch TrainingArguments "
        "values:\n"
        "- ds train_micro_batch_size_per_gpu=3 vs hf per_device_train_batch_size=2\n"
        "- ds gradient_clipping=0.5 vs hf max_grad_norm=1.0\n"
        "- ds optimizer.params.lr=3e-05 vs hf learning_rate=0.0001\n"
        "The easiest method is to set these DeepSpeed config values to 'auto'.");
  CHECK(refused_json("{}") ==
        "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided");
  // Only the total: DeepSpeed would run micro-batches of 16.
  CHECK(refused_json(R"({"train_batch_size": 64})").find("64 != 2 * 8 * 4") != std::string::npos);
}

// A configuration whose batch is "auto", with one more section or key.
std::string with(std::string_view more) {
  return fmt::format(R"({{"train_micro_batch_size_per_gpu": "auto",
                          "gradient_accumulation_steps": "auto", {}}})",
                     more);
}

TEST_CASE("stages, limits and what gradients travel in") {
  const auto zero = [](std::string_view inside) {
    const auto result = resolved(with(fmt::format(R"("zero_optimization": {{{}}})", inside)));
    REQUIRE_MESSAGE(result.ok(), result.status().to_string());
    return *result;
  };
  CHECK(zero(R"("stage": 0)").strategy == "ddp");
  CHECK(zero(R"("stage": "1")").strategy == "zero1");
  CHECK(zero(R"("stage": 2.0, "overlap_comm": true, "reduce_bucket_size": 5e8)").strategy ==
        "zero2");
  CHECK_FALSE(zero(R"("stage": 2, "stage3_max_live_parameters": 7)").limits);
  const auto plain = zero(R"("stage": 3)");
  CHECK(plain.strategy == "zero3");
  REQUIRE(plain.limits);
  CHECK(plain.limits->max_live_parameters == 1'000'000'000);
  CHECK(plain.limits->max_reuse_distance == 1'000'000'000);
  CHECK(plain.limits->prefetch_bucket_size == 50'000'000);
  CHECK(plain.limits->param_persistence_threshold == 100'000);
  const auto filled = zero(R"("stage": 3, "stage3_max_live_parameters": 7, "max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
    "stage3_gather_16bit_weights_on_model_save": true, "sub_group_size": 1e9)");
  CHECK(filled.limits->max_live_parameters == 7);
  CHECK(filled.limits->max_reuse_distance == 0);
  CHECK(filled.limits->prefetch_bucket_size == 3686);
  CHECK(filled.limits->param_persistence_threshold == 640);
  CHECK(refused_json(
            with(R"("zero_optimization": {"stage": 3, "stage3_max_live_parameters": -1})")) ==
        "zero_optimization.stage3_max_live_parameters: -1 is below 0");
  CHECK(
      refused_json(with(R"("zero_optimization": {"stage": 3, "stage3_max_live_parameters": "x"})"))
          .find("expected a whole number") != std::string::npos);
  CHECK_FALSE(resolved(with(R"("steps_per_print": 10)"))->reduce);
  CHECK(resolved(with(R"("communication_data_type": "bf16")"))->reduce == Precision::kBfloat16);
  CHECK(resolved(with(R"("communication_data_type": "fp32")"))->reduce == Precision::kFloat32);
  CHECK(refused_json(with(R"("communication_data_type": "fp16")")).find("use fp32 or bf16") !=
        std::string::npos);
}

TEST_CASE("DeepSpeed's loss scale") {
  const auto rule = [](json::Object fp16) {
    return read_loss_scale_rule({{"fp16", std::move(fp16)}}).value();
  };
  const LossScaleRule plain = read_loss_scale_rule({}).value();
  CHECK(plain.initial == 65536);
  CHECK(plain.window == 1000);
  CHECK(plain.hysteresis == 2);
  CHECK(plain.least == 1);
  CHECK(plain.is_dynamic);
  CHECK(plain.of_deepspeed);
  const LossScaleRule given = rule({{"loss_scale", 0},
                                    {"initial_scale_power", "8"},
                                    {"loss_scale_window", 1e2},
                                    {"hysteresis", 3},
                                    {"consecutive_hysteresis", true},
                                    {"min_loss_scale", 0.5}});
  CHECK(given.initial == 256);
  CHECK(given.window == 100);
  CHECK(given.hysteresis == 3);
  CHECK(given.refills_hysteresis);
  CHECK(given.least == 0.5);
  CHECK_FALSE(rule({{"loss_scale", 128}}).is_dynamic);
  CHECK(rule({{"loss_scale", 128}}).initial == 128);
}

TEST_CASE("a key that changes numerics is never without effect") {
  for (const auto* text :
       {R"("prescale_gradients": true)", R"("gradient_predivide_factor": 2.0)",
        R"("sparse_gradients": true)", R"("data_types": {"grad_accum_dtype": "bf16"})",
        R"("zero_optimization": {"stage": 3, "zero_quantized_weights": true})",
        R"("zero_optimization": {"stage": 3, "zero_quantized_gradients": true})",
        R"("zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8})",
        R"("zero_optimization": {"stage": 3, "mics_shard_size": 8})",
        R"("zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}})",
        R"("tensor_parallel": {"autotp_size": 2})", R"("amp": {"enabled": true})",
        R"("bf16": {"enabled": "auto", "bf16_optimizer_states": true})",
        R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 1}})",
        R"("fp16": {"enabled": "auto", "fp16_master_weights_and_grads": true})"}) {
    CAPTURE(text);
    const auto result = resolved(with(text));
    REQUIRE_FALSE(result.ok());
    CHECK(result.status().code() == Code::kUnsupported);
    CHECK(result.status().message().find("is not supported: ") != std::string::npos);
  }
  for (const auto* text :
       {R"("prescale_gradients": false, "gradient_predivide_factor": 1.0)",
        R"("data_types": {"grad_accum_dtype": "fp32"})", R"("data_types": {})",
        R"("zero_optimization": {"stage": 3, "zero_hpz_partition_size": 1, "mics_shard_size": -1,
           "offload_param": {"device": "none", "pin_memory": true}, "offload_optimizer": null})",
        R"("tensor_parallel": {"autotp_size": 1})", R"("fp16": {"enabled": "auto"})",
        R"("wandb": {"enabled": false, "project": "x"}, "aio": {"block_size": 1})"}) {
    CAPTURE(text);
    const auto result = resolved(with(text));
    CHECK_MESSAGE(result.ok(), result.status().to_string());
  }
}

TEST_CASE("offload by DeepSpeed's stages") {
  const auto of = [](const std::string& zero) {
    const auto found = resolved(with("\"zero_optimization\": {" + zero + "}"));
    REQUIRE_MESSAGE(found.ok(), found.status().to_string());
    return *found;
  };
  const std::string optimizer = R"("offload_optimizer": {"device": "cpu", "pin_memory": true,
      "buffer_count": 4, "fast_init": false, "pipeline_read": true, "nvme_path": "/x"})";
  const std::string parameters = R"("offload_param": {"device": "cpu", "buffer_size": 1e8})";
  for (const int stage : {1, 2, 3}) {
    const auto found = of(fmt::format("\"stage\": {}, {}", stage, optimizer));
    CHECK(found.offload == OffloadChoice::kOptimizer);
    CHECK(found.offload_path == "zero_optimization.offload_optimizer.device");
    CHECK(found.notes.size() == 1);
  }
  const auto both = of("\"stage\": 3, " + optimizer + ", " + parameters);
  CHECK(both.offload == OffloadChoice::kParameters);
  CHECK(both.notes.size() == 1);
  const auto alone = of("\"stage\": 3, " + parameters);
  CHECK(alone.offload == OffloadChoice::kParameters);
  CHECK(alone.notes[0].find("optimizer state is offloaded, too") != std::string::npos);
  const auto early = of("\"stage\": 2, " + optimizer + ", " + parameters);
  CHECK(early.offload == OffloadChoice::kOptimizer);
  CHECK(early.notes[0].find("parameters are offloaded with ZeRO stage 3") != std::string::npos);
  const auto none = of("\"stage\": 0, " + optimizer);
  CHECK(none.offload == OffloadChoice::kNone);
  CHECK(none.notes[0] ==
        "zero_optimization.offload_optimizer.device has no effect: optimizer state is offloaded "
        "with ZeRO stages 1, 2 and 3");
  CHECK(of(R"("stage": 2, "cpu_offload": true, "cpu_offload_use_pin_memory": true)").offload ==
        OffloadChoice::kOptimizer);
  CHECK(of(R"("stage": 3, "cpu_offload": true, "cpu_offload_params": true)").offload_path ==
        "zero_optimization.cpu_offload_params");
  CHECK(of(R"("stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3})").offload ==
        OffloadChoice::kOptimizer);
  CHECK(
      of(R"("stage": 3, "offload_optimizer": {"device": "none"}, "cpu_offload": false)").offload ==
      OffloadChoice::kNone);
}

TEST_CASE("a section of another method asks for nothing where it is off, and no other key does") {
  for (const auto* name : {"hybrid_engine", "curriculum_learning", "data_efficiency", "nebula"}) {
    CAPTURE(name);
    const auto section = [&](const char* on) {
      return with(fmt::format(R"("{}": {{"enabled": {}, "more": 3}})", name, on));
    };
    CHECK(resolved(section("false")).ok());
    CHECK(refused_json(section("true")).find("is not supported") != std::string::npos);
  }
  // These have no such switch.
  for (const auto* text :
       {R"("prescale_gradients": {"enabled": false, "x": 1})",
        R"("compression_training": {"enabled": false, "x": 1})",
        R"("zero_optimization": {"zero_hpz_partition_size": {"enabled": false}})"}) {
    CAPTURE(text);
    CHECK(refused_json(with(text)).find("is not supported") != std::string::npos);
  }
}

TEST_CASE(
    "keys of a stage that is not there are said, and what they are must be right all the same") {
  const auto notes = [](const std::string& zero) {
    const auto found = resolved(with("\"zero_optimization\": {" + zero + "}"));
    REQUIRE_MESSAGE(found.ok(), found.status().to_string());
    std::string text;
    for (const auto& note : found->notes) text += note + "\n";
    return text;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(has(notes(R"("stage": 2, "stage3_max_live_parameters": 7, "max_reuse_distance": 5)"),
            "zero_optimization.stage3_max_live_parameters, zero_optimization.max_reuse_distance "
            "have no effect: parameters are gathered with ZeRO stage 3"));
  CHECK_FALSE(has(notes(R"("stage": 3, "stage3_max_live_parameters": 7)"), "have no effect"));
  CHECK(has(notes(R"("offload_param": {"device": "nvme"}, "cpu_offload": true)"),
            "zero_optimization.cpu_offload has no effect: optimizer state is offloaded"));
  CHECK_FALSE(has(notes(R"("stage": 0, "offload_optimizer": {"device": "none"})"), "no effect:"));

  const auto refused = [&](const std::string& zero) {
    return refused_json(with("\"zero_optimization\": {" + zero + "}"));
  };
  CHECK(has(refused(R"("stage": 3, "stage3_max_live_parameters": 7, "max_live_parameters": 9)"),
            "zero_optimization.stage3_max_live_parameters=7 and "
            "zero_optimization.max_live_parameters=9 are two names of one setting and disagree"));
  CHECK(resolved(with(R"("zero_optimization": {"stage": 3, "stage3_max_live_parameters": 7,
                         "max_live_parameters": 7.0})"))
            .ok());
  CHECK(has(refused(R"("stage": 1, "cpu_offload": true, "offload_optimizer": {"device": "none"})"),
            "zero_optimization.cpu_offload is the older name"));
  CHECK(has(refused(R"("stage": 1, "stage3_max_live_parameters": "many")"),
            "zero_optimization.stage3_max_live_parameters: expected a whole number"));
  CHECK(has(refused(R"("reduce_bucket_size": "big")"),
            "zero_optimization.reduce_bucket_size: expected a whole number"));
  CHECK(has(refused(R"("overlap_comm": 7)"), "overlap_comm: expected true or false"));
  CHECK(has(refused_json(with(R"("steps_per_print": "x")")), "steps_per_print: expected a number"));
  CHECK(has(refused_json(with(R"("wall_clock_breakdown": {})")),
            "wall_clock_breakdown: expected true or false"));
  CHECK(resolved(with(R"("zero_optimization": {"overlap_comm": "auto", "sub_group_size": "auto"})"))
            .ok());
}

TEST_CASE("every key of DeepSpeed's that is not refused has a type") {
  for (const auto& path : deepspeed_keys().paths()) {
    const auto row = deepspeed_keys().treated(path);
    if (row.treatment == Treatment::kRefused || path == "optimizer.params.betas") continue;
    CHECK_MESSAGE(row.type != ValueType::kAny, path);
  }
}

TEST_CASE(
    "what an optimizer block leaves out is DeepSpeed's default, which must be the training's") {
  CHECK(contains(refused_json(R"({"optimizer": {"type": "AdamW", "params": {"eps": 1e-8}}})"),
                 "optimizer.params.lr is not given: DeepSpeed takes its own default, 0.001, and "
                 "learning_rate is 0.0001; write \"auto\""));
  CHECK(contains(refused_json(R"({"optimizer": {"type": "Lion", "params": {"lr": "auto"}}})"),
                 "0.99, and adam_beta2 is 0.999"));
  CHECK(resolved(R"({"train_batch_size": "auto", "gradient_accumulation_steps": "auto",
                     "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})")
            .ok());
}

TEST_CASE("the effective clipping is said") {
  CHECK(resolved(with(R"("steps_per_print": 10)"))->notes.back() ==
        "gradient_clipping is not given: gradients are clipped to max_grad_norm, 1.0");
  CHECK(resolved(with(R"("gradient_clipping": "auto")"))->notes.back() ==
        "gradients are clipped to max_grad_norm, 1.0");
}

TEST_CASE("what is not supported is refused_json by name") {
  const auto contains = [](const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(contains(refused_json(R"({"zero_optimization": {"stage": 4}})"), "4 is no stage"));
  CHECK(contains(refused_json(R"({"zero_optimization": {"stage": 1,
                                  "offload_optimizer": {"device": "nvme"}}})"),
                 "zero_optimization.offload_optimizer.device=nvme is not supported: nothing is "
                 "offloaded to a disk; use cpu"));
  CHECK(contains(refused_json(R"({"zero_optimization": {"offload_optimizer": {"device": "cup"}}})"),
                 "did you mean 'cpu'?"));
  CHECK(contains(refused_json(R"({"zero_optimization": {"stage": 3,
                                  "offload_param": {"pin_memry": true}}})"),
                 "did you mean 'pin_memory'?"));
  CHECK(contains(refused_json(R"({"zero_optimization": {"stage": 2, "offload_optimizer":
                                  {"device": "cpu", "ratio": 0.3}}})"),
                 "Partial offloading only supported for ZeRO Stage 3."));
  CHECK(contains(refused_json(R"({"zero_optimization": {"stage": 3, "offload_optimizer":
                                  {"device": "cpu", "ratio": 1.3}}})"),
                 "1.3 is not between 0 and 1"));
  CHECK(contains(refused_json(R"({"bf16": {"enabled": true}})"),
                 "bf16.enabled=True vs hf bf16|bf16_full_eval=False"));
  CHECK(contains(refused_json(R"({"fp16": {"enabled": true}})"), "fp16.enabled=True vs hf fp16|"));
  CHECK(contains(refused_json(R"({"fp16": {"hysteresis": 0}})"), "fp16.hysteresis: 0 is not"));
  CHECK(contains(refused_json(R"({"fp16": {"min_loss_scale": "x"}})"), "fp16.min_loss_scale"));
  CHECK(contains(refused_json(R"({"bf16": {"enabled": true}, "fp16": {"enabled": true}})"),
                 "bfloat16 and fp16 modes cannot be simultaneously enabled"));
  CHECK(contains(refused_json(R"({"scheduler": {"type": "Warmup"}})"),
                 "scheduler.type=Warmup is unknown; known: WarmupLR"));
  CHECK(contains(refused_json(R"({"scheduler": {"type": "WarmupLR", "params": {"steps": 3}}})"),
                 "WarmupLR has no parameter steps"));
  CHECK(contains(refused_json(R"({"scheduler": {"type": "OneCycle", "params":
                                  {"cycle_min_lr": 0.1, "cycle_max_lr": 1}}})"),
                 "set cycle_momentum: false"));
  CHECK(contains(refused_json(R"({"optimizer": {"type": "Lamb"}})"), "optimizer.type=Lamb"));
  for (const char* text :
       {R"("optimizer": {"type": "Lion", "params": {"lr": "auto", "betas": "auto"}})",
        R"("optimizer": {"type": "Adam", "params": {"lr": "auto", "adam_w_mode": false}})",
        R"("scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto",
           "warmup_max_lr": "auto", "warmup_num_steps": "auto"}})"}) {
    const auto result = resolved(with(text));
    CHECK_MESSAGE(result.ok(), result.status().to_string());
  }
  auto sgd = context();
  sgd.training.optim = "sgd";
  const auto adamw = json::parse(R"({"optimizer": {"type": "AdamW"}})", "ds.json").value();
  CHECK(contains(resolve_deepspeed(adamw.as_object(), sgd).status().message(),
                 "optimizer.type=AdamW and optim: sgd name two optimizers"));
  CHECK(contains(refused_json(R"({"train_batchsize": 8})"), "did you mean 'train_batch_size'?"));
  CHECK(contains(refused_json(R"({"zero_optimization": {"overlap_com": true}})"),
                 "unknown key 'zero_optimization.overlap_com'; did you mean 'overlap_comm'?"));
  CHECK(contains(refused_json(R"({"zero_optimization": 3})"), "expected a mapping"));
  CHECK(contains(refused_json(R"({"gradient_predivide_factor": 2})"), "gradient_predivide_factor"));
}

TEST_CASE("files: comments, duplicate keys, missing") {
  tests::MemoryFiles files({{"ds.json", "{ // c\n\"train_batch_size\": \"auto\",}"},
                            {"twice.json", "{\"a\": 1,\n\"a\": 2}"},
                            {"list.json", "[]"},
                            {"tiny/config.json", R"({"hidden_size": 64})"},
                            {"bad/config.json", R"({"hidden_size": -4})"}});
  CHECK(read_deepspeed("ds.json", files).ok());
  CHECK(read_deepspeed("twice.json", files).status().message().find("twice.json:2") == 0);
  CHECK_FALSE(read_deepspeed("list.json", files).ok());
  CHECK(read_deepspeed("none.json", files).status().code() == Code::kNotFound);
  CHECK_FALSE(read_deepspeed(3, files).ok());
  CHECK(read_deepspeed(json::Object(), files).ok());
  CHECK(read_hidden_size("tiny", files) == 64);
  CHECK_FALSE(read_hidden_size("bad", files));
  CHECK_FALSE(read_hidden_size("none", files));
}

}  // namespace
}  // namespace troupe::train
