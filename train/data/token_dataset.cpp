#include "train/data/token_dataset.h"

#include <algorithm>
#include <numeric>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kPadMultiple = 8;  // LLaMA-Factory's pad_to_multiple_of

std::int64_t padded_length(TokenDataset::Kind kind, std::int64_t length) {
  if (kind != TokenDataset::Kind::kSupervised) return length;
  return (length + kPadMultiple - 1) / kPadMultiple * kPadMultiple;
}

}  // namespace

Result<TokenDataset> TokenDataset::over(Kind kind, TokenId pad_id, const Columns& columns,
                                        std::shared_ptr<const void> owner) {
  const auto ascend_to = [](std::span<const std::uint64_t> ends, std::size_t size) {
    return std::ranges::is_sorted(ends) && (ends.empty() ? 0 : ends.back()) == size;
  };
  const bool packed = kind != Kind::kPretrain && kind != Kind::kSupervised;
  bool good = owner &&
              columns.labels.size() == (kind == Kind::kPretrain ? 0 : columns.ids.size()) &&
              columns.part_ends.size() == (packed ? columns.ends.size() : 0) &&
              ascend_to(columns.ends, columns.ids.size()) &&
              ascend_to(columns.part_ends, columns.parts.size());
  TokenDataset out(kind, pad_id);
  out.mapped_ = columns;
  out.owner_ = std::move(owner);
  // Parts lie within their sample, one behind the other.
  for (std::int64_t i = 0; good && packed && i < out.size(); ++i) {
    std::size_t left = out.range(i).second;
    for (const std::int32_t part : out.part_lengths(i)) {
      good = good && part >= 0 && static_cast<std::size_t>(part) <= left;
      if (good) left -= static_cast<std::size_t>(part);
    }
  }
  if (!good) return error(Code::kDataLoss, "the arrays of samples do not fit together");
  return out;
}

void TokenDataset::set_reference(Reference log_probabilities) {
  TROUPE_CHECK(!log_probabilities || std::ssize(*log_probabilities) == token_count());
  reference_ = std::move(log_probabilities);
}

std::span<const float> TokenDataset::reference(std::int64_t sample) const {
  if (!reference_) return {};
  const auto [at, size] = range(sample);
  return std::span(*reference_).subspan(at, size);
}

TokenDataset::Columns TokenDataset::columns() const {
  if (owner_) return mapped_;
  return {.ids = ids_, .labels = labels_, .ends = ends_, .parts = parts_, .part_ends = part_ends_};
}

void TokenDataset::append(std::span<const TokenId> ids) {
  TROUPE_CHECK(kind_ == Kind::kPretrain && !owner_ && !reference_);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ends_.push_back(ids_.size());
}

void TokenDataset::append(std::span<const TokenId> ids, std::span<const std::int32_t> labels,
                          std::span<const std::int32_t> part_lengths) {
  TROUPE_CHECK(kind_ != Kind::kPretrain && !owner_ && !reference_ && ids.size() == labels.size());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  labels_.insert(labels_.end(), labels.begin(), labels.end());
  ends_.push_back(ids_.size());
  if (kind_ == Kind::kSupervised) return;
  parts_.insert(parts_.end(), part_lengths.begin(), part_lengths.end());
  part_ends_.push_back(parts_.size());
}

void TokenDataset::append(const TokenDataset& samples) {
  TROUPE_CHECK(kind_ == samples.kind_ && !owner_);
  const Columns more = samples.columns();
  for (const auto end : more.ends) ends_.push_back(ids_.size() + end);
  for (const auto end : more.part_ends) part_ends_.push_back(parts_.size() + end);
  ids_.insert(ids_.end(), more.ids.begin(), more.ids.end());
  labels_.insert(labels_.end(), more.labels.begin(), more.labels.end());
  parts_.insert(parts_.end(), more.parts.begin(), more.parts.end());
}

std::pair<std::size_t, std::size_t> TokenDataset::range(std::int64_t sample) const {
  TROUPE_CHECK(sample >= 0 && sample < size(), "sample {} of {}", sample, size());
  const auto ends = columns().ends;
  const auto begin = sample == 0 ? 0 : ends[static_cast<std::size_t>(sample) - 1];
  return {begin, ends[static_cast<std::size_t>(sample)] - begin};
}

std::span<const TokenId> TokenDataset::ids(std::int64_t sample) const {
  const auto [begin, count] = range(sample);
  return columns().ids.subspan(begin, count);
}

std::span<const std::int32_t> TokenDataset::labels(std::int64_t sample) const {
  if (kind_ == Kind::kPretrain) return {};
  const auto [begin, count] = range(sample);
  return columns().labels.subspan(begin, count);
}

std::span<const std::int32_t> TokenDataset::part_lengths(std::int64_t sample) const {
  TROUPE_CHECK(sample >= 0 && sample < size(), "sample {} of {}", sample, size());
  const Columns all = columns();
  if (all.part_ends.empty()) return {};
  const auto at = static_cast<std::size_t>(sample);
  const auto begin = at == 0 ? 0 : all.part_ends[at - 1];
  return all.parts.subspan(begin, all.part_ends[at] - begin);
}

Status check_tokens(const TokenDataset& dataset, std::span<const std::uint32_t> samples,
                    std::int64_t vocab_size) {
  for (const auto sample : samples) {
    bool good = true;
    for (const TokenId id : dataset.ids(sample)) good &= id >= 0 && id < vocab_size;
    for (const std::int32_t label : dataset.labels(sample))
      good &= label == kIgnoredLabel || (label >= 0 && label < vocab_size);
    if (!good)
      return error(Code::kDataLoss,
                   "sample {} of the tokenised data has ids beyond the {} of the vocabulary: its "
                   "file is damaged, or of another model; overwrite_cache: true makes it anew",
                   sample, vocab_size);
  }
  return {};
}

std::int64_t collated_length(const TokenDataset& dataset, std::span<const std::uint32_t> samples) {
  std::int64_t length = 0;
  for (const auto sample : samples) {
    length = std::max(length, static_cast<std::int64_t>(dataset.ids(sample).size()));
  }
  return padded_length(dataset.kind(), length);
}

std::int64_t longest_sequence(const TokenDataset& dataset) {
  if (dataset.kind() != TokenDataset::Kind::kPairs &&
      dataset.kind() != TokenDataset::Kind::kFeedback)
    return longest_collated_length(dataset);
  return longest_part(dataset);
}

std::int64_t longest_part(const TokenDataset& dataset) {
  std::int64_t length = 1;
  for (std::int64_t sample = 0; sample < dataset.size(); ++sample)
    for (const std::int32_t part : dataset.part_lengths(sample))
      length = std::max<std::int64_t>(length, part);
  return length;
}

std::int64_t longest_collated_length(const TokenDataset& dataset) {
  std::int64_t length = 1;
  for (std::int64_t sample = 0; sample < dataset.size(); ++sample) {
    length = std::max(length, static_cast<std::int64_t>(dataset.ids(sample).size()));
  }
  return padded_length(dataset.kind(), length);
}

std::int64_t real_length(const TokenDataset& dataset, std::uint32_t sample) {
  const auto all = static_cast<std::int64_t>(dataset.ids(sample).size());
  const auto parts = dataset.part_lengths(sample);
  if (parts.empty()) return all;
  const auto sum = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  return std::min(all, std::max<std::int64_t>(1, sum));
}

bool equal_lengths(const TokenDataset& dataset) {
  for (std::int64_t sample = 1; sample < dataset.size(); ++sample)
    if (real_length(dataset, static_cast<std::uint32_t>(sample)) != real_length(dataset, 0))
      return false;
  return true;
}

std::int64_t real_tokens(const TokenDataset& dataset, std::span<const std::uint32_t> samples) {
  std::int64_t tokens = 0;
  for (const auto sample : samples) tokens += real_length(dataset, sample);
  return tokens;
}

std::int64_t label_count(const TokenDataset& dataset, std::span<const std::uint32_t> samples) {
  const auto count_but = [](std::span<const std::int32_t> labels, std::int32_t ignored) {
    return std::ssize(labels) - std::count(labels.begin(), labels.end(), ignored);
  };
  std::int64_t count = 0;
  for (const auto sample : samples) {
    // In pre-training the labels are the ids, but for the padding token.
    count += dataset.kind() == TokenDataset::Kind::kPretrain
                 ? count_but(dataset.ids(sample), dataset.pad_id())
                 : count_but(dataset.labels(sample), kIgnoredLabel);
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

TokenBatch collate_answers(const TokenDataset& dataset, std::span<const std::uint32_t> samples,
                           Answers answers) {
  TROUPE_CHECK(dataset.kind() == TokenDataset::Kind::kFeedback);
  TokenBatch out;
  out.rows = 1;
  for (const auto sample : samples) {
    const auto parts = dataset.part_lengths(sample);
    const bool first = answers == Answers::kOwn;
    const auto begin = static_cast<std::size_t>(first ? 0 : parts[0]);
    const auto length = static_cast<std::size_t>(parts[first ? 0 : 1]);
    const auto ids = dataset.ids(sample).subspan(begin, length);
    const auto labels = dataset.labels(sample).subspan(begin, length);
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.labels.insert(out.labels.end(), labels.begin(), labels.end());
    if (const auto reference = dataset.reference(sample); !reference.empty())
      out.reference.insert(out.reference.end(),
                           reference.begin() + static_cast<std::ptrdiff_t>(begin),
                           reference.begin() + static_cast<std::ptrdiff_t>(begin + length));
    const auto segment = static_cast<std::int32_t>(out.desirable.size()) + 1;
    for (std::size_t i = 0; i < length; ++i)
      out.position_ids.push_back(static_cast<std::int32_t>(i)), out.segment_ids.push_back(segment);
    out.desirable.push_back(parts.size() > 2 ? 1 : 0);
  }
  out.length = std::ssize(out.ids);
  return out;
}

TokenBatch collate_ragged(const TokenDataset& dataset, std::span<const std::uint32_t> samples) {
  const auto kind = dataset.kind();
  const bool apart = kind == TokenDataset::Kind::kNeatPacked || kind == TokenDataset::Kind::kPairs;
  const bool packed = kind == TokenDataset::Kind::kPacked || apart;
  TokenBatch out;
  if (samples.empty()) return out;
  const std::int64_t tokens = real_tokens(dataset, samples);
  out.rows = static_cast<std::int64_t>(samples.size());
  out.length = real_length(dataset, samples.front());
  bool flat = false;
  for (const auto sample : samples) flat = flat || real_length(dataset, sample) != out.length;
  if (flat) out.rows = 1, out.length = tokens;
  const auto cells = static_cast<std::size_t>(tokens);
  const bool positions = flat || packed;
  const bool segments = flat || apart;
  out.ids.reserve(cells);
  out.labels.reserve(cells);
  if (positions) out.position_ids.reserve(cells);
  if (segments) out.segment_ids.reserve(cells);
  std::int32_t segment = 0;
  for (const auto sample : samples) {
    const auto length = static_cast<std::size_t>(real_length(dataset, sample));
    const auto ids = dataset.ids(sample).first(length);
    const std::size_t start = out.ids.size();
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    if (kind == TokenDataset::Kind::kPretrain) {
      for (const TokenId id : ids)
        out.labels.push_back(id != dataset.pad_id() ? id : kIgnoredLabel);
    } else {
      const auto labels = dataset.labels(sample).first(length);
      out.labels.insert(out.labels.end(), labels.begin(), labels.end());
    }
    if (length > 0) out.labels[start] = kIgnoredLabel;
    if (const auto reference = dataset.reference(sample); !reference.empty())
      out.reference.insert(out.reference.end(), reference.begin(),
                           reference.begin() + static_cast<std::ptrdiff_t>(length));
    // Parts of packed samples begin at 0 each; only the neat ones do not see one another.
    const std::int32_t whole[] = {static_cast<std::int32_t>(length)};
    const auto parts = dataset.part_lengths(sample);
    ++segment;
    for (const auto part :
         packed && !parts.empty() ? parts : std::span<const std::int32_t>(whole)) {
      for (std::int32_t i = 0; i < part; ++i) {
        if (positions) out.position_ids.push_back(i);
        if (segments) out.segment_ids.push_back(segment);
      }
      if (apart) ++segment;
    }
    // A sample of padding alone keeps one token.
    if (positions) out.position_ids.resize(out.ids.size(), 0);
    if (segments) out.segment_ids.resize(out.ids.size(), segment);
  }
  return out;
}

void add_places(const TokenDataset& dataset, std::span<const std::uint32_t> samples,
                TokenBatch& batch, std::int64_t first) {
  batch.samples.reserve(batch.ids.size());
  batch.places.reserve(batch.ids.size());
  for (const auto sample : samples)
    for (std::int64_t place = 0; place < real_length(dataset, sample); ++place) {
      batch.samples.push_back(static_cast<std::int32_t>(first + sample));
      batch.places.push_back(static_cast<std::int32_t>(place));
    }
}

std::int64_t count_labels(const TokenBatch& batch) {
  return std::ssize(batch.labels) -
         std::count(batch.labels.begin(), batch.labels.end(), kIgnoredLabel);
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
