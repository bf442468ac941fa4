#include "train/trainer/trained_part.h"

#include <algorithm>
#include <filesystem>

#include "runtime/base/check.h"
#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "train/adapters/adapter_files.h"
#include "train/adapters/adapter_targets.h"
#include "train/config/rules.h"
#include "train/hub/repository.h"
#include "train/model/model_family.h"
#include "train/trainer/adapted_model.h"
#include "train/trainer/sharding_setup.h"

namespace troupe::train {
namespace {

static_assert(kPissaIterationsMax == kPowerIterationsMax, "one bound, for keys and for files");

// What the frozen weights of layers are kept in: what a model's files hold goes before the keys.
Quantization base_quantization(const TrainConfig& config, const ModelConfig& model) {
  if (model.quantization || !config.model.quantization_bit) return model.quantization;
  if (*config.model.quantization_bit == 8) return {.code = WeightCode::kInt8};
  const auto code = weight_code_from_name(config.model.quantization_type);
  TROUPE_CHECK(code, "{}", config.model.quantization_type);
  return {*code, config.model.double_quantization};
}

// A head of its own has a name, also where the model has none.
std::string head_module(const ModelConfig& model) {
  ModelConfig untied = model;
  untied.tie_word_embeddings = false;
  return end_names(untied).output;
}

Result<AdapterConfig> new_adapter(const TrainConfig& config, const ModelConfig& model,
                                  std::vector<std::string>& notes) {
  const FinetuningSection& f = config.finetuning;
  auto whole = f.additional_target;
  if (whole.empty() && config.model.resize_vocab) {
    for (const std::string& module : {end_names(model).token_embedding, head_module(model)})
      whole.push_back(module.substr(module.rfind('.') + 1));
    notes.push_back(fmt::format("resize_vocab: {} are trained whole", join_words(whole)));
  }
  return make_adapter_config(
      model, {.targets = f.lora_target,
              .additional_targets = std::move(whole),
              .rank = f.lora_rank,
              .alpha = f.lora_alpha,
              .dropout = f.lora_dropout,
              .use_rslora = f.use_rslora,
              .use_dora = f.use_dora,
              .pissa = f.pissa_init ? std::optional(PissaStart{f.pissa_iter}) : std::nullopt,
              .llama_pro_layers =
                  f.use_llama_pro ? std::optional(f.freeze_trainable_layers) : std::nullopt});
}

// Its own configuration counts, the lora_* keys do not, as in LLaMA-Factory.
Result<OpenedAdapter> known_adapter(FileSystem& files, const std::string& folder,
                                    const ModelConfig& model) {
  auto opened = TROUPE_TRY(open_adapter(files, folder, {}, model));
  if (!opened.replaced.empty())
    return error(
        Code::kUnsupported,
        "{} holds {} beside the adapter, which would take the place of the model's: such an "
        "adapter is not trained on; merge it first (troupe export) and train a new one",
        opened.directory, opened.replaced.front().name);
  if (opened.config.is_pissa() && !PissaStart::of(opened.config.init_lora_weights))
    return error(Code::kUnsupported,
                 "{}: init_lora_weights={} is not supported: \"pissa\" and \"pissa_niter_N\" are",
                 opened.directory, json::write(opened.config.init_lora_weights));
  return opened;
}

// Absolute, each with the adapter_folder.
std::vector<std::string> adapter_folders(const FinetuningSection& finetuning) {
  std::vector<std::string> folders;
  for (std::string folder : finetuning.adapter_name_or_path) {
    if (finetuning.adapter_folder) folder = join_path(folder, *finetuning.adapter_folder);
    folders.push_back(std::filesystem::absolute(folder).lexically_normal().string());
  }
  return folders;
}

// Whether `other` computes the same with the same tensors as the model.
bool is_same_model(const ModelConfig& model, const ModelConfig& other) {
  const auto tensors = [](const ModelConfig& config) {
    std::vector<ExpectedTensor> list;
    const ParameterLayout layout(config);
    for (const ParameterInfo& parameter : layout.parameters())
      list.push_back({parameter.name, parameter.shape});
    return list;
  };
  const auto computation = [](const ModelConfig& config) {
    return std::tie(config.model_type, config.norm, config.norm_eps, config.embedding,
                    config.positions, config.rope, config.window_rope, config.activation,
                    config.num_attention_heads, config.scale_by_head_dim, config.query_scalar,
                    config.scale_by_inverse_layer, config.sliding_window, config.windowed_layers);
  };
  return computation(model) == computation(other) &&
         std::ranges::equal(tensors(model), tensors(other),
                            [](const ExpectedTensor& a, const ExpectedTensor& b) {
                              return a.name == b.name && a.shape == b.shape;
                            });
}

// What the stage needs beside what is trained: a value head, a reference. `base`: the model before
// its head is untied.
Status add_stage_part(FileSystem& files, const TrainConfig& config, const ModelConfig& base,
                      TrainedPart& part, std::string& key) {
  const MethodSection& method = config.method;
  if (method.stage == TrainingStage::kReward) {
    part.trainables.value_head = true;
    part.notes.push_back(
        "the value head has no dropout here; LLaMA-Factory's has 0.1 unless config.json says "
        "otherwise (summary_dropout_prob)");
  }
  // The stages dpo and kto have no dropout, as in LLaMA-Factory: the log-probabilities are
  // compared.
  if (drops_nothing(config))
    for (LoraModule& lora : part.trainables.lora) lora.dropout = 0;
  if (!method.has_reference()) return {};
  part.trainables.reference = method.ref_model ? Reference::kOther : Reference::kBase;
  if (!method.ref_model) {
    if (part.pissa) {
      key = "adapter_name_or_path";
      return error(Code::kUnsupported,
                   "{} began with PiSSA: what it lies over is not the model but what was left of "
                   "it, with which nothing can be compared; convert it (pissa_convert: true where "
                   "it is trained), export it into a model (troupe export), or name a ref_model",
                   part.adapter);
    }
    if (!part.adapter.empty())
      part.notes.push_back(
          "the reference is the model without the adapter that is trained on, not with it as it "
          "is: as in LLaMA-Factory");
    if (config.asks_reference_before()) part.trainables.reference = Reference::kNone;
    return {};
  }
  if (config.asks_reference_before()) part.trainables.reference = Reference::kNone;
  key = "ref_model";
  TROUPE_RETURN_IF_ERROR(check_model_folder(files, *method.ref_model));
  const std::string path = join_path(*method.ref_model, "config.json");
  const ModelConfig other =
      TROUPE_TRY(ModelConfig::parse(TROUPE_TRY(files.read(path, limits::kConfigBytesMax)), path));
  if (!is_same_model(base, other))
    return error(
        Code::kUnsupported,
        "{} is another kind of model than {}: a reference has the same tensors here; leave "
        "ref_model out, or name another one",
        *method.ref_model, config.model.model_name_or_path);
  if (method.ref_model_adapters.empty()) return {};
  key = "ref_model_adapters";
  const auto merged =
      TROUPE_TRY(AdaptedModel::open(files, *method.ref_model, method.ref_model_adapters));
  if (merged.grown_by().empty() && !(merged.unties_head() && base.tie_word_embeddings)) return {};
  return error(
      Code::kUnsupported,
      "{} has an embedding or a head of its own, which the model has not: export it into a "
      "model first (troupe export) and name that in ref_model",
      join_words(method.ref_model_adapters));
}

}  // namespace

Result<TrainedPart> trained_part(FileSystem& files, const TrainConfig& config, ModelConfig& model,
                                 std::string& key) {
  const FinetuningSection& f = config.finetuning;
  TrainedPart part;
  const ModelConfig base = model;
  if (model.quantization && f.type != FinetuningType::kLora) {
    key = "finetuning_type";
    return error(Code::kInvalidArgument,
                 "Quantized models can only be used for the LoRA or OFT tuning.");
  }
  switch (f.type) {
    case FinetuningType::kFull:
      break;
    case FinetuningType::kFreeze:
      if (!f.trained_parameters.empty()) {
        key = "troupe.trained_parameters";
        part.trainables = TROUPE_TRY(matching_trainables(model, f.trained_parameters, part.notes));
        break;
      }
      key = "freeze_trainable_modules";
      part.trainables =
          TROUPE_TRY(freeze_trainables(model, {.layers = f.freeze_trainable_layers,
                                               .modules = f.freeze_trainable_modules,
                                               .extra_modules = f.freeze_extra_modules,
                                               .use_llama_pro = f.use_llama_pro}));
      break;
    case FinetuningType::kLora: {
      AdapterConfig adapter;
      key = "adapter_name_or_path";
      std::vector<std::string> folders = adapter_folders(f);
      if (!folders.empty() && !f.create_new_adapter) {
        part.adapter = std::move(folders.back());
        folders.pop_back();
      }
      if (!folders.empty()) {
        // Merged again when the run loads it: what does not fit is found here.
        const auto merged =
            TROUPE_TRY(AdaptedModel::open(files, config.model.model_name_or_path, folders));
        if (!merged.config().tie_word_embeddings) model.tie_word_embeddings = false;
        if (!merged.grown_by().empty())
          return error(Code::kUnsupported,
                       "{} has more tokens than the model, and is not trained over: export it into "
                       "a model first (troupe export)",
                       merged.grown_by());
        part.notes = merged.notes();
        part.notes.push_back(
            fmt::format("merged into the model before training: {}", join_words(folders)));
        part.merged = std::move(folders);
      }
      if (part.adapter.empty()) {
        key = "lora_target";
        adapter = TROUPE_TRY(new_adapter(config, model, part.notes));
        part.trainables = TROUPE_TRY(lora_trainables(model, adapter));
        const auto& tensors = part.trainables.tensors;
        if (config.model.resize_vocab && part.trainables.unties_head &&
            std::ranges::find(tensors, head_module(model) + ".weight") == tensors.end()) {
          key = "additional_target";
          return error(
              Code::kInvalidArgument,
              "new tokens need rows in the head, too, which ends being the embedding where "
              "that one is trained whole: name {} as well, or leave additional_target out",
              head_module(model));
        }
      } else {
        OpenedAdapter opened = TROUPE_TRY(known_adapter(files, part.adapter, model));
        part.trainables = std::move(opened.trainables);
        part.notes.insert(part.notes.end(), opened.notes.begin(), opened.notes.end());
        part.notes.push_back(
            fmt::format("{} is trained on: its own rank, scale, modules and kind count, not the "
                        "lora_* keys, use_rslora, use_dora and pissa_init",
                        opened.directory));
        adapter = std::move(opened.config);
      }
      part.pissa = PissaStart::of(adapter.init_lora_weights);
      if (f.pissa_convert && !part.pissa) {
        key = "pissa_convert";
        return error(Code::kInvalidArgument,
                     "pissa_convert: true converts an adapter that began with PiSSA: set "
                     "pissa_init: true, or leave it out");
      }
      key = "adapter_name_or_path";
      // A base whose weights cannot be read is refused where they are loaded.
      if (auto base = BaseRecord::make(files, config.model.model_name_or_path, part.merged);
          base.ok() && !config.model.train_from_scratch) {
        if (!part.adapter.empty())
          TROUPE_RETURN_IF_ERROR(
              check_adapter_base(files, part.adapter, config.model.model_name_or_path, *base));
        part.base = std::move(*base);
      }
      if (f.loraplus_lr_ratio)
        for (LoraModule& lora : part.trainables.lora)
          lora.b_learning_rate_factor = *f.loraplus_lr_ratio;
      if (const Quantization wanted = base_quantization(config, model); wanted) {
        key = model.quantization ? "model_name_or_path" : "quantization_bit";
        if (model.quantization && config.model.quantization_bit)
          part.notes.push_back(
              "`quantization_bit` will not affect on the PTQ-quantized models: the model's own "
              "quantization_config counts");
        if (part.pissa || !part.merged.empty())
          return error(Code::kUnsupported,
                       "an adapter that takes its start from the base (PiSSA), or that is trained "
                       "over others, is not trained on beside a quantised base; export it into a "
                       "model first (troupe export)");
        part.trainables.base = {.quantization = wanted,
                                .beside = frozen_dtype(config, model),
                                .skipped = model.quantization_skipped};
        key = "adapter_name_or_path";
      }
      // As PEFT has it: the name on the hub, not where it was found.
      const auto named = hub::repository_of_snapshot(config.model.model_name_or_path);
      adapter.base_model_name_or_path = named ? named->name : config.model.model_name_or_path;
      part.adapter_config = adapter.to_text();
      break;
    }
  }
  TROUPE_RETURN_IF_ERROR(add_stage_part(files, config, base, part, key));
  if (part.trainables.unties_head) {
    model.tie_word_embeddings = false;
    part.notes.push_back(
        "embedding and head are tied and trained apart from now on: each is a matrix of its own");
  }
  part.trainables = with_rule(std::move(part.trainables), config, model);
  return part;
}

Status check_trained_part(const Trainables& trainables, bool on_gpus) {
  if (!on_gpus) return {};
  if (trainables.value_head || trainables.reference != Reference::kNone)
    return error(Code::kUnsupported, "{} is not trained on GPUs yet; train on CPUs (use_cpu: true)",
                 trainables.value_head
                     ? "a value head (stage: rm)"
                     : "a model beside a reference (stages dpo and kto, use_asft_loss)")
        .with("key", "stage");
  if (trainables.everything) return {};
  return error(Code::kUnsupported,
               "finetuning_type: {} is not trained on GPUs yet; train on CPUs (use_cpu: true), or "
               "use finetuning_type: full",
               trainables.lora.empty() ? "freeze" : "lora")
      .with("key", "finetuning_type");
}

}  // namespace troupe::train
