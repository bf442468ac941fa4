#include "train/adapters/adapter_files.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "runtime/base/check.h"
#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"
#include "train/adapters/adapter_targets.h"
#include "train/model/adapter_tensors.h"
#include "train/model/model_family.h"
#include "train/model/parameter_layout.h"

namespace troupe::train {
namespace {

constexpr const char* kPickledWeightsFile = "adapter_model.bin";
constexpr std::size_t kListedMax = 4;

// As torch prints a shape.
std::string torch_size(const std::vector<std::int64_t>& shape) {
  return "torch.Size([" + join_numbers(shape) + "])";
}

// Beside which base the adapter says that it was trained, for errors.
std::string trained_beside(const AdapterConfig& config) {
  return config.base_model_name_or_path
             ? fmt::format(" (it was trained beside {})", *config.base_model_name_or_path)
             : "";
}

// Why a tensor of an adapter has another shape than its base and adapter_config.json say.
std::string shape_hint(const StoredTensor& stored, const std::vector<std::int64_t>& expected,
                       const AdapterConfig& config) {
  for (const auto& [suffix, dimension] :
       {std::pair(lora_a_name(""), std::size_t{0}), std::pair(lora_b_name(""), std::size_t{1})}) {
    if (!stored.name.ends_with(suffix) || stored.shape.size() != 2 ||
        stored.shape[1 - dimension] != expected[1 - dimension])
      continue;
    return fmt::format(" {} says rank {}, the tensor is of rank {}.", kAdapterConfigFile,
                       expected[dimension], stored.shape[dimension]);
  }
  const bool of_vocabulary = stored.name.find("embed_tokens") != std::string::npos ||
                             stored.name.find("lm_head") != std::string::npos;
  if (of_vocabulary && stored.shape.size() == 2 && stored.shape[1] == expected[1] &&
      stored.shape[0] > expected[0]) {
    return " The adapter has rows for more tokens than its base: name them as it was trained "
           "(add_tokens, add_special_tokens), or set resize_vocab: true with its tokenizer.";
  }
  return " The adapter is of another base" + trained_beside(config) + ".";
}

Status check_shape(const StoredTensor& stored, const std::vector<std::int64_t>& expected,
                   const AdapterConfig& config, const std::string& path) {
  if (stored.shape == expected) return {};
  return error(Code::kInvalidArgument,
               "{}: size mismatch for {}: copying a param with shape {} from checkpoint, the shape "
               "in current model is {}.{}",
               path, stored.name, torch_size(stored.shape), torch_size(expected),
               shape_hint(stored, expected, config));
}

Status missing_tensors(const std::vector<std::string>& missing, const AdapterConfig& config,
                       const std::string& path) {
  const std::vector<std::string> listed(
      missing.begin(),
      missing.begin() + static_cast<std::ptrdiff_t>(std::min(missing.size(), kListedMax)));
  return error(
      Code::kNotFound, "{}: Found missing adapter keys while loading the checkpoint: [{}]{}{}",
      path, join_words(listed),
      missing.size() > kListedMax ? fmt::format(" and {} more", missing.size() - kListedMax) : "",
      trained_beside(config));
}

// One of the two formats, and the one that is read.
Status check_format(FileSystem& files, const std::string& directory) {
  const bool pickled = files.exists(directory + "/" + kPickledWeightsFile);
  const bool safe = files.exists(directory + "/" + kAdapterFile);
  if (safe && pickled)
    return error(Code::kInvalidArgument,
                 "{} holds the adapter in two formats, {} and {}: remove the one that is not meant",
                 directory, kAdapterFile, kPickledWeightsFile);
  if (pickled)
    return error(
        Code::kUnsupported,
        "{}/{}: pickled weights are not read, since reading runs code that they hold; save "
        "the adapter with PEFT's save_pretrained(..., safe_serialization=True)",
        directory, kPickledWeightsFile);
  if (!safe) return error(Code::kNotFound, "{} holds no {}", directory, kAdapterFile);
  return {};
}

// The adapter's tensor `name`, which it holds under its own name, or under that of a model that has
// this one in it (Gemma 3 with pictures). Null where it holds none of them.
const StoredTensor* find_stored(const SafetensorsFile& file, const ModelConfig& base,
                                std::string_view name) {
  const std::string prefix(kAdapterPrefix);
  if (const StoredTensor* own = file.find(prefix + std::string(name))) return own;
  for (const std::string& other : other_names(base, name))
    if (const StoredTensor* stored = file.find(prefix + other)) return stored;
  return nullptr;
}

bool is_floating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

Status check_finite(const StoredTensor& tensor, const std::string& path) {
  const std::vector<float> values = TROUPE_TRY(tensor.floats());
  if (std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) return {};
  return error(Code::kDataLoss,
               "{}: {} has values that are not finite: what trained it diverged; take an earlier "
               "checkpoint of it",
               path, tensor.name);
}

}  // namespace

std::vector<ExpectedTensor> adapter_tensors(const ModelConfig& model,
                                            const Trainables& trainables) {
  std::vector<ExpectedTensor> expected;
  const std::vector<LinearModule> modules = linear_modules(model);
  auto module = modules.begin();
  for (const LoraModule& lora : trainables.lora) {
    module = std::find_if(module, modules.end(),
                          [&](const LinearModule& m) { return m.name == lora.module; });
    TROUPE_CHECK(module != modules.end(), "{} is no module, or not in the model's order",
                 lora.module);
    expected.push_back({lora_a_name(lora.module), {lora.rank, module->in}});
    expected.push_back({lora_b_name(lora.module), {module->out, lora.rank}});
    if (lora.dora) expected.push_back({lora_magnitude_name(lora.module), {module->out}});
  }
  const ParameterLayout layout(model);
  const ParameterInfo* embedding = layout.find(end_names(model).token_embedding + ".weight");
  for (const std::string& name : trainables.tensors) {
    // The copy of a tied head is no parameter of the layout; its shape is the embedding's.
    const ParameterInfo* parameter = layout.find(name);
    expected.push_back({name, (parameter ? parameter : embedding)->shape});
  }
  return expected;
}

Result<std::int64_t> adapter_vocabulary(FileSystem& files, const std::string& directory,
                                        const std::string& folder, const ModelConfig& base) {
  const std::string path =
      join_path(folder.empty() ? directory : join_path(directory, folder), kAdapterFile);
  if (!files.exists(path)) return base.vocab_size;  // what is wrong is said where it is opened
  const auto file = TROUPE_TRY(SafetensorsFile::open(files, path));
  const auto* stored = find_stored(file, base, end_names(base).token_embedding + ".weight");
  return stored && stored->shape.size() == 2 ? stored->shape[0] : base.vocab_size;
}

Result<OpenedAdapter> open_adapter(FileSystem& files, const std::string& directory,
                                   const std::string& folder, const ModelConfig& base) {
  OpenedAdapter adapter;
  adapter.directory = folder.empty() ? directory : directory + "/" + folder;
  const std::string config_path = adapter.directory + "/" + kAdapterConfigFile;
  if (!files.exists(config_path))
    return error(Code::kNotFound, "Can't find '{}' at '{}'", kAdapterConfigFile, adapter.directory);
  adapter.config = TROUPE_TRY(AdapterConfig::parse(
      TROUPE_TRY(files.read(config_path, limits::kConfigBytesMax)), config_path));
  adapter.notes = adapter.config.notes;
  TROUPE_RETURN_IF_ERROR(check_format(files, adapter.directory));
  auto trainables = lora_trainables(base, adapter.config);
  if (!trainables.ok()) return trainables.status().prefixed(config_path);
  adapter.trainables = std::move(*trainables);

  const std::string path = adapter.directory + "/" + kAdapterFile;
  adapter.file = TROUPE_TRY(SafetensorsFile::open(files, path));
  const auto expected = adapter_tensors(base, adapter.trainables);
  std::vector<std::string> missing;
  std::vector<std::string> used;
  for (const ExpectedTensor& tensor : expected) {
    const std::string name = std::string(kAdapterPrefix) + tensor.name;
    const StoredTensor* stored = find_stored(adapter.file, base, tensor.name);
    if (!stored) {
      missing.push_back(name);
      continue;
    }
    TROUPE_RETURN_IF_ERROR(check_shape(*stored, tensor.shape, adapter.config, path));
    if (!is_floating(stored->dtype))
      return error(Code::kUnsupported, "{}: {} is of type {}: F32, F16 and BF16 are read", path,
                   stored->name, dtype_name(stored->dtype));
    TROUPE_RETURN_IF_ERROR(check_finite(*stored, path));
    used.push_back(stored->name);
    adapter.tensors.push_back(*stored);
    adapter.tensors.back().name = tensor.name;
  }
  if (!missing.empty()) return missing_tensors(missing, adapter.config, path);

  std::sort(used.begin(), used.end());
  const ParameterLayout layout(base);
  for (const StoredTensor& stored : adapter.file.tensors()) {
    if (std::binary_search(used.begin(), used.end(), stored.name)) continue;
    std::string_view name = stored.name;
    if (name.starts_with(kAdapterPrefix)) name.remove_prefix(kAdapterPrefix.size());
    const ParameterInfo* parameter = layout.find(own_name(base, name));
    // A tied head that is stored beside its embedding.
    if (!parameter && ignored_in_weights(base, name)) continue;
    if (!parameter) {
      adapter.notes.push_back(
          fmt::format("{}: {} is no tensor of this adapter and is passed over", path, stored.name));
      continue;
    }
    TROUPE_RETURN_IF_ERROR(check_shape(stored, parameter->shape, adapter.config, path));
    adapter.replaced.push_back(stored);
    adapter.replaced.back().name = parameter->name;
  }
  return adapter;
}

Result<std::vector<FileDigest>> write_adapter(FileSystem& files, const std::string& directory,
                                              const AdapterConfig& config,
                                              std::vector<StoredTensor> tensors) {
  for (StoredTensor& tensor : tensors) tensor.name.insert(0, kAdapterPrefix);
  std::vector<FileDigest> digests;
  digests.push_back(
      TROUPE_TRY(write_synced_file(files, directory + "/" + kAdapterConfigFile, config.to_text())));
  digests.push_back(TROUPE_TRY(
      write_safetensors(files, directory + "/" + kAdapterFile, tensors, {{"format", "pt"}})));
  return digests;
}

}  // namespace troupe::train
