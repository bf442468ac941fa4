#include "train/sharding/shard_map.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

namespace troupe::train {
namespace {

// 64 wide, 2 layers; the vocabulary decides the embedding's tiles (1 per 256 tokens).
ModelConfig small_config(std::int64_t vocab_size, std::int64_t layers = 2, bool tied = true) {
  ModelConfig config;
  config.vocab_size = vocab_size;
  config.hidden_size = 64;
  config.intermediate_size = 192;
  config.num_hidden_layers = layers;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.tie_word_embeddings = tied;
  return config;
}

// Ranges of a unit are whole tiles, in the members' order, without gaps; shards hold what they own
// in the units' order, one after another.
void check_map(const ParameterLayout& layout, int members) {
  CAPTURE(members);
  const ShardMap map(layout, members);
  CHECK(map.members() == members);
  std::vector<std::int64_t> shard_ends(static_cast<std::size_t>(members), 0);
  for (int unit = 0; unit < static_cast<int>(layout.units().size()); ++unit) {
    CAPTURE(unit);
    const UnitInfo& info = layout.units()[static_cast<std::size_t>(unit)];
    REQUIRE(map.counts(unit).size() == static_cast<std::size_t>(members));
    std::int64_t end = 0;
    for (int member = 0; member < members; ++member) {
      const ElementRange range = map.range(unit, member);
      CHECK(range.begin == end);
      CHECK(range.size() >= 0);
      CHECK(range.size() % kTileElements == 0);
      CHECK(static_cast<std::int64_t>(map.counts(unit)[static_cast<std::size_t>(member)]) ==
            range.size());
      CHECK(map.flat_range(unit, member) ==
            ElementRange{info.flat_offset + range.begin, info.flat_offset + range.end});
      auto& shard_end = shard_ends[static_cast<std::size_t>(member)];
      CHECK(map.shard_offset(unit, member) == shard_end);
      shard_end += range.size();
      end = range.end;
    }
    CHECK(end == info.elements);
  }
  std::int64_t total = 0;
  for (int member = 0; member < members; ++member) {
    CHECK(map.shard_elements(member) == shard_ends[static_cast<std::size_t>(member)]);
    total += map.shard_elements(member);
  }
  CHECK(total == layout.total_elements());
}

// Most and fewest tiles of a member.
std::pair<std::int64_t, std::int64_t> tiles_of(const ShardMap& map) {
  std::vector<std::int64_t> tiles;
  for (int member = 0; member < map.members(); ++member)
    tiles.push_back(map.shard_elements(member) / kTileElements);
  const auto [least, most] = std::minmax_element(tiles.begin(), tiles.end());
  return {*least, *most};
}

TEST_CASE("every tile has one owner") {
  for (const std::int64_t vocab : {100, 1000, 5000}) {
    for (const bool tied : {true, false}) {
      const ParameterLayout layout(small_config(vocab, 3, tied));
      for (const int members : {1, 2, 3, 4, 5, 7, 8, 16}) check_map(layout, members);
    }
  }
}

TEST_CASE("one member owns everything, in place") {
  const ParameterLayout layout(small_config(1000));
  const ShardMap map(layout, 1);
  for (int unit = 0; unit < static_cast<int>(layout.units().size()); ++unit) {
    CHECK(map.shard_offset(unit, 0) == layout.units()[static_cast<std::size_t>(unit)].flat_offset);
  }
  CHECK(map.shard_elements(0) == layout.total_elements());
}

TEST_CASE("shards differ by at most a tile") {
  for (const std::int64_t layers : {1, 2, 7, 31}) {
    for (const std::int64_t vocab : {100, 700, 5000}) {
      const ParameterLayout layout(small_config(vocab, layers));
      for (const int members : {2, 3, 4, 5, 6, 7, 8, 12, 16}) {
        CAPTURE(layers);
        CAPTURE(vocab);
        CAPTURE(members);
        const auto [least, most] = tiles_of(ShardMap(layout, members));
        CHECK(most - least <= 1);
      }
    }
  }
}

TEST_CASE("units of a single tile go to one member each") {
  // With tied embeddings the head is the final norm alone.
  const ParameterLayout layout(small_config(1000));
  const int head = static_cast<int>(layout.units().size()) - 1;
  REQUIRE(layout.units().back().elements == kTileElements);
  for (const int members : {2, 4, 5}) {
    const ShardMap map(layout, members);
    int owners = 0;
    for (int member = 0; member < members; ++member) {
      const auto size = map.range(head, member).size();
      CHECK((size == 0 || size == kTileElements));
      owners += size > 0 ? 1 : 0;
    }
    CHECK(owners == 1);
  }
}

TEST_CASE("more members than tiles") {
  const ParameterLayout layout(small_config(100, 1));
  const int members = static_cast<int>(layout.tile_count()) + 5;
  check_map(layout, members);
  const auto [least, most] = tiles_of(ShardMap(layout, members));
  CHECK(least == 0);
  CHECK(most == 1);
}

TEST_CASE("the same layout is dealt the same way") {
  const ParameterLayout layout(small_config(1000));
  const ParameterLayout again(small_config(1000));
  const ShardMap one(layout, 4), other(again, 4);
  for (int unit = 0; unit < static_cast<int>(layout.units().size()); ++unit) {
    for (int member = 0; member < 4; ++member)
      CHECK(one.range(unit, member) == other.range(unit, member));
  }
}

}  // namespace
}  // namespace troupe::train
