#pragma once
// From a run's configuration to the options of the sharding engine, its activations and its data.

#include <cstdint>
#include <memory>
#include <optional>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/config/derived.h"
#include "train/config/train_config.h"
#include "train/data/sampler.h"
#include "train/data/token_dataset.h"
#include "train/model/activations.h"
#include "train/model/model_config.h"
#include "train/model/trainables.h"
#include "train/objectives/objectives.h"
#include "train/optimizer/loss_scale.h"
#include "train/optimizer/optimizer.h"
#include "train/sharding/engine.h"
#include "train/sharding/offload.h"

namespace troupe::train {

// What parameters and optimizer state are kept in, and what the model gets.
DType state_dtype(const TrainConfig& config);
DType compute_dtype(const TrainConfig& config);
// What products are computed in.
Arithmetic arithmetic_of(const TrainConfig& config);
// Nothing where nothing is computed in fp16. DeepSpeed's where its configuration is given.
std::optional<LossScaleRule> loss_scale_rule(const TrainConfig& config);
// What frozen parameters are kept in: what products round them to, else what the model's files hold
// (bf16), else fp32, which holds every other type's values.
DType frozen_dtype(const TrainConfig& config, const ModelConfig& model);

// Whether the stage turns every dropout off, that of adapters too.
bool drops_nothing(const TrainConfig& config);
// What it trains then: `model` without dropout.
ModelConfig trained_model(const TrainConfig& config, ModelConfig model);

std::unique_ptr<Optimizer> optimizer_of(const TrainConfig& config, const ModelConfig& model);
// With what that optimizer asks of the layout.
Trainables with_rule(Trainables trainables, const TrainConfig& config, const ModelConfig& model);
// kUnsupported, with the way out, where the optimizer cannot update what is trained, or GPUs do not
// have it.
Status check_optimizer(const TrainConfig& config, const ModelConfig& model,
                       const Trainables& trainables, bool on_gpus);

// kFailedPrecondition where a checkpoint has the state of another optimizer, told by its slots:
// some of it would be missing, or mean something else.
Status check_optimizer_state(FileSystem& files, const GoodCheckpoint& good,
                             const Optimizer& optimizer, const ParameterGroups& groups);
// The configuration of the run that wrote a checkpoint (kTrainingArgsFile); nothing where the
// checkpoint has no such file.
Result<std::optional<json::Value>> saved_arguments(FileSystem& files,
                                                   const std::string& checkpoint);
// kInvalidArgument, naming the key, where that state is of the same slots and of another meaning:
// projections of another rank or kind, a trained block that is another one's turn.
Status check_optimizer_settings(FileSystem& files, const GoodCheckpoint& good,
                                const TrainConfig& config);

// kInvalidArgument where strategy and mesh do not fit the world.
Result<Strategy> strategy_of(const TrainConfig& config);
Result<Mesh> mesh_of(const TrainConfig& config, int world_size, int ranks_per_node);

// What lies in the host's memory: nothing where the host computes, everything does there anyway.
Offload offload_of(const TrainConfig& config, bool on_gpu);

// `overlaps`: communication has a core for itself.
EngineOptions engine_options(const TrainConfig& config, const ModelConfig& model, Strategy strategy,
                             bool overlaps, Offload offload);

// What the run's stage computes of a micro-batch.
std::shared_ptr<const Objective> objective_of(const TrainConfig& config);

Recompute recompute_of(const TrainConfig& config);
// Of training, on rows of so many tokens at most.
ActivationOptions activation_options(const TrainConfig& config, const ModelConfig& model,
                                     const Trainables& trainables, std::int64_t length_max);
// Of evaluation, forward passes only, on a data set of so many rows. They take the place of
// training's in one arena while it evaluates.
ActivationOptions evaluation_options(const TrainConfig& config, const ModelConfig& model,
                                     const Trainables& trainables, std::int64_t rows_max,
                                     std::int64_t length_max);

// Nothing without troupe.sample_packing.
std::optional<SamplePacking> packing_of(const TrainConfig& config);
// The order of the samples. Across world sizes a step's micro-batches are those that one rank would
// have with accumulation · world_size of them.
// With troupe.sample_packing the samples of `packed` are packed by their lengths; null: a data
// source of the program's own, whose samples are not.
SamplerOptions sampler_options(const TrainConfig& config, std::int64_t samples, int world_size,
                               const TokenDataset* dataset);
// The steps that follow from it; `packed_batches` is the sampler's. kInvalidArgument where no step
// can ever be made.
Result<RunSchedule> run_schedule(const TrainConfig& config, std::int64_t samples, int world_size,
                                 std::optional<std::int64_t> packed_batches);

}  // namespace troupe::train
