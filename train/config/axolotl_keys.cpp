// The table of what becomes of every key of Axolotl's files. Names and defaults: Axolotl's schema
// (0.17).
#include <algorithm>
#include <array>

#include "train/config/axolotl.h"
#include "train/config/values.h"

namespace troupe::train {
namespace {

constexpr const char* kFromConfigJson = "the model's folder says it";
constexpr const char* kSameFunction = "the same function by other kernels";
constexpr const char* kMemoryOnly = "decides about memory, not about results";
constexpr const char* kPassedOver = "Axolotl passes over it, too";
constexpr const char* kNotQuantised =
    "frozen weights are kept as they are, or in 4 or 8 bits: use load_in_4bit or load_in_8bit, or "
    "leave it out";
constexpr const char* kOneLoss = "the loss is cross entropy over target tokens; leave it out";

// What keys that belong to others ask of a document. Python's idea of a value that is given:
// neither null nor empty, 0 or false.
bool has(const json::Object& document, std::string_view key) {
  const auto* value = document.if_contains(json_view(key));
  if (!value || value->is_null()) return false;
  if (const auto* list = value->if_array()) return !list->empty();
  if (const auto* section = value->if_object()) return !section->empty();
  if (const auto* text = value->if_string()) return !text->empty() && *text != "false";
  if (const auto number = read_number(*value); number.ok()) return *number != 0;
  return read_bool(*value).value_or(true);
}
ForeignKeys::Condition with(const char* key) {
  return [key](const json::Object& document) { return has(document, key); };
}
ForeignKeys::Condition with_any_of(const char* first, const char* second) {
  return
      [=](const json::Object& document) { return has(document, first) || has(document, second); };
}
bool has_conversations(const json::Object& document) {
  const auto is_conversation = [](const json::Value& set) {
    return set.is_object() && json::find_string(set, "type") == "chat_template";
  };
  return std::ranges::any_of(std::array{"datasets", "test_datasets"}, [&](const char* key) {
    const auto* sets = document.if_contains(key);
    const auto* list = sets ? sets->if_array() : nullptr;
    return list ? std::ranges::any_of(*list, is_conversation) : sets && is_conversation(*sets);
  });
}
// Jinja text is rendered where no other template is named; a data set's own comes first.
bool renders_jinja(const json::Object& document) {
  const auto name = json::find_string(document, "chat_template").value_or("");
  return has_conversations(document) && (name.empty() || name == "jinja");
}
bool entry_renders_jinja(const json::Object& entry) {
  const auto name = json::find_string(entry, "chat_template").value_or("");
  return json::find_string(entry, "type") == "chat_template" && (name.empty() || name == "jinja");
}
// Of an entry of datasets, whose type always stands there.
ForeignKeys::Condition of_dataset_type(std::vector<std::string_view> types) {
  return [types = std::move(types)](const json::Object& entry) {
    const auto type = json::find_string(entry, "type").value_or("");
    return std::any_of(types.begin(), types.end(), [&](auto name) { return type == name; });
  };
}
// saves_per_epoch and evals_per_epoch are in force unless they come to once in the whole run.
bool is_share_of_run(const json::Object& document, const char* key) {
  if (!has(document, key)) return false;
  const auto* epochs = document.if_contains("num_epochs");
  const double count = epochs ? read_number(*epochs).value_or(1) : 1;
  return read_number(document.at(key)).value_or(0) * count > 1;
}

void add_base_model_keys(ForeignKeys& t) {
  t.used("base_model", "the model: a folder, or a name on a hub")
      .refused("base_model_config|tokenizer_config", "",
               "configuration, tokenizer and weights are those of one folder; put them into "
               "base_model's")
      .used("revision_of_model|model_revision|revision", "branch, tag or commit on the hub")
      .same("revision_of_model|model_revision")
      .same("revision_of_model|revision")
      .used("model_type", "checked: models that are trained are causal language models")
      .inert(
          "tokenizer_type|tokenizer_use_fast|tokenizer_legacy|is_falcon_derived_model|"
          "is_llama_derived_model|is_qwen_derived_model|is_mistral_derived_model|"
          "cls_model_config|trust_remote_code|trust_remote_code_revision",
          kFromConfigJson)
      .refused("tokenizer_use_mistral_common", "false",
               "tokenizers are read from tokenizer.json; leave it out")
      .refused("processor_type|image_size", "", "only text is trained; leave it out")
      .inert(
          "experimental_skip_move_to_device|low_cpu_mem_usage|device_map|max_memory|"
          "gpu_memory_limit|memory_limit",
          kMemoryOnly)
      .section("model_config")
      .inert("model_config.output_router_logits",
             "a model without routers has no auxiliary loss of theirs; one with routers is refused "
             "by its model_type")
      .refused("model_config.rope_scaling|overrides_of_model_config|overrides_of_model_kwargs", "",
               "write it into the model's config.json")
      .used("reinit_weights", "begin with random weights")
      .inert(
          "torchdistx_path|flash_optimum|gptq_groupsize|gptq_model_v1|debug|eta_min|"
          "sample_packing_seq_len_multiplier|max_packed_sequence_len|total_num_tokens|"
          "total_supervised_tokens",
          kPassedOver)
      .inert("adam_eps", "Axolotl passes over it, too; did you mean adam_epsilon?")
      .said(
          "adam_eps|torchdistx_path|flash_optimum|gptq_groupsize|gptq_model_v1|eta_min|"
          "sample_packing_seq_len_multiplier|max_packed_sequence_len|total_num_tokens|"
          "total_supervised_tokens")
      .inert("strict",
             "decides in Axolotl whether overrides may name further keys; here they must "
             "be keys in any case");
}

void add_token_keys(ForeignKeys& t) {
  t.section("special_tokens")
      .used(
          "special_tokens.bos_token|special_tokens.eos_token|special_tokens.pad_token|"
          "special_tokens.unk_token|special_tokens.additional_special_tokens",
          "special tokens, of the vocabulary as it is")
      .used("tokens", "words that are one token, of the vocabulary as it is")
      .refused("added_tokens_overrides", "",
               "the vocabulary is taken as the folder has it; change "
               "the tokenizer beforehand")
      .used("resize_token_embeddings_to_32x",
            "the embedding must have rows for all words, up to a multiple of 32")
      .refused("shrink_embeddings|fix_untrained_tokens", "false",
               "the embedding is taken as the folder has it; leave it out")
      .inert("embeddings_skip_upcast", "the embedding's state is fp32 like every other")
      .used("chat_template", "how the turns of a conversation are written")
      .used("chat_template_jinja", "a template as Jinja text, or the path of a file with it")
      .refused("chat_template_kwargs|default_system_message", "",
               "the templates that are there take none; put the text into the data's system turns")
      .used("eot_tokens", "tokens that end a turn")
      .only_where("chat_template|eot_tokens", has_conversations,
                  "no data set has type: chat_template")
      .only_where("chat_template_jinja", renders_jinja,
                  "chat_template is not jinja, or no data set has type: chat_template");
}

void add_dataset_keys(ForeignKeys& t) {
  t.used("datasets|test_datasets|pretraining_dataset", "data sets and how their rows are read")
      .inert(
          "dataset_prepared_path|dataset_num_proc|dataset_processes|dataset_keep_in_memory|"
          "num_dataset_shards_to_save|dataloader_num_workers|dataloader_pin_memory|"
          "dataloader_prefetch_factor|remove_unused_columns|sample_packing_mp_start_method",
          "data are prepared at each start; the results do not depend on how")
      .inert("hf_use_auth_token", "a token that is there (HF_TOKEN) is used in any case")
      .refused("skip_prepare_dataset|push_dataset_to_hub|streaming", "false",
               "rows are tokenised before the first step; leave it out")
      .used("val_set_size", "rows kept from training to evaluate on: above 1 so many, else a share")
      .used("shuffle_merged_datasets|curriculum_sampling", "the order of rows")
      .refused("shuffle_before_merging_datasets|dataset_exact_deduplication", "false",
               "data sets are joined as they are; leave it out")
      .refused("dataset_shard_num|dataset_shard_idx", "",
               "data sets are read whole; name a part by split: train[a:b]")
      .used("sequence_len|min_sample_len|excess_length_strategy", "which lengths are trained on")
      .refused("eval_sequence_len", "", "evaluation has the same sequence_len; leave it out")
      .used(
          "sample_packing|sample_packing_group_size|sample_packing_bin_size|"
          "sample_packing_sequentially|multipack_real_batches",
          "several samples in one row of a batch, none of which sees another")
      .only_where(
          "sample_packing_group_size|sample_packing_bin_size|sample_packing_sequentially|"
          "multipack_real_batches",
          with("sample_packing"), "nothing is packed without sample_packing: true")
      .inert("eval_sample_packing",
             "samples of an evaluation do not see one another either way, and its loss is the mean "
             "over all its tokens")
      .refused("sample_packing_eff_est", "",
               "the number of steps follows from the packing itself; leave it out, or give "
               "max_steps")
      .inert("pad_to_sequence_len|pad_to_multiple_of|batch_flattening",
             "batches are never padded; padding changes no result")
      .used("train_on_inputs", "prompts count in the loss, too")
      .refused("group_by_length", "false", "it changes the order of the data; leave it out");
}

void add_step_keys(ForeignKeys& t) {
  t.used("micro_batch_size|gradient_accumulation_steps|batch_size|eval_batch_size",
         "samples of a step")
      .used("num_epochs|max_steps|seed", "how long, and by which random numbers")
      .refused("auto_find_batch_size", "false",
               "a batch that changes by itself is not "
               "reproducible; set micro_batch_size")
      .used("optimizer|adam_beta1|adam_beta2|adam_epsilon|weight_decay|max_grad_norm|learning_rate",
            "the optimizer")
      .used("optim_args|optim_target_modules", "what GaLore and APOLLO project, and how")
      .refused(
          "adam_beta3|adam_epsilon2|lr_groups|embedding_lr|"
          "embedding_lr_scale|dion_lr|dion_momentum|dion_rank_fraction|dion_rank_multiple_of",
          "", "no optimizer here has it; leave it out")
      .used(
          "lr_scheduler|lr_scheduler_kwargs|warmup_steps|warmup_ratio|cosine_min_lr_ratio|"
          "cosine_constant_lr_ratio|lr_quadratic_warmup",
          "the course of the learning rate")
      .refused("neftune_noise_alpha|noisy_embedding_alpha|label_smoothing_factor", "0", kOneLoss)
      .refused("chunked_cross_entropy_smoothing|use_dynamic_finetuning", "false", kOneLoss)
      .used("use_eaft|eaft_alpha|eaft_k", "the loss")
      .only_where("eaft_alpha|eaft_k", with("use_eaft"), "it belongs to use_eaft")
      .used("loss_watchdog_threshold|loss_watchdog_patience", "the loss that ends the run")
      .only_where("loss_watchdog_patience", with("loss_watchdog_threshold"),
                  "it belongs to loss_watchdog_threshold");
}

void add_adapter_keys(ForeignKeys& t) {
  t.used(
       "adapter|lora_r|lora_alpha|lora_dropout|lora_target_modules|lora_target_linear|"
       "lora_modules_to_save|lora_model_dir|peft_use_rslora|peft_use_dora|loraplus_lr_ratio",
       "LoRA")
      .only_where(
          "lora_r|lora_alpha|lora_dropout|lora_target_modules|lora_target_linear|"
          "lora_modules_to_save|lora_model_dir|peft_use_rslora|peft_use_dora|loraplus_lr_ratio",
          with("adapter"), "no adapter is trained without adapter: lora")
      .inert("loraplus_lr_embedding", "embeddings have no low-rank adapters here")
      .inert("lora_fan_in_fan_out|lora_on_cpu|peft_autocast_adapter_dtype",
             "follows from the model; the results are the same")
      .refused(
          "peft_layers_to_transform|peft_layers_pattern|lora_target_parameters|"
          "peft_init_lora_weights|peft_layer_replication|peft.loftq_config|peft",
          "true", "not there for adapters; leave it out")
      .refused(
          "relora|jagged_restart_steps|relora_steps|relora_prune_ratio|lisa_n_layers|"
          "lisa_step_interval|lisa_layers_attribute",
          "false", "not there; leave it out")
      .used("load_in_4bit|load_in_8bit",
            "frozen weights of layers in 4 or 8 bits, as bitsandbytes keeps them")
      .refused("gptq|quantize_moe_experts", "false", kNotQuantised)
      .refused("model_quantization_config|use_onebitllms", "false", kNotQuantised)
      .inert("model_quantization_config_kwargs",
             "nothing is quantised without the key that asks for it")
      .used("bnb_config_kwargs", "codes of 4-bit weights, and whether their scales have 8 bits")
      .only_where("bnb_config_kwargs", with("load_in_4bit"),
                  "nothing is quantised without load_in_4bit: true")
      .refused("qat|quantization|llmcompressor", "",
               "quantised training and sparsity are not there; leave it out to train as without")
      .used("unfrozen_parameters", "the tensors that are trained");
}

void add_compute_keys(ForeignKeys& t) {
  t.used("bf16|bfloat16|fp16|tf32", "precision")
      .refused("float16", "false", "weights are kept in fp32 or bf16; use fp16: true")
      .refused("fp8|fp8_enable_fsdp_float8_all_gather", "false",
               "its settings are of another recipe; use bf16: true")
      .used("gradient_checkpointing", "compute activations again in the backward pass")
      .inert(
          "gradient_checkpointing_kwargs|activation_offloading|selective_checkpointing|"
          "layer_offloading|offload_adapter|sequence_parallel_free_cache|gc_steps|"
          "gc_collect_steps",
          kMemoryOnly)
      .inert(
          "attn_implementation|flash_attention|sdp_attention|xformers_attention|"
          "eager_attention|flex_attention|sage_attention|flex_attn_compile_kwargs|"
          "flash_attn_cross_entropy|flash_attn_rms_norm|flash_attn_fuse_mlp|"
          "flash_attn_fuse_qkv|experimental_attn_scaling|scaling_softmax",
          "one attention kernel, the same result for each choice; packed samples never see one "
          "another")
      .refused("s2_attention", "false", "it changes attention; leave it out")
      .inert(
          "torch_compile|torch_compile_backend|torch_compile_mode|use_kernels|"
          "lora_mlp_kernel|lora_qkv_kernel|lora_o_kernel|lora_embedding_kernel|"
          "liger_rope|liger_rms_norm|liger_rms_norm_gated|liger_layer_norm|liger_swiglu|"
          "liger_glu_activation|liger_cross_entropy|liger_fused_linear_cross_entropy|"
          "liger_use_token_scaling|cut_cross_entropy|chunked_cross_entropy|"
          "chunked_cross_entropy_num_chunks|tiled_mlp|tiled_mlp_num_shards|"
          "tiled_mlp_use_original_mlp|unsloth_cross_entropy_loss|unsloth_lora_mlp|"
          "unsloth_lora_qkv|unsloth_lora_o|unsloth_rms_norm|unsloth_rope|use_scattermoe|"
          "use_sonicmoe|experts_implementation|llama4_linearized_experts|"
          "dsv4_fp4_grouped_mode|use_dsv4_kernels|use_glm_dsa_kernels",
          kSameFunction)
      .used("plugins", "checked: those that change nothing but speed");
}

void add_distribution_keys(ForeignKeys& t) {
  t.used("fsdp|fsdp_config|fsdp_version|deepspeed|dp_shard_size|dp_replicate_size|ddp_timeout",
         "what is sharded over the trainers")
      .only_where("fsdp_version", with_any_of("fsdp", "fsdp_config"),
                  "nothing is sharded by FSDP without fsdp or fsdp_config")
      .same("fsdp_version|fsdp_config.version|fsdp_config.fsdp_version")
      .inert("fsdp_final_state_dict_type", "the finished model is written whole in either case")
      .inert(
          "ddp|ddp_bucket_cap_mb|ddp_broadcast_buffers|ddp_find_unused_parameters|local_rank|"
          "world_size|ring_attn_func|heads_k_stride|accelerator_config",
          "the communicator decides; the results are the same")
      .refused(
          "tensor_parallel_size|context_parallel_size|sequence_parallel_degree|"
          "expert_parallel_size",
          "0|1", "that parallelism is not there yet; use 1 and more trainers")
      .inert("expert_parallel_num_nvl_bytes|expert_parallel_token_capacity",
             "no effect without expert_parallel_size")
      .used("use_ray|ray_num_workers|resources_per_worker", "how many trainers")
      .only_where("ray_num_workers|resources_per_worker", with("use_ray"),
                  "the number of trainers is not Ray's without use_ray: true")
      .inert("ray_run_name", "output_dir names the run");
}

void add_output_keys(ForeignKeys& t) {
  t.used("save_steps|saves_per_epoch|save_strategy|save_total_limit|save_only_model",
         "when to write a checkpoint")
      .only_where(
          "save_strategy",
          [](const json::Object& document) {
            return !is_share_of_run(document, "saves_per_epoch");
          },
          "saves_per_epoch decides")
      .refused("save_first_step", "false", "leave it out; troupe verify looks at a checkpoint")
      .inert("save_safetensors", "weights are always safetensors")
      .used(
          "eval_steps|evals_per_epoch|eval_strategy|evaluation_strategy|load_best_model_at_end|"
          "early_stopping_patience|metric_for_best_model|greater_is_better",
          "when to evaluate, and what follows")
      .same("eval_strategy|evaluation_strategy")
      .only_where(
          "evals_per_epoch|load_best_model_at_end|metric_for_best_model|greater_is_better|"
          "eval_batch_size",
          with_any_of("val_set_size", "test_datasets"),
          "there is nothing to evaluate on without val_set_size or test_datasets")
      .refused(
          "eval_table_size|do_bench_eval|do_causal_lm_eval|eval_causal_lm_metrics|"
          "bench_dataset|include_tkps_metrics",
          "false|0", "the loss is what an evaluation measures; leave it out")
      .inert("eval_max_new_tokens", "an evaluation generates nothing")
      .used("logging_steps|output_dir|resume_from_checkpoint|auto_resume_from_checkpoints",
            "where and how often")
      .inert(
          "wandb_project|wandb_entity|wandb_watch|wandb_name|wandb_run_id|wandb_mode|"
          "wandb_log_model|use_wandb|use_mlflow|mlflow_tracking_uri|mlflow_experiment_name|"
          "mlflow_run_name|hf_mlflow_log_artifacts|use_comet|comet_api_key|comet_workspace|"
          "comet_project_name|comet_experiment_key|comet_mode|comet_online|use_trackio|"
          "trackio_project_name|trackio_run_name|trackio_space_id|"
          "use_otel_metrics|otel_metrics_host|otel_metrics_port",
          kOwnLog)
      .said(
          "wandb_project|use_wandb|use_mlflow|mlflow_tracking_uri|use_comet|use_trackio|"
          "use_otel_metrics")
      .used("use_tensorboard", "TensorBoard's event file")
      .refused("hub_model_id|hub_strategy|hub_revision|push_to_hub_model_id", "",
               "nothing is uploaded; upload output_dir yourself");
}

// As Axolotl's schema has them. Its checks of keys without effect are kept: a value of another type
// is a mistake.
void add_axolotl_types(ForeignKeys& t) {
  t.typed(ValueType::kBool,
          "chunked_cross_entropy|comet_online|cut_cross_entropy|dataloader_pin_memory|"
          "dataset_keep_in_memory|ddp|ddp_broadcast_buffers|ddp_find_unused_parameters|"
          "dpo_norm_loss|dpo_padding_free|dpo_use_logits_to_keep|dpo_use_weighting|"
          "eager_attention|embeddings_skip_upcast|eval_sample_packing|"
          "experimental_skip_move_to_device|flash_attention|flash_attn_cross_entropy|"
          "flash_attn_d512|flash_attn_fuse_mlp|flash_attn_rms_norm|flash_optimum|"
          "flex_attention|fused_attn_kernel|hf_mlflow_log_artifacts|hf_use_auth_token|"
          "include_tkps|include_tokens_per_second|is_falcon_derived_model|"
          "is_llama_derived_model|is_mistral_derived_model|is_preprocess|"
          "is_qwen_derived_model|layer_offloading|liger_cross_entropy|"
          "liger_fused_linear_cross_entropy|liger_glu_activation|liger_layer_norm|"
          "liger_rms_norm|liger_rms_norm_gated|liger_rope|liger_swiglu|"
          "liger_use_token_scaling|llama4_linearized_experts|lora_embedding_kernel|"
          "lora_fan_in_fan_out|lora_mlp_kernel|lora_o_kernel|lora_on_cpu|lora_qkv_kernel|"
          "low_cpu_mem_usage|pad_to_sequence_len|peft_autocast_adapter_dtype|"
          "precompute_ref_log_probs|preprocess_iterable|remove_unused_columns|sage_attention|"
          "save_safetensors|scaling_softmax|sdp_attention|sdpa_varlen|strict|tiled_mlp|"
          "tiled_mlp_use_original_mlp|tokenizer_legacy|tokenizer_save_jinja_files|"
          "tokenizer_use_fast|trust_remote_code|use_comet|use_dsv4_kernels|"
          "use_glm_dsa_kernels|use_kernels|use_mlflow|use_otel_metrics|use_scattermoe|"
          "use_sonicmoe|use_tensorboard|use_trackio|use_wandb|xformers_attention")
      .typed(ValueType::kInteger,
             "chunked_cross_entropy_num_chunks|dataloader_num_workers|"
             "dataloader_prefetch_factor|dataset_num_proc|dataset_processes|ddp_bucket_cap_mb|"
             "eaft_k|eval_max_new_tokens|expert_parallel_num_nvl_bytes|"
             "expert_parallel_token_capacity|gc_collect_steps|gc_steps|heads_k_stride|"
             "local_rank|loss_watchdog_patience|max_packed_sequence_len|"
             "num_dataset_shards_to_save|num_labels|otel_metrics_port|pad_to_multiple_of|"
             "profiler_steps|profiler_steps_start|tiled_mlp_num_shards|torch_empty_cache_steps|"
             "total_num_tokens|total_supervised_tokens|world_size")
      .typed(ValueType::kNumber,
             "center_rewards_coefficient|cpo_alpha|dpo_label_smoothing|eaft_alpha|"
             "kto_desirable_weight|kto_undesirable_weight|loraplus_lr_embedding|"
             "loss_watchdog_threshold|orpo_alpha|"
             "rl_beta|rpo_alpha|simpo_gamma")
      .typed(ValueType::kText,
             "attn_implementation|axolotl_config_path|cls_model_config|comet_mode|"
             "comet_project_name|comet_workspace|dataset_prepared_path|dsv4_fp4_grouped_mode|"
             "experts_implementation|large_head_attention|mlflow_experiment_name|"
             "mlflow_run_name|mlflow_tracking_uri|otel_metrics_host|ray_run_name|"
             "sample_packing_mp_start_method|tokenizer_type|torch_compile_backend|"
             "torchdistx_path|trackio_project_name|trackio_run_name|trackio_space_id|"
             "wandb_entity|wandb_log_model|wandb_mode|wandb_name|wandb_project|wandb_run_id|"
             "wandb_watch")
      .typed(ValueType::kObject,
             "accelerator_config|bnb_config_kwargs|flex_attn_compile_kwargs|"
             "gradient_checkpointing_kwargs|max_memory|model_quantization_config_kwargs|"
             "torch_compile_options|trl|vllm");
}

// Keys of Axolotl's schema that ask for what nothing here does.
void add_absent_keys(ForeignKeys& t) {
  t.refused(
       "dataloader_drop_last|diffusion|dynamic_checkpoint|ebft|float32|fp32_norms|"
       "fp32_norm_classes|freeze_mm_modules|generate_samples|grokfast_alpha|grokfast_lamb|"
       "hatchery|jagged_restart_anneal_steps|jagged_restart_warmup_steps|kd_alpha|kd_trainer|"
       "kd_ce_alpha|kd_temperature|lm_eval_tasks|lm_eval_post_train|lora_alpha_pattern|"
       "lora_rank_pattern|lr_div_factor|mean_resizing_embeddings|mora|nemo_gym_enabled|"
       "nonexpert_quantization|nvfp4_merge_aware|peft_trainable_token_indices|"
       "peft_ensure_weight_tying|pose_max_context_len|pretrain_multipack_attn|"
       "pretraining_sample_concatenation|qgalore_rank|relora_cpu_offload|relora_prune_method|"
       "role_boundaries|rope_scaling|save_compressed|spectrum_top_fraction|trainer_cls|use_pose|"
       "deepcompile",
       "false", "not there; leave it out")
      .inert(
          "device|is_preprocess|preprocess_iterable|profiler_steps|profiler_steps_start|"
          "include_tkps|include_tokens_per_second|torch_compile_options|"
          "torch_empty_cache_steps|tokenizer_save_jinja_files|axolotl_config_path|"
          "sdpa_varlen|large_head_attention|fused_attn_kernel|flash_attn_d512",
          "no effect on the results");
}

void add_preference_keys(ForeignKeys& t) {
  t.refused(
       "rl|reward_model|process_reward_model", "false",
       "reward models and preferences are trained from files of LLaMA-Factory's form (stage: rm, "
       "dpo, kto); leave it out")
      .inert(
          "rl_beta|orpo_alpha|rpo_alpha|simpo_gamma|cpo_alpha|kto_desirable_weight|"
          "kto_undesirable_weight|dpo_use_weighting|dpo_use_logits_to_keep|dpo_norm_loss|"
          "dpo_padding_free|dpo_label_smoothing|precompute_ref_log_probs|trl|vllm",
          "it belongs to rl")
      .said(
          "rl_beta|orpo_alpha|rpo_alpha|simpo_gamma|cpo_alpha|kto_desirable_weight|"
          "kto_undesirable_weight|dpo_use_weighting|dpo_norm_loss|dpo_label_smoothing|trl")
      .inert("center_rewards_coefficient|num_labels", "it belongs to reward_model")
      .said("center_rewards_coefficient|num_labels");
}

}  // namespace

const ForeignKeys& axolotl_keys() {
  static const ForeignKeys table = [] {
    ForeignKeys t;
    add_base_model_keys(t);
    add_token_keys(t);
    add_dataset_keys(t);
    add_step_keys(t);
    add_adapter_keys(t);
    add_compute_keys(t);
    add_distribution_keys(t);
    add_output_keys(t);
    add_preference_keys(t);
    add_absent_keys(t);
    add_axolotl_types(t);
    return t;
  }();
  return table;
}

const ForeignKeys& axolotl_dataset_keys() {
  static const ForeignKeys table = [] {
    ForeignKeys t;
    t.used("path|data_files|split|type", "which rows, and how they are read")
        .used("ds_type", "how files are read, whatever their names say")
        .one_of("ds_type", "json|csv|text")
        .used("name",
              "the folder of that name in a folder of several data sets; on a hub: the "
              "subset")
        .used("revision", "branch, tag or commit on the hub")
        .inert("trust_remote_code", "no code of a data set is ever run")
        .inert("data_dir", "Axolotl passes over it, too; name the folder by path")
        .said("trust_remote_code|data_dir")
        .typed(ValueType::kText, "path|split|ds_type|name|revision|data_dir")
        .typed(ValueType::kBool, "trust_remote_code")
        .used("field|text_column", "the column of a text")
        .only_where("field|text_column", of_dataset_type({"completion", "pretrain"}),
                    "it belongs to type: completion or pretrain")
        .same("field|text_column")
        .used(
            "field_messages|message_property_mappings|message_field_role|"
            "message_field_content|field_system|drop_system_message|roles|roles_to_train|"
            "train_on_eos|train_on_eot|message_field_training|chat_template|chat_template_jinja|"
            "eot_tokens",
            "conversations and what of them counts in the loss")
        .only_where(
            "field_messages|message_property_mappings|message_field_role|"
            "message_field_content|field_system|drop_system_message|roles|roles_to_train|"
            "train_on_eos|train_on_eot|message_field_training|chat_template|eot_tokens",
            of_dataset_type({"chat_template"}), "it belongs to type: chat_template")
        .only_where("chat_template_jinja", entry_renders_jinja,
                    "it belongs to type: chat_template, where chat_template is jinja")
        .same("message_field_role|message_property_mappings.role")
        .same("message_field_content|message_property_mappings.content")
        .used("train_on_inputs", "prompts count in the loss, too")
        .refused(
            "message_field_training_detail|message_property_mappings_extra|field_tools|"
            "field_thinking|template_thinking_key|split_thinking|"
            "chat_template_kwargs|field_messages_extra|conversation|skip|skip_position_ids",
            "false", "conversations have turns of role and content alone; leave it out")
        .refused("shards|shards_idx|preprocess_shards", "",
                 "data sets are read whole; name a part by split: train[a:b]")
        .refused("input_format|input_transform|rl|logprobs_field", "", "not there; leave it out");
    return t;
  }();
  return table;
}

}  // namespace troupe::train
