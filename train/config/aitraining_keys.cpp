// The table of what becomes of every field of AITraining's LLMTrainingParams.
#include "train/config/aitraining.h"

namespace troupe::train {

const ForeignKeys& aitraining_keys() {
  static const ForeignKeys table = [] {
    const char* preference = "no effect without preference optimisation";
    ForeignKeys t;
    t.used("model", "folder of the model")
        .used("project_name", "where everything is written")
        .used("data_path|train_split|valid_split|text_column|chat_template|response_only_loss",
              "which rows, and how they are read")
        .used("trainer", "what is trained")
        .used(
            "block_size|lr|epochs|batch_size|gradient_accumulation|warmup_ratio|scheduler|"
            "optimizer|weight_decay|max_grad_norm",
            "samples, steps and the optimizer")
        .used("mixed_precision", "precision")
        .one_of("mixed_precision", "bf16|fp16|no|none")
        .used("peft|lora_r|lora_alpha|lora_dropout|target_modules", "LoRA")
        .used("disable_gradient_checkpointing",
              "keep activations instead of computing them again in the backward pass")
        .used("logging_steps|eval_strategy|save_strategy|save_steps|save_total_limit",
              "how often to log, evaluate and save")
        .used("log", "checked: no outside service is contacted")
        .used("distributed_backend", "what is sharded over the trainers")
        .used("merge_adapter", "said: `troupe export` merges")
        .inert("model_max_length|padding", "batches are not padded, and block_size cuts")
        .inert("add_eos_token", "texts end with the end token")
        .inert("seed", "AITraining does not pass it on: its runs have Hugging Face's 42")
        .inert("unsloth|use_flash_attention_2|attn_implementation|torch_dtype",
               "one attention kernel, the same result for each choice")
        .inert("ddp_timeout|preprocess_num_workers", "the results do not depend on it")
        .inert(
            "prompt_text_column|rejected_text_column|dpo_beta|max_prompt_length|"
            "max_completion_length|model_ref",
            preference)
        .inert("token|username", "credentials are not used: nothing is uploaded")
        .refused("quantization", "none|no",
                 "models are loaded in fp32, bf16 or fp16, not quantised; leave it out")
        .refused("packing", "false", "samples have a row of their own; leave it out")
        .refused("max_samples", "", "data sets are read whole; give a shorter file")
        .refused("auto_find_batch_size", "false",
                 "a batch that changes by itself is not reproducible; set batch_size")
        .refused(
            "use_sweep|use_distillation|custom_loss|custom_metrics|use_forward_backward|"
            "use_enhanced_eval|rl_reward_model_path|teacher_model",
            "false", "not there; leave it out")
        .refused("push_to_hub", "false",
                 "nothing is uploaded; upload the project's folder yourself");
    return t;
  }();
  return table;
}

}  // namespace troupe::train
