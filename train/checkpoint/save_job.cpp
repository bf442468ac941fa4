#include "train/checkpoint/save_job.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/sort_by.h"
#include "train/checkpoint/weight_shards.h"
#include "train/checkpoint/weights.h"

namespace troupe::train {

PlannedFileWriter::PlannedFileWriter(FileSystem& files, std::string directory, const SavePlan& plan,
                                     WriteBuffer& buffer, const std::atomic<bool>& cancelled)
    : files_(files), directory_(std::move(directory)), plan_(plan), writer_(buffer, cancelled) {}

Status PlannedFileWriter::begin(const PlannedPart& part) {
  if (index_ != part.file) {
    TROUPE_RETURN_IF_ERROR(close());
    const auto& file = plan_.files[part.file];
    file_ = TROUPE_TRY(files_.open_positional(join_path(directory_, file.name), file.size_bytes));
    index_ = part.file;
  }
  writer_.begin(*file_, part.offset);
  return {};
}

Status PlannedFileWriter::close() {
  if (!file_) return {};
  index_.reset();
  const auto file = std::exchange(file_, nullptr);
  TROUPE_RETURN_IF_ERROR(file->sync());
  return file->close();
}

SaveJob::SaveJob(FileSystem& files, const Clock& clock, const SaverOptions& options,
                 SaveTarget target, std::string suffix, int rank, SaveContents contents,
                 std::shared_ptr<const SavePlan> plan)
    : files_(files),
      clock_(clock),
      options_(options),
      target_(target),
      suffix_(std::move(suffix)),
      directory_(CheckpointTransaction::path_of(options.output_dir, contents.step, suffix_)),
      rank_(rank),
      contents_(std::move(contents)),
      plan_(std::move(plan)) {}

std::span<const std::byte> SaveJob::bytes_of_segment(const PlannedPart& part,
                                                     const PlannedSegment& segment) const {
  const auto& weights = contents_.weights;
  const auto source =
      segment.piece == PlannedSegment::kHeader ? bytes_of(plan_->files[part.file].header)
      : segment.piece < weights.size()         ? weights[segment.piece].data
                                       : contents_.optimizer[segment.piece - weights.size()].data;
  return source.subspan(segment.offset, segment.size_bytes);
}

void SaveJob::write(bool writes_pieces, WriteBuffer& buffer) {
  const auto begin = clock_.now();
  outcome_ = write_all(writes_pieces, buffer);
  write_seconds_ = std::chrono::duration<double>(clock_.now() - begin).count();
}

Status SaveJob::write_all(bool writes_pieces, WriteBuffer& buffer) {
  if (cancelled_) return error(Code::kCancelled, "the save was given up");
  if (rank_ == 0) {
    transaction_.emplace(TROUPE_TRY(
        CheckpointTransaction::begin(files_, options_.output_dir, contents_.step, suffix_)));
    TROUPE_RETURN_IF_ERROR(write_beside());
  } else if (writes_pieces) {
    TROUPE_RETURN_IF_ERROR(create_directory());
  }
  return writes_pieces ? write_pieces(buffer) : Status();
}

// The files that hold no tensors.
Status SaveJob::write_beside() {
  if (!plan_->weight_index.empty()) {
    TROUPE_RETURN_IF_ERROR(transaction_->write(kWeightsIndexFile, plan_->weight_index));
  }
  if (target_ == SaveTarget::kModel) return {};
  for (const auto& [name, content] : contents_.files) {
    TROUPE_RETURN_IF_ERROR(transaction_->write(name, content));
  }
  // Weights alone, too, have been trained on the samples up to here.
  std::vector<std::pair<const char*, const json::Value*>> states{{kCursorFile, &contents_.cursor}};
  if (contents_.has_optimizer) {
    states.emplace_back(kSchedulerFile, &contents_.scheduler);
    states.emplace_back(kRngStateFile, &contents_.rng_state);
  }
  for (const auto& [name, value] : states) {
    TROUPE_RETURN_IF_ERROR(transaction_->write(name, json::write_indented(*value, true) + "\n"));
  }
  return {};
}

Status SaveJob::write_pieces(WriteBuffer& buffer) {
  const RankPlan& mine = plan_->ranks[static_cast<std::size_t>(rank_)];
  if (mine.parts.empty()) return {};
  auto writer = make_writer(buffer);
  for (const auto& part : mine.parts) {
    TROUPE_RETURN_IF_ERROR(writer.begin(part));
    const auto segments = std::span(mine.segments).subspan(part.first_segment, part.segment_count);
    for (const auto& segment : segments) {
      TROUPE_RETURN_IF_ERROR(writer.append(bytes_of_segment(part, segment)));
    }
    hashes_.push_back(TROUPE_TRY(writer.finish()));
  }
  return writer.close();
}

std::vector<ManifestFile> SaveJob::manifest_files(
    const std::vector<std::vector<std::uint64_t>>& hashes) const {
  std::vector<ManifestFile> listed;
  for (const auto& file : plan_->files) {
    listed.push_back({{file.name, file.size_bytes, 0}, {}, file.pieces});
  }
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    const auto& parts = plan_->ranks[rank].parts;
    TROUPE_CHECK(parts.size() == hashes[rank].size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      listed[parts[i].file].parts.push_back(
          {parts[i].offset, parts[i].size_bytes, hashes[rank][i]});
    }
  }
  for (auto& file : listed) {
    stable_sort_by(file.parts, [](const auto& a, const auto& b) { return a.offset < b.offset; });
    if (file.parts.size() != 1) continue;
    file.xxh3 = file.parts.front().xxh3;
    file.parts.clear();
  }
  return listed;
}

Result<WrittenCheckpoint> SaveJob::commit(const std::vector<std::vector<std::uint64_t>>& hashes,
                                          Logger& log) {
  Manifest manifest;
  manifest.format = options_.layout == CheckpointLayout::kHf ? kFormatHf : kFormatSharded;
  manifest.world_size = static_cast<int>(hashes.size());
  manifest.run = options_.run;
  manifest.has_optimizer = contents_.has_optimizer;
  manifest.tensors = plan_->tensors;
  for (auto& file : manifest_files(hashes)) transaction_->add(std::move(file));
  auto path = transaction_->commit(std::move(manifest));
  transaction_.reset();
  if (!path) {
    return path.status()
        .prefixed(fmt::format("saving checkpoint-{} failed", contents_.step))
        .with("step", contents_.step);
  }
  WrittenCheckpoint written;
  written.step = contents_.step;
  written.path = std::move(*path);
  if (auto entries = files_.list(written.path); entries.ok()) {
    for (const auto& entry : *entries) written.size_bytes += entry.size_bytes;
  }
  auto removed = rotate_checkpoints(files_, options_.output_dir, options_.save_total_limit,
                                    contents_.step, contents_.protected_steps);
  if (removed) {
    written.removed = std::move(*removed);
  } else {
    log.warning("an old checkpoint could not be removed: {}", removed.status().to_string());
  }
  return written;
}

Status SaveJob::place_model() {
  const std::string& target = options_.output_dir;
  for (const auto& [name, content] : contents_.files) {
    TROUPE_RETURN_IF_ERROR(write_file_atomically(files_, join_path(target, name), content));
  }
  std::vector<std::string> names;
  for (const auto& file : plan_->files) names.push_back(file.name);
  if (!plan_->weight_index.empty()) names.emplace_back(kWeightsIndexFile);
  TROUPE_RETURN_IF_ERROR(put_weights_in_place(
      files_, target, names, [&](const std::string& name) { return join_path(directory_, name); }));
  TROUPE_RETURN_IF_ERROR(remove_other_companions(files_, target, contents_.files));
  TROUPE_RETURN_IF_ERROR(forget_earlier_run(files_, target));
  drop();
  return {};
}

void SaveJob::drop() {
  transaction_.reset();
  // Best effort: what stays is ignored by readers and cleared by the next writer.
  static_cast<void>(files_.remove_tree(directory_));
}

}  // namespace troupe::train
