// Bundles that were not written by encode_bundle, with a hash that is right: refused before
// anything is made of them.

#include "train/trainer/run_bundle.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/hash.h"

namespace troupe::train {
namespace {

constexpr std::size_t kGuardBytes = 16;  // magic, hash

RunBundle packed_bundle() {
  RunBundle bundle;
  bundle.model = ModelConfig::parse(R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 32,
      "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4})",
                                    "config.json")
                     .value();
  bundle.companions = {{"a.json", "{}"}};
  bundle.dataset = TokenDataset(TokenDataset::Kind::kNeatPacked, 0);
  const std::vector<TokenId> ids{5, 6, 7, 8};
  const std::vector<std::int32_t> labels{kIgnoredLabel, 6, 7, 8};
  const std::vector<std::int32_t> parts{1, 2};
  bundle.dataset.append(ids, labels, parts);
  return bundle;
}

// The bundle's bytes, changed behind its writer's back, with the hash that fits them.
template <typename Change>
Status arrival_of(Change change) {
  std::vector<std::byte> bytes = encode_bundle(packed_bundle());
  change(bytes);
  const std::uint64_t hash = xxh3_64(std::span(bytes).subspan(kGuardBytes));
  std::memcpy(bytes.data() + sizeof hash, &hash, sizeof hash);
  return decode_bundle(bytes).status();
}

// Where the last bytes are: … the parts (a count, 1, 2), the count of evaluation data sets, and the
// counts of what a reference says of both.
void set_last_part(std::vector<std::byte>& bytes, std::int32_t length) {
  std::memcpy(bytes.data() + bytes.size() - 24 - sizeof length, &length, sizeof length);
}

TEST_CASE("what a reference says travels with the samples, and fits them") {
  RunBundle bundle = packed_bundle();
  bundle.reference = std::make_shared<const std::vector<float>>(std::vector<float>{0, -1, -2, -3});
  const RunBundle arrived = decode_bundle(encode_bundle(bundle)).value();
  REQUIRE(arrived.dataset.reference());
  CHECK(*arrived.dataset.reference() == *bundle.reference);
  CHECK_FALSE(decode_bundle(encode_bundle(packed_bundle())).value().dataset.reference());
  bundle.reference = std::make_shared<const std::vector<float>>(3);
  CHECK(decode_bundle(encode_bundle(bundle)).status().code() == Code::kDataLoss);
}

TEST_CASE("a bundle whose parts do not fit into their samples is refused") {
  CHECK(arrival_of([](auto&) {}).ok());
  CHECK(arrival_of([](auto& bytes) { set_last_part(bytes, 3); }).ok());
  // Position numbers would be written behind the batch.
  for (const std::int32_t length : {4, 1'000'000, -1}) {
    CHECK(arrival_of([&](auto& bytes) { set_last_part(bytes, length); }).code() == Code::kDataLoss);
  }
}

TEST_CASE("a bundle with a companion that is no text, with more behind it, of another kind") {
  CHECK(arrival_of([](auto& bytes) {
          const std::string_view text = R"("{}")";
          const auto at =
              std::search(bytes.begin(), bytes.end(), bytes_of(text).begin(), bytes_of(text).end());
          REQUIRE(at != bytes.end());
          const std::string_view number = "1234";
          std::copy(bytes_of(number).begin(), bytes_of(number).end(), at);
        }).code() == Code::kDataLoss);
  CHECK(arrival_of([](auto& bytes) { bytes.push_back(std::byte{0}); }).code() == Code::kDataLoss);
  CHECK(arrival_of([](auto& bytes) {
          // The kind stands behind the JSON, whose length stands behind the guard.
          std::uint64_t json_bytes = 0;
          std::memcpy(&json_bytes, bytes.data() + kGuardBytes, sizeof json_bytes);
          bytes[kGuardBytes + sizeof json_bytes + json_bytes] = std::byte{9};
        }).code() == Code::kDataLoss);
}

}  // namespace
}  // namespace troupe::train
