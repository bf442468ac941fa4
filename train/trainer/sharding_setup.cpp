#include "train/trainer/sharding_setup.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "train/checkpoint/checkpoint_names.h"
#include "train/checkpoint/tensor_reader.h"
#include "train/config/deepspeed.h"
#include "train/model/adapter_tensors.h"
#include "train/model/model_layout.h"
#include "train/optimizer/optimizers.h"
#include "train/optimizer/tensor_names.h"
#include "train/sharding/cuda_optimizer_device.h"

namespace troupe::train {
namespace {

DType dtype_of(Precision precision) {
  return precision == Precision::kBfloat16 ? DType::kBF16 : DType::kF32;
}

ReductionOrder order_of(Deterministic deterministic) {
  switch (deterministic) {
    case Deterministic::kStrategy:
      return ReductionOrder::kStrategy;
    case Deterministic::kAcrossWorldSizes:
      return ReductionOrder::kAcrossWorldSizes;
    case Deterministic::kOff:
      return ReductionOrder::kOff;
  }
  return ReductionOrder::kStrategy;
}

}  // namespace

DType state_dtype(const TrainConfig& config) {
  // PEFT keeps adapters in fp32 whatever the base is kept in.
  return config.finetuning.is_lora() ? DType::kF32 : dtype_of(config.model.state);
}
DType compute_dtype(const TrainConfig& config) {
  // bf16 parameters are never widened for products.
  return dtype_of(config.model.state) == DType::kBF16 ? DType::kBF16
                                                      : dtype_of(config.model.compute);
}

Arithmetic arithmetic_of(const TrainConfig& config) {
  if (config.model.compute == Precision::kFloat16) return Arithmetic::kFp16;
  return compute_dtype(config) == DType::kBF16 ? Arithmetic::kBf16 : Arithmetic::kFp32;
}

std::optional<LossScaleRule> loss_scale_rule(const TrainConfig& config) {
  if (config.model.compute != Precision::kFloat16) return std::nullopt;
  if (config.deepspeed.empty()) return LossScaleRule();
  // What is out of range was refused when the configuration was read.
  return read_loss_scale_rule(config.deepspeed).value();
}

DType frozen_dtype(const TrainConfig& config, const ModelConfig& model) {
  const bool narrow = compute_dtype(config) == DType::kBF16 || model.dtype == DType::kBF16;
  return narrow ? DType::kBF16 : DType::kF32;
}

bool drops_nothing(const TrainConfig& config) {
  return config.method.stage == TrainingStage::kDpo || config.method.stage == TrainingStage::kKto;
}

ModelConfig trained_model(const TrainConfig& config, ModelConfig model) {
  if (drops_nothing(config))
    model.embedding_dropout = model.residual_dropout = model.attention_dropout = 0;
  return model;
}

std::unique_ptr<Optimizer> optimizer_of(const TrainConfig& config, const ModelConfig& model) {
  const TrainingSection& training = config.training;
  const OptimizerMethodSection& method = config.optimizer;
  const bool apollo = method.use_apollo && !method.use_galore;
  OptimizerSettings settings{.weight_decay = training.weight_decay,
                             .beta1 = training.adam_beta1,
                             .beta2 = training.adam_beta2,
                             .epsilon = training.adam_epsilon,
                             .hidden_size = model.hidden_size,
                             .heads = model.num_attention_heads};
  settings.projection = {
      .target =
          fmt::format("{}", fmt::join(apollo ? method.apollo_target : method.galore_target, " ")),
      .rank = apollo ? method.apollo_rank : method.galore_rank,
      .interval = apollo ? method.apollo_update_interval : method.galore_update_interval,
      .scale = apollo ? method.apollo_scale : method.galore_scale,
      .type = apollo ? method.apollo_proj_type : method.galore_proj_type,
      .scales_gradient = apollo,
      .random = apollo && method.apollo_proj == "random",
      .by_tensor = method.apollo_scale_type == "tensor",
      .scale_front = method.apollo_scale_front};
  // What is wrong with it is said by who checks the configuration, which may be read on before.
  if (const auto projection = transformers_projection(config).value_or(std::nullopt)) {
    settings.projection = *projection;
    settings.weight_decay = 0;
  }
  settings.blocks = {.layers = model.num_hidden_layers,
                     .switch_mode = method.badam_switch_mode,
                     .switch_interval = method.badam_switch_interval,
                     .start = method.badam_start_block,
                     .seed = static_cast<std::uint64_t>(training.seed)};
  return make_optimizer(optimizer_choice(config), settings);
}

Trainables with_rule(Trainables trainables, const TrainConfig& config, const ModelConfig& model) {
  const std::shared_ptr<const Optimizer> optimizer = optimizer_of(config, model);
  trainables.rule = {{optimizer, optimizer->rule()}};
  trainables.groups.vector_rate_factor = config.finetuning.loraplus_lr_ratio;
  if (config.finetuning.loraplus_lr_ratio) {
    trainables.groups.decays = decays_by_llamafactory;
  } else if (config.deepspeed.contains("optimizer")) {
    // transformers gives DeepSpeed all of them as one group.
    trainables.groups.decays = [](std::string_view) { return true; };
  }
  return trainables;
}

Status check_optimizer(const TrainConfig& config, const ModelConfig& model,
                       const Trainables& trainables, bool on_gpus) {
  const auto optimizer = optimizer_of(config, model);
  const ModelLayout layout(model, trainables);
  for (const ParameterInfo& parameter : layout.trained().parameters())
    TROUPE_RETURN_IF_ERROR(optimizer->check(parameter.name, parameter.shape));
  const OptimizerMethodSection& method = config.optimizer;
  const bool by_transformers = TROUPE_TRY(transformers_projection(config)).has_value();
  if ((method.use_galore || method.use_apollo || by_transformers) &&
      !layout.trained().has_whole_tensors())
    return error(Code::kInvalidArgument, "{}={}: no linear layer of the model has such a name",
                 by_transformers     ? "optim_target_modules"
                 : method.use_galore ? "galore_target"
                                     : "apollo_target",
                 fmt::join(by_transformers     ? method.optim_target_modules
                           : method.use_galore ? method.galore_target
                                               : method.apollo_target,
                           ","));
  if (const auto start = config.optimizer.badam_start_block;
      config.optimizer.use_badam && start && *start >= model.num_hidden_layers)
    return error(Code::kInvalidArgument, "badam_start_block={}: the model has {} layers, from 0 on",
                 *start, model.num_hidden_layers);
  if (!on_gpus) return {};
  if (optimizer->rule())
    return error(Code::kUnsupported,
                 "{} is not there on GPUs, nor for what they offload: it updates whole tensors or "
                 "blocks of them in the memory of CPUs; train on CPUs (use_cpu: true), or use "
                 "optim: adamw_torch",
                 optimizer->name());
  if (offload_of(config, on_gpus) != Offload::kNothing) return {};
  return CudaOptimizerDevice::check(*optimizer, layout.trained().groups());
}

Status check_optimizer_state(FileSystem& files, const GoodCheckpoint& good,
                             const Optimizer& optimizer, const ParameterGroups& all_groups) {
  if (!good.has_optimizer) return {};
  const auto reader = TROUPE_TRY(TensorReader::open(files, good));
  std::set<std::string_view> saved;
  for (const TensorInfo& tensor : reader.optimizer()) saved.insert(slot_of(tensor.name));
  const auto& groups = all_groups.groups();
  // An optimizer by whose rule tensors differ may use no more than some of its slots.
  const auto has = [&](const Optimizer& of) {
    std::set<std::string_view> used;
    for (std::size_t slot = 0; slot < of.slots().size(); ++slot)
      if (std::ranges::any_of(groups, [&](const ParameterGroup& group) {
            return of.storage(slot, group.treatment) != SlotStorage::kNothing;
          }))
        used.insert(of.slots()[slot]);
    // What parameters have in turn may have been nobody's when it was saved.
    const bool in_turn = std::ranges::any_of(groups, [&](const ParameterGroup& group) {
      return !of.slots().empty() && of.storage(0, group.treatment) == SlotStorage::kInTurn;
    });
    return used == saved || (in_turn && saved.empty());
  };
  if (has(optimizer)) return {};
  std::string writers;
  for (const auto table : {optimizer_table(), optimizer_method_table()}) {
    for (const OptimizerRow& row : table)
      if (has(*row.make({})))
        writers += fmt::format("{}{}", writers.empty() ? "" : ", ", row.optim);
  }
  return error(Code::kFailedPrecondition,
               "{} has the state of another optimizer than {}, which this run is of: it keeps {}. "
               "Go on with the optimizer that wrote it (optim: {}), or begin anew from its weights "
               "(model_name_or_path)",
               good.path, optimizer.name(),
               saved.empty() ? "nothing" : fmt::format("{}", fmt::join(saved, ", ")),
               writers.empty() ? "not known here" : writers);
}

Result<std::optional<json::Value>> saved_arguments(FileSystem& files,
                                                   const std::string& checkpoint) {
  const std::string path = join_path(checkpoint, kTrainingArgsFile);
  if (!files.exists(path)) return std::optional<json::Value>();
  return std::optional(
      TROUPE_TRY(json::parse(TROUPE_TRY(files.read(path, limits::kConfigBytesMax)), path)));
}

Status check_optimizer_settings(FileSystem& files, const GoodCheckpoint& good,
                                const TrainConfig& config) {
  if (!good.has_optimizer) return {};
  const auto saved = TROUPE_TRY(saved_arguments(files, good.path));
  if (!saved) return {};
  const json::Value ours = to_json(config);
  const OptimizerMethodSection& method = config.optimizer;
  std::vector<const char*> keys = {"use_galore", "use_apollo", "use_badam"};
  if (method.use_galore)
    keys.insert(keys.end(), {"galore_rank", "galore_proj_type", "galore_target"});
  if (method.use_apollo)
    keys.insert(keys.end(), {"apollo_rank", "apollo_proj", "apollo_proj_type", "apollo_target"});
  if (method.use_badam)
    keys.insert(keys.end(),
                {"badam_mode", "badam_start_block", "badam_switch_mode", "badam_switch_interval"});
  if (TROUPE_TRY(transformers_projection(config)))
    keys.insert(keys.end(), {"optim", "optim_args", "optim_target_modules"});
  for (const char* key : keys) {
    const json::Value *theirs = json::find(*saved, key), *now = json::find(ours, key);
    // A version that did not have the key had nothing of the kind.
    if (!theirs || !now || *theirs == *now) continue;
    return error(Code::kInvalidArgument,
                 "the optimizer's state in {} is of {}: {}, and this run has {}; go on with the "
                 "setting that it was trained with, or begin anew from its weights "
                 "(model_name_or_path)",
                 good.path, key, json::write(*theirs), json::write(*now))
        .with("key", key);
  }
  return {};
}

Result<Strategy> strategy_of(const TrainConfig& config) {
  if (const auto strategy = strategy_from_name(config.sharding.strategy)) return *strategy;
  return error(Code::kInvalidArgument, "troupe.strategy={} is no strategy",
               config.sharding.strategy);
}

Result<Mesh> mesh_of(const TrainConfig& config, int world_size, int ranks_per_node) {
  return make_mesh(TROUPE_TRY(strategy_of(config)), world_size, ranks_per_node,
                   static_cast<int>(config.sharding.mesh_replicate),
                   static_cast<int>(config.sharding.mesh_shard));
}

Offload offload_of(const TrainConfig& config, bool on_gpu) {
  if (!on_gpu) return Offload::kNothing;
  switch (config.sharding.offload) {
    case OffloadChoice::kNone:
      return Offload::kNothing;
    case OffloadChoice::kOptimizer:
      return Offload::kOptimizer;
    case OffloadChoice::kParameters:
      return Offload::kParameters;
  }
  return Offload::kNothing;
}

EngineOptions engine_options(const TrainConfig& config, const ModelConfig& model, Strategy strategy,
                             bool overlaps, Offload offload) {
  const ShardingSection& sharding = config.sharding;
  EngineOptions options;
  // A value head multiplies with no embedding.
  const bool tied = model.tie_word_embeddings && config.method.stage != TrainingStage::kReward;
  options.reduction = {.order = order_of(sharding.deterministic),
                       .micro_batches = config.training.gradient_accumulation_steps,
                       .reduce = dtype_of(config.model.reduce),
                       .tied = tied,
                       .overlaps = overlaps};
  options.compute = {.state = state_dtype(config),
                     .compute = compute_dtype(config),
                     .frozen = frozen_dtype(config, model)};
  options.compute.fp16 = config.model.compute == Precision::kFloat16;
  follow(options.compute, strategy, offload, tied);
  GatherLimits& limits = options.compute.limits;
  limits.max_live = sharding.max_live_parameters;
  limits.max_reuse_distance = sharding.max_reuse_distance;
  limits.persistence_threshold = sharding.param_persistence_threshold;
  limits.prefetch = sharding.prefetch_bucket_size;
  // Without a core for it, gathering early gains nothing and costs memory.
  if (!overlaps) limits.prefetch = 0;
  return options;
}

std::shared_ptr<const Objective> objective_of(const TrainConfig& config) {
  const MethodSection& method = config.method;
  if (method.stage == TrainingStage::kReward) return make_reward_objective();
  if (method.stage == TrainingStage::kKto)
    return make_kto_objective({.beta = method.pref_beta,
                               .chosen_weight = method.kto_chosen_weight,
                               .rejected_weight = method.kto_rejected_weight,
                               .sft_weight = method.pref_ftx});
  if (method.stage == TrainingStage::kDpo)
    return make_pair_objective(
        {.loss = pair_loss_from_name(method.pref_loss).value_or(PairLoss::kSigmoid),
         .beta = method.pref_beta,
         .label_smoothing = method.dpo_label_smoothing,
         .simpo_gamma = method.simpo_gamma,
         .sft_weight = method.pref_ftx > 1e-6 ? method.pref_ftx : 0,
         .ld_alpha = method.ld_alpha});
  ObjectiveOptions options{.dft = method.use_dft_loss};
  if (method.use_asft_loss) options.anchored = method.asft_alpha;
  if (method.use_eaft_loss)
    options.entropy_adaptive = {
        .top = method.eaft_top, .divisor = method.eaft_divisor, .power = method.eaft_alpha};
  return make_objective(options);
}

Recompute recompute_of(const TrainConfig& config) {
  switch (config.model.activation_checkpointing) {
    case ActivationCheckpointing::kNone:
      return Recompute::kNothing;
    case ActivationCheckpointing::kFull:
      return Recompute::kLayers;
    case ActivationCheckpointing::kSelective:
      return Recompute::kCheapOperators;
  }
  return Recompute::kLayers;
}

ActivationOptions activation_options(const TrainConfig& config, const ModelConfig& model,
                                     const Trainables& trainables, std::int64_t length_max) {
  const ModelLayout layout(model, trainables);
  return {.rows_max = config.training.per_device_train_batch_size,
          .length_max = length_max,
          .training = true,
          .recompute = recompute_of(config),
          .compute = compute_dtype(config),
          .adapters = adapter_sizes(model, trainables),
          .untrained_layers = layout.trains(0) ? 0 : layout.first_trained_layer()};
}

ActivationOptions evaluation_options(const TrainConfig& config, const ModelConfig& model,
                                     const Trainables& trainables, std::int64_t rows_max,
                                     std::int64_t length_max) {
  return {.rows_max = std::min(config.evaluation.per_device_eval_batch_size, rows_max),
          .length_max = length_max,
          .training = false,
          .recompute = recompute_of(config),
          .compute = compute_dtype(config),
          .adapters = adapter_sizes(model, trainables)};
}

std::optional<SamplePacking> packing_of(const TrainConfig& config) {
  const SamplePackingSection& packing = config.data.sample_packing;
  if (!packing.on) return std::nullopt;
  const auto rows = config.training.per_device_train_batch_size;
  return SamplePacking{
      .capacity = packing.rows ? config.data.cutoff_len : rows * config.data.cutoff_len,
      .batch_bins = packing.rows ? rows : 1,
      .group_size = packing.group_size,
      .bin_size = packing.bin_size,
      .sequentially = packing.sequentially};
}

SamplerOptions sampler_options(const TrainConfig& config, std::int64_t samples, int world_size,
                               const TokenDataset* dataset) {
  SamplerOptions options{.sample_count = samples,
                         .world_size = world_size,
                         .per_device_batch_size = config.training.per_device_train_batch_size,
                         .gradient_accumulation_steps = config.training.gradient_accumulation_steps,
                         .seed = static_cast<std::uint32_t>(config.training.order_seed()),
                         .shuffle = !config.data.disable_shuffling,
                         .drop_last = config.training.dataloader_drop_last,
                         .packing = packing_of(config),
                         .lengths = nullptr};
  if (config.data.group_by_length) {
    options.length_group = options.per_device_batch_size * options.gradient_accumulation_steps;
    // Its generator is the run's, whatever data_seed says.
    options.seed = static_cast<std::uint32_t>(config.training.seed);
  }
  if (!dataset) options.packing.reset();
  if (dataset && (options.packing || options.length_group > 0)) {
    auto lengths = std::make_shared<std::vector<std::int32_t>>();
    for (std::int64_t i = 0; i < samples; ++i)
      lengths->push_back(
          static_cast<std::int32_t>(real_length(*dataset, static_cast<std::uint32_t>(i))));
    options.lengths = std::move(lengths);
  }
  if (config.sharding.deterministic == Deterministic::kAcrossWorldSizes) {
    options.gradient_accumulation_steps *= world_size;
    options.world_size = 1;
  }
  return options;
}

// Across world sizes an epoch's steps are those that one rank would make.
Result<RunSchedule> run_schedule(const TrainConfig& config, std::int64_t samples, int world_size,
                                 std::optional<std::int64_t> packed_batches) {
  if (config.sharding.deterministic != Deterministic::kAcrossWorldSizes)
    return plan_steps(config.training, samples, world_size, packed_batches);
  TrainingSection alone = config.training;
  alone.gradient_accumulation_steps *= world_size;
  return plan_steps(alone, samples, 1, packed_batches);
}

}  // namespace troupe::train
