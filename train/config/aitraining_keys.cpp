// The table of what becomes of every field of AITraining's LLMTrainingParams.
#include "train/config/aitraining.h"
#include "train/config/values.h"

namespace troupe::train {

const ForeignKeys& aitraining_keys() {
  static const ForeignKeys table = [] {
    const char* preference = "it belongs to preference optimisation";
    const auto has = [](const char* key, auto holds) {
      return [=](const json::Object& fields) {
        const auto* value = fields.if_contains(key);
        return value && !value->is_null() && holds(*value);
      };
    };
    const auto with_adapter =
        has("peft", [](const json::Value& value) { return read_bool(value).value_or(true); });
    ForeignKeys t;
    t.used("model", "folder of the model")
        .used("project_name", "where everything is written")
        .used("data_path|train_split|valid_split|text_column|chat_template|response_only_loss",
              "which rows, and how they are read")
        .only_where("response_only_loss",
                    has("trainer", [](const json::Value& value) { return value == "sft"; }),
                    "every token of a text counts in the loss unless trainer is sft")
        .used("trainer", "what is trained")
        .used(
            "block_size|lr|epochs|batch_size|gradient_accumulation|warmup_ratio|scheduler|"
            "optimizer|weight_decay|max_grad_norm",
            "samples, steps and the optimizer")
        .used("mixed_precision", "precision")
        .one_of("mixed_precision", "bf16|fp16|no|none")
        .used("peft|lora_r|lora_alpha|lora_dropout|target_modules", "LoRA")
        .only_where("lora_r|lora_alpha|lora_dropout|target_modules", with_adapter,
                    "no adapter is trained without peft: true")
        .used("disable_gradient_checkpointing",
              "keep activations instead of computing them again in the backward pass")
        .used("logging_steps|eval_strategy|save_strategy|save_steps|save_total_limit",
              "how often to log, evaluate and save")
        .only_where("eval_strategy", has("valid_split", [](const json::Value&) { return true; }),
                    "there is nothing to evaluate on without valid_split")
        .used("log", "what gets the log besides: tensorboard, an event file")
        .only_where("log", has("log", [](const json::Value& v) { return v != "wandb"; }), kOwnLog)
        .one_of("log", "none|wandb|tensorboard")
        .used("distributed_backend", "what is sharded over the trainers")
        .used("merge_adapter", "said: `troupe export` merges")
        .only_where("merge_adapter", with_adapter, "no adapter is trained without peft: true")
        .inert("model_max_length|padding", "batches are not padded, and block_size cuts")
        .inert("add_eos_token", "texts end with the end token")
        .inert("seed", "AITraining does not pass it on: its runs have Hugging Face's 42")
        .said("seed", "42")
        .inert("unsloth|use_flash_attention_2|attn_implementation|torch_dtype",
               "one attention kernel, the same result for each choice")
        .inert("ddp_timeout|preprocess_num_workers", "the results do not depend on it")
        .inert(
            "prompt_text_column|rejected_text_column|dpo_beta|max_prompt_length|"
            "max_completion_length|model_ref",
            preference)
        .said("prompt_text_column|rejected_text_column|dpo_beta|model_ref")
        .inert("token|username", "credentials are not used: nothing is uploaded")
        .typed(ValueType::kBool,
               "response_only_loss|peft|disable_gradient_checkpointing|merge_adapter|"
               "add_eos_token|unsloth|use_flash_attention_2")
        .typed(ValueType::kInteger,
               "block_size|batch_size|gradient_accumulation|logging_steps|save_steps|"
               "save_total_limit|lora_r|lora_alpha|model_max_length|seed|ddp_timeout|"
               "preprocess_num_workers|max_prompt_length|max_completion_length")
        .typed(ValueType::kNumber,
               "lr|epochs|warmup_ratio|weight_decay|max_grad_norm|lora_dropout|dpo_beta")
        .typed(ValueType::kText,
               "model|project_name|data_path|train_split|valid_split|text_column|trainer|"
               "scheduler|optimizer|mixed_precision|eval_strategy|save_strategy|padding|log|"
               "distributed_backend|attn_implementation|torch_dtype|prompt_text_column|"
               "rejected_text_column|model_ref")
        .used("quantization", "int4, int8: frozen weights of layers in 4 (nf4) or 8 bits")
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
