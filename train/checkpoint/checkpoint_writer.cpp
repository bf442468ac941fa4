#include "train/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/checkpoint_names.h"

namespace troupe::train {
namespace {

bool is_leftover(const DirectoryEntry& entry) {
  return entry.is_directory &&
         (entry.name.starts_with(kWritingPrefix) || entry.name.starts_with(kRemovingPrefix));
}

// The temporary name of a file that a run writes into its output directory.
bool is_unfinished_file(std::string_view name) {
  constexpr std::string_view kEndings[] = {".safetensors.tmp", ".json.tmp", ".jsonl.tmp",
                                           ".png.tmp"};
  return std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

// Removes what dead writers left. A checkpoint that was put aside to be replaced is kept until its
// successor stands.
Status clear_leftovers(FileSystem& files, const std::string& output_dir) {
  for (const auto& entry : TROUPE_TRY(files.list(output_dir))) {
    const bool superseded =
        entry.is_directory && entry.name.starts_with(kReplacedPrefix) &&
        files.exists(join_path(
            output_dir, checkpoint_name(std::atoll(entry.name.c_str() + kReplacedPrefix.size()))));
    if (is_leftover(entry) || superseded) {
      TROUPE_RETURN_IF_ERROR(files.remove_tree(join_path(output_dir, entry.name)));
    }
  }
  return {};
}

}  // namespace

CheckpointTransaction::CheckpointTransaction(FileSystem& files, std::string output_dir,
                                             std::int64_t step)
    : files_(&files),
      output_dir_(std::move(output_dir)),
      step_(step),
      path_(join_path(output_dir_, fmt::format("{}{}", kWritingPrefix, step))) {}

CheckpointTransaction::CheckpointTransaction(CheckpointTransaction&& other) noexcept
    : files_(std::exchange(other.files_, nullptr)),
      output_dir_(std::move(other.output_dir_)),
      step_(other.step_),
      path_(std::move(other.path_)),
      digests_(std::move(other.digests_)) {}

CheckpointTransaction::~CheckpointTransaction() {
  // Best effort: what stays is ignored by readers and cleared by the next writer.
  if (files_) static_cast<void>(files_->remove_tree(path_));
}

Result<CheckpointTransaction> CheckpointTransaction::begin(FileSystem& files,
                                                           const std::string& output_dir,
                                                           std::int64_t step) {
  TROUPE_CHECK(step >= 0);
  TROUPE_RETURN_IF_ERROR(files.create_directories(output_dir));
  TROUPE_RETURN_IF_ERROR(clear_leftovers(files, output_dir));
  CheckpointTransaction transaction(files, output_dir, step);
  TROUPE_RETURN_IF_ERROR(files.create_directories(transaction.path_));
  return transaction;
}

Status CheckpointTransaction::write(const std::string& name, std::string_view content) {
  add(TROUPE_TRY(write_synced_file(*files_, join_path(path_, name), content)));
  return {};
}

Result<std::string> CheckpointTransaction::commit(Manifest manifest) {
  manifest.step = step_;
  manifest.files = digests_;
  // The files' names are durable before the marker says that they are there.
  TROUPE_RETURN_IF_ERROR(files_->sync_directory(path_));
  TROUPE_RETURN_IF_ERROR(
      write_synced_file(*files_, join_path(path_, kManifestFile), manifest_text(manifest)));
  TROUPE_RETURN_IF_ERROR(files_->sync_directory(path_));

  const std::string final_path = join_path(output_dir_, checkpoint_name(step_));
  const std::string aside = join_path(output_dir_, fmt::format("{}{}", kReplacedPrefix, step_));
  const bool replaces = files_->exists(final_path);
  if (replaces) {
    TROUPE_RETURN_IF_ERROR(files_->remove_tree(aside));
    TROUPE_RETURN_IF_ERROR(files_->rename(final_path, aside));
  }
  if (Status status = files_->rename(path_, final_path); !status) {
    if (replaces) static_cast<void>(files_->rename(aside, final_path));
    return status;
  }
  FileSystem& files = *std::exchange(files_, nullptr);  // nothing temporary is left
  TROUPE_RETURN_IF_ERROR(files.sync_directory(output_dir_));
  // Whatever is put aside for this step, here or by a writer that died, has its successor now.
  TROUPE_RETURN_IF_ERROR(files.remove_tree(aside));
  return final_path;
}

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
  auto removed = rotate(contents.step, protected_steps);
  if (removed) {
    written->removed = std::move(*removed);
  } else {
    log_.warning("an old checkpoint could not be removed: {}", removed.status().to_string());
  }
  return written;
}

Result<std::vector<std::string>> CheckpointWriter::rotate(
    std::int64_t written_step, const std::set<std::int64_t>& protected_steps) {
  std::vector<std::string> removed;
  if (!options_.save_total_limit || *options_.save_total_limit <= 0) return removed;
  auto names = TROUPE_TRY(find_checkpoints(files_, output_dir_));
  // Steps above the one just written are of a future that was given up: they go first.
  std::stable_sort(names.begin(), names.end(), [&](const auto& a, const auto& b) {
    return (a.step > written_step) > (b.step > written_step);
  });
  auto excess = static_cast<std::int64_t>(names.size()) - *options_.save_total_limit;
  for (const auto& name : names) {
    if (excess <= 0) break;
    if (name.step == written_step || protected_steps.contains(name.step)) continue;
    TROUPE_RETURN_IF_ERROR(remove_checkpoint(files_, output_dir_, name.name));
    removed.push_back(name.name);
    --excess;
  }
  return removed;
}

Status remove_checkpoint(FileSystem& files, const std::string& output_dir,
                         const std::string& name) {
  const std::string aside = join_path(output_dir, std::string(kRemovingPrefix) + name);
  TROUPE_RETURN_IF_ERROR(files.remove_tree(aside));
  TROUPE_RETURN_IF_ERROR(files.rename(join_path(output_dir, name), aside));
  TROUPE_RETURN_IF_ERROR(files.sync_directory(output_dir));
  return files.remove_tree(aside);
}

Status remove_all_checkpoints(FileSystem& files, const std::string& output_dir) {
  for (const auto& name : TROUPE_TRY(find_checkpoints(files, output_dir))) {
    TROUPE_RETURN_IF_ERROR(remove_checkpoint(files, output_dir, name.name));
  }
  return files.exists(output_dir) ? clear_leftovers(files, output_dir) : Status();
}

Status clear_unfinished_saves(FileSystem& files, const std::string& output_dir) {
  if (!files.exists(output_dir)) return {};
  for (const auto& entry : TROUPE_TRY(files.list(output_dir))) {
    if (!entry.is_directory && is_unfinished_file(entry.name)) {
      TROUPE_RETURN_IF_ERROR(files.remove(join_path(output_dir, entry.name)));
    }
  }
  return clear_leftovers(files, output_dir);
}

}  // namespace troupe::train
