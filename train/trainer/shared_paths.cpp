#include "train/trainer/shared_paths.h"

#include <fmt/format.h>

#include "train/checkpoint/checkpoint_finder.h"
#include "train/hub/repository.h"

namespace troupe::train {
namespace {

constexpr std::uint64_t kLockBytesMax = 4096;

Status lacks(const std::string& node, const std::string& path, const char* key,
             const std::string& what_else) {
  return error(Code::kNotFound,
               "node {} lacks {} ({}) of the machine where the command was given: nodes of a run "
               "share its folders; mount it there{}, or train on nodes that have it",
               node, path, key, what_else);
}

// The run has removed it (save_total_limit), and goes on from what it has written since.
bool is_replaced(FileSystem& files, const OutputPaths& paths) {
  if (!paths.resume_path.starts_with(paths.output_dir + "/")) return false;
  const auto checkpoints = find_checkpoints(files, paths.output_dir);
  return checkpoints.ok() && !checkpoints->empty();
}

}  // namespace

Status check_shared_paths(FileSystem& files, const TrainConfig& config, bool goes_on,
                          const std::string& node) {
  const std::string& model = config.model.model_name_or_path;
  if (!goes_on && !config.model.train_from_scratch &&
      !files.exists(join_path(model, "config.json"))) {
    const auto named = hub::repository_of_snapshot(model);
    return lacks(
        node, model, "model_name_or_path",
        named ? fmt::format(", or run {} there", named->download_command()) : ", or copy it");
  }
  if (const auto& tokens = config.data.tokenized_path; tokens && !files.exists(*tokens))
    return lacks(node, *tokens, "tokenized_path", ", or copy it");
  return {};
}

bool sees_output_dir(FileSystem& files, const OutputPaths& paths) {
  if (paths.locked_by.empty()) return true;
  // A folder of that name may be there: what the driver wrote into it is not.
  const auto holder = files.read(join_path(paths.output_dir, kOutputLockFile), kLockBytesMax);
  return holder.ok() && holder->starts_with(paths.locked_by);
}

Status check_output_paths(FileSystem& files, const OutputPaths& paths, const std::string& node) {
  const std::string at = node + ", where rank 0 is,";
  if (!paths.resume_path.empty() && !files.exists(paths.resume_path) && !is_replaced(files, paths))
    return lacks(at, paths.resume_path, "the checkpoint to go on from", "");
  if (sees_output_dir(files, paths)) return {};
  return lacks(at, paths.output_dir, "output_dir", "");
}

Status check_stream_files(std::span<const StreamFile> stream, const std::string& node) {
  for (const StreamFile& file : stream) {
    const auto here = file_stamp(file.path);
    if (!here.ok()) return lacks(node, file.path, "dataset", "");
    if (here->size_bytes != file.stamp.size_bytes ||
        here->modified_unix_ns != file.stamp.modified_unix_ns)
      return error(Code::kFailedPrecondition,
                   "{} of node {} is not the file that the run began with (its size or time of "
                   "change is another one): nodes of a run share its data; mount it there, or copy "
                   "it with its time (cp -p)",
                   file.path, node);
  }
  return {};
}

}  // namespace troupe::train
