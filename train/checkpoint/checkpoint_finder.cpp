#include "train/checkpoint/checkpoint_finder.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <map>

#include <fmt/format.h>

#include "runtime/base/limits.h"
#include "runtime/base/sort_by.h"
#include "train/checkpoint/checkpoint_directory.h"
#include "train/checkpoint/checkpoint_names.h"
#include "train/checkpoint/inspect.h"
#include "train/checkpoint/tensor_reader.h"

namespace troupe::train {
namespace {

std::optional<std::int64_t> step_after(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  if (name.empty() || name[0] < '0' || name[0] > '9') return std::nullopt;
  std::int64_t step = 0;
  const auto [end, ec] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (ec != std::errc() || end != name.data() + name.size()) return std::nullopt;
  if (step > kCheckpointStepMax) return std::nullopt;
  return step;
}

// Files that only we write: where one stands without a marker, the checkpoint is a damaged one of
// ours, not another program's.
constexpr const char* kOwnFiles[] = {kOptimizerFile, kCursorFile, kRngStateFile, kSchedulerFile};

Result<GoodCheckpoint> validate_foreign(FileSystem& files, const std::string& path) {
  for (const char* name : kOwnFiles) {
    if (files.exists(join_path(path, name))) {
      return error(Code::kDataLoss, "{} has no {}: it is incomplete or its marker was removed",
                   path, kManifestFile);
    }
  }
  if (!files.exists(join_path(path, "config.json"))) {
    return error(Code::kDataLoss, "{} has neither {} nor config.json: it is incomplete", path,
                 kManifestFile);
  }
  GoodCheckpoint good;
  good.path = path;
  good.foreign = true;
  return good;
}

std::string directory_name(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

Result<json::Value> read_json(FileSystem& files, const std::string& path) {
  if (!files.exists(path)) return json::Value();
  const auto text = TROUPE_TRY(files.read(path, limits::kJsonFileBytesMax));
  return json::parse(text, path, {.bytes_max = limits::kJsonFileBytesMax});
}

}  // namespace

std::optional<std::int64_t> checkpoint_step(std::string_view name) {
  return step_after(name, kCheckpointPrefix);
}

Result<std::vector<CheckpointName>> find_checkpoints(FileSystem& files,
                                                     const std::string& output_dir) {
  std::vector<CheckpointName> found;
  if (!files.exists(output_dir)) return found;
  std::map<std::int64_t, std::string> replaced;
  for (const auto& entry : TROUPE_TRY(files.list(output_dir))) {
    if (!entry.is_directory) continue;
    if (const auto step = checkpoint_step(entry.name)) found.push_back({entry.name, *step});
    if (const auto step = step_after(entry.name, kReplacedPrefix)) replaced[*step] = entry.name;
  }
  for (const auto& checkpoint : found) replaced.erase(checkpoint.step);
  for (const auto& [step, name] : replaced) found.push_back({name, step});
  stable_sort_by(found, [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

Result<GoodCheckpoint> check_structure(FileSystem& files, const std::string& path,
                                       const Result<Manifest>& manifest) {
  const std::string name = directory_name(path);
  auto step = checkpoint_step(name);
  if (!step) step = step_after(name, kReplacedPrefix);
  GoodCheckpoint good;
  if (manifest.ok()) {
    good.path = path;
    good.manifest = *manifest;
    good.step = manifest->step;
    good.has_optimizer = manifest->has_optimizer;
    if (step && *step != good.step) {
      return error(Code::kDataLoss, "{} has the marker of step {}: it is another checkpoint's",
                   path, good.step);
    }
  } else {
    if (files.exists(join_path(path, kManifestFile))) return manifest.status();
    good = TROUPE_TRY(validate_foreign(files, path));
    good.step = step.value_or(0);
  }
  TROUPE_RETURN_IF_ERROR(TensorReader::open(files, good));
  return good;
}

Result<GoodCheckpoint> validate_checkpoint(FileSystem& files, const std::string& path,
                                           int threads) {
  if (!files.exists(path)) return error(Code::kNotFound, "there is no checkpoint {}", path);
  if (!files.exists(join_path(path, kManifestFile))) {
    return check_structure(files, path, error(Code::kNotFound, "no marker"));
  }
  const auto manifest = verify_checkpoint(files, path, threads);
  if (!manifest) return manifest.status();
  return check_structure(files, path, manifest);
}

Result<std::optional<GoodCheckpoint>> newest_good_checkpoint(
    FileSystem& files, const std::string& output_dir, std::vector<RefusedCheckpoint>* refused,
    const CheckpointSearch& search) {
  const auto names = TROUPE_TRY(find_checkpoints(files, output_dir));
  for (auto it = names.rbegin(); it != names.rend(); ++it) {
    if (search.step_max && it->step > *search.step_max) continue;
    const std::string path = join_path(output_dir, it->name);
    auto good = validate_checkpoint(files, path, search.threads);
    if (good.ok() && !search.run.empty() && good->manifest.run != search.run) {
      good = error(Code::kFailedPrecondition, "{} is of another run", path);
    }
    if (good) return std::optional(std::move(*good));
    if (refused) refused->push_back({path, good.status()});
  }
  return std::optional<GoodCheckpoint>();
}

std::string refused_message(const std::vector<RefusedCheckpoint>& refused,
                            const std::optional<GoodCheckpoint>& chosen) {
  if (refused.empty()) return {};
  std::string text;
  for (const auto& checkpoint : refused) {
    text += fmt::format("{} is not used: {}; ", directory_name(checkpoint.path),
                        checkpoint.reason.message());
  }
  return text + (chosen ? fmt::format("going on from {}", directory_name(chosen->path))
                        : std::string("no older one is good"));
}

namespace {

Result<std::optional<GoodCheckpoint>> newest_or_error(FileSystem& files,
                                                      const ResumeRequest& request,
                                                      std::vector<RefusedCheckpoint>* refused) {
  std::vector<RefusedCheckpoint> local;
  auto& list = refused ? *refused : local;
  auto good = TROUPE_TRY(newest_good_checkpoint(files, request.output_dir, &list,
                                                {.threads = request.verify_threads}));
  if (!good && !list.empty()) {
    return error(Code::kDataLoss,
                 "no checkpoint of {} can be used: {}. Remove them, name another one by "
                 "resume_from_checkpoint, or set overwrite_output_dir to start anew",
                 request.output_dir, refused_message(list, good));
  }
  return good;
}

// What is there before a run looks: its lock, or one that a killed run left behind, what a start
// that came to nothing noted of itself (train/report's files), and what a run without a terminal
// writes its output to (`troupe train --detach`). Tokenised data, half of them and their lock
// (train/trainer's kTokenCacheFolder), too.
bool is_own(std::string_view name) {
  if (name.starts_with("token_cache")) return true;
  if (name == "events.jsonl" || name == "logs") return true;
  return name == kOutputLockFile || name.starts_with(kSampleStreamFile) || name == "train.log" ||
         (name.starts_with("train-node-") && name.ends_with(".log"));
}

// What is in a directory besides the remains of a dead checkpoint writer, and the run's own lock
// and log.
enum class Held { kNothing, kSteps, kMore };  // kSteps: what a run noted of its steps, alone
Result<Held> held_in(FileSystem& files, const std::string& directory) {
  Held held = Held::kNothing;
  for (const auto& entry : TROUPE_TRY(files.list(directory))) {
    if (entry.name.starts_with(kWritingPrefix) || entry.name.starts_with(kRemovingPrefix) ||
        is_own(entry.name))
      continue;
    const bool of_steps = entry.name == "steps.jsonl" || entry.name == "trainer_log.jsonl";
    if (!of_steps) return Held::kMore;
    // Empty where no step was finished.
    if (files.size(join_path(directory, entry.name)).value_or(1) > 0) held = Held::kSteps;
  }
  return held;
}

}  // namespace

Result<std::optional<GoodCheckpoint>> find_resume_point(FileSystem& files,
                                                        const ResumeRequest& request,
                                                        std::vector<RefusedCheckpoint>* refused) {
  const std::string& from = request.resume_from_checkpoint;
  if (from == "true" || from == "True") {
    auto good = TROUPE_TRY(newest_or_error(files, request, refused));
    if (!good) {
      return error(Code::kNotFound, "No valid checkpoint found in output directory ({})",
                   request.output_dir);
    }
    return good;
  }
  const bool automatic = from.empty() || from == "false" || from == "False";
  if (!automatic) {
    auto good = validate_checkpoint(files, from, request.verify_threads);
    if (!good) return good.status().prefixed("resume_from_checkpoint");
    return std::optional(std::move(*good));
  }
  if (!from.empty() || !request.do_train || request.overwrite_output_dir ||
      !files.exists(request.output_dir)) {
    return std::optional<GoodCheckpoint>();
  }
  auto good = TROUPE_TRY(newest_or_error(files, request, refused));
  const Held held = good ? Held::kNothing : TROUPE_TRY(held_in(files, request.output_dir));
  if (held != Held::kNothing) {
    const std::string earlier = join_path(request.output_dir, kEarlierRunFolder);
    return error(Code::kFailedPrecondition,
                 "Output directory already exists and is not empty. Please set "
                 "`overwrite_output_dir`.{}{}",
                 held == Held::kSteps
                     ? " It holds what a run that ended before its first checkpoint noted of its "
                       "steps; begun anew they are noted in its place."
                     : "",
                 files.exists(earlier)
                     ? fmt::format(" The checkpoints of the run before the last one are in {}: "
                                   "move them back to go on from them.",
                                   earlier)
                     : std::string())
        .with("output_dir", request.output_dir);
  }
  return good;
}

Result<CheckpointState> read_checkpoint_state(FileSystem& files, const GoodCheckpoint& checkpoint) {
  CheckpointState state;
  const auto file = [&](const char* name) { return join_path(checkpoint.path, name); };
  if (files.exists(file(kTrainerStateFile))) {
    state.trainer_state =
        TROUPE_TRY(files.read(file(kTrainerStateFile), limits::kJsonFileBytesMax));
  }
  state.cursor = TROUPE_TRY(read_json(files, file(kCursorFile)));
  if (!checkpoint.has_optimizer) return state;
  state.scheduler = TROUPE_TRY(read_json(files, file(kSchedulerFile)));
  state.rng_state = TROUPE_TRY(read_json(files, file(kRngStateFile)));
  return state;
}

}  // namespace troupe::train
