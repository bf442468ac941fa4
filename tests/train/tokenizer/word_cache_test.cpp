// Words that were seen before, short and long, and what is left of them when the cache is full.

#include "train/tokenizer/word_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace troupe::train {
namespace {

using Ids = std::vector<std::int32_t>;

Ids found(const WordCache& cache, const std::string& word) {
  const auto ids = cache.find(word);
  return {ids.begin(), ids.end()};
}

TEST_CASE("a word has the ids it was remembered with, of any length and however many they are") {
  WordCache cache;
  CHECK(found(cache, "anything") == Ids{});
  const std::vector<std::string> words = {"a", "fifteen letters", "sixteen letters.",
                                          std::string(WordCache::kWordBytesMax, 'x')};
  for (std::size_t i = 0; i < words.size(); ++i)
    for (int count : {1, 3, 4, 40}) {
      const Ids ids(static_cast<std::size_t>(count), static_cast<std::int32_t>(i));
      const std::string word = std::to_string(count) + words[i].substr(words[i].size() > 2 ? 2 : 0);
      cache.insert(word, ids);
      CHECK(found(cache, word) == ids);
    }
  CHECK(found(cache, "fifteen letterz") == Ids{});
  CHECK(found(cache, "sixteen letters,") == Ids{});
}

TEST_CASE("of many long words each is found as it was, or not at all, and the last one always") {
  WordCache cache;
  const auto word = [](int i) { return "a rather long word, number " + std::to_string(i); };
  const auto ids = [](int i) { return Ids{i, i + 1, -i, 7}; };
  constexpr int kMany = 20'000;
  for (int i = 0; i < kMany; ++i) {
    cache.insert(word(i), ids(i));
    REQUIRE(found(cache, word(i)) == ids(i));
  }
  int kept = 0;
  for (int i = 0; i < kMany; ++i) {
    const Ids now = found(cache, word(i));
    REQUIRE((now.empty() || now == ids(i)));
    kept += now.empty() ? 0 : 1;
  }
  CHECK(kept > 0);
  CHECK(kept < kMany);  // it does not grow
}

}  // namespace
}  // namespace troupe::train
