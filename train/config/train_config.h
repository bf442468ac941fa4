#pragma once
// The resolved configuration of a training run: plain typed fields, one per key that the trainer
// implements. Keys and defaults are LLaMA-Factory's (its `hparams` and Hugging Face's
// TrainingArguments); ours lie under `troupe`. The table of all keys with their meaning is keys.h;
// load.h makes a TrainConfig from files and arguments.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/chaos/fault.h"
#include "train/config/finetuning.h"

namespace troupe::train {

struct ProjectionSettings;

// The sections are named …Section because the model and the data have configuration types of their
// own (train/model, train/data).

enum class TrainingStage { kPretrain, kSupervised, kReward, kDpo, kKto };  // "pt", "sft", "rm", …

// "no", "steps", "epoch"; "best" (of save_strategy only): when an evaluation was the best so far.
enum class IntervalStrategy { kNo, kSteps, kEpoch, kBest };

// What `resume_from_checkpoint` asks for.
struct ResumeFrom {
  enum class Mode {
    kAuto,    // not set: the newest valid checkpoint in output_dir, unless overwrite_output_dir
    kNever,   // false: start from the beginning
    kLatest,  // true: the newest valid checkpoint in output_dir; an error where there is none
    kPath,    // this folder
  };
  Mode mode = Mode::kAuto;
  std::string path;  // only with kPath
  friend bool operator==(const ResumeFrom&, const ResumeFrom&) = default;
};

// What the forward pass keeps of a block for its backward pass. The same bits in all three.
enum class ActivationCheckpointing {
  kNone,       // everything
  kFull,       // the block's input; its forward pass is done again
  kSelective,  // outputs of products and attention; cheap operators are done again
};

// "float32", "bfloat16", "float16": what parameters and products are in while a model computes.
enum class Precision { kFloat32, kBfloat16, kFloat16 };

struct ModelSection {
  std::string model_name_or_path;  // a local folder with config.json; of a hub's name its snapshot
  std::string model_revision = "main";   // branch, tag or commit of what is named on a hub
  std::optional<std::string> cache_dir;  // of hubs' files
  bool is_from_hub = false;      // resolved: a model, an adapter or data were named by a hub's name
  bool is_from_program = false;  // resolved: a program that trains brings config.json itself
  bool train_from_scratch = false;
  bool disable_gradient_checkpointing = false;  // false: every layer's activations are recomputed
  // Resolved: troupe.activation_checkpointing, else by disable_gradient_checkpointing kNone or
  // kFull (also fsdp_activation_checkpointing).
  ActivationCheckpointing activation_checkpointing = ActivationCheckpointing::kFull;
  // bf16: products in bf16 with fp32 sums, parameters gathered in bf16, fp32 master parameters and
  // optimizer state. fp16: products of operands in fp16 with fp32 sums, the rest is fp32; the loss
  // is scaled (train/optimizer/loss_scale.h).
  Precision compute = Precision::kFloat32;
  // pure_bf16: parameters and the optimizer's state are kept in bf16, too; there is no fp32 master.
  Precision state = Precision::kFloat32;
  // troupe.stochastic_rounding: how a state in bf16 is rounded after an update. Default: randomly.
  std::optional<bool> stochastic_rounding;
  bool rounds_randomly() const {
    return state == Precision::kBfloat16 && stochastic_rounding.value_or(true);
  }
  // What gradients are reduced in over the ranks (troupe.reduce_dtype, DeepSpeed's
  // communication_data_type). Sums are in fp32 in either case.
  Precision reduce = Precision::kFloat32;
  // fp8: within blocks, linear layers' products on GPUs have operands of 8 bits; the rest is
  // bf16's.
  bool fp8 = false;
  std::optional<bool> tf32;  // fp32 products on GPUs with operands rounded to TensorFloat-32
  // 4: the weights of frozen layers' products are kept in 4 bits, as bitsandbytes keeps them, by
  // the code that the type names, the scales in 8 bits where asked for. Nothing: as they are.
  std::optional<std::int64_t> quantization_bit;
  std::string quantization_type = "nf4";  // or "fp4"
  bool double_quantization = true;
  // Tokens that the tokenizer gets, special ones too; the file has more of these with descriptions.
  std::vector<std::string> add_tokens, add_special_tokens;
  std::optional<std::string> new_special_tokens_config;
  std::string init_special_tokens = "noise_init";  // of their rows of embedding and head
  bool resize_vocab = false;  // the embedding grows where the tokenizer has more tokens than rows
  bool split_special_tokens = false;  // special tokens in texts are text like any other
  bool adds_tokens() const {
    return !add_tokens.empty() || !add_special_tokens.empty() || new_special_tokens_config;
  }
};

// What equal bits are promised across.
enum class Deterministic {
  kStrategy,          // strategies, threads, runs: at one world size
  kAcrossWorldSizes,  // and world sizes, where the micro-batches of a step are the same
  kOff,               // nothing: micro-batches are summed where they are computed
};

// What lies in the host's memory where GPUs compute; each holds what the one before it holds.
enum class OffloadChoice {
  kNone,
  kOptimizer,   // the optimizer's state and the fp32 parameters that it updates; the host updates
                // them
  kParameters,  // sharded parameters, too
};

// How parameters, gradients and optimizer state are dealt out (train/sharding).
struct ShardingSection {
  // A name of train/sharding's strategy_table(): ddp, zero1, zero2, shard_grad_op, zero3, hsdp,
  // hsdp_zero2. Resolved from troupe.strategy, deepspeed or fsdp.
  std::string strategy = "ddp";
  std::int64_t mesh_replicate = 0;  // troupe.mesh=REPLICATE,SHARD; 0: by the strategy
  std::int64_t mesh_shard = 0;
  Deterministic deterministic = Deterministic::kStrategy;
  // Resolved from troupe.offload, deepspeed or fsdp. On CPUs it changes nothing.
  OffloadChoice offload = OffloadChoice::kNone;
  // Limits of gathered parameters, in elements. The defaults here are those of troupe.strategy and
  // fsdp; a deepspeed configuration of stage 3 sets DeepSpeed's (1e9, 1e9, 5e7, 1e5) or its own.
  std::int64_t max_live_parameters = 1'000'000'000;
  // Where a strategy reshards after forward, a unit stays gathered nevertheless if it is used again
  // within so many elements.
  std::int64_t max_reuse_distance = 0;
  std::optional<std::int64_t> prefetch_bucket_size;  // nothing: one unit ahead
  std::int64_t param_persistence_threshold = 0;      // units up to this size stay gathered
};

// How a checkpoint lies on disk.
enum class CheckpointFormat {
  kHf,       // whole tensors that transformers opens; optimizer state in shards beside them
  kSharded,  // every rank's shards, with a manifest; `troupe merge` makes the HF form
};

struct MethodSection {
  TrainingStage stage = TrainingStage::kSupervised;
  bool use_dft_loss = false;  // sft: each token's loss times its probability
  // sft: each token's loss times (entropy of its eaft_top greatest logits /
  // eaft_divisor)^eaft_alpha
  bool use_eaft_loss = false;
  double eaft_alpha = 1.0;
  std::int64_t eaft_top = 20;
  double eaft_divisor = 3.0;
  // sft: dft's loss and so much of the divergence from the model as it began
  bool use_asft_loss = false;
  double asft_alpha = 0.1;
  // dpo and kto: train/objectives' preference.h.
  double pref_beta = 0.1;
  double pref_ftx = 0.0;
  std::string pref_loss = "sigmoid";
  double dpo_label_smoothing = 0.0;
  double simpo_gamma = 0.5;
  std::optional<double> ld_alpha;
  double kto_chosen_weight = 1.0, kto_rejected_weight = 1.0;
  std::optional<std::string> ref_model;
  std::vector<std::string> ref_model_adapters;
  bool compares_answers() const {
    return stage == TrainingStage::kReward || stage == TrainingStage::kDpo ||
           stage == TrainingStage::kKto;
  }
  // The model is compared with another one, or with itself as it began.
  bool has_reference() const {
    return stage == TrainingStage::kKto || (stage == TrainingStage::kSupervised && use_asft_loss) ||
           (stage == TrainingStage::kDpo && pref_loss != "orpo" && pref_loss != "simpo");
  }
  bool plot_loss = false;
  bool include_effective_tokens_per_second = false;
};

// How rows of data sets that are named by their paths (troupe.datasets) become samples. Every data
// set says of what type its rows are; train/data/row_source.h has the members of an entry.
struct RowsSection {
  json::Array datasets, eval_datasets;
  std::int64_t min_sample_len = 2;  // tokens; shorter samples are dropped
  // A sample above cutoff_len: "drop", "truncate", "raise".
  std::string excess_length = "drop";
  bool shuffle_merged_datasets = true;  // once, before val_size keeps the last ones
  bool train_on_inputs = false;         // unless the data set says otherwise
  json::Object special_tokens;          // bos_token, eos_token, pad_token, …: words
  std::vector<std::string> tokens;      // words that must be one token each
  // The embedding must have rows for the tokenizer's words, rounded up to a multiple of it.
  std::int64_t vocabulary_multiple = 1;
};

// Samples put together into the rows of batches anew in every epoch, by first fit in the order of
// the epoch. None sees another.
struct SamplePackingSection {
  bool on = false;  // troupe.sample_packing
  // A micro-batch is per_device_train_batch_size bins of cutoff_len tokens, instead of one bin of
  // as many tokens as all of them.
  bool rows = false;
  std::int64_t group_size = 100'000;  // samples that are packed together
  std::int64_t bin_size = 200;        // samples of a bin at most
  bool sequentially = false;          // next fit instead of first fit
};

struct DataSection {
  std::vector<std::string> dataset;  // names in dataset_info.json
  std::string dataset_dir = "data";  // or ONLINE: the names are those of data sets on a hub
  // Resolved: files of the data sets that are on a hub, by their names in `dataset`.
  std::map<std::string, std::vector<std::string>> hub_files;
  std::optional<std::string> template_name;  // key `template`
  std::int64_t cutoff_len = 2048;            // tokens, as the user gave it
  // Resolved: the key's value, else true for pt and false for sft; neat_packing turns it on.
  bool packing = false;
  bool neat_packing = false;  // attention stays within each packed sample
  bool train_on_prompt = false;
  bool mask_history = false;
  std::optional<std::int64_t> max_samples;       // the first N of each data set
  std::string mix_strategy = "concat";           // how data sets are joined
  std::vector<std::string> interleave_probs;     // numbers, one for each data set
  std::int64_t preprocessing_batch_size = 1000;  // samples that are packed together
  std::optional<std::string> default_system;
  std::optional<bool> enable_thinking = true;
  bool preserve_thinking = false;
  std::optional<std::string> tool_format;
  bool disable_shuffling = false;  // file order in every epoch
  bool group_by_length = false;    // samples of like length in a batch
  // Rows are read, shuffled among so many and tokenised while they are trained on.
  bool streaming = false;
  std::int64_t buffer_size = 16384;
  // Where tokenised data are kept, or taken from; nothing: a folder in output_dir.
  std::optional<std::string> tokenized_path;
  bool overwrite_cache = false;  // tokenised anew, whatever is kept
  RowsSection rows;
  SamplePackingSection sample_packing;
  bool is_from_program = false;  // resolved: a program that trains brings the samples itself
  bool is_named() const { return !dataset.empty() || !rows.datasets.empty() || is_from_program; }
};

// By whose rules the steps of a run are counted (derived.h).
enum class StepRules {
  kTransformers,
  kAxolotl,  // all rows · epochs by the batch; shares of the run are rounded down
};

// LLaMA-Factory's optimizers beside `optim`, each by a switch of its own.
struct OptimizerMethodSection {
  bool use_galore = false, use_apollo = false, use_badam = false;
  bool use_adam_mini = false, use_muon = false;

  std::vector<std::string> galore_target{"all"}, apollo_target{"all"};
  std::int64_t galore_rank = 16, apollo_rank = 16;
  std::int64_t galore_update_interval = 200, apollo_update_interval = 200;
  double galore_scale = 2.0, apollo_scale = 32.0;
  std::string galore_proj_type = "std", apollo_proj_type = "std";
  bool galore_layerwise = false, apollo_layerwise = false;
  std::string apollo_proj = "random";         // or svd
  std::string apollo_scale_type = "channel";  // or tensor
  bool apollo_scale_front = false;

  // transformers': of optim: galore_adamw and apollo_adamw ("rank=64,scale=0.1").
  std::vector<std::string> optim_target_modules;
  std::string optim_args;

  std::string badam_mode = "layer";
  std::optional<std::int64_t> badam_start_block;
  std::string badam_switch_mode = "ascending";
  std::int64_t badam_switch_interval = 50;
};

struct TrainingSection {
  std::string output_dir;
  bool overwrite_output_dir = false;
  ResumeFrom resume_from_checkpoint;
  std::string run_name;

  std::int64_t per_device_train_batch_size = 8;  // sequences per micro-batch and rank
  std::int64_t gradient_accumulation_steps = 1;  // micro-batches per step
  double num_train_epochs = 3.0;
  std::int64_t max_steps = -1;  // > 0 wins over num_train_epochs
  bool dataloader_drop_last = false;

  std::string optim = "adamw_torch";
  double learning_rate = 5e-5;
  double weight_decay = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1.0;  // global L2 norm; 0 clips nothing
  std::string lr_scheduler_type = "linear";
  json::Object lr_scheduler_kwargs;
  double warmup_ratio = 0;
  double warmup_steps = 0;  // below 1: a ratio of all steps
  // Of what warmup_ratio and a share in logging_steps come to; with logging_steps_max such a share
  // is rounded down.
  std::optional<std::int64_t> warmup_steps_max, logging_steps_max;
  StepRules step_rules = StepRules::kTransformers;

  std::int64_t seed = 42;
  std::optional<std::int64_t> data_seed;

  IntervalStrategy logging_strategy = IntervalStrategy::kSteps;
  double logging_steps = 500;  // below 1: a ratio of all steps; so for the next ones
  bool logging_first_step = false;
  bool logging_nan_inf_filter = true;
  IntervalStrategy save_strategy = IntervalStrategy::kSteps;
  double save_steps = 500;
  std::optional<std::int64_t> save_total_limit;
  bool save_only_model = false;  // checkpoints without optimizer state: cannot be resumed
  CheckpointFormat checkpoint_format = CheckpointFormat::kHf;  // troupe.checkpoint_format
  bool disable_tqdm = false;                                   // no progress bar
  std::vector<std::string> report_to;  // of these words tensorboard and all have an effect
  std::string logging_dir;             // of TensorBoard's event file; empty: output_dir/runs
  std::string include_num_input_tokens_seen = "false";  // false, no: not in the logs
  bool counts_input_tokens() const {
    return include_num_input_tokens_seen != "false" && include_num_input_tokens_seen != "no";
  }

  std::int64_t ddp_timeout_s = 1800;  // key `ddp_timeout`: a communicator's deadline for one wait

  std::uint64_t order_seed() const {
    return static_cast<std::uint64_t>(data_seed ? *data_seed : seed);
  }
};

// Evaluation during a run. Off where strategy is kNo and on_start is false.
struct EvaluationSection {
  std::vector<std::string> eval_dataset;  // names in dataset_info.json
  bool on_each_dataset = false;           // each of them has a loss of its own
  double val_size = 0;                    // > 1: samples, else a share of the data set
  bool do_eval = false;                   // evaluate once more at the end
  IntervalStrategy strategy = IntervalStrategy::kNo;
  std::optional<double> eval_steps;  // default logging_steps; below 1 a ratio
  double delay = 0;                  // steps or epochs before the first one
  bool on_start = false;
  std::int64_t per_device_eval_batch_size = 8;
  bool load_best_model_at_end = false;
  bool compute_accuracy = false;  // eval_accuracy beside eval_loss
  // eval_loss, eval_accuracy; with on_each_dataset eval_NAME_loss, eval_NAME_accuracy.
  std::string metric_for_best_model = "eval_loss";
  std::optional<bool> greater_is_better;             // default: not for losses
  std::optional<std::int64_t> early_stopping_steps;  // evaluations without improvement

  // Whether data sets are evaluated one by one.
  bool is_by_dataset() const { return on_each_dataset && !eval_dataset.empty(); }
  // The data set that metric_for_best_model is of, which is empty where one loss is of all.
  // Nothing: it is of none.
  std::optional<std::string> dataset_of_metric() const;
  // Whether anything is evaluated at all.
  bool is_wanted() const { return strategy != IntervalStrategy::kNo || on_start || do_eval; }
};

// What do_predict does, with the defaults of LLaMA-Factory's GeneratingArguments.
struct PredictionSection {
  std::optional<bool> do_train;  // not given: unless do_predict is on
  bool do_predict = false;
  bool with_generate = false;
  bool do_sample = true;
  double temperature = 0.95;
  double top_p = 0.7;
  std::int64_t top_k = 50;
  std::int64_t num_beams = 1;
  std::int64_t max_length = 1024;  // with the prompt, where max_new_tokens is not above 0
  std::int64_t max_new_tokens = 1024;
  double repetition_penalty = 1.0;
  bool skip_special_tokens = true;  // in the texts of answers that are written
};

// Keys under `troupe`.
struct TroupeSection {
  std::optional<std::int64_t> workers;             // world size; see resolve_world_size
  std::optional<std::int64_t> threads_per_worker;  // default: cores / local workers, at least 1
  std::string device = "auto";                     // auto, cpu, cuda
  double gpus_per_worker = 1;                      // of a GPU; below 1 trainers share one
  std::string cuda_graphs = "auto";                // auto, true, false
  std::vector<Fault> chaos;
  std::optional<std::int64_t> max_restarts;  // deaths in a row without a new step; default 3
  std::int64_t spares = 0;                   // per node that runs trainers
  std::string replicas = "auto";             // auto, 0, 1: of a state that only one machine holds
  std::string failure_domain = "rack";       // a label of nodes
  // Without any progress of a rank; 0: not watched. Default: 3000, with GPUs 30000.
  std::optional<std::int64_t> hang_timeout_ms;
  std::optional<std::string> address;  // HOST:PORT of a running head
  // Where the model's folder has no tokenizer: the size of the vocabulary of one to train.
  std::optional<std::int64_t> train_tokenizer;
  double held_out = 0;  // share of the documents kept for the report of bits per byte
  std::optional<std::string> sample_prompt;
  std::optional<double> loss_limit;  // so many steps in a row with a loss above end the run
  std::int64_t loss_limit_steps = 3;
  bool operator_times = false;            // of rank 0, in steps.jsonl
  bool precompute_ref_log_probs = false;  // once, before training, and kept in output_dir
  bool allow_data_change = false;         // go on from a checkpoint with other samples than its own
  std::int64_t join_timeout_s = 300;      // for a machine, or a rank's place
  // Of nodes that may come and go: how long the run waits for more once there are enough.
  std::int64_t last_call_s = 30;
  std::int64_t stop_timeout_s = 10;  // from SIGTERM to the end
  // Of a finished model that the disk has no room for: how long it is kept in memory, and another
  // folder for it.
  std::int64_t hold_timeout_s = 3600;
  std::optional<std::string> second_output_dir;
};

// Keys that say how the run is launched (section Ray of LLaMA-Factory).
struct LaunchSection {
  std::optional<std::int64_t> ray_num_workers;
  std::optional<std::string> master_addr;
  std::optional<std::int64_t> master_port;
  std::optional<std::string> accelerate_config;  // troupe.accelerate_config, for the record
  bool use_cpu = false;
  // Where trainers go: PACK, SPREAD, STRICT_PACK, STRICT_SPREAD, as placement groups have them.
  std::string placement_strategy = "PACK";
  // What a trainer takes of its node, by name: CPU, GPU, memory, the node's own kinds.
  json::Object resources_per_worker;
  // ray_init_kwargs without the variables for trainers (runtime_env.env_vars), which may hold
  // secrets and are not for the record.
  json::Object ray_init_kwargs;
  std::map<std::string, std::string> trainer_variables;
};

struct TrainConfig {
  ModelSection model;
  MethodSection method;
  FinetuningSection finetuning;
  DataSection data;
  TrainingSection training;
  OptimizerMethodSection optimizer;
  LaunchSection launch;
  ShardingSection sharding;
  EvaluationSection evaluation;
  PredictionSection prediction;
  TroupeSection troupe;
  // The DeepSpeed configuration with every "auto" replaced; empty where none is given.
  json::Object deepspeed;
  // The words of `fsdp` and the settings of `fsdp_config`, for the record; `sharding` is what
  // follows from them.
  std::vector<std::string> fsdp;
  json::Object fsdp_config;
  // Values of accepted keys that have no effect here, as given, so that the record of a run is
  // complete. Never secrets.
  json::Object other;

  // Whether evaluations have eval_accuracy.
  bool measures_accuracy() const {
    return evaluation.compute_accuracy && method.stage == TrainingStage::kSupervised;
  }
  // The reference is asked before training (troupe.precompute_ref_log_probs), and no trainer has
  // it.
  bool asks_reference_before() const {
    return troupe.precompute_ref_log_probs && method.has_reference() &&
           method.stage != TrainingStage::kSupervised;
  }
  // Or only predicts.
  bool trains() const { return prediction.do_train.value_or(!prediction.do_predict); }
};

// The name, in the tables of train/optimizer, of the optimizer that all of it comes to: a switch's,
// a DeepSpeed file's, else `optim`.
std::string optimizer_choice(const TrainConfig& config);
// What transformers' optim: galore_adamw or apollo_adamw projects, by optim_args and
// optim_target_modules and with transformers' defaults; nothing with other optimizers. Wrong
// arguments are kInvalidArgument by their key.
Result<std::optional<ProjectionSettings>> transformers_projection(const TrainConfig& config);
// Whether parameters are updated layer by layer in the backward pass, so that nothing is clipped.
bool updates_layerwise(const TrainConfig& config);

// Every key of the table with its resolved value, nested under `troupe` where it belongs there; the
// content of training_args.json and what a driver sends to its trainers. Equal configurations give
// equal texts.
json::Value to_json(const TrainConfig& config);
// The inverse: to_json(from_json(v)) == v. Unknown keys and wrong types are kInvalidArgument.
Result<TrainConfig> train_config_from_json(const json::Value& value);

}  // namespace troupe::train
