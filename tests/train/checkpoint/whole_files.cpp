#include "tests/train/checkpoint/whole_files.h"

#include <algorithm>

#include "runtime/base/json.h"
#include "train/checkpoint/weight_shards.h"

namespace troupe::train::tests {

Result<std::vector<FileDigest>> save_weights(FileSystem& files, const std::string& directory,
                                             std::vector<StoredTensor> tensors,
                                             std::uint64_t shard_bytes_max) {
  const auto unfinished = [&](const std::string& name) {
    return join_path(directory, name) + std::string(kUnfinishedSuffix);
  };
  const auto shards = split_weights(std::move(tensors), shard_bytes_max);
  std::vector<FileDigest> digests;
  std::vector<std::string> names;
  const auto add = [&](FileDigest digest, const std::string& name) {
    digest.name = name;
    digests.push_back(digest);
    names.push_back(name);
  };
  for (const auto& shard : shards) {
    add(TROUPE_TRY(
            write_safetensors(files, unfinished(shard.name), shard.tensors, {{"format", "pt"}})),
        shard.name);
  }
  if (shards.size() > 1) {
    add(TROUPE_TRY(
            write_synced_file(files, unfinished(kWeightsIndexFile), weight_index_text(shards))),
        kWeightsIndexFile);
  }
  TROUPE_RETURN_IF_ERROR(put_weights_in_place(files, directory, names, unfinished));
  std::sort(digests.begin(), digests.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  return digests;
}

Result<WrittenCheckpoint> save_whole(FileSystem& files, const WholeState& state,
                                     const std::string& output_dir,
                                     std::optional<int> save_total_limit,
                                     const std::set<std::int64_t>& protected_steps) {
  auto transaction = TROUPE_TRY(CheckpointTransaction::begin(files, output_dir, state.step));
  for (auto& digest : TROUPE_TRY(save_weights(files, transaction.path(), state.weights))) {
    transaction.add(std::move(digest));
  }
  TROUPE_RETURN_IF_ERROR(transaction.write("config.json", "{}"));
  TROUPE_RETURN_IF_ERROR(transaction.write(kTrainerStateFile, "{\"global_step\": 1}\n"));
  Manifest manifest;
  manifest.version = 1;
  manifest.world_size = 2;
  manifest.run = "run";
  manifest.has_optimizer = !state.optimizer.empty();
  if (manifest.has_optimizer) {
    auto optimizer = state.optimizer;
    optimizer.push_back({"step", DType::kI64, {}, std::as_bytes(std::span(&state.step, 1))});
    transaction.add(TROUPE_TRY(write_safetensors(
        files, join_path(transaction.path(), kOptimizerFile), optimizer, {{"format", "pt"}})));
    const json::Object states[] = {
        {{"last_step", state.step}}, {{"seed", 42}}, {{"sample", state.step}}};
    const char* const names[] = {kSchedulerFile, kRngStateFile, kCursorFile};
    for (int i = 0; i < 3; ++i) {
      TROUPE_RETURN_IF_ERROR(
          transaction.write(names[i], json::write_indented(states[i], true) + "\n"));
    }
  }
  WrittenCheckpoint written;
  written.step = state.step;
  written.path = TROUPE_TRY(transaction.commit(std::move(manifest)));
  // As the saver does, a failure to remove is not one of the save.
  written.removed =
      rotate_checkpoints(files, output_dir, save_total_limit, state.step, protected_steps)
          .value_or({});
  return written;
}

}  // namespace troupe::train::tests
