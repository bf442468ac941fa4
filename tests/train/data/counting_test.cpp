// Counts of a batch that nobody makes are those of the batch.

#include <doctest/doctest.h>

#include "runtime/base/random.h"
#include "train/data/token_dataset.h"

namespace troupe::train {
namespace {

constexpr TokenId kPad = 7;

TokenDataset random_dataset(TokenDataset::Kind kind, SeededRandom& random) {
  TokenDataset dataset(kind, kPad);
  for (int sample = 0; sample < 20; ++sample) {
    // A sample may be one token, all padding, without any target.
    std::vector<TokenId> ids(1 + random.below(19));
    std::vector<std::int32_t> labels(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<TokenId>(random.below(10));
      labels[i] = random.below(3) == 0 || sample == 4 ? kIgnoredLabel : ids[i];
    }
    if (kind == TokenDataset::Kind::kPretrain) {
      dataset.append(ids);
    } else {
      const std::vector<std::int32_t> parts{static_cast<std::int32_t>(ids.size())};
      dataset.append(ids, labels, parts);
    }
  }
  return dataset;
}

TEST_CASE("labels, tokens and length without collating equal those of the collated batch") {
  using Kind = TokenDataset::Kind;
  SeededRandom random(11);
  for (const Kind kind : {Kind::kPretrain, Kind::kSupervised, Kind::kPacked, Kind::kNeatPacked}) {
    CAPTURE(static_cast<int>(kind));
    const TokenDataset dataset = random_dataset(kind, random);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::uint32_t> samples(random.below(6));
      for (auto& sample : samples) sample = static_cast<std::uint32_t>(random.below(20));
      const TokenBatch batch = collate(dataset, samples);
      CHECK(label_count(dataset, samples) == count_labels(batch));
      const TokenBatch ragged = collate_ragged(dataset, samples);
      CHECK(count_target_tokens(ragged) == count_target_tokens(batch));
      CHECK(real_tokens(dataset, samples) == static_cast<std::int64_t>(ragged.ids.size()));
      CHECK(collated_length(dataset, samples) == batch.length);
      TokenBatch placed = ragged;
      add_places(dataset, samples, placed);
      REQUIRE(placed.samples.size() == ragged.ids.size());
      REQUIRE(placed.places.size() == ragged.ids.size());
      std::size_t at = 0;
      for (const auto sample : samples)
        for (std::int32_t place = 0; place < real_length(dataset, sample); ++place, ++at) {
          CHECK(placed.samples[at] == static_cast<std::int32_t>(sample));
          CHECK(placed.places[at] == place);
          CHECK(ragged.ids[at] == dataset.ids(sample)[static_cast<std::size_t>(place)]);
        }
      CHECK(longest_collated_length(dataset) >= batch.length);
    }
    std::vector<std::uint32_t> all(20);
    for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    CHECK(longest_collated_length(dataset) == collate(dataset, all).length);
  }
  CHECK(longest_collated_length(TokenDataset(Kind::kPretrain, 0)) == 1);
}

// What of each token of a batch matters to a model: its id, its label where that counts, its
// position and the tokens of its segment before it, all by sample.
struct Seen {
  TokenId id;
  std::int32_t label, position;
  std::vector<TokenId> before;
  bool operator==(const Seen&) const = default;
};

std::vector<Seen> seen_in(const TokenBatch& batch) {
  std::vector<Seen> out;
  std::vector<TokenId> before;
  for (std::size_t i = 0; i < batch.ids.size(); ++i) {
    const auto at = static_cast<std::int32_t>(i % static_cast<std::size_t>(batch.length));
    const bool apart =
        !batch.segment_ids.empty() && at > 0 && batch.segment_ids[i] != batch.segment_ids[i - 1];
    if (at == 0 || apart) before.clear();
    before.push_back(batch.ids[i]);
    out.push_back({.id = batch.ids[i],
                   .label = at == 0 ? kIgnoredLabel : batch.labels[i],
                   .position = batch.position_ids.empty() ? at : batch.position_ids[i],
                   .before = before});
  }
  return out;
}

TEST_CASE("a batch without padding shows the model the same tokens as one with it") {
  using Kind = TokenDataset::Kind;
  SeededRandom random(12);
  for (const Kind kind : {Kind::kPretrain, Kind::kSupervised, Kind::kPacked, Kind::kNeatPacked}) {
    CAPTURE(static_cast<int>(kind));
    const bool packed = kind == Kind::kPacked || kind == Kind::kNeatPacked;
    for (int round = 0; round < 100; ++round) {
      TokenDataset dataset(kind, kPad);
      const bool equal = round % 5 == 0;
      std::vector<std::uint32_t> samples;
      for (std::uint32_t sample = 0; sample < 1 + random.below(4); ++sample) {
        // Packed ones: 20 tokens, parts and what is left.
        std::vector<std::int32_t> parts;
        std::int32_t length = equal ? 9 : 1 + static_cast<std::int32_t>(random.below(19));
        for (std::int32_t left = length; packed && left > 0; left -= parts.back())
          parts.push_back(std::min(left, 1 + static_cast<std::int32_t>(random.below(8))));
        std::vector<TokenId> ids;
        std::vector<std::int32_t> labels;
        for (std::int32_t i = 0; i < length; ++i) {
          ids.push_back(static_cast<TokenId>(random.below(7)));
          labels.push_back(random.below(2) == 0 ? kIgnoredLabel : ids.back());
        }
        if (packed) ids.resize(20, kPad), labels.resize(20, kIgnoredLabel);
        kind == Kind::kPretrain ? dataset.append(ids) : dataset.append(ids, labels, parts);
        samples.push_back(sample);
      }
      std::vector<Seen> padded = seen_in(collate(dataset, samples));
      const std::int64_t row = collate(dataset, samples).length;
      std::vector<Seen> expected;
      for (const auto sample : samples) {
        const auto begin = padded.begin() + static_cast<std::ptrdiff_t>(sample * row);
        expected.insert(expected.end(), begin, begin + real_length(dataset, sample));
      }
      const TokenBatch ragged = collate_ragged(dataset, samples);
      CHECK(ragged.rows * ragged.length == static_cast<std::int64_t>(expected.size()));
      CHECK(seen_in(ragged) == expected);
      if (equal) CHECK(ragged.rows == std::ssize(samples));
      CHECK(equal_lengths(dataset) == (ragged.rows == std::ssize(samples)));
    }
  }
}

}  // namespace
}  // namespace troupe::train
