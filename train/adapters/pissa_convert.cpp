#include "train/adapters/pissa_convert.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "runtime/base/limits.h"
#include "train/adapters/adapter_config.h"
#include "train/adapters/adapter_files.h"
#include "train/adapters/base_record.h"
#include "train/checkpoint/safetensors.h"
#include "train/checkpoint/weights.h"
#include "train/model/adapter_tensors.h"

namespace troupe::train {
namespace {

Result<SafetensorsFile> open_tensors(FileSystem& files, const std::string& folder) {
  return SafetensorsFile::open(files, join_path(folder, kAdapterFile));
}

// [A; A₀], or by columns [B, −B₀].
std::vector<float> joined(std::vector<float> now, const std::vector<float>& first, bool is_a,
                          std::int64_t rank) {
  if (is_a) {
    now.insert(now.end(), first.begin(), first.end());
    return now;
  }
  const auto columns = static_cast<std::size_t>(rank);
  std::vector<float> out;
  out.reserve(now.size() + first.size());
  for (std::size_t row = 0; row < now.size(); row += columns) {
    for (std::size_t k = 0; k < columns; ++k) out.push_back(now[row + k]);
    for (std::size_t k = 0; k < columns; ++k) out.push_back(-first[row + k]);
  }
  return out;
}

void double_values(json::Object& pattern, double factor) {
  for (auto member : pattern) {
    const double value = member.value().to_number<double>() * factor;
    if (value == std::floor(value))
      member.value() = static_cast<std::int64_t>(value);
    else
      member.value() = value;
  }
}

}  // namespace

Status convert_pissa(FileSystem& files, const std::string& folder, const std::string& start) {
  const std::string config_path = join_path(folder, kAdapterConfigFile);
  AdapterConfig config = TROUPE_TRY(AdapterConfig::parse(
      TROUPE_TRY(files.read(config_path, limits::kConfigBytesMax)), config_path));
  const SafetensorsFile now = TROUPE_TRY(open_tensors(files, folder));
  const SafetensorsFile first = TROUPE_TRY(open_tensors(files, start));

  std::vector<StoredTensor> backup, converted;
  std::vector<std::vector<float>> values;
  for (const StoredTensor& tensor : now.tensors()) {
    StoredTensor named = tensor;
    if (named.name.starts_with(kAdapterPrefix)) named.name.erase(0, kAdapterPrefix.size());
    backup.push_back(named);
    values.emplace_back();
    if (is_adapter_tensor(named.name)) {
      const StoredTensor* began = first.find(tensor.name);
      if (!began || began->shape != tensor.shape || tensor.shape.size() != 2)
        return error(Code::kDataLoss, "{} does not hold what {} of {} began as", start, tensor.name,
                     folder);
      const bool is_a = named.name.ends_with(lora_a_name(""));
      values.back() =
          joined(TROUPE_TRY(tensor.floats()), TROUPE_TRY(began->floats()), is_a, tensor.shape[1]);
      named.dtype = DType::kF32;
      named.shape[is_a ? 0 : 1] *= 2;
    }
    converted.push_back(std::move(named));
  }
  for (std::size_t i = 0; i < converted.size(); ++i)
    if (!values[i].empty()) converted[i].data = std::as_bytes(std::span(values[i]));

  config.init_lora_weights = true;
  const std::string backup_folder = join_path(folder, kPissaBackupFolder);
  TROUPE_RETURN_IF_ERROR(files.create_directories(backup_folder));
  TROUPE_RETURN_IF_ERROR(write_adapter(files, backup_folder, config, std::move(backup)));
  const double factor = config.use_rslora ? std::sqrt(2.0) : 2.0;
  config.rank *= 2;
  config.lora_alpha *= factor;
  double_values(config.rank_pattern, 2.0);
  double_values(config.alpha_pattern, factor);
  const std::string converted_folder = join_path(folder, kPissaConvertedFolder);
  TROUPE_RETURN_IF_ERROR(files.create_directories(converted_folder));
  TROUPE_RETURN_IF_ERROR(write_adapter(files, converted_folder, config, std::move(converted)));
  const std::string record = join_path(folder, kBaseRecordFile);
  if (!files.exists(record)) return {};
  const std::string text = TROUPE_TRY(files.read(record, limits::kConfigBytesMax));
  // pissa_backup belongs to the rest of the decomposition, which has another hash.
  TROUPE_RETURN_IF_ERROR(
      write_synced_file(files, join_path(converted_folder, kBaseRecordFile), text));
  return {};
}

}  // namespace troupe::train
