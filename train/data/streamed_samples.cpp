#include "train/data/streamed_samples.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "runtime/base/signal_block.h"

namespace troupe::train {
namespace {

// Rows that are tokenised together where nothing is packed.
constexpr std::int64_t kRowsTogether = 128;
constexpr auto kBeat = std::chrono::milliseconds(200);

}  // namespace

StreamedSamples::StreamedSamples(FileSystem& files, StreamedSamplesOptions options,
                                 DatasetModule module, StreamBeat beat)
    : files_(files),
      options_(std::move(options)),
      module_(std::move(module)),
      beat_(std::move(beat)),
      step_(module_.train.kind(), module_.train.pad_id()) {}

Result<std::unique_ptr<StreamedSamples>> StreamedSamples::make(FileSystem& files,
                                                               const Tokenizer& tokenizer,
                                                               StreamedSamplesOptions options,
                                                               StreamBeat beat) {
  TROUPE_RETURN_IF_ERROR(check_data_options(options.data));
  auto module = TROUPE_TRY(prepare_module(options.data, tokenizer));
  return std::unique_ptr<StreamedSamples>(
      new StreamedSamples(files, std::move(options), std::move(module), std::move(beat)));
}

std::int64_t StreamedSamples::samples_of_step() const {
  const SamplerOptions& steps = options_.steps;
  return steps.world_size * steps.per_device_batch_size * steps.gradient_accumulation_steps;
}

// Where it failed rows may be lost that had been read: whoever wants those samples begins the epoch
// anew, and meets the same failure or reads them all.
void StreamedSamples::end_ahead() {
  if (!ahead_.valid()) return;
  while (ahead_.wait_for(kBeat) != std::future_status::ready)
    if (beat_) beat_();
  if (!ahead_.get().ok()) epoch_ = -1;
  works_ahead_ = false;
}

// What the step behind `step` needs, beside that one's own samples: it may be done again.
void StreamedSamples::begin_ahead(const SampleCursor& step, std::int64_t samples) {
  works_ahead_ = true;
  const SignalBlock block;  // signals are other threads'
  ahead_ = std::async(std::launch::async, [this, step, samples] {
    return reach(step.epoch, step.next_sample, samples + samples_of_step() + 1);
  });
}

Status StreamedSamples::check_files() const {
  for (const StreamFile& file : options_.files) {
    const auto now = file_stamp(file.path);
    if (!now.ok()) return now.status();
    if (now->size_bytes != file.stamp.size_bytes ||
        now->modified_unix_ns != file.stamp.modified_unix_ns)
      return error(Code::kFailedPrecondition,
                   "{} has changed since the run began: its samples would be others", file.path);
  }
  return {};
}

Status StreamedSamples::begin_epoch(std::int64_t epoch) {
  rows_.reset();
  samples_.clear();
  first_ = 0;
  rows_read_ = 0;
  ended_ = false;
  epoch_ = -1;
  TROUPE_RETURN_IF_ERROR(check_files());
  rows_ = TROUPE_TRY(RowStream::open(files_, options_.data, options_.order, epoch, [this] {
    if (beat_ && !works_ahead_) beat_();
  }));
  for (std::int64_t i = 0; i < options_.rows_kept && !ended_; ++i)
    ended_ = !TROUPE_TRY(rows_->next()).has_value();
  epoch_ = epoch;
  return {};
}

// Without packing every valid row is one sample.
Status StreamedSamples::skip_to(std::int64_t sample) {
  while (first_ < sample && !ended_) {
    const auto row = TROUPE_TRY(rows_->next());
    ended_ = !row.has_value();
    if (!row) break;
    ++rows_read_;
    first_ += row->fault.empty() ? 1 : 0;
  }
  return {};
}

Status StreamedSamples::make_some() {
  const std::int64_t together =
      packs(options_.data) ? options_.data.preprocessing_batch_size : kRowsTogether;
  std::vector<Conversation> rows;
  while (std::ssize(rows) < together && !ended_) {
    auto row = TROUPE_TRY(rows_->next());
    ended_ = !row.has_value();
    if (!row) break;
    if (!row->fault.empty() && report_.warnings.size() < 5)
      report_.warnings.push_back(fmt::format("a row of the stream is dropped: {}", row->fault));
    rows.push_back(std::move(*row));
  }
  // Nobody has changed them while these were read.
  if (ended_) TROUPE_RETURN_IF_ERROR(check_files());
  if (rows.empty()) return {};
  const auto made = TROUPE_TRY(encode_rows(rows, rows_read_, options_.data, module_, report_));
  rows_read_ += std::ssize(rows);
  const auto copy = [](auto span) { return std::vector(span.begin(), span.end()); };
  for (std::int64_t i = 0; i < made.size(); ++i)
    samples_.push_back({.ids = copy(made.ids(i)),
                        .labels = copy(made.labels(i)),
                        .parts = copy(made.part_lengths(i))});
  return {};
}

Status StreamedSamples::reach(std::int64_t epoch, std::int64_t first, std::int64_t count) {
  if (epoch != epoch_ || first < first_) TROUPE_RETURN_IF_ERROR(begin_epoch(epoch));
  const auto forget = [&] {
    while (first_ < first && !samples_.empty()) {
      samples_.pop_front();
      ++first_;
    }
  };
  forget();
  // Of pairs some are dropped when they are made: those that are passed over are made, too.
  const bool one_a_row = !packs(options_.data) && options_.data.stage != DataOptions::Stage::kPairs;
  if (first_ < first && one_a_row) TROUPE_RETURN_IF_ERROR(skip_to(first));
  while (made() < first + count && !ended_) {
    TROUPE_RETURN_IF_ERROR(make_some());
    forget();
  }
  return {};
}

Result<StepPlan> StreamedSamples::next_step(const SampleCursor& cursor) {
  const SamplerOptions& steps = options_.steps;
  const std::int64_t round = steps.world_size * steps.per_device_batch_size;
  const std::int64_t wanted = samples_of_step();
  end_ahead();
  SampleCursor now = cursor;
  std::int64_t there = 0;
  for (int epochs = 0;; ++epochs) {
    // One more says whether the epoch ends here.
    TROUPE_RETURN_IF_ERROR(reach(now.epoch, now.next_sample, wanted + 1));
    there = std::max<std::int64_t>(made() - now.next_sample, 0);
    if (there >= (steps.drop_last ? round : 1)) break;
    if (epochs > 0 || now.next_sample == 0)
      return error(Code::kInvalidArgument, "the stream has {} samples in epoch {}: {}", made(),
                   now.epoch,
                   made() == 0 ? "Cannot find valid samples"
                               : "dataloader_drop_last leaves nothing of them");
    ++now.epoch;
    now.next_sample = 0;
  }
  StepPlan plan;
  plan.epoch = now.epoch;
  plan.world_size = steps.world_size;
  plan.first_sample = now.next_sample;
  step_ = TokenDataset(step_.kind(), step_.pad_id());
  std::int64_t left = std::min(there, wanted);
  std::int64_t taken = 0;
  while (left > 0 && (left >= round || !steps.drop_last)) {
    const std::int64_t take = std::min(left, round);
    std::vector<std::uint32_t> rows;
    for (std::int64_t i = 0; i < take; ++i) rows.push_back(static_cast<std::uint32_t>(taken + i));
    for (std::size_t i = 0; std::ssize(rows) % steps.world_size != 0; ++i)
      rows.push_back(rows[i % static_cast<std::size_t>(take)]);
    const auto each = rows.size() / static_cast<std::size_t>(steps.world_size);
    for (auto begin = rows.begin(); begin != rows.end(); begin += static_cast<std::ptrdiff_t>(each))
      plan.batches.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(each));
    taken += take;
    left -= take;
  }
  for (std::int64_t i = 0; i < taken; ++i) {
    const Sample& sample = samples_[static_cast<std::size_t>(i)];
    if (step_.kind() == TokenDataset::Kind::kPretrain) {
      step_.append(sample.ids);
    } else {
      step_.append(sample.ids, sample.labels, sample.parts);
    }
  }
  const std::int64_t behind = there - taken;
  plan.last_of_epoch = ended_ && behind < (steps.drop_last ? round : 1);
  plan.after = now;
  plan.after.next_sample += taken;
  plan.after.consumed_samples += taken;
  if (plan.last_of_epoch) {
    ++plan.after.epoch;
    plan.after.next_sample = 0;
  }
  std::ranges::move(std::exchange(report_.warnings, {}), std::back_inserter(warnings_));
  if (!plan.last_of_epoch) begin_ahead(now, taken);
  return plan;
}

Result<TokenDataset> first_samples(FileSystem& files, const Tokenizer& tokenizer,
                                   const StreamedSamplesOptions& options) {
  auto module = TROUPE_TRY(prepare_module(options.data, tokenizer));
  auto stream = TROUPE_TRY(RowStream::open(files, options.data, options.order, 0));
  std::vector<Conversation> rows;
  while (std::ssize(rows) < options.rows_kept) {
    auto row = TROUPE_TRY(stream->next());
    if (!row)
      return error(Code::kInvalidArgument,
                   "val_size={} takes all {} rows: none is left to train on", options.rows_kept,
                   rows.size())
          .with("key", "val_size");
    rows.push_back(std::move(*row));
  }
  EncodeReport report;
  auto samples = TROUPE_TRY(encode_rows(rows, 0, options.data, module, report));
  if (samples.size() == 0)
    return error(Code::kInvalidArgument, "evaluation data: Cannot find valid samples");
  return samples;
}

Result<SampleStream> describe_streamed(FileSystem& files, const StreamedSamplesOptions& options,
                                       const StreamOrigin& origin) {
  SampleStream stream;
  Xxh3Stream all;
  for (const std::string& path : TROUPE_TRY(training_files(files, options.data))) {
    const FileStamp stamp = TROUPE_TRY(file_stamp(path));
    const std::uint64_t words[] = {stamp.size_bytes,
                                   static_cast<std::uint64_t>(stamp.modified_unix_ns)};
    stream.files.push_back(
        {.path = path, .stamp = stamp, .xxh3 = xxh3_64(std::as_bytes(std::span(words)))});
    all.update(std::as_bytes(std::span(words)));
  }
  stream.xxh3 = all.digest();
  stream.settings = TROUPE_TRY(stream_settings(files, options.data, origin));
  stream.settings["streaming"] = true;
  if (options.order.shuffle) stream.settings["buffer_size"] = options.order.buffer_size;
  stream.settings["seed"] = options.data.seed;
  return stream;
}

}  // namespace troupe::train
