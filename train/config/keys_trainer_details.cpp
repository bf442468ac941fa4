// The remaining keys of Hugging Face's TrainingArguments: seeds, loading, launch, hub, debugging.
#include "train/config/derived.h"
#include "train/config/key_builder.h"
#include "train/config/mesh.h"

namespace troupe::train {
namespace {

void add_seed_keys(KeyTable& t) {
  t.integer("seed", 42)
      .implemented("seed of initial weights, data order, dropout and random rounding (pure_bf16)",
                   TROUPE_FIELD(training.seed))
      .at_least(0)
      .at_most(4294967295.0);
  t.optional("data_seed", ValueType::kInteger)
      .implemented("seed of the data order (default: seed)", TROUPE_FIELD(training.data_seed))
      .at_least(0)
      .at_most(4294967295.0)
      .only_where([](const TrainConfig& config) { return !config.data.disable_shuffling; },
                  "disable_shuffling leaves the data in the order of the file");
  t.boolean("full_determinism", false)
      .inert("the same bits in each run", "that is so unless troupe.deterministic is off");
  t.boolean("ignore_data_skip", false)
      .refused("begin the epoch anew after resuming", "it would train some samples twice",
               "use ignore_data_skip: false");
}

void add_data_loading_keys(KeyTable& t) {
  const char* reason = "how data reach the trainer does not change them";
  t.integer("dataloader_num_workers", 0).inert("processes that load data", reason);
  t.boolean("dataloader_pin_memory", true).inert("page-locked batches", reason);
  t.boolean("dataloader_persistent_workers", false).inert("keep loading processes", reason);
  t.optional("dataloader_prefetch_factor", ValueType::kInteger).inert("batches ahead", reason);
  t.boolean("group_by_length", false)
      .implemented("batches of samples of like length", TROUPE_FIELD(data.group_by_length))
      .only_where(
          [](const TrainConfig& config) {
            return !config.data.disable_shuffling && !config.data.sample_packing.on;
          },
          "disable_shuffling and troupe.sample_packing say the order themselves");
  t.text("length_column_name", "length").inert("column of lengths", "lengths are counted here");
  t.boolean("remove_unused_columns", true).inert("drop columns", "only known columns are read");
  t.list("label_names").inert("columns of labels", "labels come from the data's format");
  t.optional("accelerator_config", ValueType::kAny)
      .refused("accelerate's data settings", "they could change the order of the data", kLeaveOut);
}

void add_detail_loss_keys(KeyTable& t) {
  t.number("label_smoothing_factor", 0)
      .refused("label smoothing", "the loss is cross entropy over target tokens",
               "use label_smoothing_factor: 0");
  t.optional("neftune_noise_alpha", ValueType::kNumber)
      .refused("noise on embeddings", "NEFTune is not supported", kLeaveOut);
  t.boolean("average_tokens_across_devices", true)
      .inert("normalise by the tokens of all ranks", "that is always so")
      .refuses("false", "the loss is always normalised by the target tokens of all ranks",
               "use average_tokens_across_devices: true");
  t.boolean("gradient_checkpointing", false)
      .inert("recompute activations", "disable_gradient_checkpointing decides; same results");
  t.object("gradient_checkpointing_kwargs")
      .inert("recompute activations", "the results are the same");
}

void add_distribution_keys(KeyTable& t) {
  t.integer("ddp_timeout", 1800)
      .implemented("deadline in seconds for one wait of a communicator; a death is noticed at once",
                   TROUPE_FIELD(training.ddp_timeout_s))
      .at_least(1)
      .at_most(1e9);  // 31 years; a Duration's nanoseconds end at 292
  const char* ddp = "gradients are reduced in fixed tiles; the results are the same";
  t.optional("ddp_find_unused_parameters", ValueType::kBool).inert("DDP: search the graph", ddp);
  t.optional("ddp_bucket_cap_mb", ValueType::kNumber).inert("DDP: bucket size", ddp);
  t.optional("ddp_broadcast_buffers", ValueType::kBool).inert("DDP: buffers", ddp);
  t.optional("ddp_backend", ValueType::kText)
      .inert("DDP: nccl, gloo, mpi", "the communicator follows from the devices");
  t.optional("deepspeed", ValueType::kAny)
      .implemented("DeepSpeed configuration: a path or a mapping", TROUPE_FIELD(deepspeed));
  t.optional("fsdp", ValueType::kAny)
      .implemented(
          "FSDP: true, or full_shard, shard_grad_op, hybrid_shard, hybrid_shard_zero2, no_shard",
          [](TrainConfig& config, const json::Value& value) -> Status {
            // What is wrong with them is said where they are resolved.
            config.fsdp.clear();
            const bool off = value.is_bool() && !value.get_bool();
            if (!off && !value.is_object() && !value.is_null()) {
              config.fsdp = TROUPE_TRY(read_text_list(value));
            }
            return {};
          },
          [](const TrainConfig& config) -> json::Value {
            if (config.fsdp.empty()) return nullptr;
            return to_value(config.fsdp);
          });
  t.optional("fsdp_config", ValueType::kAny)
      .implemented("FSDP: settings, a mapping or the path of a JSON file",
                   TROUPE_FIELD(fsdp_config))
      .only_where([](const TrainConfig& config) { return !config.fsdp.empty(); },
                  "nothing is sharded by FSDP without fsdp");
  const char* units = "units are the embedding, every block and the head; the same results";
  t.optional("fsdp_min_num_params", ValueType::kInteger).inert("FSDP: what is wrapped", units);
  t.optional("fsdp_transformer_layer_cls_to_wrap", ValueType::kText)
      .inert("FSDP: what is wrapped", units);
  t.optional("parallelism_config", ValueType::kAny)
      .implemented(
          "accelerate's mesh: dp_replicate_size and dp_shard_size (see troupe.mesh)",
          [](TrainConfig&, const json::Value& value) -> Status {
            return value.is_null() ? Status() : read_mesh(value).status();
          },
          [](const TrainConfig&) -> json::Value { return nullptr; });
  t.optional("tp_size", ValueType::kInteger)
      .refused("tensor parallelism", "tensor parallelism comes later", "use 1 and more trainers")
      .accepts("1");
  t.integer("local_rank", -1).inert("rank on the node", "ranks are given by the launcher");
  t.boolean("use_cpu", false)
      .implemented("trainers compute on CPUs (troupe.device=cpu)", TROUPE_FIELD(launch.use_cpu));
  t.boolean("use_mps_device", false).inert("Apple GPUs", "no such device");
  t.boolean("use_ipex", false).inert("Intel's extension", "no other kernels are loaded");
}

void add_backend_keys(KeyTable& t) {
  t.boolean("torch_compile", false)
      .inert("compile the model", "the model is compiled code already");
  t.optional("torch_compile_backend", ValueType::kText).inert("compiler", "nothing is compiled");
  t.optional("torch_compile_mode", ValueType::kText).inert("compiler", "nothing is compiled");
  t.boolean("jit_mode_eval", false).inert("compile for evaluation", "nothing is compiled");
  t.boolean("use_liger_kernel", false)
      .inert("fused kernels of another library", "fused kernels are always used");
  t.object("liger_kernel_config").inert("Liger", "fused kernels are always used");
  t.optional("torch_empty_cache_steps", ValueType::kInteger)
      .inert("return GPU memory", "memory is laid out once");
  t.boolean("skip_memory_metrics", true).inert("memory report", "no effect on results");
  t.boolean("include_tokens_per_second", false).inert("report speed", "it is always reported");
  t.text("ray_scope", "last").inert("Ray Tune", "there is no search");
  t.integer("past_index", -1).inert("reuse hidden states", "no such model");
  t.optional("debug", ValueType::kAny).inert("debugging aids of PyTorch", "no effect on results");
}

void add_logging_and_hub_keys(KeyTable& t) {
  t.text("log_level", "passive").inert("log level", "the command's own flags decide");
  t.text("log_level_replica", "warning").inert("log level", "the command's own flags decide");
  t.boolean("log_on_each_node", true).inert("log on each node", "each node keeps its own log");
  t.text("logging_dir", "")
      .nullable()
      .implemented("folder of TensorBoard's event file (output_dir/runs)",
                   TROUPE_FIELD(training.logging_dir))
      .only_where(reports_to_tensorboard, "it belongs to report_to: tensorboard");
  t.boolean("save_on_each_node", false)
      .refused("checkpoints on each node", "rank 0 writes the checkpoint", kLeaveOut);
  t.boolean("restore_callback_states_from_checkpoint", false)
      .inert("callbacks", "there are no callbacks");
  t.optional("project", ValueType::kText).inert("trackio", "no outside service is contacted");
  t.boolean("push_to_hub", false)
      .refused("upload the result", "nothing is uploaded", "upload output_dir yourself");
  for (const auto* name :
       {"hub_model_id", "hub_strategy", "hub_private_repo", "hub_always_push", "hub_revision",
        "push_to_hub_model_id", "push_to_hub_organization", "trackio_space_id"}) {
    t.optional(name, ValueType::kAny).inert("hub", "nothing is uploaded");
  }
  for (const auto* name : {"hub_token", "push_to_hub_token"}) {
    t.optional(name, ValueType::kText)
        .inert("credential for the hub", "nothing is uploaded")
        .secret();
  }
  t.boolean("sortish_sampler", false)
      .refused("batches of samples of like length", "it changes the order of the data", kLeaveOut);
}

}  // namespace

void add_trainer_detail_keys(KeyTable& table) {
  add_seed_keys(table);
  add_data_loading_keys(table);
  add_detail_loss_keys(table);
  add_distribution_keys(table);
  add_backend_keys(table);
  add_logging_and_hub_keys(table);
}

}  // namespace troupe::train
