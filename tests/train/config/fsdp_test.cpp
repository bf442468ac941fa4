// FSDP by the keys of the training configuration.

#include "train/config/fsdp.h"

#include "tests/train/config/load_helpers.h"

namespace troupe::train {
namespace {

using namespace tests;

std::string strategy(std::string_view lines) {
  const auto loaded = load_with(lines);
  return loaded.ok() ? loaded->config.sharding.strategy : loaded.status().message();
}

TEST_CASE("the words of fsdp") {
  CHECK(strategy("fsdp: full_shard") == "zero3");
  CHECK(strategy("fsdp: full_shard auto_wrap") == "zero3");
  CHECK(strategy("fsdp: [shard_grad_op, auto_wrap]") == "shard_grad_op");
  CHECK(strategy("fsdp: hybrid_shard") == "hsdp");
  CHECK(strategy("fsdp: hybrid_shard_zero2 auto_wrap") == "hsdp_zero2");
  CHECK(strategy("fsdp: no_shard") == "ddp");
  CHECK(strategy("fsdp: true") == "zero3");
  CHECK(strategy("fsdp: auto_wrap") == "zero3");
  CHECK(strategy("fsdp: false") == "ddp");
  CHECK(strategy("fsdp: ''") == "ddp");
  CHECK(strategy("fsdp: null") == "ddp");
  CHECK(strategy("fsdp: []") == "ddp");
  CHECK(contains(strategy("fsdp: full_shard shard_grad_op"),
                 "`--fsdp full_shard` is not compatible with `--fsdp shard_grad_op`."));
  CHECK(contains(strategy("fsdp: ful_shard"), "did you mean 'full_shard'?"));
  CHECK(contains(strategy("fsdp: {a: 1}"), "expected a text"));
}

TEST_CASE("the settings of fsdp_config, with and without fsdp_ before them") {
  CHECK(strategy("fsdp: true\nfsdp_config: {reshard_after_forward: false}") == "shard_grad_op");
  CHECK(strategy("fsdp: true\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: true}") ==
        "zero3");
  CHECK(strategy("fsdp: full_shard\nfsdp_config: {version: 2}") == "zero3");
  CHECK(strategy("fsdp: true\nfsdp_config: {version: 1, reshard_after_forward: hybrid_shard}") ==
        "hsdp");
  CHECK(strategy("fsdp: true\nfsdp_config: {version: 1, sharding_strategy: 2}") == "shard_grad_op");
  CHECK(strategy("fsdp: full_shard\nfsdp_config: {transformer_layer_cls_to_wrap: [A, B], "
                 "backward_prefetch: backward_pre, forward_prefetch: 'false', min_num_params: 0, "
                 "xla: false, cpu_ram_efficient_loading: true, use_orig_params: 'true'}") ==
        "zero3");
  CHECK(contains(strategy("fsdp: full_shard\nfsdp_config: {reshard_after_forward: false}"),
                 "fsdp=full_shard (zero3) and fsdp_config.reshard_after_forward=false "
                 "(shard_grad_op) disagree about the strategy"));
  CHECK(contains(strategy("fsdp: hybrid_shard\nfsdp_config: {version: 2}"),
                 "`fsdp=hybrid_shard` is only available with FSDP1."));
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {version: 3}"), "there is no FSDP3"));
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {version: 2, reshard_after_forward: x}"),
                 "This is not supported with FSDP2, please set to a `bool`"));
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {version: 2, forward_prefetch: true}"),
                 "forward_prefetch is not yet implemented in FSDP2"));
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {xla: true}"), "no TPU"));
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {mixed_precision_policy: bf16}"),
                 "use bf16: true"));
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {ignored_modules: a}"), "ignored_modules=a"));
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {shardng_strategy: 1}"),
                 "did you mean 'sharding_strategy'?"));
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {auto_wrap_policy: NONE}"),
                 "'NONE' is no valid value"));
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {version: 1, sharding_strategy: 7}"),
                 "one of FULL_SHARD"));
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {xla: false, fsdp_xla: false}"), "twice"));
}

TEST_CASE("FSDP offloads parameters and optimizer state") {
  for (const auto* text :
       {"fsdp: full_shard offload", "fsdp: [offload, auto_wrap]", "fsdp: no_shard offload",
        "fsdp: true\nfsdp_config: {offload_params: true}",
        "fsdp: true\nfsdp_config: {fsdp_cpu_offload: 'true', "
        "fsdp_cpu_offload_pin_memory: false}"}) {
    CAPTURE(text);
    const auto loaded = accepted(load_with(text));
    CHECK(loaded.config.sharding.offload == OffloadChoice::kParameters);
    CHECK(loaded.resolved_from.contains("troupe.offload"));
  }
  CHECK(accepted(load_with("fsdp: true\nfsdp_config: {offload_params: false}"))
            .config.sharding.offload == OffloadChoice::kNone);
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {offload_params: maybe}"),
                 "fsdp_config.offload_params"));
  CHECK(contains(strategy("fsdp: full_shard offload\ntroupe: {offload: optimizer}"),
                 "troupe.offload=optimizer and fsdp=offload (parameters) disagree about what is "
                 "offloaded"));
}

TEST_CASE("troupe.offload, and what it does not go with") {
  const auto offload = [](const std::string& text) {
    return accepted(load_with("troupe: {" + text + "}")).config.sharding.offload;
  };
  CHECK(offload("strategy: zero1, offload: optimizer") == OffloadChoice::kOptimizer);
  CHECK(offload("strategy: hsdp, mesh: [1, 1], offload: parameters") == OffloadChoice::kParameters);
  CHECK(offload("strategy: zero3") == OffloadChoice::kNone);
  for (const auto* name : {"zero1", "zero2"}) {
    CHECK(contains(
        refusal(load_with(fmt::format("troupe: {{strategy: {}, offload: parameters}}", name))),
        "use troupe.offload=optimizer, or troupe.strategy=zero3"));
  }
  CHECK(contains(refusal(load_with("troupe: {offload: nvme}")), "troupe.offload"));
}

TEST_CASE("fsdp_config may be a file; without fsdp it is passed over aloud") {
  const auto file = load_with("fsdp: full_shard\nfsdp_config: f.json", {}, {},
                              {{"f.json", R"({"activation_checkpointing": true})"}});
  CHECK(accepted(file).config.fsdp_config.contains("activation_checkpointing"));
  CHECK(contains(refusal(load_with("fsdp: true\nfsdp_config: none.json")), "none.json"));
  const auto alone = accepted(load_with("fsdp_config: {offload_params: true}"));
  CHECK(alone.config.sharding.strategy == "ddp");
  REQUIRE(alone.notices.size() == 1);
  CHECK(alone.notices[0] == "fsdp_config has no effect: nothing is sharded by FSDP without fsdp");
}

TEST_CASE("checkpoint format and activation checkpointing of FSDP") {
  const auto sharded =
      accepted(load_with("fsdp: true\nfsdp_config: {state_dict_type: SHARDED_STATE_DICT, "
                         "activation_checkpointing: true}\ndisable_gradient_checkpointing: true"));
  CHECK(sharded.config.training.checkpoint_format == CheckpointFormat::kSharded);
  CHECK(sharded.config.model.activation_checkpointing == ActivationCheckpointing::kFull);
  REQUIRE(sharded.warnings.size() == 1);
  CHECK(contains(sharded.warnings[0], "fsdp_config.activation_checkpointing turns on"));
  CHECK(accepted(load_with("fsdp: true")).config.training.checkpoint_format ==
        CheckpointFormat::kHf);
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {state_dict_type: LOCAL_STATE_DICT}"),
                 "use SHARDED_STATE_DICT"));
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {state_dict_type: SHARDED_STATE_DICT}\n"
                          "troupe: {checkpoint_format: hf}"),
                 "troupe.checkpoint_format=hf and fsdp_config.state_dict_type=SHARDED_STATE_DICT "
                 "(sharded) disagree about the form of checkpoints"));
  CHECK(contains(strategy("fsdp: true\nfsdp_config: {activation_checkpointing: true}\n"
                          "troupe: {activation_checkpointing: none}"),
                 "troupe.activation_checkpointing=none and "
                 "fsdp_config.activation_checkpointing=true disagree"));
}

}  // namespace
}  // namespace troupe::train
