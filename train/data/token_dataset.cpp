#include "train/data/token_dataset.h"

#include <algorithm>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kPadMultiple = 8;  // LLaMA-Factory's pad_to_multiple_of

std::int64_t padded_length(TokenDataset::Kind kind, std::int64_t length) {
  if (kind != TokenDataset::Kind::kSupervised) return length;
  return (length + kPadMultiple - 1) / kPadMultiple * kPadMultiple;
}

}  // namespace

void TokenDataset::append(std::span<const TokenId> ids) {
  TROUPE_CHECK(kind_ == Kind::kPretrain);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ends_.push_back(ids_.size());
}

void TokenDataset::append(std::span<const TokenId> ids, std::span<const std::int32_t> labels,
                          std::span<const std::int32_t> part_lengths) {
  TROUPE_CHECK(kind_ != Kind::kPretrain && ids.size() == labels.size());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  labels_.insert(labels_.end(), labels.begin(), labels.end());
  ends_.push_back(ids_.size());
  if (kind_ == Kind::kSupervised) return;
  parts_.insert(parts_.end(), part_lengths.begin(), part_lengths.end());
  part_ends_.push_back(parts_.size());
}

std::pair<std::size_t, std::size_t> TokenDataset::range(std::int64_t sample) const {
  TROUPE_CHECK(sample >= 0 && sample < size(), "sample {} of {}", sample, size());
  const auto begin = sample == 0 ? 0 : ends_[static_cast<std::size_t>(sample) - 1];
  return {begin, ends_[static_cast<std::size_t>(sample)] - begin};
}

std::span<const TokenId> TokenDataset::ids(std::int64_t sample) const {
  const auto [begin, count] = range(sample);
  return std::span(ids_).subspan(begin, count);
}

std::span<const std::int32_t> TokenDataset::labels(std::int64_t sample) const {
  if (kind_ == Kind::kPretrain) return {};
  const auto [begin, count] = range(sample);
  return std::span(labels_).subspan(begin, count);
}

std::span<const std::int32_t> TokenDataset::part_lengths(std::int64_t sample) const {
  TROUPE_CHECK(sample >= 0 && sample < size(), "sample {} of {}", sample, size());
  if (part_ends_.empty()) return {};
  const auto at = static_cast<std::size_t>(sample);
  const auto begin = at == 0 ? 0 : part_ends_[at - 1];
  return std::span(parts_).subspan(begin, part_ends_[at] - begin);
}

std::int64_t collated_length(const TokenDataset& dataset, std::span<const std::uint32_t> samples) {
  std::int64_t length = 0;
  for (const auto sample : samples) {
    length = std::max(length, static_cast<std::int64_t>(dataset.ids(sample).size()));
  }
  return padded_length(dataset.kind(), length);
}

std::int64_t longest_collated_length(const TokenDataset& dataset) {
  std::int64_t length = 1;
  for (std::int64_t sample = 0; sample < dataset.size(); ++sample) {
    length = std::max(length, static_cast<std::int64_t>(dataset.ids(sample).size()));
  }
  return padded_length(dataset.kind(), length);
}

std::int64_t collated_tokens(const TokenDataset& dataset, std::span<const std::uint32_t> samples) {
  return static_cast<std::int64_t>(samples.size()) * collated_length(dataset, samples);
}

std::int64_t target_count(const TokenDataset& dataset, std::span<const std::uint32_t> samples) {
  const auto count_from_second = [](std::span<const std::int32_t> labels, std::int32_t ignored) {
    if (labels.empty()) return std::int64_t{0};
    return static_cast<std::int64_t>(labels.size() - 1) -
           std::count(labels.begin() + 1, labels.end(), ignored);
  };
  std::int64_t count = 0;
  for (const auto sample : samples) {
    // In pre-training the labels are the ids, but for the padding token.
    count += dataset.kind() == TokenDataset::Kind::kPretrain
                 ? count_from_second(dataset.ids(sample), dataset.pad_id())
                 : count_from_second(dataset.labels(sample), kIgnoredLabel);
  }
  return count;
}

TokenBatch collate(const TokenDataset& dataset, std::span<const std::uint32_t> samples) {
  const auto kind = dataset.kind();
  TokenBatch out;
  out.rows = static_cast<std::int64_t>(samples.size());
  out.length = collated_length(dataset, samples);
  const auto cells = static_cast<std::size_t>(out.rows * out.length);
  out.ids.assign(cells, dataset.pad_id());
  out.labels.assign(cells, kIgnoredLabel);
  const bool packed =
      kind == TokenDataset::Kind::kPacked || kind == TokenDataset::Kind::kNeatPacked;
  if (packed) out.position_ids.assign(cells, 0);
  if (kind == TokenDataset::Kind::kNeatPacked) out.segment_ids.assign(cells, 0);
  for (std::size_t row = 0; row < samples.size(); ++row) {
    const auto start = row * static_cast<std::size_t>(out.length);
    const auto ids = dataset.ids(samples[row]);
    std::copy(ids.begin(), ids.end(), out.ids.begin() + static_cast<std::ptrdiff_t>(start));
    if (kind == TokenDataset::Kind::kPretrain) {
      // As Hugging Face's collator for language modelling: no padding token is ever a target.
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] != dataset.pad_id()) out.labels[start + i] = ids[i];
      }
      continue;
    }
    const auto labels = dataset.labels(samples[row]);
    std::copy(labels.begin(), labels.end(),
              out.labels.begin() + static_cast<std::ptrdiff_t>(start));
    std::size_t at = start;
    std::int32_t segment = 0;
    for (const auto length : dataset.part_lengths(samples[row])) {
      ++segment;
      for (std::int32_t i = 0; i < length; ++i, ++at) {
        out.position_ids[at] = i;
        if (!out.segment_ids.empty()) out.segment_ids[at] = segment;
      }
    }
  }
  return out;
}

std::int64_t count_target_tokens(const TokenBatch& batch) {
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    for (std::int64_t i = 1; i < batch.length; ++i) {
      count += batch.labels[static_cast<std::size_t>(row * batch.length + i)] != kIgnoredLabel;
    }
  }
  return count;
}

}  // namespace troupe::train
