// Keys of LLaMA-Factory's ModelArguments.
#include "train/config/key_builder.h"

namespace troupe::train {
namespace {

constexpr const char* kInferenceOnly = "belongs to inference; training does not read it";
constexpr const char* kOtherRuntime = "another runtime's acceleration";

void add_loading_keys(KeyTable& t) {
  t.optional("model_name_or_path", ValueType::kText)
      .implemented("the model (config.json, safetensors, tokenizer): a folder, or a name on a hub",
                   TROUPE_FIELD(model.model_name_or_path));
  t.list("adapter_name_or_path")
      .implemented("LoRA adapters to start from: folders, or names on a hub",
                   TROUPE_FIELD(finetuning.adapter_name_or_path));
  t.optional("adapter_folder", ValueType::kText)
      .implemented("folder within that holds the adapter", TROUPE_FIELD(finetuning.adapter_folder))
      .only_where(
          [](const TrainConfig& config) { return !config.finetuning.adapter_name_or_path.empty(); },
          "it belongs to adapter_name_or_path");
  t.boolean("trust_remote_code", false)
      .inert("allow Python code in the model's folder", "no code of a model is ever run");
  const auto from_hub = [](const TrainConfig& config) { return config.model.is_from_hub; };
  const char* no_hub = "nothing of this run is named by a hub's name";
  t.optional("cache_dir", ValueType::kText)
      .implemented("the cache of the hub's files, instead of HF_HUB_CACHE",
                   TROUPE_FIELD(model.cache_dir))
      .only_where(from_hub, no_hub);
  t.text("model_revision", "main")
      .implemented("branch, tag or commit on the hub", TROUPE_FIELD(model.model_revision))
      .only_where(from_hub, no_hub);
  t.boolean("low_cpu_mem_usage", true)
      .inert("load weights without a second copy", "weights are always mapped from the file");
  // Read where the hub is asked; no configuration holds it.
  t.optional("hf_hub_token", ValueType::kText)
      .implemented(
          "credential for the hub, instead of HF_TOKEN",
          [](TrainConfig&, const json::Value&) { return Status(); },
          [](const TrainConfig&) { return json::Value(); })
      .secret();
  t.optional("ms_hub_token", ValueType::kText)
      .implemented(
          "credential for ModelScope, instead of MODELSCOPE_API_TOKEN",
          [](TrainConfig&, const json::Value&) { return Status(); },
          [](const TrainConfig&) { return json::Value(); })
      .secret();
  t.optional("om_hub_token", ValueType::kText)
      .inert("credential for a hub", "nothing is downloaded from that hub")
      .secret();
  t.boolean("train_from_scratch", false)
      .implemented("random weights from config.json instead of the stored ones",
                   TROUPE_FIELD(model.train_from_scratch));
  t.boolean("print_param_status", false)
      .inert("list every parameter at start", "the plan is printed at start anyway");
}

void add_tokenizer_keys(KeyTable& t) {
  t.boolean("use_fast_tokenizer", true)
      .inert("Rust tokenizer instead of Python's", "there is one tokenizer, and both give its ids");
  t.boolean("resize_vocab", false)
      .implemented(
          "embedding and head grow to the next multiple of 64 where the tokenizer has more tokens "
          "than they have rows; adapters train both whole then; new tokens turn it on",
          TROUPE_FIELD(model.resize_vocab));
  t.boolean("split_special_tokens", false)
      .implemented("special tokens in texts are text like any other",
                   TROUPE_FIELD(model.split_special_tokens));
  t.list("add_tokens").implemented("more tokens of the vocabulary", TROUPE_FIELD(model.add_tokens));
  t.list("add_special_tokens")
      .implemented("more special tokens", TROUPE_FIELD(model.add_special_tokens));
  t.optional("new_special_tokens_config", ValueType::kText)
      .implemented(
          "file (YAML or JSON) of new special tokens with descriptions, in place of "
          "add_special_tokens",
          TROUPE_FIELD(model.new_special_tokens_config));
  t.choice("init_special_tokens", "noise_init", "noise_init|desc_init|desc_init_w_noise")
      .implemented(
          "how the described tokens begin: with the mean of all rows and noise, or the mean "
          "of their descriptions' tokens",
          TROUPE_FIELD(model.init_special_tokens))
      .only_where(
          [](const TrainConfig& config) {
            return config.model.new_special_tokens_config.has_value();
          },
          "it belongs to new_special_tokens_config");
}

void add_compute_keys(KeyTable& t) {
  t.choice("flash_attn", "auto", "auto|disabled|sdpa|fa2|fa3")
      .inert("attention implementation", "one attention kernel, the same result for each choice");
  t.choice("rope_scaling", "", "|linear|dynamic|yarn|llama3")
      .nullable()
      .refused("stretch RoPE to a longer context", "the context is not extended while training",
               "write rope_scaling into the model's config.json, or keep cutoff_len within it");
  t.boolean("disable_gradient_checkpointing", false)
      .implemented("keep activations instead of computing them again in the backward pass",
                   TROUPE_FIELD(model.disable_gradient_checkpointing));
  t.boolean("use_reentrant_gc", true)
      .inert("PyTorch's flavour of recomputation", "the results are the same");
  t.boolean("upcast_layernorm", false).inert("norms in fp32", "norms are always computed in fp32");
  t.boolean("upcast_lmhead_output", false)
      .inert("logits in fp32", "the loss is always computed from fp32 sums");
  t.boolean("enable_liger_kernel", false)
      .inert("fused kernels of another library", "fused kernels are always used");
  t.boolean("use_unsloth", false).refused("Unsloth", kOtherRuntime, kLeaveOut);
  t.boolean("use_unsloth_gc", false).refused("Unsloth's recomputation", kOtherRuntime, kLeaveOut);
  t.boolean("use_v1_kernels", false)
      .inert("LLaMA-Factory's kernel plug-ins", "the same mathematics in other kernels");
  t.boolean("shift_attn", false).refused("S²-Attn of LongLoRA", "changes attention", kLeaveOut);
  t.optional("mixture_of_depths", ValueType::kText)
      .refused("mixture of depths", "changes the model", kLeaveOut);
  t.optional("moe_aux_loss_coef", ValueType::kNumber)
      .refused("weight of the routers' auxiliary loss", "mixtures of experts are not supported",
               kLeaveOut);
}

void add_quantization_keys(KeyTable& t) {
  const auto quantises = [](const TrainConfig& config) {
    return config.model.quantization_bit.has_value();
  };
  const char* nothing = "nothing is quantised without quantization_bit";
  t.optional("quantization_bit", ValueType::kInteger)
      .implemented(
          "4 or 8: the weights of frozen layers are kept in so many bits, as bitsandbytes keeps "
          "them (QLoRA, LLM.int8)",
          TROUPE_FIELD(model.quantization_bit));
  t.choice("quantization_method", "bnb", "bnb|bitsandbytes|gptq|awq|aqlm|quanto|eetq|hqq|mxfp4|fp8")
      .inert("how weights are quantised", "bnb is what is there: others are refused");
  t.choice("quantization_type", "nf4", "nf4|fp4")
      .implemented("codes of 4-bit weights", TROUPE_FIELD(model.quantization_type))
      .only_where(quantises, nothing);
  t.boolean("double_quantization", true)
      .implemented("the scales of 4-bit weights in 8 bits, too",
                   TROUPE_FIELD(model.double_quantization))
      .only_where(quantises, nothing);
  t.optional("quantization_device_map", ValueType::kText)
      .inert("where quantised weights lie", "they lie where each trainer computes");
  t.boolean("fp8", false)
      .implemented(
          "on NVIDIA GPUs from Ada and Hopper on: linear layers within blocks multiply operands of "
          "8 bits (E4M3, gradients E5M2), scaled tensor by tensor; the rest as with bf16: true, "
          "which it turns on; refused where the run is on CPUs",
          TROUPE_FIELD(model.fp8));
  const char* one_recipe =
      "there is one recipe, torchao's with one scale a tensor; those of other libraries scale by "
      "earlier steps or keep optimizer state in FP8";
  t.choice("fp8_backend", "auto", "auto|torchao|te|msamp")
      .inert("FP8 library", one_recipe)
      .refuses("te|msamp", one_recipe, "use fp8_backend: torchao");
  t.boolean("fp8_enable_fsdp_float8_all_gather", false)
      .refused("gather FP8 weights", "parameters are gathered in bf16",
               "leave fp8_enable_fsdp_float8_all_gather out");
}

void add_inference_keys(KeyTable& t) {
  t.text("infer_backend", "huggingface").inert("inference engine", kInferenceOnly);
  t.text("offload_folder", "offload").inert("folder for offloaded weights", kInferenceOnly);
  t.boolean("use_kv_cache", true).inert("KV cache while generating", kInferenceOnly);
  t.integer("vllm_maxlen", 4096).inert("vLLM: longest sequence", kInferenceOnly);
  t.number("vllm_gpu_util", 0.7).inert("vLLM: share of GPU memory", kInferenceOnly);
  t.boolean("vllm_enforce_eager", false).inert("vLLM: no CUDA graphs", kInferenceOnly);
  t.integer("vllm_max_lora_rank", 32).inert("vLLM: largest LoRA rank", kInferenceOnly);
  t.object("vllm_config").inert("vLLM: engine settings", kInferenceOnly);
  t.integer("sglang_maxlen", 4096).inert("SGLang: longest sequence", kInferenceOnly);
  t.number("sglang_mem_fraction", 0.7).inert("SGLang: share of GPU memory", kInferenceOnly);
  t.integer("sglang_tp_size", -1).inert("SGLang: tensor parallel size", kInferenceOnly);
  t.object("sglang_config").inert("SGLang: engine settings", kInferenceOnly);
  t.text("sglang_lora_backend", "triton").inert("SGLang: LoRA kernels", kInferenceOnly);
}

void add_multimodal_keys(KeyTable& t) {
  const char* reason = "only text models are trained; no effect on them";
  t.integer("image_max_pixels", 768 * 768).inert("largest image", reason);
  t.integer("image_min_pixels", 32 * 32).inert("smallest image", reason);
  t.boolean("image_do_pan_and_scan", false).inert("cut wide images", reason);
  t.boolean("crop_to_patches", false).inert("cut images into patches", reason);
  t.integer("video_max_pixels", 256 * 256).inert("largest video frame", reason);
  t.integer("video_min_pixels", 16 * 16).inert("smallest video frame", reason);
  t.number("video_fps", 2.0).inert("video frames a second", reason);
  t.integer("video_maxlen", 128).inert("video frames at most", reason);
  t.boolean("use_audio_in_video", false).inert("sound of videos", reason);
  t.integer("audio_sampling_rate", 16000).inert("audio samples a second", reason);
}

void add_ktransformers_keys(KeyTable& t) {
  const char* reason = "KTransformers is another runtime";
  t.boolean("use_kt", false).refused("KTransformers", reason, kLeaveOut);
  for (const auto* name :
       {"kt_config", "kt_optimize_rule", "kt_weight_path", "kt_non_expert_weight_path",
        "kt_cpu_activation", "kt_cpu_infer", "kt_chunk_size", "kt_mode", "kt_force_think",
        "kt_use_cuda_graph", "kt_maxlen"}) {
    t.optional(name, ValueType::kAny).refused("KTransformers", reason, kLeaveOut);
  }
}

}  // namespace

void add_model_keys(KeyTable& table) {
  add_loading_keys(table);
  add_tokenizer_keys(table);
  add_compute_keys(table);
  add_quantization_keys(table);
  add_inference_keys(table);
  add_multimodal_keys(table);
  add_export_keys(table);
  add_ktransformers_keys(table);
}

}  // namespace troupe::train
