#include "train/checkpoint/checkpoint_directory.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/sort_by.h"
#include "train/checkpoint/checkpoint_finder.h"
#include "train/checkpoint/checkpoint_names.h"
#include "train/checkpoint/weights.h"

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
// successor stands, and so is the directory `kept`: other ranks may write there already.
Status clear_leftovers(FileSystem& files, const std::string& output_dir, const std::string& kept) {
  for (const auto& entry : TROUPE_TRY(files.list(output_dir))) {
    const bool superseded =
        entry.is_directory && entry.name.starts_with(kReplacedPrefix) &&
        files.exists(join_path(
            output_dir, checkpoint_name(std::atoll(entry.name.c_str() + kReplacedPrefix.size()))));
    const std::string path = join_path(output_dir, entry.name);
    if ((is_leftover(entry) || superseded) && path != kept) {
      TROUPE_RETURN_IF_ERROR(files.remove_tree(path));
    }
  }
  return {};
}

}  // namespace

CheckpointTransaction::CheckpointTransaction(FileSystem& files, std::string output_dir,
                                             std::int64_t step, std::string path)
    : files_(&files), output_dir_(std::move(output_dir)), step_(step), path_(std::move(path)) {}

std::string CheckpointTransaction::path_of(const std::string& output_dir, std::int64_t step,
                                           std::string_view suffix) {
  return join_path(output_dir, fmt::format("{}{}{}", kWritingPrefix, step, suffix));
}

CheckpointTransaction::CheckpointTransaction(CheckpointTransaction&& other) noexcept
    : files_(std::exchange(other.files_, nullptr)),
      output_dir_(std::move(other.output_dir_)),
      step_(other.step_),
      path_(std::move(other.path_)),
      written_(std::move(other.written_)) {}

CheckpointTransaction::~CheckpointTransaction() {
  // Best effort: what stays is ignored by readers and cleared by the next writer.
  if (files_) static_cast<void>(files_->remove_tree(path_));
}

Result<CheckpointTransaction> CheckpointTransaction::begin(FileSystem& files,
                                                           const std::string& output_dir,
                                                           std::int64_t step,
                                                           std::string_view suffix) {
  TROUPE_CHECK(step >= 0);
  CheckpointTransaction transaction(files, output_dir, step, path_of(output_dir, step, suffix));
  TROUPE_RETURN_IF_ERROR(files.create_directories(output_dir));
  TROUPE_RETURN_IF_ERROR(clear_leftovers(files, output_dir, transaction.path_));
  TROUPE_RETURN_IF_ERROR(files.create_directories(transaction.path_));
  return transaction;
}

Status CheckpointTransaction::write(const std::string& name, std::string_view content) {
  add(TROUPE_TRY(write_synced_file(*files_, join_path(path_, name), content)));
  return {};
}

Result<std::string> CheckpointTransaction::commit(Manifest manifest) {
  manifest.step = step_;
  manifest.files = written_;
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
  TROUPE_RETURN_IF_ERROR(forget_earlier_run(files, output_dir_));
  return final_path;
}

Result<std::vector<std::string>> rotate_checkpoints(FileSystem& files,
                                                    const std::string& output_dir,
                                                    std::optional<int> save_total_limit,
                                                    std::int64_t written_step,
                                                    const std::set<std::int64_t>& protected_steps) {
  std::vector<std::string> removed;
  if (!save_total_limit || *save_total_limit <= 0) return removed;
  auto names = TROUPE_TRY(find_checkpoints(files, output_dir));
  // Steps above the one just written are of a future that was given up: they go first.
  stable_sort_by(names, [&](const auto& a, const auto& b) {
    return (a.step > written_step) > (b.step > written_step);
  });
  auto excess = static_cast<std::int64_t>(names.size()) - *save_total_limit;
  for (const auto& name : names) {
    if (excess <= 0) break;
    if (name.step == written_step || protected_steps.contains(name.step)) continue;
    TROUPE_RETURN_IF_ERROR(remove_checkpoint(files, output_dir, name.name));
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

Status forget_earlier_run(FileSystem& files, const std::string& output_dir) {
  return files.remove_tree(join_path(output_dir, kEarlierRunFolder));
}

Status set_checkpoints_aside(FileSystem& files, const std::string& output_dir) {
  const std::string aside = join_path(output_dir, kEarlierRunFolder);
  for (const auto& name : TROUPE_TRY(find_checkpoints(files, output_dir))) {
    // A folder of that name without anything of a checkpoint is somebody else's.
    const std::string folder = join_path(output_dir, name.name);
    const auto has = [&](const char* file) { return files.exists(join_path(folder, file)); };
    const bool is_empty = TROUPE_TRY(files.list(folder)).empty();
    if (!is_empty && !has(kManifestFile) && !has(kTrainerStateFile) &&
        !holds_weights(files, folder) && !has("pytorch_model.bin"))
      continue;
    // Others may lie there, of a start that was interrupted here.
    TROUPE_RETURN_IF_ERROR(files.create_directories(aside));
    TROUPE_RETURN_IF_ERROR(files.remove_tree(join_path(aside, name.name)));
    TROUPE_RETURN_IF_ERROR(files.rename(folder, join_path(aside, name.name)));
    TROUPE_RETURN_IF_ERROR(files.sync_directory(output_dir));
  }
  return files.exists(output_dir) ? clear_leftovers(files, output_dir, {}) : Status();
}

Status clear_unfinished_saves(FileSystem& files, const std::string& output_dir) {
  if (!files.exists(output_dir)) return {};
  for (const auto& entry : TROUPE_TRY(files.list(output_dir))) {
    if (!entry.is_directory && is_unfinished_file(entry.name)) {
      TROUPE_RETURN_IF_ERROR(files.remove(join_path(output_dir, entry.name)));
    }
  }
  return clear_leftovers(files, output_dir, {});
}

}  // namespace troupe::train
