#include "train/checkpoint/checkpoint_writer.h"

#include <utility>

namespace troupe::train {

CheckpointWriter::CheckpointWriter(FileSystem& files, std::string output_dir,
                                   CheckpointOptions options, Logger log)
    : files_(files), output_dir_(std::move(output_dir)), options_(options), log_(std::move(log)) {}

Status CheckpointWriter::write_state(CheckpointTransaction& transaction,
                                     const CheckpointContents& contents) {
  auto digests = TROUPE_TRY(
      save_weights(files_, transaction.path(), contents.weights, options_.shard_bytes_max));
  for (auto& digest : digests) transaction.add(std::move(digest));
  for (const auto& [name, content] : contents.files) {
    TROUPE_RETURN_IF_ERROR(transaction.write(name, content));
  }
  if (options_.weights_only) return {};
  std::vector<StoredTensor> optimizer = contents.optimizer;
  optimizer.push_back({"step", DType::kI64, {}, std::as_bytes(std::span(&contents.step, 1))});
  transaction.add(TROUPE_TRY(write_safetensors(
      files_, join_path(transaction.path(), kOptimizerFile), optimizer, {{"format", "pt"}})));
  const std::pair<const char*, const json::Value*> states[] = {
      {kSchedulerFile, &contents.scheduler},
      {kRngStateFile, &contents.rng_state},
      {kCursorFile, &contents.cursor}};
  for (const auto& [name, value] : states) {
    TROUPE_RETURN_IF_ERROR(transaction.write(name, json::write_indented(*value, true) + "\n"));
  }
  return {};
}

Result<WrittenCheckpoint> CheckpointWriter::write(const CheckpointContents& contents,
                                                  const std::set<std::int64_t>& protected_steps) {
  const auto save = [&]() -> Result<WrittenCheckpoint> {
    auto transaction = TROUPE_TRY(CheckpointTransaction::begin(files_, output_dir_, contents.step));
    TROUPE_RETURN_IF_ERROR(write_state(transaction, contents));
    Manifest manifest;
    manifest.world_size = contents.world_size;
    manifest.run = contents.run;
    manifest.has_optimizer = !options_.weights_only;
    WrittenCheckpoint written;
    written.step = contents.step;
    written.path = TROUPE_TRY(transaction.commit(std::move(manifest)));
    return written;
  };
  auto written = save();
  if (!written) {
    return written.status()
        .prefixed(fmt::format("saving checkpoint-{} failed", contents.step))
        .with("step", contents.step);
  }
  if (auto entries = files_.list(written->path); entries.ok()) {
    for (const auto& entry : *entries) written->size_bytes += entry.size_bytes;
  }
  auto removed = rotate_checkpoints(files_, output_dir_, options_.save_total_limit, contents.step,
                                    protected_steps);
  if (removed) {
    written->removed = std::move(*removed);
  } else {
    log_.warning("an old checkpoint could not be removed: {}", removed.status().to_string());
  }
  return written;
}

}  // namespace troupe::train
