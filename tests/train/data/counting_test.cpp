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

TEST_CASE("targets, tokens and length without collating equal those of the collated batch") {
  using Kind = TokenDataset::Kind;
  SeededRandom random(11);
  for (const Kind kind : {Kind::kPretrain, Kind::kSupervised, Kind::kPacked, Kind::kNeatPacked}) {
    CAPTURE(static_cast<int>(kind));
    const TokenDataset dataset = random_dataset(kind, random);
    for (int round = 0; round < 200; ++round) {
      std::vector<std::uint32_t> samples(random.below(6));
      for (auto& sample : samples) sample = static_cast<std::uint32_t>(random.below(20));
      const TokenBatch batch = collate(dataset, samples);
      CHECK(target_count(dataset, samples) == count_target_tokens(batch));
      CHECK(collated_tokens(dataset, samples) == static_cast<std::int64_t>(batch.ids.size()));
      CHECK(collated_length(dataset, samples) == batch.length);
      CHECK(longest_collated_length(dataset) >= batch.length);
    }
    std::vector<std::uint32_t> all(20);
    for (std::uint32_t i = 0; i < all.size(); ++i) all[i] = i;
    CHECK(longest_collated_length(dataset) == collate(dataset, all).length);
  }
  CHECK(longest_collated_length(TokenDataset(Kind::kPretrain, 0)) == 1);
}

}  // namespace
}  // namespace troupe::train
