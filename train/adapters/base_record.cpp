#include "train/adapters/base_record.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "runtime/base/hash.h"
#include "runtime/base/json.h"
#include "runtime/base/limits.h"
#include "runtime/base/suggest.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kSampleElements = 1024;

Result<std::optional<BaseRecord>> read_record(FileSystem& files, const std::string& folder) {
  const std::string path = join_path(folder, kBaseRecordFile);
  if (!files.exists(path)) return std::optional<BaseRecord>();
  return std::optional(
      TROUPE_TRY(BaseRecord::parse(TROUPE_TRY(files.read(path, limits::kConfigBytesMax)), path)));
}

// Of adapters with the same tensors. Records of earlier versions do not tell configurations.
std::optional<std::string> config_difference(const BaseRecord& theirs, const BaseRecord& ours) {
  const std::size_t known = std::min(theirs.merged_configs.size(), ours.merged_configs.size());
  for (std::size_t i = 0; i < known; ++i) {
    const auto &was = theirs.merged_configs[i], &is = ours.merged_configs[i];
    if (!was || !is) continue;
    if (const auto difference = first_difference(*was, *is))
      return fmt::format("of merged adapter {}, {}", i + 1, *difference);
  }
  return std::nullopt;
}

Status another_base(const std::string& folder, const std::string& base, const std::string& theirs,
                    const std::string& ours) {
  return error(Code::kInvalidArgument,
               "{} was trained beside another base than {}: their weights' hashes are {} and {}. "
               "Give the base that it was trained beside",
               folder, base, theirs, ours);
}

}  // namespace

Result<std::string> weights_hash(const TensorReader& weights) {
  std::string text;
  std::vector<std::byte> sample;
  for (const TensorInfo& tensor : weights.weights()) {
    text += fmt::format("{} {} [{}]\n", tensor.name, dtype_name(tensor.dtype),
                        join_numbers(tensor.shape));
    const std::int64_t count = std::min(kSampleElements, tensor.elements);
    if (count == 0) continue;
    sample.resize(static_cast<std::size_t>(count) * dtype_size(tensor.dtype));
    const std::int64_t last = tensor.elements - count;
    for (const std::int64_t begin : {std::int64_t{0}, last / 2, last}) {
      TROUPE_RETURN_IF_ERROR(weights.read_bytes(tensor.name, begin, sample));
      text.append(reinterpret_cast<const char*>(sample.data()), sample.size());
      if (last == 0) break;
    }
    // The text stays small however many tensors there are.
    text = fmt::format("{:016x}\n", xxh3_64(std::as_bytes(std::span(text))));
  }
  return fmt::format("{:016x}", xxh3_64(std::as_bytes(std::span(text))));
}

Result<std::string> folder_hash(FileSystem& files, const std::string& folder) {
  return weights_hash(TROUPE_TRY(TensorReader::open_model(files, folder)));
}

Result<BaseRecord> BaseRecord::make(FileSystem& files, const std::string& model,
                                    const std::vector<std::string>& merged) {
  BaseRecord record;
  record.hash = TROUPE_TRY(folder_hash(files, model));
  for (const std::string& adapter : merged) {
    record.merged.push_back(TROUPE_TRY(folder_hash(files, adapter)));
    const std::string path = join_path(adapter, kAdapterConfigFile);
    record.merged_configs.push_back(
        files.exists(path) ? std::optional(TROUPE_TRY(AdapterConfig::parse(
                                 TROUPE_TRY(files.read(path, limits::kConfigBytesMax)), path)))
                           : std::nullopt);
  }
  return record;
}

std::string BaseRecord::to_text() const {
  json::Object object{{"base_weights_xxh3", hash},
                      {"merged_adapters_xxh3", json::Array(merged.begin(), merged.end())}};
  if (!merged_configs.empty()) {
    json::Array configs;
    for (const auto& config : merged_configs)
      configs.push_back(config ? config->to_json() : json::Value());
    object["merged_adapters_config"] = std::move(configs);
  }
  return json::write_indented(object, false) + "\n";
}

Result<BaseRecord> BaseRecord::parse(std::string_view text, std::string_view name) {
  const json::Value value =
      TROUPE_TRY(json::parse(text, name, {.bytes_max = limits::kConfigBytesMax}));
  const auto hash = json::find_string(value, "base_weights_xxh3");
  if (!hash) return error(Code::kInvalidArgument, "{}: expected the text base_weights_xxh3", name);
  BaseRecord record{.hash = std::string(*hash), .merged = {}};
  if (const json::Value* merged = json::find(value, "merged_adapters_xxh3");
      merged && merged->is_array())
    for (const json::Value& adapter : merged->get_array())
      if (adapter.is_string()) record.merged.emplace_back(adapter.get_string());
  if (const json::Value* configs = json::find(value, "merged_adapters_config");
      configs && configs->is_array())
    for (const json::Value& config : configs->get_array())
      record.merged_configs.push_back(
          config.is_null()
              ? std::nullopt
              : std::optional(TROUPE_TRY(AdapterConfig::parse(json::write(config), name))));
  return record;
}

Status check_adapter_base(FileSystem& files, const std::string& folder, const std::string& base,
                          const BaseRecord& under) {
  const auto record = TROUPE_TRY(read_record(files, folder));
  if (!record) return {};
  const bool same = record->hash == under.hash;
  if (same && !record->merged.empty() && record->merged != under.merged)
    return error(Code::kInvalidArgument,
                 "{} was trained over {} with {} merged into it, which {} not: name {} before it, "
                 "or give the model that they were exported into",
                 folder, base,
                 record->merged.size() == 1 ? "another adapter"
                                            : fmt::format("{} adapters", record->merged.size()),
                 under.merged.empty() ? "is" : "those before it are",
                 record->merged.size() == 1 ? "it" : "them in their order");
  if (const auto difference = same ? config_difference(*record, under) : std::nullopt;
      difference && record->merged == under.merged)
    return error(Code::kInvalidArgument,
                 "{} was trained over {} with the same adapters merged into it in another way: {}",
                 folder, base, *difference);
  if (same || !record->merged.empty()) return {};
  const Status other = another_base(folder, base, record->hash, under.hash);
  return error(other.code(), "{}, or remove {} if this one is meant", other.message(),
               join_path(folder, kBaseRecordFile));
}

Status check_checkpoint_base(FileSystem& files, const std::string& checkpoint,
                             const std::string& base, const BaseRecord& run) {
  const auto record = TROUPE_TRY(read_record(files, checkpoint));
  if (!record) return {};
  if (record->hash != run.hash) return another_base(checkpoint, base, record->hash, run.hash);
  if (record->merged == run.merged) {
    const auto difference = config_difference(*record, run);
    if (!difference) return {};
    return error(Code::kInvalidArgument,
                 "{} was trained with the same adapters merged into {} in another way: {}; restore "
                 "their {}, or train in another output_dir",
                 checkpoint, base, *difference, kAdapterConfigFile);
  }
  return error(Code::kInvalidArgument,
               "{} was trained beside {} with other adapters merged into it: {} of them, this run "
               "merges {}; give the same adapter_name_or_path in the same order",
               checkpoint, base, record->merged.size(), run.merged.size());
}

}  // namespace troupe::train
