#include "train/trainer/adapted_model.h"

#include <algorithm>
#include <utility>

#include "runtime/base/limits.h"
#include "train/adapters/adapter_merge.h"
#include "train/adapters/adapter_targets.h"
#include "train/adapters/base_record.h"
#include "train/config/rules.h"
#include "train/model/adapter_tensors.h"
#include "train/model/model_family.h"
#include "train/tensor/convert.h"
#include "train/trainer/stored_name.h"

namespace troupe::train {
namespace {

constexpr std::string_view kWeight = ".weight";

Result<ModelConfig> read_config(FileSystem& files, const std::string& folder) {
  const std::string path = join_path(folder, "config.json");
  TROUPE_RETURN_IF_ERROR(check_model_folder(files, folder));
  return ModelConfig::parse(TROUPE_TRY(files.read(path, limits::kConfigBytesMax)), path);
}

Status check_base(const ModelConfig& config, const std::vector<TensorInfo>& weights,
                  const std::function<std::string(std::string_view)>& stored_name) {
  std::vector<ExpectedTensor> expected;
  const ParameterLayout layout(config);
  for (const ParameterInfo& parameter : layout.parameters())
    expected.push_back({stored_name(parameter.name), parameter.shape});
  return check_weights(weights, expected,
                       [&](std::string_view name) { return ignored_in_weights(config, name); });
}

const StoredTensor* find_tensor(const std::vector<StoredTensor>& tensors, std::string_view name) {
  const auto found = std::ranges::find(tensors, name, &StoredTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

Status round_to(DType dtype, std::span<float> values) {
  if (dtype == DType::kF32 || dtype == DType::kF64) return {};
  std::vector<std::byte> stored(values.size() * dtype_size(dtype));
  TROUPE_RETURN_IF_ERROR(convert_from_float(values, dtype, stored));
  return convert_to_float(stored, dtype, values);
}

// Empty for what is no module's weight.
std::string_view module_of_weight(std::string_view name) {
  return name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : "";
}

// Whether a PiSSA adapter's decomposition can be done again. `ours`: this program trained it.
Status pissa_start(const OpenedAdapter& adapter, bool ours, std::vector<std::string>& notes) {
  const auto start = PissaStart::of(adapter.config.init_lora_weights);
  if (!start)
    return error(Code::kUnsupported,
                 "{}/{}: init_lora_weights={} is not supported: \"pissa\" and \"pissa_niter_N\", N "
                 "to 1000, are",
                 adapter.directory, kAdapterConfigFile,
                 json::write(adapter.config.init_lora_weights));
  if (start->iterations >= 0 && !ours)
    notes.push_back(fmt::format(
        "{}: init_lora_weights={}: the base is decomposed anew by this program's random vectors; "
        "what another program trained fits to it approximately",
        adapter.directory, json::write(adapter.config.init_lora_weights)));
  return {};
}

}  // namespace

Result<AdaptedModel> AdaptedModel::open(FileSystem& files, const std::string& base,
                                        const std::vector<std::string>& adapters,
                                        const std::string& adapter_folder) {
  // A model that is not supported is named, whatever its weights are.
  ModelConfig config = TROUPE_TRY(read_config(files, base));
  auto weights = TensorReader::open_model(files, base);
  if (weights.status().code() == Code::kPermissionDenied)
    return unreadable_model(base, weights.status());
  if (!weights.ok()) return weights.status();
  auto quantized = TROUPE_TRY(QuantizedWeights::find(*weights));
  AdaptedModel model(std::move(config), std::move(*weights), std::move(quantized));
  if (Status fits = check_base(model.base_, model.quantized_.weights(),
                               [&](std::string_view name) { return model.stored_name(name); });
      !fits)
    return fits.prefixed(base);
  BaseRecord under;  // what an adapter lies over
  for (const std::string& directory : adapters) {
    const std::int64_t rows =
        TROUPE_TRY(adapter_vocabulary(files, directory, adapter_folder, model.base_));
    if (rows > model.base_.vocab_size)
      TROUPE_RETURN_IF_ERROR(model.grow(
          rows, adapter_folder.empty() ? directory : join_path(directory, adapter_folder)));
    auto adapter = TROUPE_TRY(open_adapter(files, directory, adapter_folder, model.base_));
    const bool ours = files.exists(join_path(adapter.directory, kBaseRecordFile));
    if (ours) {
      if (under.hash.empty()) under.hash = TROUPE_TRY(weights_hash(model.reader_));
      TROUPE_RETURN_IF_ERROR(check_adapter_base(files, adapter.directory, base, under));
    }
    if (adapters.size() > 1)
      under.merged.push_back(TROUPE_TRY(folder_hash(files, adapter.directory)));
    if (adapter.config.is_pissa()) TROUPE_RETURN_IF_ERROR(pissa_start(adapter, ours, model.notes_));
    model.unties_head_ = model.unties_head_ || adapter.trainables.unties_head;
    model.notes_.insert(model.notes_.end(), adapter.notes.begin(), adapter.notes.end());
    model.adapters_.push_back(std::move(adapter));
  }
  if (!model.grown_by_.empty()) {
    ModelConfig untied = model.base_;
    untied.tie_word_embeddings = false;
    const bool tied = model.base_.tie_word_embeddings && !model.unties_head_;
    if (!tied && !model.replacement(end_names(untied).output + ".weight"))
      return error(Code::kInvalidArgument,
                   "{} has an embedding for more tokens than {}, and no head for them",
                   model.grown_by_, base);
  }
  if (std::exchange(model.unties_head_, false)) {
    TROUPE_RETURN_IF_ERROR(model.untie_head());
    model.head_is_embedding_ = false;
  }
  return model;
}

Status AdaptedModel::grow(std::int64_t rows, const std::string& adapter) {
  json::Object source = base_.to_json();
  source["vocab_size"] = rows;
  base_ = TROUPE_TRY(ModelConfig::from_json(source, "config.json"));
  config_ = base_;
  grown_by_ = adapter;
  return {};
}

Status AdaptedModel::untie_head() {
  if (!config_.tie_word_embeddings) return {};
  json::Object source = base_.to_json();
  source["tie_word_embeddings"] = false;
  config_ = TROUPE_TRY(ModelConfig::from_json(source, "config.json"));
  unties_head_ = head_is_embedding_ = true;
  return {};
}

std::string AdaptedModel::stored_name(std::string_view name) const {
  return train::stored_name(reader_, config_, name, unties_head_);
}

DType AdaptedModel::stored_type(const ParameterInfo& parameter) const {
  const std::string name = stored_name(parameter.name);
  const StoredMatrix* matrix = quantized_.matrix(name);
  return matrix ? matrix->values : reader_.find(name)->dtype;
}

const StoredTensor* AdaptedModel::replacement(std::string_view name) const {
  const StoredTensor* last = nullptr;
  for (const OpenedAdapter& adapter : adapters_) {
    const StoredTensor* replaced = find_tensor(adapter.replaced, name);
    if (!replaced) replaced = find_tensor(adapter.tensors, name);
    if (replaced) last = replaced;
  }
  return last;
}

std::vector<AdaptedModel::Update> AdaptedModel::updates(std::string_view module) const {
  std::vector<Update> updates;
  for (const OpenedAdapter& adapter : adapters_) {
    const std::string weight = std::string(module) + std::string(kWeight);
    // A whole new matrix takes the place of what earlier adapters made of the base's.
    if (find_tensor(adapter.tensors, weight) || find_tensor(adapter.replaced, weight))
      updates.clear();
    for (const LoraModule& lora : adapter.trainables.lora) {
      if (lora.module != module) continue;
      Update update{.lora = lora,
                    .a = *find_tensor(adapter.tensors, lora_a_name(lora.module)),
                    .b = *find_tensor(adapter.tensors, lora_b_name(lora.module)),
                    .magnitude = {},
                    .pissa = PissaStart::of(adapter.config.init_lora_weights)};
      if (lora.dora)
        update.magnitude = *find_tensor(adapter.tensors, lora_magnitude_name(lora.module));
      updates.push_back(std::move(update));
    }
  }
  return updates;
}

Status AdaptedModel::take_principal(const Update& update, std::span<float> weight) const {
  const PissaMatrix matrix{.module = update.lora.module,
                           .rank = update.lora.rank,
                           .in = update.a.shape[1],
                           .out = update.b.shape[0],
                           .scale = update.lora.scale,
                           .transposed = config_.transposed_weights};
  const auto factors = TROUPE_TRY(principal_factors(weight, matrix, *update.pissa));
  subtract_factors(weight, matrix, factors);
  return {};
}

Status AdaptedModel::read_unadapted(const ParameterInfo& parameter, std::span<float> out) const {
  const EndNames ends = end_names(config_);
  const bool is_copy = head_is_embedding_ && parameter.name == ends.output + ".weight";
  if (const StoredTensor* tensor =
          replacement(is_copy ? ends.token_embedding + ".weight" : parameter.name))
    return convert_to_float(tensor->data, tensor->dtype, out);
  const std::string name = stored_name(parameter.name);
  const StoredMatrix* matrix = quantized_.matrix(name);
  if (!matrix) return reader_.read(name, 0, out);
  return QuantizedWeights::values(*matrix, TROUPE_TRY(quantized_.read(reader_, name)), 0, out);
}

Status AdaptedModel::read_merged(const ParameterInfo& parameter, Rounding rounding,
                                 std::span<float> out) const {
  TROUPE_RETURN_IF_ERROR(read_unadapted(parameter, out));
  const std::string_view module = module_of_weight(parameter.name);
  for (const Update& update : updates(module)) {
    if (update.pissa) {
      TROUPE_RETURN_IF_ERROR(take_principal(update, out));
      if (rounding == Rounding::kStoredType)
        TROUPE_RETURN_IF_ERROR(round_to(stored_type(parameter), out));
    }
    const auto a = TROUPE_TRY(update.a.floats());
    const auto b = TROUPE_TRY(update.b.floats());
    std::vector<float> magnitude;
    if (update.lora.dora) magnitude = TROUPE_TRY(update.magnitude.floats());
    merge_adapter(out, {.rank = update.lora.rank,
                        .in = update.a.shape[1],
                        .out = update.b.shape[0],
                        .scale = update.lora.scale,
                        .a = a,
                        .b = b,
                        .magnitude = magnitude,
                        .transposed = config_.transposed_weights});
    if (rounding == Rounding::kStoredType)
      TROUPE_RETURN_IF_ERROR(round_to(stored_type(parameter), out));
  }
  return {};
}

Status AdaptedModel::round_as_stored(const ParameterInfo& parameter,
                                     std::span<float> values) const {
  return round_to(stored_type(parameter), values);
}

Result<Trainables> AdaptedModel::beside() const {
  Trainables trainables{.everything = false, .tensors = {}, .lora = {}};
  for (const LinearModule& module : linear_modules(config_)) {
    const std::vector<Update> here = updates(module.name);
    if (here.empty()) continue;
    LoraModule combined = here.front().lora;
    combined.dropout = 0.0;
    for (const Update& update : here) {
      if (update.lora.dora && here.size() > 1)
        return error(Code::kUnsupported,
                     "{} has several adapters, one of them DoRA: the model computes them merged "
                     "alone",
                     module.name);
      if (update.pissa && &update != &here.front())
        return error(Code::kUnsupported,
                     "{} has a PiSSA adapter over another one, which is computed merged alone",
                     module.name);
    }
    if (here.size() > 1) {
      combined.scale = 1.0;  // each has its own scale in its columns of B
      combined.rank = 0;
      for (const Update& update : here) combined.rank += update.lora.rank;
    }
    trainables.lora.push_back(std::move(combined));
  }
  return trainables;
}

Status AdaptedModel::read_beside(const ParameterInfo& parameter, std::span<float> out) const {
  if (!is_adapter_tensor(parameter.name)) {
    TROUPE_RETURN_IF_ERROR(read_unadapted(parameter, out));
    const std::vector<Update> here = updates(module_of_weight(parameter.name));
    return here.empty() || !here.front().pissa ? Status() : take_principal(here.front(), out);
  }
  const std::string& name = parameter.name;
  const bool is_a = name.ends_with(lora_a_name(""));
  const std::string module = name.substr(0, name.rfind(".lora_"));
  const std::vector<Update> here = updates(module);
  if (name == lora_magnitude_name(module))
    return convert_to_float(here.front().magnitude.data, here.front().magnitude.dtype, out);
  std::int64_t first = 0;  // of the sum's rank
  for (const Update& update : here) {
    const std::int64_t rank = update.lora.rank;
    const auto values = TROUPE_TRY((is_a ? update.a : update.b).floats());
    if (is_a) {
      std::ranges::copy(values, out.begin() + first * update.a.shape[1]);
    } else {
      const float scale = here.size() > 1 ? static_cast<float>(update.lora.scale) : 1.0f;
      const std::int64_t columns = parameter.shape[1];
      for (std::int64_t row = 0; row < parameter.shape[0]; ++row)
        for (std::int64_t k = 0; k < rank; ++k)
          out[static_cast<std::size_t>(row * columns + first + k)] =
              scale * values[static_cast<std::size_t>(row * rank + k)];
    }
    first += rank;
  }
  return {};
}

}  // namespace troupe::train
