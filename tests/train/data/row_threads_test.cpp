#include "train/data/row_threads.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "tests/train/data/support.h"
#include "train/data/encode_samples.h"

namespace troupe::train {
namespace {

TEST_CASE("for_each_row visits every row once") {
  for (const std::size_t count : {0, 1, 31, 64, 65, 1000, 100'003}) {
    std::vector<std::atomic<int>> visits(count);
    for_each_row(count, [&](std::size_t i) { ++visits[i]; });
    CHECK(std::ranges::all_of(visits, [](const auto& visit) { return visit == 1; }));
  }
}

// More rows than are held at a time, in batches that do not divide that number.
TEST_CASE("blocks of many texts are those of the texts one by one") {
  const std::size_t count = kRowsAtOnce * 2 + 77;
  const Tokenizer tokenizer = byte_tokenizer({"<e>", "<p>"}, R"({"eos_token": "<e>"})");
  std::vector<Conversation> texts(count);
  for (std::size_t i = 0; i < count; ++i)
    texts[i].messages.push_back({.content = std::string(i % 7, static_cast<char>('a' + i % 26))});
  PretrainOptions options{.cutoff_len = 5, .preprocessing_batch_size = 1000, .eos_token = "<e>"};
  std::vector<std::int64_t> done;
  options.progress = [&](std::int64_t rows, std::int64_t) { done.push_back(rows); };
  TokenDataset all(TokenDataset::Kind::kPretrain, 1), parts(TokenDataset::Kind::kPretrain, 1);
  EncodeReport report, parts_report;
  REQUIRE(encode_pretrain(texts, tokenizer, options, all, report).ok());
  CHECK(done.size() == (count + 999) / 1000);
  CHECK(done.back() == static_cast<std::int64_t>(count));
  options.progress = {};
  for (std::size_t at = 0; at < count; at += 1000)
    REQUIRE(encode_pretrain(std::span(texts).subspan(at, std::min<std::size_t>(1000, count - at)),
                            tokenizer, options, parts, parts_report)
                .ok());
  REQUIRE(all.size() == parts.size());
  bool equal = true;
  for (std::int64_t i = 0; i < all.size(); ++i)
    equal = equal && std::ranges::equal(all.ids(i), parts.ids(i));
  CHECK(equal);
  CHECK(report.tokens == parts_report.tokens);
  CHECK(report.tokens_dropped == parts_report.tokens_dropped);
}

}  // namespace
}  // namespace troupe::train
