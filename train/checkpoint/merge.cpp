#include "train/checkpoint/merge.h"

#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/base/file_lock.h"
#include "runtime/base/sort_by.h"
#include "train/checkpoint/tensor_reader.h"
#include "train/checkpoint/weight_files.h"
#include "train/checkpoint/weight_shards.h"

namespace troupe::train {
namespace {

constexpr std::size_t kCopyBytes = 4u << 20;

std::string unfinished(const std::string& directory, const std::string& name) {
  return join_path(directory, name) + std::string(kUnfinishedSuffix);
}

// Copies a tensor's bytes from the reader to the writer.
Status copy_tensor(const TensorReader& reader, const StoredTensor& tensor,
                   std::vector<std::byte>& buffer, SafetensorsWriter& writer) {
  const auto width = dtype_size(tensor.dtype);
  const auto step = static_cast<std::int64_t>(kCopyBytes / width);
  const auto elements = tensor.element_count();
  for (std::int64_t begin = 0; begin < elements; begin += step) {
    const auto count = static_cast<std::size_t>(std::min(step, elements - begin));
    buffer.resize(count * width);
    TROUPE_RETURN_IF_ERROR(reader.read_bytes(tensor.name, begin, buffer));
    TROUPE_RETURN_IF_ERROR(writer.append(buffer));
  }
  return {};
}

Result<std::vector<FileDigest>> write_shards(FileSystem& files, const WrittenModel& model,
                                             const std::vector<WeightShard>& shards,
                                             const std::string& out) {
  std::vector<FileDigest> digests;
  for (const auto& shard : shards) {
    if (model.on_file) {
      std::uint64_t size_bytes = 0;
      for (const auto& tensor : shard.tensors)
        size_bytes += TROUPE_TRY(tensor_bytes(tensor.dtype, tensor.shape));
      model.on_file(shard.name, size_bytes);
    }
    auto writer = TROUPE_TRY(SafetensorsWriter::create(files, unfinished(out, shard.name),
                                                       shard.tensors, {{"format", "pt"}}));
    for (const auto& tensor : writer.order()) {
      TROUPE_RETURN_IF_ERROR(model.append(tensor, writer));
    }
    digests.push_back(TROUPE_TRY(writer.finish()));
    digests.back().name = shard.name;
  }
  if (has_index(shards)) {
    digests.push_back(TROUPE_TRY(
        write_synced_file(files, unfinished(out, kWeightsIndexFile), weight_index_text(shards))));
    digests.back().name = kWeightsIndexFile;
  }
  return digests;
}

}  // namespace

Status check_new_model(FileSystem& files, const std::string& out) {
  if (const std::string lock = join_path(out, kOutputLockFile); files.exists(lock)) {
    const auto taken = FileLock::take(lock, "a model is written here");
    if (taken.status().code() == Code::kAlreadyExists)
      return error(Code::kAlreadyExists,
                   "{} is the output directory of a training that goes on ({}); name another "
                   "directory",
                   out, taken.status().message());
  }
  if (files.exists(join_path(out, kManifestFile)) || files.exists(join_path(out, kAdapterFile)) ||
      find_weight_files(files, out).ok()) {
    return error(Code::kAlreadyExists,
                 "{} holds a model or a checkpoint already; name another "
                 "directory",
                 out);
  }
  const auto checkpoints = find_checkpoints(files, out);
  if (checkpoints.ok() && !checkpoints->empty())
    return error(Code::kAlreadyExists,
                 "{} is the output directory of a training that was stopped or killed before its "
                 "end ({} is its newest checkpoint): the command that began it goes on with it. "
                 "Name another directory, or remove this one if that training is not wanted any "
                 "more",
                 out, checkpoints->back().name);
  return {};
}

Result<MergedModel> write_model(FileSystem& files, const std::string& out,
                                const WrittenModel& model) {
  TROUPE_RETURN_IF_ERROR(check_new_model(files, out));
  MergedModel merged;
  merged.tensor_count = model.tensors.size();
  const auto shards = split_weights(model.tensors, model.shard_bytes_max);

  TROUPE_RETURN_IF_ERROR(files.create_directories(out));
  for (const auto& [name, content] : model.companions) {
    TROUPE_RETURN_IF_ERROR(write_file_atomically(files, join_path(out, name), content));
    merged.files.push_back({name, content.size(), xxh3_64(bytes_of(content))});
  }
  const auto write = [&]() -> Status {
    const auto digests = TROUPE_TRY(write_shards(files, model, shards, out));
    std::vector<std::string> names;
    for (const auto& digest : digests) names.push_back(digest.name);
    merged.files.insert(merged.files.end(), digests.begin(), digests.end());
    return put_weights_in_place(files, out, names,
                                [&](const std::string& name) { return unfinished(out, name); });
  };
  if (Status status = write(); !status) {
    // The first failure is the one to report; each of these may or may not exist.
    for (const auto& shard : shards) {
      static_cast<void>(files.remove(unfinished(out, shard.name)));
    }
    static_cast<void>(files.remove(unfinished(out, kWeightsIndexFile)));
    return status;
  }
  stable_sort_by(merged.files, [](const auto& a, const auto& b) { return a.name < b.name; });
  for (const auto& file : merged.files) merged.size_bytes += file.size_bytes;
  return merged;
}

Result<MergedModel> merge_checkpoint(FileSystem& files, const GoodCheckpoint& checkpoint,
                                     const std::string& out, std::uint64_t shard_bytes_max) {
  WrittenModel model{.companions = TROUPE_TRY(read_companions(files, checkpoint.path)),
                     .tensors = {},
                     .shard_bytes_max = shard_bytes_max,
                     .append = {}};
  if (!model.companions.contains("config.json") &&
      !model.companions.contains("adapter_config.json")) {
    return error(Code::kNotFound,
                 "{} has no config.json, without which nobody can load the model; copy the one of "
                 "the model that was trained there",
                 checkpoint.path);
  }
  TROUPE_RETURN_IF_ERROR(check_new_model(files, out));
  const auto reader = TROUPE_TRY(TensorReader::open(files, checkpoint));
  for (const auto& tensor : reader.weights()) {
    model.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, {}});
  }
  std::vector<std::byte> buffer;
  model.append = [&](const StoredTensor& tensor, SafetensorsWriter& writer) {
    return copy_tensor(reader, tensor, buffer, writer);
  };
  return write_model(files, out, model);
}

}  // namespace troupe::train
