#include "train/trainer/device_choice.h"

#include <doctest/doctest.h>

#include "tests/train/trainer/small_model.h"
#include "train/optimizer/optimizers.h"
#include "train/trainer/sharding_setup.h"
#include "train/trainer/trained_part.h"

namespace troupe::train {
namespace {

bool contains(const std::string& text, std::string_view words) {
  const bool there = text.find(words) != std::string::npos;
  if (!there) MESSAGE(text);
  return there;
}

Result<DeviceDecision> decide(const std::string& device, int trainers, const DeviceOffer& offer,
                              bool tf32 = false) {
  TrainConfig config;
  config.troupe.device = device;
  config.model.tf32 = tf32;
  return decide_device(config, trainers, offer);
}

const Status kNoLibrary =
    error(Code::kUnavailable, "no GPU can be used: no library; or use troupe.device=cpu");

TEST_CASE("auto takes GPUs where there is one for each, else the CPU, and says why") {
  CHECK(decide("auto", 2, {.gpus = 2})->on_gpus);
  CHECK(decide("auto", 2, {.gpus = 2})->notice.empty());
  const auto none = decide("auto", 2, {.nodes = 1, .gpus = 0}).value();
  CHECK_FALSE(none.on_gpus);
  CHECK(none.notice ==
        "notice: the run is on CPUs (troupe.device=auto): the node does not offer a GPU");
  CHECK(contains(decide("auto", 2, {.nodes = 3, .gpus = 0})->notice, "no node offers a GPU"));
  CHECK(contains(decide("auto", 4, {.gpus = 3})->notice, "4 trainers need a GPU each"));
  TrainConfig shared;
  shared.troupe.gpus_per_worker = 0.25;
  CHECK(trainers_per_gpu(shared) == 4);
  CHECK(decide_device(shared, 4, {.gpus = 1})->on_gpus);
  CHECK(contains(decide_device(shared, 5, {.gpus = 1})->notice,
                 "5 trainers need a GPU for every 4, and the nodes offer 1"));
  shared.troupe.gpus_per_worker = 0.3333;
  CHECK(trainers_per_gpu(shared) == 3);
  shared.troupe.gpus_per_worker = 0.6;
  CHECK(trainers_per_gpu(shared) == 1);
  const auto library = decide("auto", 2, {.gpus = 2, .usable = kNoLibrary}).value();
  CHECK_FALSE(library.on_gpus);
  CHECK(contains(library.notice, "no library"));
}

TEST_CASE("cuda is GPUs, or one sentence with the way out") {
  CHECK(decide("cuda", 2, {.gpus = 2})->on_gpus);
  const Status few = decide("cuda", 4, {.gpus = 3}).status();
  CHECK(few.code() == Code::kResourceExhausted);
  CHECK(contains(few.message(),
                 "troupe.device=cuda: 4 trainers need a GPU each, and the nodes "
                 "offer 3: lower troupe.workers, add nodes, or let trainers share GPUs "
                 "(troupe.gpus_per_worker); or use troupe.device=cpu"));
  const Status none = decide("cuda", 1, {.gpus = 0}).status();
  CHECK(none.code() == Code::kUnavailable);
  CHECK(none.message() ==
        "troupe.device=cuda: the node does not offer a GPU: the driver shows none, or "
        "CUDA_VISIBLE_DEVICES or --num-gpus leave none; or use troupe.device=cpu");
  const Status library = decide("cuda", 1, {.gpus = 1, .usable = kNoLibrary}).status();
  CHECK(library.message() == "troupe.device=cuda: " + kNoLibrary.message());
}

TEST_CASE("fp16 is not there on GPUs") {
  TrainConfig config;
  config.model.compute = Precision::kFloat16;
  CHECK(contains(decide_device(config, 2, {.gpus = 2}).status().message(), "use bf16: true"));
  CHECK_FALSE(decide_device(config, 2, {.gpus = 0})->on_gpus);
}

TEST_CASE("what GPUs have no kernels for is refused by name before anything starts") {
  const LoraModule lora{.module = "model.layers.0.mlp.up_proj"};
  const QuantizedBase base{.quantization = {WeightCode::kNf4, true}};
  const std::pair<Trainables, const char*> parts[] = {
      {{.everything = false, .lora = {lora}}, "finetuning_type: lora"},
      {{.everything = false, .lora = {lora}, .base = base}, "finetuning_type: lora"},
      {{.everything = false, .tensors = {"model.norm.weight"}}, "finetuning_type: freeze"},
      {{.value_head = true}, "stage: rm"},
      {{.reference = Reference::kBase}, "stages dpo and kto"}};
  for (const auto& [part, name] : parts) {
    CHECK(check_trained_part(part, false).ok());
    const Status refused = check_trained_part(part, true);
    CHECK(refused.code() == Code::kUnsupported);
    CHECK(contains(refused.message(), name));
    CHECK(contains(refused.message(), "use_cpu: true"));
  }
  CHECK(check_trained_part({}, true).ok());
}

TEST_CASE("GPUs update with AdamW; others are refused by name, or updated by the host") {
  const ModelConfig model = small_model();
  const auto check = [&](const TrainConfig& config) {
    const Trainables trained = with_rule({}, config, model);
    CHECK(check_optimizer(config, model, trained, false).ok());
    return check_optimizer(config, model, trained, true);
  };
  std::vector<TrainConfig> configs;
  for (const OptimizerRow& row : optimizer_table()) {
    configs.emplace_back().training.optim = row.optim;
    configs.back().optimizer.optim_target_modules = {"all-linear"};
  }
  for (auto key : {&OptimizerMethodSection::use_galore, &OptimizerMethodSection::use_apollo,
                   &OptimizerMethodSection::use_badam, &OptimizerMethodSection::use_adam_mini,
                   &OptimizerMethodSection::use_muon})
    configs.emplace_back().optimizer.*key = true;
  for (TrainConfig& config : configs) {
    const auto optimizer = optimizer_of(config, model);
    CAPTURE(optimizer_choice(config));
    const Status alone = check(config);
    CHECK(alone.ok() == (optimizer->name() == "AdamW"));
    if (alone.ok()) continue;
    CHECK(alone.code() == Code::kUnsupported);
    CHECK(contains(alone.message(), optimizer->name()));
    CHECK(contains(alone.message(), "adamw_torch"));
    config.sharding.offload = OffloadChoice::kOptimizer;
    CHECK(check(config).ok() == (optimizer->rule() == nullptr));
  }
}

TEST_CASE("a projection that is set wrongly is refused, and kills nobody who looks at it before") {
  for (const auto& [target, arguments] :
       {std::pair("", ""), std::pair("all-linear", "rank=many"), std::pair("a(b", "rank=4")}) {
    TrainConfig config;
    config.training.optim = "galore_adamw";
    if (*target) config.optimizer.optim_target_modules = {target};
    config.optimizer.optim_args = arguments;
    CHECK_FALSE(transformers_projection(config).ok());
    CHECK(optimizer_of(config, small_model()) != nullptr);
    const Status refused = check_optimizer(config, small_model(), {}, false);
    CHECK(refused.context("key").value_or("").starts_with("optim_"));
  }
}

TEST_CASE("the CPU is asked for without words, and has neither TF32 nor FP8") {
  const auto cpu = decide("cpu", 2, {.gpus = 2}).value();
  CHECK_FALSE(cpu.on_gpus);
  CHECK(cpu.notice.empty());
  TrainConfig offloads;
  offloads.sharding.offload = OffloadChoice::kOptimizer;
  CHECK(contains(decide_device(offloads, 1, {.gpus = 0})->notice,
                 "notice: the run is on CPUs (troupe.device=auto): the node does not offer a GPU; "
                 "offload has no effect on CPUs"));
  offloads.troupe.device = "cpu";
  CHECK(decide_device(offloads, 1, {.gpus = 1})->notice ==
        "notice: offload has no effect on CPUs: everything lies in the host's memory");
  CHECK(decide("cuda", 1, {.gpus = 1}, true)->on_gpus);
  for (const char* device : {"cpu", "auto"}) {
    const Status refused = decide(device, 1, {.gpus = 0}, true).status();
    CHECK(refused.code() == Code::kInvalidArgument);
    CHECK(contains(refused.message(), "use tf32: false"));
    TrainConfig eight_bits;
    eight_bits.troupe.device = device;
    eight_bits.model.fp8 = true;
    const Status no_fp8 = decide_device(eight_bits, 1, {.gpus = 0}).status();
    CHECK(no_fp8.code() == Code::kInvalidArgument);
    CHECK(contains(no_fp8.message(), "use bf16: true without fp8"));
  }
}

TEST_CASE("graphs are for GPUs, where operators are not timed one by one") {
  using Use = GraphOptions::Use;
  TrainConfig config;
  CHECK(graph_use(config) == Use::kWhereFaster);
  config.troupe.operator_times = true;
  CHECK(graph_use(config) == Use::kNever);
  config.troupe.operator_times = false;
  config.troupe.cuda_graphs = "false";
  CHECK(graph_use(config) == Use::kNever);
  config.troupe.cuda_graphs = "true";
  CHECK(graph_use(config) == Use::kAlways);
  CHECK(decide_device(config, 1, {.gpus = 1})->on_gpus);
  config.troupe.device = "cpu";
  const Status refused = decide_device(config, 1, {.gpus = 1}).status();
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK(contains(refused.message(), "use troupe.cuda_graphs=auto"));
}

}  // namespace
}  // namespace troupe::train
